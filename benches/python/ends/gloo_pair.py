"""End of a torch.distributed pair over gloo: `gloo_pair.py RANK ADDRESS PORT BYTES`.

Rank 0 sends what rank 1 asks for; rank 1 fetches: a request of 8 bytes, answered by so many bytes into a tensor that is warm.
"""

from __future__ import annotations

import sys
import threading
import time

from answering import serve
from payload import digest, forget, pattern, touch

import torch
import torch.distributed as dist


class Reader:
    """Fetches into a tensor of its own."""

    def __init__(self, nbytes: int):
        self.tensor = torch.ones(nbytes, dtype=torch.uint8)
        self.request = torch.zeros(1, dtype=torch.int64)
        self.part = self.tensor

    def get(self, nbytes: int) -> float:
        """Seconds of a fetch, every page of which was read."""
        self.part = self.tensor[:nbytes]
        forget(self.part.numpy())
        self.request[0] = nbytes
        began = time.perf_counter()
        dist.send(self.request, 0)
        dist.recv(self.part, 0)
        touch(self.part.numpy())
        return time.perf_counter() - began

    def hash_got(self) -> int:
        return digest(self.part.numpy())

    def about(self) -> str:
        return f"torch {torch.__version__}"


def send(nbytes: int) -> None:
    """Answers requests, until one asks for nothing."""
    data = torch.from_numpy(pattern(nbytes))
    request = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(request, 1)
        if request.item() == 0:
            break
        dist.send(data[: request.item()], 1)


class Sender:
    """Nothing is asked of it: it has begun to send by the time that it answers."""


if __name__ == "__main__":
    rank, address, port, size = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=2)
    if rank == 0:
        threading.Thread(target=send, args=(size,), daemon=True).start()
        serve(Sender())
    else:
        serve(Reader(size))
