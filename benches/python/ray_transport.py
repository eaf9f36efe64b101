"""Hand-over of a tensor between two Ray actors on two nodes: by Tensorlane, and by Ray's object store.

    python benches/python/ray_transport.py [--mib 64] [--runs 20] [--encrypted] [--json FILE]

The nodes are two network namespaces with a raylet and a sidecar in each (needs root). Both ways move the same bytes in turns, a
new object each time: an array of numpy through the object store, which is the fastest that it has, and a tensor of torch
through the transport. The object store does not encrypt, and so Tensorlane does not, but for `--encrypted`.

- `take`: the object was made, and the actor on the other node takes it and touches every page.
- `whole`: the same with the making, which is a put into the shared memory, or into the object store.

The object of every turn is hashed on both nodes, outside of the time. Exit code 1: slower than the object store, in `take` or
in `whole`. `cargo xtask bench python` has rows of it, at some sizes, on one node as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/tests"))

import nodes  # noqa: E402
import numpy as np  # noqa: E402
import raylets  # noqa: E402

WAYS = ("tensorlane", "object store")
MEASURES = ("take", "whole")
_MIB = 1 << 20
_WARM = 3
_PATIENCE = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=64, help="size of the tensor (64)")
    parser.add_argument("--runs", type=int, default=20, help="turns of each way (20)")
    parser.add_argument("--encrypted", action="store_true", help="Tensorlane encrypts")
    parser.add_argument("--json", type=Path, help="a file for the result")
    options = parser.parse_args()
    if reason := nodes.missing():
        print(f"no measurement: {reason}", file=sys.stderr)
        return 2
    room = max(4 * options.mib, 256) * _MIB
    settings = {"TENSORLANE_ENCRYPTION": "required" if options.encrypted else "none"}
    with tempfile.TemporaryDirectory() as directory:
        with raylets.driving(Path(directory), store=room, arena=str(room), **settings) as driver:
            seconds, route = driver.submit(measure, options.mib * _MIB, options.runs).result()
    result = summary(seconds, options, route)
    for line in shown(result):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["ok"] else 1


def summary(seconds: dict[str, dict[str, list[float]]], options: argparse.Namespace, route: str) -> dict[str, Any]:
    """Medians in seconds by way and measure, and how many times as fast as the object store Tensorlane is."""
    medians = {measure: {way: statistics.median(seconds[measure][way]) for way in WAYS} for measure in MEASURES}
    ratios = {measure: medians[measure]["object store"] / medians[measure]["tensorlane"] for measure in MEASURES}
    told = {"mib": options.mib, "runs": options.runs, "encrypted": options.encrypted, "route": route}
    return {**told, "median_seconds": medians, "ratio": ratios, "ok": all(ratio >= 1 for ratio in ratios.values()), "seconds": seconds}


def shown(result: dict[str, Any]) -> list[str]:
    head = f"{result['mib']} MiB between two Ray actors on two nodes, median of {result['runs']}; {result['route']}"
    lines = [
        f"{measure:5}  tensorlane {medians['tensorlane'] * 1e3:7.1f} ms   object store {medians['object store'] * 1e3:7.1f} ms"
        f"   {result['ratio'][measure]:.2f} times as fast"
        for measure, medians in result["median_seconds"].items()
    ]
    return [head, *lines]


# In the driver's process.


def measure(nbytes: int, runs: int, on: int = 1) -> tuple[dict[str, dict[str, list[float]]], str]:
    """Seconds of each turn by measure and way, and the route of the tensors; the actor that takes is on that node."""
    import ray
    import ray.cloudpickle

    cluster = raylets.cluster()
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    actor = ray.remote(num_cpus=0)(_actor_class())
    maker, taker = (actor.options(resources={f"node-{number}": 1}).remote(nbytes) for number in (0, on))
    seconds: dict[str, dict[str, list[float]]] = {measure: {way: [] for way in WAYS} for measure in MEASURES}
    for turn in range(runs + _WARM):
        for way in WAYS if turn % 2 else reversed(WAYS):
            make = maker.make_tensor if way == "tensorlane" else maker.make_array
            began = time.perf_counter()
            made = make.remote(turn)
            ray.wait([made], fetch_local=False, timeout=_PATIENCE)
            ready = time.perf_counter()
            ray.get(taker.take.remote(made), timeout=_PATIENCE)
            ended = time.perf_counter()
            hashes = ray.get([maker.hash_of.remote(turn), taker.hash_of_taken.remote()], timeout=_PATIENCE)
            assert hashes[0] == hashes[1], f"turn {turn} of {way}: {hashes}"
            del made
            cluster.empty()
            if turn >= _WARM:
                seconds["take"][way].append(ended - ready)
                seconds["whole"][way].append(ended - began)
    for actor in (maker, taker):
        ray.kill(actor)
    (route,) = (peer.route for peer in cluster.lanes[1].peers() if peer.name == "node-0")
    return seconds, f"{route}" if on else "local"


def _actor_class() -> type:
    import ray
    import torch

    class Actor:
        """Makes arrays that differ, or takes them."""

        def __init__(self, nbytes: int):
            self.array = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
            self.taken: Any = None

        def _of(self, turn: int) -> np.ndarray:
            self.array[:: _MIB // 4] = turn % 251
            return self.array

        @ray.method(tensor_transport="tensorlane")
        def make_tensor(self, turn: int) -> Any:
            return torch.from_numpy(self._of(turn))

        def make_array(self, turn: int) -> Any:
            return self._of(turn)

        def take(self, given: Any) -> int:
            self.taken = given
            return int(given[::4096].sum())

        def hash_of(self, turn: int) -> int:
            return zlib.crc32(self._of(turn))

        def hash_of_taken(self) -> int:
            taken, self.taken = self.taken, None
            return zlib.crc32(taken if isinstance(taken, np.ndarray) else taken.numpy())

    return Actor


if __name__ == "__main__":
    sys.exit(main())
