"""The peers file that local sidecars join: one line comes with each and goes with it, and what others wrote there stays.

Whoever changes the file holds a lock on its directory and replaces it by renaming, so that nobody reads half of it and no change is
lost. Run as a program it takes a line away, as the keeper of a sidecar does when that has ended: so it imports nothing of the package.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from contextlib import contextmanager
from typing import Callable, Iterator

_PATIENCE = 20.0
"""Seconds to wait for others who change the file."""

_HEADER = re.compile(r"peers:(?P<nobody>[ \t]*\[[ \t]*\])?(?P<rest>[ \t]*(#.*)?)\s*")
_ITEM = re.compile(r"(?P<indent>[ \t]*)-(?:\s|$)")
_NAME = re.compile(r"[ \t]*(-[ \t]+)?(\{[ \t]*)?name:[ \t]*[\"']?(?P<name>[^\"',}#\s]+)")

_OTHER_FORM = "it has no line `peers:` with a peer in each line or block below it, nor `peers: []`; write it so"


def join(path: str, peer: str) -> None:
    """Adds a peer, as `{name: …, addresses: […], fingerprints: […]}`, to the file, which is made if it is not there.

    A ValueError says why it cannot be done, an OSError what the file system refused.
    """
    _change(path, lambda text: with_peer(text, peer))


def leave(path: str, peer: str) -> None:
    """Takes a peer away that was added with these words, if it is still there."""
    if os.path.exists(path):
        _change(path, lambda text: without_peer(text, peer))


def with_peer(text: str, peer: str) -> str:
    """The text of a peers file with one more peer, before the others."""
    name = _named(f"- {peer}")
    lines = text.splitlines(keepends=True)
    if name in map(_named, lines):
        raise ValueError(f"it has a peer {name} already; take that out if it is gone, or give this one another name")
    if all(not line.strip() or line.lstrip().startswith("#") for line in lines):
        lines = [*_ended(lines), "peers: []\n"]
    at, header = _header(lines)
    indent = "  " if header["nobody"] else _indent(lines[at + 1 :])
    lines[at : at + 1] = [f"peers:{header['rest']}\n", f"{indent}- {peer}\n"]
    return "".join(lines)


def without_peer(text: str, peer: str) -> str:
    """The text without a peer that `with_peer` added. Where nobody is left, it says so."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if line.strip() != f"- {peer}"]
    if len(kept) == len(lines):
        return text
    at, header = _header(kept)
    if not any(_ITEM.match(line) for line in kept[at + 1 :]):
        kept[at] = f"peers: []{header['rest']}\n"
    return "".join(kept)


def _header(lines: list[str]) -> tuple[int, re.Match[str]]:
    """The line that begins the list of peers."""
    for at, line in enumerate(lines):
        if header := _HEADER.fullmatch(line):
            return at, header
    raise ValueError(_OTHER_FORM)


def _indent(lines: list[str]) -> str:
    """The indent of the peers below the header, of which none is a line of another form."""
    for line in lines:
        words = line.strip()
        if not words or words.startswith("#") or words in ("---", "..."):
            continue
        if item := _ITEM.match(line):
            return item["indent"]
        raise ValueError(_OTHER_FORM)
    return "  "


def _named(line: str) -> str | None:
    """The name of the peer that a line is about, if it says one."""
    found = _NAME.match(line)
    return found["name"] if found else None


def _ended(lines: list[str]) -> list[str]:
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]


def _change(path: str, changed: Callable[[str], str]) -> None:
    with _locked(os.path.dirname(path)):
        try:
            with open(path, encoding="utf-8", newline="") as file:
                before = file.read()
        except FileNotFoundError:
            before = ""
        after = changed(before)
        if after != before:
            _replace(path, after)


def _replace(path: str, text: str) -> None:
    draft = f"{path}.{os.getpid()}.draft"
    try:
        with open(draft, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        if os.path.exists(path):
            os.chmod(draft, os.stat(path).st_mode & 0o7777)
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Nobody else changes a peers file of the directory meanwhile. Nothing is left there by the lock."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{directory} is locked by another program for more than {_PATIENCE:.0f} s") from None
                time.sleep(0.01)
        try:
            yield
        finally:
            # A child that was forked meanwhile holds the same lock.
            fcntl.flock(held, fcntl.LOCK_UN)
    finally:
        os.close(held)


if __name__ == "__main__":
    leave(*sys.argv[1:3])
