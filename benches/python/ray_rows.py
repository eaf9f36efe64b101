"""Rows `vs.ray*` and `ray.transport*`: Ray's object store, and Ray's actors, on one node and on two."""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

import nodes
import raylets

import ray_transport
from contest import Bench, TwoEnds, first, lanes, rates, times, warm
import payload
from local_rows import PLAIN
from one_host import wanted
from processes import Failed
from rows import GIB, MIB, SIZES, Measured, Row, at_least, at_most

_PLACES = {"vs.ray": "on one node", "vs.ray_nodes": "between two nodes, plain"}
_LARGE = [size for size in SIZES if SIZES[size] >= 64 * MIB]
_WAY = "Ray's object store, an array of numpy put by an actor and got by the driver"
FIRST = {
    place: {
        size: at_most(f"{place}_first_{size}", "ms", f"{_WAY} {where}; memory that no object had yet, on both sides", 1.0) for size in SIZES
    }
    for place, where in _PLACES.items()
}
WARM = {
    place: {size: at_least(f"{place}_warm_{size}", "GB/s", f"{_WAY} {where}; memory of objects that are gone", 0.85) for size in _LARGE}
    for place, where in _PLACES.items()
}

_ARENA = 4 * GIB
_PATIENCE = 240
TRANSPORTED = {"64m": 64 * MIB, "100mb": 100_000_000, "1g": GIB}
_ACTORS = "the same array of numpy through Ray's object store, from actor to actor"
TRANSPORT = {
    (where, measure, size): _row
    for where, bound in (("nodes", 1.0), ("node", None))
    for measure in ray_transport.MEASURES
    for size in TRANSPORTED
    for _row in [
        at_most(f"ray.transport_{measure}_{size}", "ms", f"{_ACTORS}, between two nodes, plain", bound)
        if bound
        else Row(f"ray.transport_node_{measure}_{size}", "ms", f"{_ACTORS}, on one node")
    ]
}


def store_rows(place: str) -> list[Row]:
    """Rows beside the object store of one place, in their order."""
    return [row for rows in (FIRST[place], WARM[place]) for row in rows.values()]


def transport_rows() -> list[Row]:
    """Rows of the transport, in their order."""
    return list(TRANSPORT.values())


def store(bench: Bench, place: str) -> Iterator[Measured]:
    """Beside the object store: first on memory that is new to both, then on memory that was used."""
    rows = wanted(bench, FIRST[place], WARM[place])
    maker = 1 if place == "vs.ray_nodes" else 0
    with _driving(bench, _ARENA) as driver, ExitStack() as stack:
        ours = _ours(stack, driver, maker)
        theirs = Store(driver, maker)
        for size, pairs in first(bench, ours, theirs, bench.sizes()):
            if (row := FIRST[place][size]).name in rows:
                yield times(row, pairs)
        for size in bench.sizes(*_LARGE):
            if (row := WARM[place][size]).name in rows:
                turns = warm(bench, ours, theirs, size)
                yield rates(row, SIZES[size], [(sum(a), sum(b)) for a, b in turns])


def transport(bench: Bench) -> Iterator[Measured]:
    """Tensors from actor to actor, by Ray's transport and by its object store, each turn a new one."""
    sizes = [size for size in TRANSPORTED if TRANSPORTED[size] <= bench.largest]
    for where in ("nodes", "node"):
        of = [size for size in sizes if any(bench.wants(TRANSPORT[where, measure, size]) for measure in ray_transport.MEASURES)]
        if not of:
            continue
        with _driving(bench, _ARENA) as driver:
            for size in of:
                nbytes = TRANSPORTED[size]
                asked = driver.submit(ray_transport.measure, nbytes, bench.count(nbytes), int(where == "nodes"))
                seconds, route = asked.result(_PATIENCE * 2)
                for measure in ray_transport.MEASURES:
                    ours, theirs = (seconds[measure][way] for way in ray_transport.WAYS)
                    yield times(TRANSPORT[where, measure, size], list(zip(ours, theirs, strict=True)), route or None)


@contextmanager
def _driving(bench: Bench, arena: int) -> Iterator[ProcessPoolExecutor]:
    if reason := nodes.missing():
        raise Failed(reason)
    directory = Path(tempfile.mkdtemp(dir=bench.scratch))
    with raylets.driving(directory, store=arena, arena=str(arena), **PLAIN) as driver:
        yield driver


def _ours(stack: ExitStack, driver: ProcessPoolExecutor, maker: int) -> TwoEnds:
    told = driver.submit(_directories).result(_PATIENCE)
    return lanes(stack, (told[maker], None), (told[0], None))


class Store:
    """Ray's object store, as the driver and an actor use it."""

    def __init__(self, driver: ProcessPoolExecutor, maker: int):
        self.driver = driver
        self._asked(_begin, maker)

    def hand(self, nbytes: int, turn: int) -> tuple[float, float]:
        """A turn, and the comparison behind it."""
        return self._asked(_hand, nbytes, turn)

    def keep(self) -> None:
        """Holds what came last."""
        self._asked(_keep)

    def drop(self) -> None:
        """Gives up all that is held, and lets Ray free it."""
        self._asked(_drop)

    def settle(self) -> None:
        """Nothing is to be done: it prepares nothing."""

    def _asked(self, work: Callable, *given: Any) -> Any:
        return self.driver.submit(work, *given).result(_PATIENCE)


# In the driver's process.

_FREED = 0.3
"""Seconds in which Ray frees objects: it tells nobody when it has."""

_actor: Any = None
_last: Any = None
_kept: list[Any] = []


def _directories() -> list[str]:
    return raylets.cluster().directories


def _begin(maker: int) -> None:
    global _actor
    import ray
    import ray.cloudpickle

    for module in (sys.modules[__name__], payload):
        ray.cloudpickle.register_pickle_by_value(module)
    _actor = ray.remote(num_cpus=0)(Maker).options(resources={f"node-{maker}": 1}).remote()


def _hand(nbytes: int, turn: int) -> tuple[float, float]:
    global _last
    import ray

    ray.get(_actor.make.remote(nbytes, turn))
    box, put = ray.get(_actor.put.remote())
    began = time.perf_counter()
    array = ray.get(box[0])
    payload.touch(array)
    get = time.perf_counter() - began
    made, got = ray.get(_actor.hash_made.remote()), payload.digest(array)
    assert made == got, f"turn {turn} of {nbytes} bytes: other bytes came (Ray): {made} and {got}"
    _last = box, array
    return put, get


def _keep() -> None:
    _kept.append(_last)


def _drop() -> None:
    global _last
    _last = None
    _kept.clear()
    time.sleep(_FREED)


class Maker:
    """An actor that puts arrays that differ."""

    def __init__(self) -> None:
        self.payload = payload.Payload()

    def make(self, nbytes: int, turn: int) -> None:
        """Has the bytes of a turn ready."""
        self.made = self.payload.of(nbytes, turn)

    def put(self) -> tuple[list[Any], float]:
        """The object in a list, and the seconds of its put."""
        import ray

        began = time.perf_counter()
        made = ray.put(self.made)
        return [made], time.perf_counter() - began

    def hash_made(self) -> int:
        """Checksum of what was put."""
        return payload.digest(self.made)
