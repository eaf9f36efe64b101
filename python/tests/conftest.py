"""Shared by the tests: one sidecar for most of them, and conditions that are waited for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator

import pytest

import tensorlane
from tensorlane.programs import program

PATIENCE = 120.0

# Children find the installed package, wherever the tests are started: not the sources, which have no native half.
os.environ["PYTHONSAFEPATH"] = "1"


def until(what: str, condition, patience: float = PATIENCE):
    """Waits for a condition, with a deadline, and returns what it gave."""
    deadline = time.monotonic() + patience
    while not (got := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)
    return got


def in_time(kind: type[tensorlane.Error], call) -> tensorlane.Error:
    """The error of a call that is refused. A client that has no answer half a second after its deadline gives up: it is asked again."""

    def told():
        with pytest.raises((kind, tensorlane.Timeout)) as refused:
            call()
        return refused.value if isinstance(refused.value, kind) else None

    return until(f"{kind.__name__} is told in time", told)


def python(script: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """Another Python with this script."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(__file__),
        env={**os.environ, **variables},
    )


def said(process: subprocess.Popen, given: str | None = None, patience: float = PATIENCE) -> str:
    """Output of a Python that ended well."""
    out, err = process.communicate(given, timeout=patience)
    assert process.returncode == 0, err
    return out


def pid_of(sidecar: tensorlane.Sidecar) -> int:
    """Process id of the program itself, which its keeper has started."""
    keeper = sidecar._process.pid
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    (pid,) = (int(child) for child in children if os.path.basename(os.readlink(f"/proc/{child}/exe")) == "tensorlane-sidecar")
    return pid


class Unkept:
    """A sidecar without a keeper, which leaves its sockets when it is killed, as that of a pod does."""

    def __init__(self, root: Path):
        self.directory = root / "sockets"
        self.directory.mkdir()
        ours = {
            "TENSORLANE_PEER": "local",
            "TENSORLANE_SOCKETS_DIRECTORY": str(self.directory),
            "TENSORLANE_STATE_DIRECTORY": str(root / "state"),
            "TENSORLANE_ARENA_SIZE": "64Mi",
            "TENSORLANE_ADMIN_LISTEN": "off",
        }
        self._environment = {**os.environ, **ours}
        self.start()

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([program("tensorlane-sidecar")], env=self._environment, **quiet)
        try:
            tensorlane.connect(self.directory, patience=PATIENCE).close()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def unkept(tmp_path) -> Iterator[Unkept]:
    sidecar = Unkept(tmp_path)
    try:
        yield sidecar
    finally:
        sidecar.kill()


@pytest.fixture(scope="session")
def sidecar():
    # More than any test writes: an example makes a set of 1.2 GB, of which a few rows are written.
    with tensorlane.Sidecar(arena="2Gi") as running:
        yield running


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory):
    """Two sidecars of one exchange, `node-0` and `node-1`, that share no memory: as if each were on a node of its own."""
    with nodes_of(tmp_path_factory.mktemp("peers"), 2, first_host=11, arena="2Gi") as nodes:
        yield nodes


@contextmanager
def nodes_of(directory: Path, count: int, *, first_host: int, arena: str, **more: str) -> Iterator[list[tensorlane.Sidecar]]:
    """Sidecars of one exchange, `node-0` and so on, at addresses from `first_host` on, that share no memory; `more` are settings of all."""
    file = directory / "peers.yaml"
    # Addresses of the loopback network that no other process of these tests has.
    high, low = os.getpid() >> 8 & 255, os.getpid() & 255
    every = [
        {
            "TENSORLANE_PEER": f"node-{number}",
            "TENSORLANE_PEERS_LISTEN": f"127.{high}.{low}.{first_host + number}:9431",
            "TENSORLANE_PEERS_FILE": str(file),
            "TENSORLANE_TRANSPORTS": "tcp",
            **more,
        }
        for number in range(count)
    ]
    with ExitStack() as stack:
        nodes = [stack.enter_context(tensorlane.Sidecar(arena=arena, settings=settings)) for settings in every]
        join(file, nodes, [printed(node, settings) for node, settings in zip(nodes, every)])
        yield nodes


def join(file: Path, sidecars: list[tensorlane.Sidecar], lines: list[str]) -> None:
    """Writes the peers file of sidecars, by a line about each, and waits until they are connected."""
    draft = file.with_name("draft")
    draft.write_text("peers:\n" + "".join(lines))
    draft.rename(file)
    for sidecar in sidecars:
        with tensorlane.connect(sidecar.directory) as connected:
            until("the peers are connected", lambda: any(peer.state == "connected" for peer in connected.peers()))


def printed(node: tensorlane.Sidecar, settings: dict[str, str]) -> str:
    """Makes the line of a peers file about a sidecar."""
    state = os.path.join(os.path.dirname(node.directory), "state")
    variables = {**settings, "TENSORLANE_SOCKETS_DIRECTORY": node.directory, "TENSORLANE_STATE_DIRECTORY": state}
    asked = subprocess.run(
        [program("tensorlane-sidecar"), "--print-peer"], capture_output=True, text=True, env={**os.environ, **variables}
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


@pytest.fixture
def clients(two_nodes):
    """A client of each of two nodes."""
    with ExitStack() as stack:
        yield [stack.enter_context(tensorlane.connect(node.directory)) for node in two_nodes]


@pytest.fixture
def group():
    """A process group of torch of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def client(sidecar):
    with tensorlane.connect(sidecar.directory) as connected:
        yield connected


@pytest.fixture
def name(request, client):
    """A name of this test's own, whose set goes with it."""
    yield request.node.name
    for left in client.mutable_sets(request.node.name):
        client.drop_set(left.reference)


@pytest.fixture
def alone(client):
    """The client, once the sessions of earlier tests and what they held are gone: for tests that count."""
    gc.collect()
    until("the sessions of earlier tests are gone", lambda: client.status().sessions == 1)
    return client
