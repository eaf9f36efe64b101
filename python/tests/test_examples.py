"""The examples run as they stand, with a sidecar of their own and with one that is there, and stay short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nodes
import tensorlane
from conftest import until

EXAMPLES = Path(__file__).parents[2] / "examples"

SAID = {
    "weights.py": [f"worker {number} has version 5" for number in range(3)],
    "kv_blocks.py": ["decode has 112 tokens of 4 layers"],
    "parameter_server.py": ["the server has applied 30 gradients", *(f"worker {number} has made 10 steps" for number in range(3))],
    "pipeline.py": [f"decoder {number} has read 100 steps" for number in range(2)],
    "dataset.py": ["1000 rows of a set in 32 batches", "1000 rows of a tensor in 32 batches"],
    "ray_weights.py": [f"worker {number} has the weights of step 5" for number in range(2)],
    "tensordict_rpc.py": ["check all ones [1, 1, 1, 1, 1]", "check the others 0"],
}


# In python/tests/rl, beside TorchRL.
RUN_ELSEWHERE = {"replay_buffer.py"}


def ran(name: str, *args: str, **variables: str) -> list[str]:
    surroundings = {**os.environ, "PYTHONUNBUFFERED": "", "RAY_AUTH_MODE": "disabled", **variables}
    process = subprocess.run([sys.executable, str(EXAMPLES / name), *args], capture_output=True, text=True, timeout=400, env=surroundings)
    assert process.returncode == 0, process.stderr
    return sorted(process.stdout.splitlines())


def sent(node: nodes.Node) -> int:
    """Bytes that a node has sent over its cable."""
    with node.inside():
        devices = Path("/proc/thread-self/net/dev").read_text().splitlines()
    (cable,) = (line.split(":")[1].split() for line in devices if line.strip().startswith("e0:"))
    return int(cable[8])


@pytest.mark.parametrize("name", SAID)
def test_an_example_says_what_it_should(name):
    assert ran(name) == SAID[name]


# Ray's finds sidecars that are there in test_ray_two_nodes.py.
@pytest.mark.parametrize("name", [name for name in SAID if not name.startswith("ray_")])
def test_an_example_uses_the_sidecar_that_is_there_and_leaves_no_lease(name, sidecar, client):
    before, names = client.status(), set(client.names())
    assert ran(name, TENSORLANE_SOCKETS=sidecar.directory) == SAID[name]
    assert set(client.names()) <= names and not client.mutable_sets()
    until("its leases are gone", lambda: client.status().leases <= before.leases)


@pytest.mark.skipif(nodes.missing() is not None, reason=str(nodes.missing()))
def test_a_loader_reads_rows_of_another_node_and_only_their_bytes_travel(tmp_path):
    """Ten rows are 160 kB, and the tensor has 16 MB."""
    data = np.arange(1000, dtype=np.int64)[:, None] * np.ones(2048, np.int64)
    with nodes.with_sidecars(tmp_path) as (source, reader):
        here, there = (tensorlane.connect(node.sidecar.directory) for node in (source, reader))
        with here.put(data, "data/rows") as stored:
            rows, before = [5, 7, 700, 999], sent(source)
            assert (there.get(stored.reference[rows]).numpy() == data[rows]).all()
            assert (there.get(stored.reference[torch.tensor(rows)]).numpy() == data[rows]).all()
            assert (there.get(stored.reference[3:5]).numpy() == data[3:5]).all()
            assert sent(source) - before < 1 << 20
            said = ran("dataset.py", "node-0", "data/rows", TENSORLANE_SOCKETS=reader.sidecar.directory)
        assert said == ["1000 rows of a tensor in 32 batches"]


@pytest.mark.parametrize("name", [*SAID, *RUN_ELSEWHERE])
def test_an_example_tells_at_its_head_how_it_is_started_and_what_it_prints(name):
    head = (EXAMPLES / name).read_text().split('"""')[1]
    assert f"python examples/{name} " in head
    # Of lines that differ by a number the first one stands for all.
    for line in SAID.get(name, []):
        assert f"`{line}`" in head or any(f"`{line.replace(str(number), '0', 1)}`" in head for number in range(1, 3))


def test_every_example_is_run_and_is_short_enough_to_be_read():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID) | RUN_ELSEWHERE
    assert all(len(path.read_text().splitlines()) < 80 for path in EXAMPLES.glob("*.py"))
