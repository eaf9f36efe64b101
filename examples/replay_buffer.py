"""A replay buffer of TorchRL that four processes fill, round robin, while a trainer samples it.

    pip install 'torchrl>=0.14,<0.15'
    python examples/replay_buffer.py         # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

In other pods a worker opens the same buffer as SetStorage("PEER/replay"), where PEER is the trainer's, which names theirs in `writers`.
It prints `the buffer has 1000 rows of 3200`.
"""

import multiprocessing
import os
from contextlib import nullcontext

import torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

import tensorlane
from tensorlane.rl import SetStorage, SetWriter

WORKERS, ROLLOUTS, STEPS = 4, 50, 16
ROWS = 1000


def rollout(worker: int, number: int) -> TensorDict:
    """Steps of an environment: here, what each step should be can be told from its reward."""
    reward = torch.arange(STEPS, dtype=torch.float32)[:, None] + 1000 * worker + STEPS * number
    return TensorDict({"obs": (reward % 251).to(torch.uint8)[:, :, None].expand(STEPS, 84, 84), "next": {"reward": reward}}, [STEPS])


def work(worker: int) -> None:
    buffer = TensorDictReplayBuffer(storage=SetStorage("replay"), writer=SetWriter())
    for number in range(ROLLOUTS):
        buffer.extend(rollout(worker, number))


def train(storage: SetStorage, workers: list) -> None:
    """Samples for as long as the workers write, and checks that no row is ever half written."""
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), batch_size=64)
    while any(worker.is_alive() for worker in workers):
        if len(buffer):
            batch = buffer.sample()
            assert bool((batch["obs"] == (batch["next", "reward"] % 251)[:, :, None]).all())


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(arena="1Gi", export=True):
        leaves = {"obs": ("uint8", (84, 84)), "next": {"reward": ("float32", (1,))}}
        storage = SetStorage.create("replay", ROWS, leaves, writers=["rollout-*"])
        processes = [multiprocessing.get_context("fork").Process(target=work, args=(worker,)) for worker in range(WORKERS)]
        for process in processes:
            process.start()
        train(storage, processes)
        assert [process.exitcode for process in processes] == [0] * WORKERS
        print(f"the buffer has {len(storage)} rows of {storage.mutable_set.version * STEPS}")
        storage.mutable_set.drop()


if __name__ == "__main__":
    main()
