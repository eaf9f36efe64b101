"""A DataLoader of torch over a data set that another process, or another node, holds: only the rows of a batch travel.

    python examples/dataset.py        # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod

It prints `1000 rows in 32 batches, 2 times`.
"""

import os
from contextlib import nullcontext

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import tensorlane

ROWS, COLUMNS, BATCH = 1000, 256, 32


class Rows(Dataset):
    """A remote tensor. An index is a list of rows: a whole batch comes by one call."""

    def __init__(self, client: tensorlane.Client, name: str):
        # A forked worker opens a connection of its own by the same client.
        self.client, self.reference = client, client.describe(name).reference

    def __len__(self) -> int:
        return self.reference.shape[0]

    def __getitem__(self, rows: list[int]) -> torch.Tensor:
        return self.client.get(self.reference[rows]).torch()


def main() -> None:
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        client = tensorlane.connect()
        # Whoever has the data puts it once, and keeps it for as long as it is used.
        with client.put(torch.arange(ROWS).repeat(COLUMNS, 1).T, "data/rows"):
            data = Rows(client, "data/rows")
            batches = BatchSampler(RandomSampler(data), BATCH, drop_last=False)
            # Without a batch size the loader passes each list of rows on as it is.
            loader = DataLoader(data, sampler=batches, batch_size=None, num_workers=2, multiprocessing_context="fork")
            for epoch in range(2):
                seen = torch.cat([batch[:, 0] for batch in loader])
                assert sorted(seen.tolist()) == list(range(ROWS))
            print(f"{len(seen)} rows in {len(loader)} batches, {epoch + 1} times")
        client.unname("data/rows")


if __name__ == "__main__":
    main()
