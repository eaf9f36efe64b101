"""DataLoaders of torch over data that another process, or another node, holds: only the rows of a batch travel.

    python examples/dataset.py        # with a sidecar of its own; or TENSORLANE_SOCKETS=/run/tensorlane in a pod
    python examples/dataset.py trainer data/rows        # rows of that tensor of the peer `trainer`, which may be on another node

It prints `1000 rows of a set in 32 batches` and `1000 rows of a tensor in 32 batches`.
"""

import os
import sys
from contextlib import nullcontext

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import tensorlane

ROWS, COLUMNS, BATCH = 1000, 256, 32
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}


class Rows(Dataset):
    """A remote tensor. An index is a list of rows: a whole batch comes by one call."""

    def __init__(self, client: tensorlane.Client, name: str, peer: str | None = None):
        # A forked worker opens a connection of its own by the same client.
        self.client, self.reference = client, client.describe(name, peer=peer).reference

    def __len__(self) -> int:
        return self.reference.shape[0]

    def __getitem__(self, rows: list[int]) -> torch.Tensor:
        return self.client.get(self.reference[rows]).torch()


def of_a_set(client: tensorlane.Client, data: torch.Tensor) -> None:
    """A set is a data set as it is: a batch is one read, of one version, also while others write it."""
    rows = client.create_set("data/set", ROWS, {"x": data, "label": ("int64", ())})
    rows[:] = {"x": data, "label": data[:, 0].contiguous()}
    loader = DataLoader(rows, BATCH, shuffle=True, collate_fn=tensorlane.collate, **WORKERS)
    seen = []
    for batch in loader:
        assert torch.equal(batch["x"][:, 0], batch["label"])
        seen.append(batch["label"])
    assert sorted(torch.cat(seen).tolist()) == list(range(ROWS))
    print(f"{ROWS} rows of a set in {len(loader)} batches")
    rows.drop()


def of_a_tensor(client: tensorlane.Client, name: str, peer: str | None = None) -> None:
    rows = Rows(client, name, peer)
    batches = BatchSampler(RandomSampler(rows), BATCH, drop_last=False)
    # Without a batch size the loader passes each list of rows on as it is.
    loader = DataLoader(rows, sampler=batches, batch_size=None, **WORKERS)
    seen = torch.cat([batch[:, 0] for batch in loader])
    assert sorted(seen.tolist()) == list(range(len(rows)))
    print(f"{len(seen)} rows of a tensor in {len(loader)} batches")


def main() -> None:
    if len(sys.argv) == 3:
        peer, name = sys.argv[1:]
        return of_a_tensor(tensorlane.connect(), name, peer)
    with nullcontext() if "TENSORLANE_SOCKETS" in os.environ else tensorlane.local(export=True):
        client = tensorlane.connect()
        data = torch.arange(ROWS).repeat(COLUMNS, 1).T
        of_a_set(client, data)
        # Whoever has the data puts it once, and keeps it for as long as it is used.
        with client.put(data, "data/rows"):
            of_a_tensor(client, "data/rows")
        client.unname("data/rows")
    return None


if __name__ == "__main__":
    main()
