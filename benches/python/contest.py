"""Contests: ours and another way, in turns, with bytes that are hashed at both ends outside of the time."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Callable, Iterator, Protocol

from tensorlane.programs import program

import nodes
from payload import digest, pattern
from processes import End
from rows import MIB, SIZES, Measured, Pair, Row

WARM = 2
_POPULATED = 30.0


@dataclass
class Bench:
    """Things that every group of rows needs."""

    pairs: int
    """The most pairs of a row in one run."""
    largest: int
    """The largest tensor that is measured, in bytes."""
    only: list[str]
    """Beginnings of names of rows that are measured; none: all rows."""
    programs: Path | None
    """Directory of the built programs, where our own client in Rust is."""
    peers: Path | str
    """The Python that has the other peers, or why there is none."""
    scratch: Path
    """A directory that goes with the run."""
    about: dict[str, str] = field(default_factory=dict)

    def wants(self, row: Row) -> bool:
        """True if the row is to be measured."""
        return not self.only or any(row.name.startswith(only) for only in self.only)

    def sizes(self, *names: str) -> list[str]:
        """Sizes of these that are measured."""
        return [name for name in names or SIZES if SIZES[name] <= self.largest]

    def count(self, nbytes: int, most: int = 15) -> int:
        """Pairs of a row, fewer where each takes long."""
        for above, fewer in ((512 * MIB, 5), (128 * MIB, 7), (32 * MIB, 9)):
            if nbytes >= above:
                most = min(most, fewer)
                break
        return min(self.pairs, most)

    def progress(self, what: str) -> None:
        """Says what is being measured."""
        print(f"  {what}", flush=True)


class Hand(Protocol):
    """A way of handing a tensor to another process."""

    def hand(self, nbytes: int, turn: int) -> tuple[float, float]:
        """Seconds of the put and of the get, every page of which was read; its bytes were compared."""

    def keep(self) -> None:
        """Holds what was handed over last, so that its memory is not used again."""

    def drop(self) -> None:
        """Gives up all that is held, and waits until it is freed."""

    def settle(self) -> None:
        """Waits until what runs beside it by itself has come to rest."""


@dataclass
class TwoEnds:
    """A maker that puts and a taker that gets, each a process."""

    maker: End
    taker: End
    rested: Callable[[], None] = lambda: None
    settled: Callable[[], None] = lambda: None

    def hand(self, nbytes: int, turn: int) -> tuple[float, float]:
        """A turn, and the comparison behind it."""
        self.maker.ask("make", nbytes=nbytes, turn=turn)
        put, token = self.maker.ask("put")
        get = self.taker.ask("get", token=token)
        compare(self.maker, self.taker, f"turn {turn} of {nbytes} bytes")
        return put, get

    def keep(self) -> None:
        """Has the taker hold it: the maker does so anyway."""
        self.taker.ask("keep")

    def drop(self) -> None:
        """Drops at both ends, the reader first."""
        self.taker.ask("drop")
        self.maker.ask("drop")
        self.rested()
        self.settle()

    def settle(self) -> None:
        """Waits for the sidecars of ours."""
        self.settled()


@dataclass
class Fetch:
    """A reader of what another namespace holds: the pattern, of any size."""

    reader: End
    others: list[End]
    tokens: dict[int, str] = field(default_factory=dict)
    """References by size, of ours."""

    def seconds(self, nbytes: int) -> float:
        """Seconds of a fetch of so many bytes, which were compared behind it."""
        if self.tokens:
            took = self.reader.ask("get", token=self.tokens[nbytes])
        else:
            took = self.reader.ask("get", nbytes=nbytes)
        self.check(expected(nbytes), f"{nbytes} bytes")
        return took

    def check(self, wanted: int, what: str) -> None:
        """Compares what was read, and has ours give it up."""
        got = self.reader.ask("hash_got")
        assert got == wanted, f"{what}: other bytes came ({self.reader.name}): {wanted} and {got}"
        if self.tokens:
            self.reader.ask("drop")
            self.reader.ask("rest")


def lanes(stack: ExitStack, maker: tuple[str, nodes.Node | None], taker: tuple[str, nodes.Node | None]) -> TwoEnds:
    """Our own two ends, each beside the sidecar of a directory in a node."""
    ends = [stack.enter_context(End("lane", sockets, node=node)) for sockets, node in (maker, taker)]
    for end in ends:
        end.ready()

    def rested() -> None:
        for end in ends:
            end.ask("rest")

    def settled() -> None:
        for sockets in {maker[0], taker[0]}:
            populated(sockets)

    settled()
    return TwoEnds(*ends, rested, settled)


def populated(sockets: str) -> None:
    """Waits until a sidecar has populated what it wants to have ready."""
    until, before = time.monotonic() + _POPULATED, None
    while time.monotonic() < until:
        command = [program("tensorlane"), "status", "--sockets", sockets, "-o", "json"]
        arena = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["arena"]
        if arena["populated"] == before:
            return
        before = arena["populated"]
        time.sleep(0.1)
    raise AssertionError(f"the sidecar at {sockets} is still populating its arena after {_POPULATED:.0f} s")


def compare(maker: End, taker: End, what: str) -> None:
    """Compares the bytes of both ends."""
    maker.tell("hash_made")
    taker.tell("hash_got")
    made, got = maker.hear(), taker.hear()
    assert made == got, f"{what}: other bytes came ({taker.name}): {made} and {got}"


@cache
def expected(nbytes: int) -> int:
    """Checksum of the pattern."""
    return digest(pattern(nbytes))


_A_FEW = 64
FIRST = {"4k": 5, "64k": 5, "1m": 5, "16m": 5, "64m": 3, "256m": 2, "1g": 1}


def first(bench: Bench, ours: Hand, theirs: Hand, sizes: list[str]) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """First transfers, all kept: by size our seconds and theirs, of put and get together.

    Before them both ways hand over a few bytes, so that the ends are connected. Connecting is no transfer.
    """
    for way in (ours, theirs):
        way.hand(_A_FEW, 0)
        way.drop()
    turn = 0
    for size in sizes:
        for way in (ours, theirs):
            way.settle()
        pairs = []
        for number in range(min(bench.pairs, FIRST[size])):
            turn += 1
            took = _both(ours, theirs, SIZES[size], turn, number)
            for way in (ours, theirs):
                way.keep()
            pairs.append((sum(took[0]), sum(took[1])))
        yield size, pairs
    for way in (ours, theirs):
        way.drop()


def warm(bench: Bench, ours: Hand, theirs: Hand, size: str) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Transfers of one size, each dropped before the next one: seconds of put and get, ours and theirs."""
    pairs = []
    for number in range(WARM + bench.count(SIZES[size])):
        took = _both(ours, theirs, SIZES[size], number, number, between=True)
        if number >= WARM:
            pairs.append(took)
    return pairs


def _both(
    ours: Hand, theirs: Hand, nbytes: int, turn: int, number: int, *, between: bool = False
) -> tuple[tuple[float, float], tuple[float, float]]:
    """A turn of each way; the one that was first is second in the next."""
    took = {}
    for way in (ours, theirs) if number % 2 else (theirs, ours):
        took[id(way)] = way.hand(nbytes, turn)
        if between:
            way.drop()
    return took[id(ours)], took[id(theirs)]


def interleaved(count: int, limit: Callable[[int], float], ours: Callable[[int], float]) -> list[Pair]:
    """Limit, ours, limit, ours, …, after turns that do not count."""
    pairs = []
    for turn in range(WARM + count):
        theirs, value = limit(turn), ours(turn)
        if turn >= WARM:
            pairs.append(Pair(value, theirs))
    return pairs


def times(row: Row, pairs: list[tuple[float, float]], note: str | None = None) -> Measured:
    """A row of milliseconds, of seconds."""
    return Measured(row, [Pair(ours * 1e3, theirs * 1e3) for ours, theirs in pairs], note)


def rates(row: Row, nbytes: int, pairs: list[tuple[float, float]], note: str | None = None) -> Measured:
    """A row of gigabytes a second, of seconds."""
    return Measured(row, [Pair(nbytes / ours / 1e9, nbytes / theirs / 1e9) for ours, theirs in pairs], note)
