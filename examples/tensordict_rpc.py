"""TensorDict across processes by torch RPC: rows of 1.2 GB are written by another process, which gets a reference alone.

    python examples/tensordict_rpc.py        # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

On two nodes each process has the sidecar of its pod, and is told as torchrun tells: RANK, MASTER_ADDR, MASTER_PORT.
It prints `check all ones [1, 1, 1, 1, 1]` and `check the others 0`.
"""

import multiprocessing
import os
import pickle
import socket
from contextlib import nullcontext

import cloudpickle
import torch
import torch.distributed.rpc as rpc
from tensordict import TensorDict

import tensorlane
from tensorlane.tensordict import MemoryMappedTensor, MemoryMappedTensorDict

WORKERS = ["main", "worker"]


class CloudpickleWrapper:
    """A function that travels by its code."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __reduce__(self):
        return pickle.loads, (cloudpickle.dumps(self.function),)


def fill_tensordict(tensordict, idx):
    tensordict[idx] = TensorDict({"memmap": torch.ones(5, 640, 640, 3, dtype=torch.uint8)}, [5])
    return tensordict


fill_tensordict_cp = CloudpickleWrapper(fill_tensordict)


def run(rank: int) -> None:
    rpc.init_rpc(WORKERS[rank], rank=rank, world_size=2)
    if rank == 0:
        # Nothing is written yet: rows take memory in the sidecar when they are.
        tensordict = MemoryMappedTensorDict({"memmap": MemoryMappedTensor.empty(1000, 640, 640, 3, dtype=torch.uint8)}, [1000])
        assert tensordict.is_memmap() and len(pickle.dumps(tensordict)) <= 400
        idx = [4, 5, 6, 7, 998]
        out = rpc.rpc_sync(WORKERS[1], fill_tensordict_cp, args=(tensordict, idx))
        print("check all ones", out["memmap"][idx, :1, :1, :1].clone().flatten().tolist())
        print("check the others", tensordict["memmap"][[0, 3, 8, 997, 999]].sum().item())
    rpc.shutdown()


def main() -> None:
    if "RANK" in os.environ:
        return run(int(os.environ["RANK"]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(arena="2Gi", export=True):
        processes = [multiprocessing.get_context("spawn").Process(target=run, args=(rank,)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main()
