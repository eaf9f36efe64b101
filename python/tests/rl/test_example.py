"""The example with a replay buffer runs as it stands, with a sidecar of its own and with one that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "replay_buffer.py"


def ran(**variables: str) -> str:
    surroundings = {**os.environ, **variables}
    process = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=400, env=surroundings)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_example_says_what_it_should_and_leaves_nothing(sidecar, client):
    for variables in ({}, {"TENSORLANE_SOCKETS": sidecar.directory}):
        assert ran(**variables) == "the buffer has 1000 rows of 3200\n"
    assert not client.mutable_sets()
