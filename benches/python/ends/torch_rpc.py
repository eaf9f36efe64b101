"""End of torch.distributed.rpc (TensorPipe): `torch_rpc.py RANK ADDRESS PORT BYTES`. Rank 0 holds a tensor, rank 1 calls for its bytes.

Two namespaces of one kernel might find ways that two hosts do not have, so the transport is `uv` alone.
"""

from __future__ import annotations

import sys
import time

from answering import serve
from payload import digest, pattern, touch

import torch
import torch.distributed.rpc as rpc

ROW = 16 << 10
_held: dict[str, torch.Tensor] = {}


def fetch(nbytes: int) -> torch.Tensor:
    """The first bytes of what is held."""
    return _held["tensor"][:nbytes]


def rows(index: torch.Tensor) -> torch.Tensor:
    """Rows of what is held."""
    return _held["tensor"].view(-1, ROW).index_select(0, index)


class Caller:
    """Calls rank 0."""

    def __init__(self) -> None:
        self.got = torch.zeros(0, dtype=torch.uint8)

    def get(self, nbytes: int) -> float:
        """Seconds of a call that returns so many bytes, every page of which was read."""
        began = time.perf_counter()
        self.got = rpc.rpc_sync("holder", fetch, args=(nbytes,))
        touch(self.got.numpy())
        return time.perf_counter() - began

    def get_rows(self, index: list[int]) -> float:
        """Seconds of a call that returns rows."""
        wanted = torch.tensor(index)
        began = time.perf_counter()
        self.got = rpc.rpc_sync("holder", rows, args=(wanted,))
        touch(self.got.view(-1).numpy())
        return time.perf_counter() - began

    def hash_got(self) -> int:
        return digest(self.got.numpy())

    def about(self) -> str:
        return f"torch {torch.__version__}"


class Holder:
    """Nothing is asked of it: it answers calls in threads of its own."""


if __name__ == "__main__":
    rank, address, port, size = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{address}:{port}",
        num_worker_threads=4,
        rpc_timeout=120,
        _transports=["uv"],
        _channels=["mpt_uv", "basic"],
    )
    if rank == 0:
        _held["tensor"] = torch.from_numpy(pattern(size))
    rpc.init_rpc(("holder", "caller")[rank], rank=rank, world_size=2, rpc_backend_options=options)
    serve(Caller() if rank else Holder())
