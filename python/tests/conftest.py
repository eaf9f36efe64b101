"""Shared by the tests: one sidecar for most of them, and conditions that are waited for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest

import tensorlane

PATIENCE = 20.0

# Children find the installed package, wherever the tests are started: not the sources, which have no native half.
os.environ["PYTHONSAFEPATH"] = "1"


def until(what: str, condition, patience: float = PATIENCE):
    """Waits for a condition, with a deadline, and returns what it gave."""
    deadline = time.monotonic() + patience
    while not (got := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)
    return got


def python(script: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """Another Python with this script."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(__file__),
        env={**os.environ, **variables},
    )


def said(process: subprocess.Popen, given: str | None = None) -> str:
    """Output of a Python that ended well."""
    out, err = process.communicate(given, timeout=60)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="session")
def sidecar():
    with tensorlane.Sidecar(arena="512Mi") as running:
        yield running


@pytest.fixture
def client(sidecar):
    with tensorlane.connect(sidecar.directory) as connected:
        yield connected


@pytest.fixture
def alone(client):
    """The client, once the sessions of earlier tests and what they held are gone: for tests that count."""
    gc.collect()
    until("the sessions of earlier tests are gone", lambda: client.status().sessions == 1)
    return client
