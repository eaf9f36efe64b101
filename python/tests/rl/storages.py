"""Shared by the tests of TorchRL: a sidecar with sets in memory and on files, and rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

import tensorlane


@pytest.fixture(scope="module")
def root():
    with tempfile.TemporaryDirectory(prefix="tensorlane-rl-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def node(root):
    with tensorlane.Sidecar(arena="2Gi", settings={"TENSORLANE_SETS_ROOT": str(root)}) as running:
        yield running


@pytest.fixture
def default(node, monkeypatch):
    """The client of storages that name none, in this process and in those that it starts."""
    monkeypatch.setenv("TENSORLANE_SOCKETS", node.directory)
    with tensorlane.connect(node.directory) as client:
        monkeypatch.setitem(tensorlane.client._defaults, node.directory, client)
        yield client
        for left in client.mutable_sets():
            client.drop_set(left.reference)


def rows(count: int, start: int = 0) -> TensorDict:
    """Rows that say their number in each leaf."""
    numbers = torch.arange(start, start + count)
    return TensorDict({"a": numbers, "b": {"c": numbers[:, None].expand(count, 3).float().contiguous()}}, [count])
