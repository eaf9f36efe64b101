"""Safetensors files, by the command of the wheel: it alone reads and writes them, strictly, piece by piece to and from the arena."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from contextlib import nullcontext
from typing import Any, Callable, ContextManager

from . import bars, errors, sizes
from ._tensorlane import Cancel, Reference
from .errors import Error, Remedies, Withdrawn
from .programs import program

_LOOK = 0.1
"""Seconds between two looks at a cancel."""
_FOR_EVER = 1e9
"""Seconds that are as good as for ever."""


def put(
    directory: str,
    path: str | os.PathLike[str],
    name: str,
    flags: list[str],
    deadline: float | None,
    cancel: Cancel | None,
    progress: bool,
) -> dict[str, Reference]:
    """References of the tensors of a file, by their names in it."""
    # A file may be called as an option is.
    words = ["put", "--name", name, *flags, *time("deadline", deadline), "--", os.path.abspath(path)]
    with Remedies(NAME_TAKEN="pass replace=True to give the names to the new tensors"):
        told = _run(directory, words, cancel, _reading(f"put {name}", path, progress))
    return {one["tensor"]: Reference(one["reference"]) for one in told["tensors"]}


def get(
    directory: str,
    prefix: str,
    path: str | os.PathLike[str],
    flags: list[str],
    deadline: float | None,
    cancel: Cancel | None,
    progress: bool,
    total: int | None,
) -> list[str]:
    """Names of the tensors that were written into a file, which are so many bytes in all."""
    words = ["get", "--recursive", "--to", os.path.abspath(path), *flags, *time("deadline", deadline), "--", prefix]
    with Remedies(NOT_FOUND="client.names() lists names of this peer; a file is got beside the sidecar that has its tensors"):
        told = _run(directory, words, cancel, lambda pid: bars.running(f"get {prefix}", total, pid, "wchar", progress))
    return [one["tensor"] for one in told["tensors"]]


def publish(
    directory: str,
    path: str | os.PathLike[str],
    name: str,
    flags: list[str],
    deadline: float | None,
    cancel: Cancel | None,
    progress: bool,
) -> tuple[int, Reference]:
    """Version and manifest of a set that was published from a safetensors file or a directory of tensordict."""
    words = ["set", "put", "--name", name, *flags, *time("deadline", deadline), "--", os.path.abspath(path)]
    told = _run(directory, words, cancel, _reading(f"publish {name}", path, progress))
    return told["version"], Reference(told["reference"])


def save(
    directory: str,
    target: str,
    path: str | os.PathLike[str],
    flags: list[str],
    deadline: float | None,
    cancel: Cancel | None,
    progress: bool,
) -> int:
    """Version of a set that was written into a safetensors file or a directory."""
    words = ["set", "get", "--to", os.path.abspath(path), *flags, *time("deadline", deadline), "--", target]
    told = _run(directory, words, cancel, lambda pid: bars.running(f"save {os.path.basename(path)}", None, pid, "wchar", progress))
    version: int = told["version"]
    return version


def time(what: str, given: float | None) -> list[str]:
    """The words of the command for a time."""
    seconds = sizes.seconds(what, given)
    if seconds is None:
        return []
    return [f"--{what}={round(min(seconds, _FOR_EVER) * 1000)}ms"]


def _reading(what: str, path: str | os.PathLike[str], progress: bool) -> Callable[[int], ContextManager[Any]]:
    """Bar of a command that reads a file, by its process id."""
    total = os.stat(path).st_size if progress and os.path.isfile(path) else None
    return lambda pid: bars.running(what, total, pid, "rchar", progress)


def _run(
    directory: str, words: list[str], cancel: Cancel | None, shown: Callable[[int], ContextManager[Any]] = nullcontext
) -> dict[str, Any]:
    """Runs the command and returns its answer. If it may not go on, it is asked to end, and takes back what it put.

    `shown` gives the context of the command with its process id.
    """
    call = [program("tensorlane"), words[0], "--sockets", directory, "--output", "json", *words[1:]]
    with subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            with shown(process.pid):
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
    if process.returncode != 0:
        raise _error(err, process.returncode)
    for said in _warnings(err):
        # At whoever calls the client's method, which calls `put` or another one here.
        warnings.warn(said, stacklevel=4)
    answer: dict[str, Any] = json.loads(out)
    return answer


def _warnings(told: str) -> list[str]:
    """Warnings of the command, such as metadata that are left out: a line of JSON each."""
    said = []
    for line in told.splitlines():
        try:
            said.append(str(json.loads(line)["warning"]))
        except (KeyError, TypeError, ValueError):
            continue
    return said


def _error(told: str, code: int) -> Error:
    lines = told.strip().splitlines()
    try:
        said = json.loads(lines[-1])
        error = errors.make(said["code"] or "", said["reason"], said["message"], said["details"])
    except (IndexError, KeyError, TypeError, ValueError):
        return Error(f"the command tensorlane ended with code {code}: {told.strip()[-500:] or 'it said nothing'}")
    # Options of the command are none here.
    hint = said["hint"] if " -" not in f" {said['hint']}" else None
    # Without a reason or a hint nobody answered.
    start = errors.START if isinstance(error, errors.Unavailable) and error.reason is None else None
    error.remedy = error.remedy or hint or start
    return error
