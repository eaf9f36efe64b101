"""Hand-over through a queue of torch.multiprocessing: `torch_queue.py SOCKETS`. One process makes tensors, another one takes them.

By torch's own ways the tensor goes into shared memory and through the queue; by Tensorlane its reference goes through the same queue.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from typing import Any

from answering import serve
from payload import Payload, digest, touch

import torch
import torch.multiprocessing

import tensorlane

_PR_SET_PDEATHSIG = 1
_OWN = ("file_descriptor", "file_system")


class Queue:
    """Both ends."""

    def __init__(self, sockets: str):
        self.client = tensorlane.connect(sockets)
        self.payload = Payload()
        context = torch.multiprocessing.get_context("spawn")
        self.there, self.back = context.Queue(), context.Queue()
        self.taker = context.Process(target=take, args=(self.there, self.back, sockets), daemon=True)
        self.taker.start()
        assert self.back.get() == "ready"

    def hand(self, way: str, nbytes: int, turn: int) -> float:
        """Seconds from a tensor of this process until the other one has read every page of it."""
        made = self.payload.of(nbytes, turn)
        tensor = torch.from_numpy(made)
        if way in _OWN:
            torch.multiprocessing.set_sharing_strategy(way)
            # Else the memory of the payload itself would be moved, once for all turns.
            tensor = tensor.clone()
        began = time.perf_counter()
        if way in _OWN:
            held: Any = tensor.share_memory_()
            self.there.put(held)
        else:
            held = self.client.put(tensor)
            self.there.put(str(held.reference))
        ended = self.back.get()
        self.there.put("hash")
        taken = self.back.get()
        made_hash = digest(made)
        assert taken == made_hash, f"turn {turn}: {nbytes} bytes came by {way} with checksum {taken:#x} and not {made_hash:#x}"
        del held, tensor
        return ended - began


def take(there: Any, back: Any, sockets: str) -> None:
    """Answers each tensor with the time at which every page of it was read."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    client = tensorlane.connect(sockets)
    back.put("ready")
    while True:
        given = there.get()
        array = client.get(tensorlane.Reference(given)).numpy() if isinstance(given, str) else given.numpy()
        touch(array)
        back.put(time.perf_counter())
        assert there.get() == "hash"
        back.put(digest(array))
        del array, given


if __name__ == "__main__":
    serve(Queue(sys.argv[1]))
