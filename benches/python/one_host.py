"""Rows `vs.*` of one host: vineyard, torchstore and torch.multiprocessing, each beside a sidecar of its pod."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Iterator

import tensorlane

from contest import WARM, Bench, Hand, TwoEnds, first, lanes, rates, times, warm
from processes import End, Failed
from rows import GIB, MIB, SIZES, Measured, Row, at_least, at_most

_STORE = "put in one process, got in another, every page read"
_VINEYARD = f"vineyard, numpy; {_STORE}"
VINEYARD_FIRST = {
    size: at_most(f"vs.vineyard_first_{size}", "ms", f"{_VINEYARD}; memory that no object had yet, on both sides", 1.0) for size in SIZES
}
VINEYARD_WARM = {
    size: at_most(f"vs.vineyard_warm_{size}", "ms", f"{_VINEYARD}; memory of objects that were deleted", 1.0)
    for size in SIZES
    if SIZES[size] < 256 * MIB
}
VINEYARD_PUT = {
    size: at_least(f"vs.vineyard_put_{size}", "GB/s", "vineyard's put alone; memory of objects that were deleted", 0.85)
    for size in SIZES
    if SIZES[size] >= 256 * MIB
}
VINEYARD_GET = {
    size: Row(f"vs.vineyard_get_{size}", "ms", "vineyard's get alone, every page read; memory of objects that were deleted")
    for size in VINEYARD_PUT
}
TORCHSTORE = {size: at_most(f"vs.torchstore_{size}", "ms", f"torchstore; {_STORE}", 1.0) for size in SIZES}
TORCH_MP = {
    size: at_most(
        f"vs.torch_mp_{size}",
        "ms",
        "torch.multiprocessing's queue, by the faster of its two ways of sharing; ours puts, and a reference goes through the same queue",
        1.0,
    )
    for size in SIZES
}

_ARENA = 4 * GIB
_OWN = ("file_descriptor", "file_system")


def all_rows() -> list[Row]:
    """Rows of this host, in their order."""
    groups = (VINEYARD_FIRST, VINEYARD_WARM, VINEYARD_PUT, VINEYARD_GET, TORCHSTORE, TORCH_MP)
    return [row for rows in groups for row in rows.values()]


def wanted(bench: Bench, *groups: dict[str, Row]) -> dict[str, Row]:
    """Rows that are asked for, of sizes that are measured, by their names."""
    sizes = bench.sizes()
    return {row.name: row for rows in groups for size, row in rows.items() if size in sizes and bench.wants(row)}


def torch_mp(bench: Bench) -> Iterator[Measured]:
    """Beside torch.multiprocessing, in the same two processes."""
    rows = wanted(bench, TORCH_MP)
    with tensorlane.Sidecar(arena=str(_ARENA)) as sidecar, End("torch_queue", sidecar.directory) as queue:
        queue.ready()
        for size, row in TORCH_MP.items():
            if row.name not in rows:
                continue
            nbytes = SIZES[size]

            def hand(way: str, turn: int) -> float:
                return queue.ask("hand", way=way, nbytes=nbytes, turn=turn)

            # Which of its ways is the faster one is tried once; ours is warmed as well.
            tried = {way: min(hand(way, turn) for turn in range(WARM)) for way in (*_OWN, "tensorlane")}
            best = min(_OWN, key=tried.__getitem__)
            pairs = []
            for turn in range(bench.count(nbytes)):
                took = {way: hand(way, turn) for way in (("tensorlane", best) if turn % 2 else (best, "tensorlane"))}
                pairs.append((took["tensorlane"], took[best]))
            yield times(row, pairs, f"limit: {best}")


def vineyard(bench: Bench) -> Iterator[Measured]:
    """Beside vineyard, first on memory that is new to both and then on memory that was used."""
    if isinstance(bench.peers, str):
        raise Failed(bench.peers)
    rows = wanted(bench, VINEYARD_FIRST, VINEYARD_WARM, VINEYARD_PUT, VINEYARD_GET)
    with ExitStack() as stack:
        ours = _ours(stack)
        socket = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tl-"))) / "v")
        ends = [
            stack.enter_context(End("vineyard_store", socket, *more, python=bench.peers)).ready() for more in ([str(_ARENA)], [])
        ]
        theirs = TwoEnds(*ends)
        for size, pairs in first(bench, ours, theirs, bench.sizes()):
            if (row := VINEYARD_FIRST[size]).name in rows:
                yield times(row, pairs)
        yield from _warm_vineyard(bench, ours, theirs, rows)


def _warm_vineyard(bench: Bench, ours: Hand, theirs: Hand, rows: dict[str, Row]) -> Iterator[Measured]:
    for size in bench.sizes():
        of = [group[size] for group in (VINEYARD_WARM, VINEYARD_PUT, VINEYARD_GET) if size in group]
        if not any(row.name in rows for row in of):
            continue
        turns = warm(bench, ours, theirs, size)
        if size in VINEYARD_WARM:
            yield times(VINEYARD_WARM[size], [(sum(a), sum(b)) for a, b in turns])
        else:
            yield rates(VINEYARD_PUT[size], SIZES[size], [(a[0], b[0]) for a, b in turns])
            yield times(VINEYARD_GET[size], [(a[1], b[1]) for a, b in turns])


def torchstore(bench: Bench) -> Iterator[Measured]:
    """Beside torchstore, which makes new memory each time."""
    if isinstance(bench.peers, str):
        raise Failed(bench.peers)
    rows = wanted(bench, TORCHSTORE)
    with ExitStack() as stack:
        ours = _ours(stack)
        environment = _without_driver(bench.peers, bench.scratch)
        theirs = Actors(stack.enter_context(End("torchstore_actors", python=bench.peers, environment=environment)).ready())
        for size, row in TORCHSTORE.items():
            if row.name in rows:
                pairs = warm(bench, ours, theirs, size)
                yield times(row, [(sum(a), sum(b)) for a, b in pairs], "a stand-in answers for the GPU's driver" if environment else None)


class Actors:
    """A store whose both ends are behind one process, which compares the bytes."""

    def __init__(self, end: End):
        self.end = end

    def hand(self, nbytes: int, turn: int) -> tuple[float, float]:
        """A turn, and the comparison behind it."""
        put, get = self.end.ask("hand", nbytes=nbytes, turn=turn)
        return put, get

    def keep(self) -> None:
        """Holds what came last."""
        self.end.ask("keep")

    def drop(self) -> None:
        """Gives up what is held."""
        self.end.ask("drop")

    def settle(self) -> None:
        """Nothing is to be done: it prepares nothing."""


def _ours(stack: ExitStack) -> TwoEnds:
    sidecar = stack.enter_context(tensorlane.Sidecar(arena=str(_ARENA)))
    return lanes(stack, (sidecar.directory, None), (sidecar.directory, None))


def _without_driver(python: Path, scratch: Path) -> dict[str, str]:
    """Variables with which Monarch loads on a machine without a driver: all calls of a stand-in answer that there is no device."""
    try:
        subprocess.run([python, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], check=True, capture_output=True)
        return {}
    except subprocess.CalledProcessError:
        pass
    find = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('monarch').origin))"
    try:
        said = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
        symbols = subprocess.run(
            ["nm", "-D", "--undefined-only", f"{said}/_rust_bindings.so"], check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"torchstore needs a stand-in for the GPU's driver here: {error}") from None
    words = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    names = sorted(word for word in words if word.startswith("cu") and word[2:3].isupper())
    source, library = scratch / "driver.c", scratch / "libcuda.so.1"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
    try:
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"torchstore needs a stand-in for the GPU's driver here, which `cc` compiles: {error}") from None
    path = os.pathsep.join(filter(None, [str(scratch), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path}
