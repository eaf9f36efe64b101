"""Processes that put and get on a GPU, told what to do by a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

PATIENCE = 60.0

BEGIN = """
import ctypes, gc, json, os, sys
import torch, tensorlane
client = tensorlane.connect()
sys.path.insert(0, os.environ["GPU_TESTS"])
from workers import obey
obey(globals())
"""


def obey(place: dict) -> None:
    """Runs what each line of the standard input says, an expression or statements as JSON, and answers with one line each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                compiled = compile(code, "<told>", "eval")
            except SyntaxError:
                exec(compile(code, "<told>", "exec"), place)
                answer = ["did", None]
            else:
                answer = ["did", eval(compiled, place)]
        except Exception as error:
            answer = ["failed", f"{type(error).__name__}: {error}"]
        print(json.dumps(answer, default=repr), file=out, flush=True)


class Failed(AssertionError):
    """Exception that a process raised when it did what it was told."""


class Worker:
    """Another Python with a client, which runs what it is told."""

    def __init__(self, directory: str, **variables: str):
        here = os.path.dirname(os.path.abspath(__file__))
        own = {"TENSORLANE_SOCKETS": directory, "GPU_TESTS": here, "PYTHONSAFEPATH": "1", **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}
        )
        assert self.process.stdout.readline() == "ready\n"

    def __call__(self, code: str):
        self.process.stdin.write(json.dumps(code.strip()) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failed(f"the process ended with {self.process.wait()}")
        what, told = json.loads(answer)
        if what == "failed":
            raise Failed(told)
        return told

    def finish(self) -> None:
        """Ends it in order."""
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


def until(what: str, condition, patience: float = PATIENCE):
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + patience
    while not (got := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return got
