"""Weights from a trainer to rollout workers, all of them actors of Ray: on this machine, or on the cluster that RAY_ADDRESS names.

    RAY_AUTH_MODE=disabled python examples/ray_weights.py   # with a sidecar of its own; on a cluster, one beside each raylet

It prints `worker 0 has the weights of step 5`, and the same of worker 1.
"""

import os
from contextlib import nullcontext

import ray
import torch

import tensorlane
import tensorlane.ray

STEPS, WORKERS = 5, 2

# Before the classes whose methods name the transport; the hook below does it in every process of Ray.
tensorlane.ray.register()


def policy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))


@ray.remote(scheduling_strategy="SPREAD")
class Trainer:
    def __init__(self) -> None:
        self.model = policy()

    @ray.method(tensor_transport="tensorlane")
    def train(self, step: int) -> dict:
        """Gives the weights of a step: put into shared memory once, and never into Ray's object store."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(step)
        return {"weights": self.model.state_dict(), "step": step}


# A class that only receives has to say so: Ray gives it a thread for that.
@ray.remote(scheduling_strategy="SPREAD", enable_tensor_transport=True)
class Worker:
    def __init__(self) -> None:
        self.model = policy()

    def roll_out(self, given: dict) -> int:
        """Loads weights, which are mapped from the memory of the sidecar beside this actor."""
        self.model.load_state_dict(given["weights"])
        assert all((parameter == given["step"]).all() for parameter in self.model.parameters())
        self.model(torch.ones(64))
        return given["step"]


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": "tensorlane.ray.register"})
        trainer, workers = Trainer.remote(), [Worker.remote() for _ in range(WORKERS)]
        for step in range(1, STEPS + 1):
            # A reference: the bytes go from the trainer's node to the workers' alone.
            weights = trainer.train.remote(step)
            loaded = ray.get([worker.roll_out.remote(weights) for worker in workers])
        for number, step in enumerate(loaded):
            print(f"worker {number} has the weights of step {step}")
        ray.shutdown()


if __name__ == "__main__":
    main()
