"""Sets as data sets of torch: a real DataLoader asks for a batch by one read, in this process and in workers of both kinds."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

import tensorlane
from tensorlane.tensordict import MemoryMappedTensorDict

ROWS, BATCH = 50, 8


@pytest.fixture
def data(client, monkeypatch):
    """Data sets over the same rows, each with what its batches are."""
    monkeypatch.setenv("TENSORLANE_SOCKETS", client.directory)
    numbers = torch.arange(ROWS)
    source = TensorDict({"x": numbers[:, None].repeat(1, 3).float(), "next": {"label": numbers}}, [ROWS])
    made = MemoryMappedTensorDict(source, name="collating", client=client)
    yield {
        "set": (made.set, lambda batch: (batch["x"], batch["next/label"])),
        "leaf": (made.set["next/label"], lambda batch: (None, batch)),
        "dict": (made, lambda batch: (batch["x"], batch["next", "label"])),
        "tensor": (made["next", "label"], lambda batch: (None, batch)),
    }
    made.drop()


@pytest.fixture
def reads(monkeypatch):
    """Number of reads of rows, in this process and in its forked children."""
    count = multiprocessing.Value("i", 0)
    read = tensorlane.MutableSet.read

    def counted(self, *arguments, **options):
        with count.get_lock():
            count.value += 1
        return read(self, *arguments, **options)

    monkeypatch.setattr(tensorlane.MutableSet, "read", counted)
    return count


@pytest.mark.parametrize("kind", ["set", "leaf", "dict", "tensor"])
@pytest.mark.parametrize("workers", [None, "fork", "spawn"])
def test_a_loader_reads_each_batch_at_once(data, reads, kind, workers):
    rows, parts = data[kind]
    options = {} if workers is None else {"num_workers": 2, "multiprocessing_context": workers}
    loader = DataLoader(rows, BATCH, shuffle=True, collate_fn=tensorlane.collate, **options)
    seen = []
    for batch in loader:
        x, label = parts(batch)
        assert isinstance(label, torch.Tensor) and (x is None or torch.equal(x, label[:, None].repeat(1, 3).float()))
        seen.append(label)
    assert sorted(torch.cat(seen).tolist()) == list(range(ROWS)) and len(seen) == len(loader) == 7
    if workers != "spawn":
        assert reads.value == 7


def test_rows_that_came_one_by_one_are_stacked(data):
    for kind in ("set", "leaf", "dict", "tensor"):
        rows, parts = data[kind]
        x, label = parts(tensorlane.collate([rows[at] for at in (3, 1, 4)]))
        assert label.tolist() == [3, 1, 4] and (x is None or x[:, 0].tolist() == [3, 1, 4])
    stacked = tensorlane.collate([{"a": np.ones(2)}, {"a": np.zeros(2)}])
    assert stacked["a"].tolist() == [[1, 1], [0, 0]] and tensorlane.collate([torch.ones(2), torch.zeros(2)]).shape == (2, 2)
    assert pickle.loads(pickle.dumps(tensorlane.collate)) is tensorlane.collate
