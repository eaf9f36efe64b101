"""For tests on a machine with a GPU: a sidecar of the installed wheel, and processes that put and get."""

from __future__ import annotations

import gc
import os
import sys

# Before jax is imported: it would take most of the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import pytest
from workers import Worker, until

import tensorlane

torch = pytest.importorskip("torch")


def pytest_collection_modifyitems(items):
    """Says loudly that nothing was tried where there is no GPU."""
    if not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="NO GPU: torch sees none, so nothing was tried"))


@pytest.fixture(scope="session")
def client():
    with tensorlane.local(arena="256Mi") as connected:
        yield connected


@pytest.fixture(autouse=True)
def count(client):
    """Number of tensors that came since the test began. At its end its names go, and then none of them is left."""
    # What a test that failed had is held by its traceback.
    sys.last_traceback = sys.last_value = sys.last_exc = None
    gc.collect()
    before = client.status().tensors
    yield lambda: client.status().tensors - before
    gc.collect()
    client.unname(*client.names())
    until("every tensor of the test is gone", lambda: client.status().tensors <= before, patience=10)


@pytest.fixture
def worker(client):
    """Starts Pythons that end with the test."""
    started: list[Worker] = []

    def start(**variables: str) -> Worker:
        started.append(Worker(client.directory, **variables))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def reader(worker):
    """Another Python that gets."""
    return worker()
