"""End of Mooncake's transfer engine over TCP: `mooncake_engine.py hold|read ADDRESS BYTES`. Memory of both ends is registered."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version

from answering import serve
from payload import digest, forget, pattern, touch

import numpy as np
from mooncake.engine import TransferEngine


class Engine:
    """Holds a tensor, or reads from one that another engine holds."""

    def __init__(self, role: str, address: str, nbytes: int):
        self.engine = TransferEngine()
        _checked("initialize", self.engine.initialize(address, "P2PHANDSHAKE", "tcp", ""))
        self.memory = pattern(nbytes) if role == "hold" else np.ones(nbytes, np.uint8)
        _checked("register_memory", self.engine.register_memory(self.memory.ctypes.data, nbytes))
        self.part = self.memory
        self.peer, self.remote = "", 0

    def place(self) -> tuple[int, int]:
        """Port of the engine, and where its memory is."""
        return self.engine.get_rpc_port(), self.memory.ctypes.data

    def meet(self, peer: str, remote: int) -> None:
        """Says from where to read."""
        self.peer, self.remote = peer, remote

    def get(self, nbytes: int) -> float:
        """Seconds of a read, every page of which was read here."""
        self.part = self.memory[:nbytes]
        forget(self.part)
        began = time.perf_counter()
        code = self.engine.transfer_sync_read(self.peer, self.memory.ctypes.data, self.remote, nbytes)
        touch(self.part)
        took = time.perf_counter() - began
        _checked("transfer_sync_read", code)
        return took

    def hash_got(self) -> int:
        return digest(self.part)

    def about(self) -> str:
        return f"mooncake-transfer-engine-non-cuda {version('mooncake-transfer-engine-non-cuda')}"


def _checked(call: str, code: int) -> None:
    if code != 0:
        raise RuntimeError(f"{call} returned {code}")


if __name__ == "__main__":
    serve(Engine(sys.argv[1], sys.argv[2], int(sys.argv[3])))
