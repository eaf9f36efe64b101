"""Prefill and decode in two processes: the key-value cache of a prompt is handed over by reference, block by block.

    python examples/kv_blocks.py      # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

It prints `decode has 112 tokens of 4 layers`: 100 tokens are seven blocks of 16.
"""

import multiprocessing
import os
from contextlib import nullcontext

import torch

import tensorlane

LAYERS, HEADS, HEAD_SIZE, BLOCK = 4, 8, 64, 16


def prefill(tokens: int, hand_over) -> None:
    """Computes the blocks of a prompt where they will lie, and sends their references, which are small."""
    client = tensorlane.connect()
    for start in range(0, tokens, BLOCK):
        room = client.empty((LAYERS, 2, BLOCK, HEADS, HEAD_SIZE), torch.bfloat16)
        room.torch().fill_(start // BLOCK)
        # Nobody leases it here: a ticket keeps it until the other side has it, for a minute at most.
        stored = room.seal(keep=False, ticket=60)
        hand_over.put((start, stored.reference))
    hand_over.put(None)


def decode(hand_over) -> None:
    """Maps the blocks as they come. On the same node nothing is copied; from another node only these blocks travel."""
    client, cache = tensorlane.connect(), []
    while (block := hand_over.get()) is not None:
        start, reference = block
        cache.append((start, client.get(reference).torch()))
    keys = torch.cat([block[0, 0] for _, block in sorted(cache, key=lambda one: one[0])])
    assert [int(keys[start, 0, 0]) for start, _ in cache] == [start // BLOCK for start, _ in cache]
    print(f"decode has {len(keys)} tokens of {LAYERS} layers")


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        processes = multiprocessing.get_context("spawn")
        hand_over = processes.Queue()
        ends = [processes.Process(target=prefill, args=(100, hand_over)), processes.Process(target=decode, args=(hand_over,))]
        for process in ends:
            process.start()
        for process in ends:
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main()
