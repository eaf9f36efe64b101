"""Archives of tensordict, `NAME.tdz`: a zip of the directory that it saves, whose tensors lie stored, where they can be mapped."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from typing import Iterator

from ._tensorlane import Cancel
from .errors import Error, Invalid, Unsupported, Withdrawn

_ENDING = ".tdz"

_ENTRIES_MAX = 1 << 18
"""Entries of an archive: a set of 65,536 leaves has fewer files and directories, but for trees without leaves."""

_META_BYTES = 16 << 20
"""Bytes of all that is no tensor, as of a directory."""

_DEPTH = 2 * 64 + 1
"""Names in each other: 64 trees, each of which may be a tensorclass, and a file."""

_NAME_BYTES = 255

_ALIGNMENT = 64
"""Bytes of which the place of a tensor in its archive is a multiple, so that elements of any type can be shown where they lie."""

_PADDING = 0x6C74
"""Number of the extra field that fills the head of an entry."""

_HEAD, _HEAD_64 = 30, 20
"""Bytes of the head of an entry beside its name and extra fields, and of the field with its sizes in 64 bits."""

_PIECE = 8 << 20

_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OverflowError, RuntimeError, ValueError)
"""Exceptions by which Python refuses archives."""


def is_meant(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is that of an archive, by the end of its name."""
    return str(os.fspath(path)).endswith(_ENDING) and not os.path.isdir(path)


@contextmanager
def unpacked(path: str | os.PathLike[str], most: int, cancel: Cancel | None) -> Iterator[str]:
    """A directory with what is in an archive of at most so many bytes of tensors. It is gone with the context."""
    shown = os.fspath(path)
    if not os.path.isfile(path):
        raise Invalid(f"{shown} is no file", remedy="name an archive that tensordict saved")
    with tempfile.TemporaryDirectory(prefix="tensorlane-") as directory:
        try:
            with zipfile.ZipFile(path) as archive:
                entries = _checked(shown, archive, most + _META_BYTES)
                for entry in entries:
                    _unpack(archive, entry, directory, cancel)
        except Error:
            raise
        except _DAMAGED as error:
            raise Invalid(f"{shown} is damaged, or no zip: {error}", remedy="save it again by tensordict") from None
        yield directory


@contextmanager
def packing(path: str | os.PathLike[str], replace: bool, cancel: Cancel | None) -> Iterator[str]:
    """A path for a directory, of which an archive is made at the end of the context. The archive appears when it is whole."""
    named = os.path.abspath(os.fspath(path))
    if os.path.lexists(named) and not replace:
        raise _exists(named)
    # A link stays, and what it leads to is replaced, as by tensordict.
    name, target = os.path.basename(named), os.path.realpath(named)
    parent = os.path.dirname(target)
    with tempfile.TemporaryDirectory(prefix=".tdz.tl-", dir=parent) as beside:
        # With another ending than an archive's: the command that fills it would write one.
        directory, made = os.path.join(beside, f"{name}.d"), os.path.join(beside, "archive")
        yield directory
        with open(made, "xb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for inside in sorted(_files(directory)):
                    _check(cancel)
                    _pack(archive, directory, inside)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            if os.path.exists(target):
                # Whoever may not read the old one may not read this one.
                os.chmod(made, stat.S_IMODE(os.stat(target).st_mode))
            os.replace(made, target)
        else:
            _name(made, target)
        _sync(parent)


def _name(made: str, target: str) -> None:
    """Gives a file its name, which nothing may have."""
    try:
        os.link(made, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:
        # Not every file system has second names.
        if os.path.lexists(target):
            raise _exists(target) from None
        os.rename(made, target)


def _exists(target: str) -> Error:
    return Error(f"{target} exists", remedy="name another file, or pass replace=True")


def _check(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.cancelled:
        raise Withdrawn("the call was withdrawn")


def _checked(shown: str, archive: zipfile.ZipFile, most: int) -> list[zipfile.ZipInfo]:
    """Files of an archive that can be unpacked: nothing else, of plain names, and of so many bytes at most."""
    entries = archive.infolist()
    if len(entries) > _ENTRIES_MAX:
        raise Invalid(f"{shown} has {len(entries)} entries, and {_ENTRIES_MAX} are the most", "TOO_LARGE", remedy="make several sets")
    # Directories are made of the paths of files.
    files = [entry for entry in entries if not entry.filename.endswith("/")]
    names = set[str]()
    for entry in files:
        why = _fault(entry)
        if why is None and entry.filename in names:
            why = "stands there twice"
        if why is not None:
            raise Unsupported(f"{entry.filename!r} in {shown} {why}", remedy="save it again by tensordict")
        names.add(entry.filename)
    if "meta.json" not in names:
        raise Invalid(f"{shown} has no meta.json", remedy="name an archive that tensordict saved")
    if inside := next((name for name in names if not names.isdisjoint(_above(name))), None):
        raise Unsupported(f"{inside!r} in {shown} stands in a file", remedy="save it again by tensordict")
    total = sum(entry.file_size for entry in files)
    if total > most:
        what = f"{shown} has {total} bytes when it is unpacked, and {most} are the most that the sidecar has room for"
        raise Invalid(what, "TOO_LARGE", remedy="raise arena.size, or publish parts of it")
    return files


def _fault(entry: zipfile.ZipInfo) -> str | None:
    """Says of an entry what no file of a directory of tensordict is."""
    parts = entry.filename.split("/")
    # Of other systems it may have other bits, which say nothing here.
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if any(part in ("", ".", "..") or len(part.encode(errors="replace")) > _NAME_BYTES for part in parts) or len(parts) > _DEPTH:
        return "is no path of a file in a directory"
    if kind not in (0, stat.S_IFREG):
        return "is a link, or no plain file"
    if entry.flag_bits & 1:
        return "is encrypted"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed otherwise than by deflate"
    return None


def _above(name: str) -> Iterator[str]:
    """Paths that a file stands in, as names of files."""
    while (name := name.rpartition("/")[0]) != "":
        yield name


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, directory: str, cancel: Cancel | None) -> None:
    target = os.path.join(directory, *entry.filename.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with archive.open(entry) as source, open(target, "xb") as out:
        left = entry.file_size
        while left > 0:
            _check(cancel)
            piece = source.read(min(_PIECE, left))
            if not piece:
                raise EOFError(f"{entry.filename!r} ends {left} bytes early")
            out.write(piece)
            left -= len(piece)


def _files(directory: str) -> Iterator[str]:
    """Paths of all files below a directory, from there on."""
    for at, _, names in os.walk(directory):
        for name in names:
            yield os.path.relpath(os.path.join(at, name), directory)


def _pack(archive: zipfile.ZipFile, directory: str, inside: str) -> None:
    entry = zipfile.ZipInfo(inside)
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    with open(os.path.join(directory, inside), "rb") as source:
        entry.file_size = os.fstat(source.fileno()).st_size
        if inside.endswith(".memmap"):
            entry.extra = _padding(archive.start_dir + _HEAD + len(inside.encode()) + _HEAD_64)
        with archive.open(entry, "w", force_zip64=True) as out:
            shutil.copyfileobj(source, out, _PIECE)


def _padding(start: int) -> bytes:
    """Extra field of an entry whose bytes would begin at `start`, so that they begin at a multiple of the alignment."""
    missing = -start % _ALIGNMENT
    if missing == 0:
        return b""
    # The field has a head of four bytes itself.
    missing += _ALIGNMENT if missing < 4 else 0
    return struct.pack("<HH", _PADDING, missing - 4) + bytes(missing - 4)


def _sync(directory: str) -> None:
    """Brings the name of a file to the disk, where the file system can."""
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # A directory that may be written and not read.
    try:
        os.fsync(opened)
    except OSError:
        pass  # Not every file system has a sync of directories.
    finally:
        os.close(opened)
