"""One end of a replay buffer between two hosts, by torch.distributed.rpc: `replay.py RANK ADDRESS PORT WAY FOLDER ROWS ROW_BYTES`.

Rank 0 keeps the rows in mapped files of the folder, and ends with its input. Rank 1 answers every line of its input ([writers, rows that
each extends by, rows of a sample], as JSON) with the seconds of one step: all extensions at once, and then the sample.

WAY `torchrl` is a ReplayBuffer over LazyMemmapStorage, `torch` one mapped tensor of which rows are selected. Two namespaces of one kernel
might find ways that two hosts do not have, so the transport is `uv` alone.
"""

import json
import os
import sys
import threading
import time

import torch
import torch.distributed.rpc as rpc

# Libraries print to the standard output, where only answers belong.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

FILL = 1024
buffer = None


class Mapped:
    """Rows of one mapped tensor, written round robin."""

    def __init__(self, folder, rows, row_bytes):
        file = os.path.join(folder, "rows")
        self.rows = torch.from_file(file, shared=True, size=rows * row_bytes, dtype=torch.uint8).view(rows, row_bytes)
        self.next, self.lock = 0, threading.Lock()
        self.about = f"a mapped tensor of torch {torch.__version__}"

    def extend(self, new):
        with self.lock:
            first = self.next
            self.next = (first + len(new)) % len(self.rows)
        self.rows.index_copy_(0, torch.arange(first, first + len(new)) % len(self.rows), new)

    def sample(self, count):
        return self.rows.index_select(0, torch.randint(len(self.rows), (count,)))


class TorchRL:
    """A replay buffer of TorchRL."""

    def __init__(self, folder, rows, row_bytes):
        import torchrl
        from torchrl.data import LazyMemmapStorage, ReplayBuffer

        self.buffer = ReplayBuffer(storage=LazyMemmapStorage(rows, scratch_dir=folder))
        self.about = f"torchrl {torchrl.__version__}"

    def extend(self, new):
        from tensordict import TensorDict

        self.buffer.extend(TensorDict({"rows": new}, [len(new)]))

    def sample(self, count):
        return self.buffer.sample(count)["rows"].as_subclass(torch.Tensor)


def extend(new):
    buffer.extend(new)


def sample(count):
    return buffer.sample(count)


def about():
    return buffer.about


def say(answer):
    print(json.dumps(answer), file=answers, flush=True)


def step(new, writers, sampled):
    began = time.perf_counter()
    torch.futures.wait_all([rpc.rpc_async("buffer", extend, args=(new,)) for _ in range(writers)])
    got = rpc.rpc_sync("buffer", sample, args=(sampled,))
    took = time.perf_counter() - began
    if tuple(got.shape) != (sampled, new.shape[1]):
        raise RuntimeError(f"a sample of shape {tuple(got.shape)}")
    return took


if __name__ == "__main__":
    rank, address, port, way, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5]
    rows, row_bytes = int(sys.argv[6]), int(sys.argv[7])
    if rank == 0:
        buffer = {"torchrl": TorchRL, "torch": Mapped}[way](folder, rows, row_bytes)
        for first in range(0, rows, FILL):
            buffer.extend(torch.full((min(FILL, rows - first), row_bytes), 1 + first // FILL % 255, dtype=torch.uint8))
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{address}:{port}",
        num_worker_threads=4,
        rpc_timeout=120,
        _transports=["uv"],
        _channels=["mpt_uv", "basic"],
    )
    rpc.init_rpc(("buffer", "trainer")[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        say("ready")
        sys.stdin.read()
    else:
        say(rpc.rpc_sync("buffer", about))
        for line in sys.stdin:
            writers, count, sampled = json.loads(line)
            say(step(torch.ones((count, row_bytes), dtype=torch.uint8), writers, sampled))
    # Libraries with threads of their own are not asked whether they can end.
    os._exit(0)
