"""A parameter server on pipes: workers send gradients, the server answers each with the weights that it has then.

    python examples/parameter_server.py    # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

It prints `worker 0 has made 10 steps`, the same of workers 1 and 2, and `the server has applied 30 gradients`.
"""

import multiprocessing
import os
import threading
from contextlib import nullcontext

import torch

import tensorlane

STEPS, WORKERS, SIZE, RATE = 10, 3, 1000, 0.1


def serve() -> None:
    """Accepts a pipe of each worker, and serves each on a thread until its worker has finished."""
    weights, lock = torch.zeros(SIZE), threading.Lock()

    def serve_one(pipe: tensorlane.Pipe) -> None:
        gradient = torch.empty(SIZE)
        with pipe:
            # The descriptor comes first. This allocation copies into memory that is used again; without it bytes are mapped.
            while (descriptor := pipe.read_descriptor(timeout=60)) is not None:
                assert descriptor.tensors[0].shape == (SIZE,)
                descriptor.read([gradient])
                with lock:
                    weights.sub_(RATE * gradient)
                    answer = weights.clone()
                pipe.write([answer], metadata=descriptor.metadata)

    with tensorlane.connect().listen("parameters") as listener:
        threads = [threading.Thread(target=serve_one, args=(listener.accept(timeout=60),)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"the server has applied {round(-weights[0].item() / RATE)} gradients")


def work(number: int) -> None:
    """Sends a gradient and gets weights back, so many times."""
    client, seen = tensorlane.connect(), 0.0
    with client.connect_pipe("parameters", wait=60) as pipe:
        for step in range(STEPS):
            pipe.write([torch.ones(SIZE)], metadata=f"worker {number}, step {step}", timeout=60)
            with pipe.read(timeout=60) as received:
                weights = received.tensors[0].torch()
                assert (weights == weights[0]).all() and weights[0] < seen
                seen = weights[0].item()
    print(f"worker {number} has made {STEPS} steps")


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        processes = multiprocessing.get_context("spawn")
        started = [processes.Process(target=work, args=(number,)) for number in range(WORKERS)]
        started.append(processes.Process(target=serve))
        for process in started:
            process.start()
        for process in started:
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main()
