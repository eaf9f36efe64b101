"""Tensorlane's end, beside the sidecar of its node: `lane.py SOCKETS`."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from answering import serve
from payload import Payload, digest, pattern, touch

import numpy as np

import tensorlane

_PATIENCE = 30


class Lane:
    """Puts new tensors, or gets those of others; what it holds goes with `drop`."""

    def __init__(self, sockets: str):
        self.client = tensorlane.connect(sockets)
        self.payload = Payload()
        self.made = np.empty(0, np.uint8)
        self.got = np.empty(0, np.uint8)
        self.warm = np.empty(0, np.uint8)
        self.held: list[Any] = []

    def make(self, nbytes: int, turn: int) -> None:
        """Has the bytes of a turn ready."""
        self.made = self.payload.of(nbytes, turn)

    def hold(self, nbytes: int, row: int) -> str:
        """Puts the pattern, which other ends have as well, in rows of so many bytes; its reference."""
        self.held.append(self.client.put(pattern(nbytes).reshape(-1, row)))
        return str(self.held[-1].reference)

    def put(self) -> tuple[float, str]:
        """Seconds of a put, and the reference."""
        began = time.perf_counter()
        stored = self.client.put(self.made)
        took = time.perf_counter() - began
        self.held.append(stored)
        return took, str(stored.reference)

    def get(self, token: str) -> float:
        """Seconds until every page of a tensor was read."""
        reference = tensorlane.Reference(token)
        began = time.perf_counter()
        self.got = self.client.get(reference).numpy()
        touch(self.got.reshape(-1))
        return time.perf_counter() - began

    def map(self, token: str) -> float:
        """Seconds until a tensor is mapped, of which no page was read."""
        reference = tensorlane.Reference(token)
        began = time.perf_counter()
        self.got = self.client.get(reference).numpy()
        return time.perf_counter() - began

    def get_us(self, token: str, count: int) -> float:
        """Microseconds of one get of so many, its array and its release: their median."""
        reference = tensorlane.Reference(token)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            array = self.client.get(reference).numpy()
            del array
            took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e6

    def get_rows(self, token: str, index: list[int]) -> float:
        """Seconds until every page of some rows was read."""
        reference = tensorlane.Reference(token)
        began = time.perf_counter()
        self.got = self.client.get(reference[index]).numpy()
        touch(self.got.reshape(-1))
        return time.perf_counter() - began

    def copy(self) -> float:
        """Seconds of a copy by numpy of what was made, into memory that is warm."""
        if len(self.warm) != len(self.made):
            self.warm = np.ones_like(self.made)
        began = time.perf_counter()
        np.copyto(self.warm, self.made)
        return time.perf_counter() - began

    def hash_made(self) -> int:
        """Checksum of what was put."""
        return digest(self.made)

    def hash_got(self) -> int:
        """Checksum of what was got last."""
        return digest(self.got)

    def keep(self) -> None:
        """Holds what was got last until `drop`, so that its memory is not used again."""
        self.held.append(self.got)

    def drop(self) -> None:
        """Gives up all that is held."""
        self.held, self.got = [], np.empty(0, np.uint8)

    def rest(self) -> None:
        """Waits until the sidecar has no copy of another peer's tensor, no lease, and no memory that is still to be freed."""
        until = time.monotonic() + _PATIENCE
        while (status := self.client.status()).copies or status.leases or status.retired_bytes:
            assert time.monotonic() < until, f"not all is given up: {status}"
            time.sleep(0.002)

    def route(self) -> str:
        """The way by which tensors of the other peer come."""
        return ", ".join(f"{peer.route}" for peer in self.client.peers() if peer.state != "self")


if __name__ == "__main__":
    serve(Lane(sys.argv[1]))
