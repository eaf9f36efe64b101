"""Weights from a trainer to rollout workers: plain processes, each of which reads one whole version at a time.

    python examples/weights.py        # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

It prints `worker 0 has version 5`, and the same of workers 1 and 2.
"""

import multiprocessing
import os
from contextlib import nullcontext

import torch

import tensorlane

STEPS, WORKERS = 5, 3


def policy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))


def train() -> None:
    """Publishes the weights of each step. The workers take the latest there is."""
    client, model = tensorlane.connect(), policy()
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        client.publish({"weights": model.state_dict(), "step": step}, "policy", keep=2)


def roll_out(number: int) -> None:
    """Loads the latest version whenever there is a new one, until the last, and checks that none is a mixture."""
    client, model, version = tensorlane.connect(), policy(), 0
    with client.watch("policy") as changes:
        while version < STEPS:
            # Names that begin so are told, too: policy@4 is a version.
            if changes.next(timeout=60).name != "policy":
                continue
            # All of the latest version, mapped; copied once, into the model.
            with client.get_set("policy") as got:
                version = got.version
                model.load_state_dict(got.torch()["weights"])
            assert all((parameter == version).all() for parameter in model.parameters())
            model(torch.ones(64))
    print(f"worker {number} has version {version}")


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        processes = multiprocessing.get_context("spawn")
        workers = [processes.Process(target=roll_out, args=(number,)) for number in range(WORKERS)]
        trainer = processes.Process(target=train)
        for process in (*workers, trainer):
            process.start()
        for process in (*workers, trainer):
            process.join()
            assert process.exitcode == 0
        # What was published outlives its trainer.
        client = tensorlane.connect()
        client.unname(*client.names("policy"))


if __name__ == "__main__":
    main()
