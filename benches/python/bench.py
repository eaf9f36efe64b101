"""Tensorlane from Python, beside what people would take instead, in turns, in one run; and a verdict for every row.

    cargo xtask bench python [--with-peers] [--dist] [--json FILE] [--svg FILE] [--runs 3] [--only ROW]… [--largest 1g] [--pairs 15]

Everything is measured in each run, and of every row the run in the middle counts. The bytes of each transfer are hashed at both ends,
outside of the time. A row that cannot be measured is missed, and its note is what was said. Exit code 1: a row is missed.

`--only` takes the beginning of names, such as `py.` or `vs.ray`; `--largest` and `--pairs` are for a look in less time. `picture.py`
makes the picture anew from a file. Namespaces need root.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE / "ends"), str(_HERE.parents[1] / "python/tests")]

import between_rows  # noqa: E402
import local_rows  # noqa: E402
import nodes  # noqa: E402
import one_host  # noqa: E402
import picture  # noqa: E402
import ray_rows  # noqa: E402
import rows  # noqa: E402
from contest import Bench  # noqa: E402
from rows import SIZES, Measured, Row  # noqa: E402

_PROGRAMS, _PEERS = "TENSORLANE_BIN_DIR", "TENSORLANE_BENCH_PEERS"
_FETCH = "the Python that has it is not here: `cargo xtask bench python --with-peers` fetches it"
_PACKAGES = ("numpy", "torch", "ray")

Measure = Callable[[Bench], Iterator[Measured]]


def groups() -> list[tuple[list[Row], Measure]]:
    """Rows that are measured together, in the order of the table."""
    one = one_host
    vineyard = [row for rows in (one.VINEYARD_FIRST, one.VINEYARD_WARM, one.VINEYARD_PUT, one.VINEYARD_GET) for row in rows.values()]
    return [
        (local_rows.SMALL, local_rows.small),
        (local_rows.WEIGHTS, local_rows.weights),
        (between_rows.REMOTE, _in_namespaces(between_rows.remote)),
        *((ray_rows.store_rows(place), _beside_store(place)) for place in ray_rows.FIRST),
        (vineyard, one.vineyard),
        (list(one.TORCHSTORE.values()), one.torchstore),
        (list(one.TORCH_MP.values()), one.torch_mp),
        (between_rows.all_rows(), _in_namespaces(between_rows.net)),
        (ray_rows.transport_rows(), ray_rows.transport),
    ]


def _beside_store(place: str) -> Measure:
    return lambda bench: ray_rows.store(bench, place)


def _in_namespaces(measure: Measure) -> Measure:
    def checked(bench: Bench) -> Iterator[Measured]:
        if reason := nodes.missing():
            raise RuntimeError(reason)
        yield from measure(bench)

    return checked


def main() -> int:
    options = _options()
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    about = _about()
    print(f"{about['machine']}; {about['versions']}")
    runs = []
    with tempfile.TemporaryDirectory(prefix="tl-") as scratch:
        for number in range(1, options.runs + 1):
            print(f"\nrun {number} of {options.runs}")
            runs.append(_run(_bench(options, Path(scratch))))
            print(rows.table(runs[-1]), flush=True)
            # After each run, so that one that is interrupted leaves what there is.
            every = rows.median_of_runs(runs)
            _write(options, rows.document(every, {**about, "runs": number, "pairs": options.pairs}))
    print(f"\nmedian of {options.runs} runs\n{rows.table(every)}\n\n{rows.legend(every)}")
    missed = rows.missed(every)
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nevery row reaches its bound")
    return 1 if missed else 0


def _write(options: argparse.Namespace, text: str) -> None:
    if options.json:
        options.json.write_text(text)
    if options.svg:
        options.svg.write_text(picture.drawn(json.loads(text)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cargo xtask bench python", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="a file for the rows")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="a file for the picture")
    parser.add_argument("--runs", type=int, default=3, help="runs, of which the one in the middle counts (3)")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="rows whose names begin so; again for more")
    parser.add_argument("--largest", choices=SIZES, default="1g", help="the largest tensor (1g)")
    parser.add_argument("--pairs", type=int, default=15, help="the most pairs of a row (15)")
    options = parser.parse_args()
    if options.runs < 1 or options.pairs < 1:
        parser.error("--runs and --pairs are 1 or more")
    return options


def _bench(options: argparse.Namespace, scratch: Path) -> Bench:
    programs = os.environ.get(_PROGRAMS)
    peers = os.environ.get(_PEERS)
    return Bench(
        pairs=options.pairs,
        largest=SIZES[options.largest],
        only=options.only,
        programs=Path(programs) if programs else None,
        peers=Path(peers) if peers else _FETCH,
        scratch=scratch,
    )


def _run(bench: Bench) -> list[Measured]:
    """Every row that is asked for, of sizes that are measured."""
    every: list[Measured] = []
    for of, measure in groups():
        wanted = [row for row in of if bench.wants(row) and _fits(row, bench)]
        if wanted:
            bench.progress(f"{wanted[0].name} … {wanted[-1].name}" if len(wanted) > 1 else wanted[0].name)
            every.extend(_measured(bench, wanted, measure))
    return every


def _measured(bench: Bench, wanted: list[Row], measure: Measure) -> list[Measured]:
    """Rows of a group in their order: those that were measured before one failed are kept, and the others say why they are not."""
    found: dict[str, Measured] = {}
    why = "nothing measured it"
    try:
        for one in measure(bench):
            found[one.row.name] = one
    except Exception as error:
        why = " ".join(f"{error or type(error).__name__}".split())
    return [found.get(row.name) or Measured.missing(row, why) for row in wanted]


def _fits(row: Row, bench: Bench) -> bool:
    size = row.name.rsplit("_", 1)[-1]
    return {**SIZES, **ray_rows.TRANSPORTED}.get(size, 0) <= bench.largest or row.name.startswith("py.")


def _about() -> dict[str, str]:
    """Date, machine and versions, for the head of a file."""
    processor = _field("/proc/cpuinfo", "model name") or platform.machine()
    memory = int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) >> 20
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    cores = len(os.sched_getaffinity(0))
    machine = f"{processor}, {cores} cores, {memory} GiB, Linux {platform.release()}, congestion control {congestion}"
    packages = (f"{name} {_version(name)}" for name in _PACKAGES)
    versions = f"tensorlane {_version('tensorlane')}, Python {platform.python_version()}, {', '.join(packages)}"
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine, "versions": versions}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


if __name__ == "__main__":
    sys.exit(main())
