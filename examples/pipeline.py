"""Stages of a pipeline on a channel: an encoder writes hidden states once, and decoders read them where they lie.

    python examples/pipeline.py       # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

It prints `decoder 0 has read 100 steps`, and the same of decoder 1. A decoder in another pod reads the channel as "PEER/hidden".
"""

import multiprocessing
import os
from contextlib import nullcontext

import torch

import tensorlane

STEPS, DECODERS, TOKENS, WIDTH = 100, 2, 64, 1024


def encode() -> None:
    """Writes a message for each step, at most four steps ahead of the slower decoder."""
    bytes_each = 2 * TOKENS * WIDTH + 4096
    with tensorlane.connect().channel_writer("hidden", slots=4, slot_bytes=bytes_each, expect_readers=DECODERS) as writer:
        for step in range(STEPS):
            # The only copy: into the ring. Whatever is plain goes beside it.
            hidden = torch.full((TOKENS, WIDTH), step, dtype=torch.bfloat16)
            writer.write({"step": step, "hidden": hidden}, timeout=60)
    # Leaving `with` in order says that no message comes any more.


def decode(number: int) -> None:
    """Reads every message in order. Nothing is copied, and no socket is used: the loop ends when the encoder has finished."""
    read = 0
    with tensorlane.connect().channel_reader("hidden", wait=60) as reader:
        for message in reader:
            # Its place in the ring is held until the message, and every tensor of it, is gone.
            with message:
                value = message.value
                hidden = value["hidden"].torch()
                assert value["step"] == read and hidden.shape == (TOKENS, WIDTH) and (hidden == read).all()
            del hidden, value
            read += 1
    print(f"decoder {number} has read {read} steps")


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        processes = multiprocessing.get_context("spawn")
        started = [processes.Process(target=decode, args=(number,)) for number in range(DECODERS)]
        started.append(processes.Process(target=encode))
        for process in started:
            process.start()
        for process in started:
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main()
