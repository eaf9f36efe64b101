"""Safetensors files, by the command of the wheel: it alone reads and writes them, strictly, straight to and from the arena."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from . import errors
from ._tensorlane import Cancel, Reference
from .errors import Error, Withdrawn
from .programs import program

_LOOK = 0.1
"""Seconds between two looks at a cancel."""


def put(
    directory: str, path: str | os.PathLike[str], name: str, flags: list[str], deadline: float | None, cancel: Cancel | None
) -> dict[str, Reference]:
    """References of the tensors of a file, by their names in it."""
    # A file may be called as an option is.
    words = ["put", "--name", name, *flags, *_deadline(deadline), "--", os.path.abspath(path)]
    told = _run(directory, words, cancel)
    return {one["tensor"]: Reference(one["reference"]) for one in told["tensors"]}


def get(
    directory: str, prefix: str, path: str | os.PathLike[str], flags: list[str], deadline: float | None, cancel: Cancel | None
) -> list[str]:
    """Names of the tensors that were written into a file."""
    words = ["get", "--recursive", "--to", os.path.abspath(path), *flags, *_deadline(deadline), "--", prefix]
    return [one["tensor"] for one in _run(directory, words, cancel)["tensors"]]


def _deadline(deadline: float | None) -> list[str]:
    return [] if deadline is None else [f"--deadline={round(deadline * 1000)}ms"]


def _run(directory: str, words: list[str], cancel: Cancel | None) -> dict[str, Any]:
    """Runs the command and returns its answer. If it may not go on, it is asked to end, and takes back what it put."""
    call = [program("tensorlane"), words[0], "--sockets", directory, "--output", "json", *words[1:]]
    with subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while True:
                if cancel is not None and cancel.cancelled:
                    raise Withdrawn("the call was withdrawn")
                try:
                    out, err = process.communicate(timeout=_LOOK)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    if process.returncode == 0:
        answer: dict[str, Any] = json.loads(out)
        return answer
    raise _error(err, process.returncode)


def _error(told: str, code: int) -> Error:
    lines = told.strip().splitlines()
    try:
        said = json.loads(lines[-1])
        error = errors.make(said["code"] or "", said["reason"], said["message"], said["details"])
    except (IndexError, KeyError, TypeError, ValueError):
        return Error(f"the command tensorlane ended with code {code}: {told.strip()[-500:] or 'it said nothing'}")
    error.remedy = error.remedy or said["hint"]
    return error
