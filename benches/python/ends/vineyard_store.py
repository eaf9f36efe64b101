"""Vineyard's end, on one host: `vineyard_store.py SOCKET [BYTES]`. With a number of bytes it starts the daemon, with as much memory.

Metadata are local, memory is the daemon's memfd; arrays are of numpy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from answering import serve
from payload import Payload, digest, touch

import numpy as np
import vineyard
import vineyard.bdist

_PR_SET_PDEATHSIG = 1
_PATIENCE = 30


class Store:
    """Puts new objects, or gets those of the other end; `drop` deletes those that were put here."""

    def __init__(self, socket: str, nbytes: int):
        if nbytes:
            self.daemon = _daemon(socket, nbytes)
        self.client = vineyard.connect(socket)
        self.payload = Payload()
        self.made = np.empty(0, np.uint8)
        self.got: Any = None
        self.objects: list[Any] = []

    def make(self, nbytes: int, turn: int) -> None:
        self.made = self.payload.of(nbytes, turn)

    def put(self) -> tuple[float, str]:
        began = time.perf_counter()
        made = self.client.put(self.made)
        took = time.perf_counter() - began
        self.objects.append(made)
        return took, repr(made)

    def get(self, token: str) -> float:
        wanted = vineyard.ObjectID(token)
        began = time.perf_counter()
        self.got = np.asarray(self.client.get(wanted))
        touch(self.got)
        return time.perf_counter() - began

    def hash_made(self) -> int:
        return digest(self.made)

    def hash_got(self) -> int:
        return digest(self.got)

    def keep(self) -> None:
        """Nothing is to be done: the object stays until it is deleted."""

    def drop(self) -> None:
        self.got = None
        if self.objects:
            self.client.delete(self.objects)
        self.objects = []


def _daemon(socket: str, nbytes: int) -> subprocess.Popen:
    program = os.path.join(os.path.dirname(vineyard.bdist.__file__), "vineyardd")
    command = [program, "--socket", socket, "--size", str(nbytes), "--meta", "local", "--rpc=false"]
    libc = ctypes.CDLL(None)
    daemon = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    until = time.monotonic() + _PATIENCE
    while not os.path.exists(socket):
        if daemon.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"vineyardd made no socket; it ended with {daemon.poll()}")
        time.sleep(0.01)
    return daemon


if __name__ == "__main__":
    serve(Store(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
