"""End of a bare TCP connection: `bare_tcp.py hold|read ADDRESS PORT BYTES`. A request of 8 bytes, answered by so many into warm memory."""

from __future__ import annotations

import socket
import sys
import threading
import time

from answering import serve
from payload import digest, forget, pattern, touch

import numpy as np

_PATIENCE = 30


class Reader:
    """Reads into memory of its own."""

    def __init__(self, address: tuple[str, int], nbytes: int):
        self.socket = _connected(address)
        self.memory = np.ones(nbytes, np.uint8)
        self.part = self.memory

    def get(self, nbytes: int) -> float:
        """Seconds of a request and its answer, every page of which was read."""
        self.part = self.memory[:nbytes]
        forget(self.part)
        began = time.perf_counter()
        self.socket.sendall(nbytes.to_bytes(8, "little"))
        _receive(self.socket, memoryview(self.part))
        touch(self.part)
        return time.perf_counter() - began

    def hash_got(self) -> int:
        return digest(self.part)


class Holder:
    """Answers in a thread of its own."""

    def __init__(self, address: tuple[str, int], nbytes: int):
        self.memory = memoryview(pattern(nbytes))
        self.listener = socket.create_server(address)
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self) -> None:
        """Serves one reader until it is gone."""
        connected, _ = self.listener.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while asked := connected.recv(8, socket.MSG_WAITALL):
            connected.sendall(self.memory[: int.from_bytes(asked, "little")])


def _connected(address: tuple[str, int]) -> socket.socket:
    connected = socket.create_connection(address, timeout=_PATIENCE)
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _receive(connected: socket.socket, into: memoryview) -> None:
    at = 0
    while at < len(into):
        got = connected.recv_into(into[at:], 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the holder is gone")
        at += got


if __name__ == "__main__":
    role, host, port, size = sys.argv[1:5]
    end = {"hold": Holder, "read": Reader}[role]
    serve(end((host, int(port)), int(size)))
