"""Rows of a mutable set: what an index asks for, in the words of the sidecar."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dtypes, opaque, parts
from .errors import OutOfRange, Unsupported
from .parts import Bounds

Words = tuple[list[Bounds], list[int] | None, list[int]]
"""A range, or rows, and the dimension that goes because the index is one number."""


@dataclass(frozen=True)
class Selected:
    """Rows that an index selects."""

    words: Words
    count: int

    @property
    def one(self) -> bool:
        """True where the index is one number, so that arrays have no dimension of rows."""
        return bool(self.words[2])


def of(index: Any, size: int) -> Selected:
    """The rows of a set of `size` rows that an index of numpy means."""
    if index is Ellipsis:
        index = slice(None)
    if isinstance(index, slice):
        return _range(index, size)
    if _is_number(index):
        at = _at(int(index), size)
        return Selected(([(at, at + 1, 1)], None, [0]), 1)
    return _list(index, size)


def split(index: Any, rank: int) -> tuple[Any, tuple[Any, ...] | None]:
    """The index of rows, and those of the dimensions behind, of an index of so many dimensions."""
    if not isinstance(index, tuple) or not index:
        return index, None
    if index[0] is Ellipsis:
        if sum(entry is not None for entry in index[1:]) != rank:
            return slice(None), index if len(index) > 1 else None
        # The ellipsis stands for no dimension.
        index = index[1:]
    rows, *inner = index
    lists = not (isinstance(rows, slice) or _is_number(rows))
    if lists and not all(entry is None or entry is Ellipsis or isinstance(entry, slice) or _is_number(entry) for entry in inner):
        raise Unsupported("a list of rows with further lists", remedy="read the rows, and index what comes back")
    return rows, tuple(inner) or None


def behind(rows: Any, inner: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index of what was read that stands for the dimensions behind the rows, as torch means it."""
    return inner if _is_number(rows) else (slice(None), *inner)


def part(read: np.ndarray, rows: Any, inner: tuple[Any, ...]) -> np.ndarray:
    """The part of what was read that further indices mean, as numpy means it.

    A number beside a list is a list of one for numpy, and so decides which dimensions come first.
    """
    return read[np.newaxis][(0, *inner)] if _is_number(rows) else read[(slice(None), *inner)]


def _is_number(index: Any) -> bool:
    if isinstance(index, (bool, np.bool_)):
        return False
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(index, torch.Tensor):
        return index.ndim == 0 and str(index.dtype) in parts.TORCH_WHOLE
    if isinstance(index, np.ndarray):
        return index.ndim == 0 and index.dtype.kind in "iu"
    return isinstance(index, (int, np.integer))


def _range(index: slice, size: int) -> Selected:
    index = parts.whole_slice(index)
    if index.step == 0:
        raise Unsupported("the step of the rows is 0", remedy="give another step, or leave it out")
    start, stop, step = index.indices(size)
    count = len(range(start, stop, step))
    if step < 0:
        return Selected(([], list(range(start, stop, step)), []), count)
    return Selected(([(start, max(start, stop), step)], None, []), count)


def _list(index: Any, size: int) -> Selected:
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(index, torch.Tensor):
        index = _of_torch(index)
    if isinstance(index, (tuple, str, bytes)) or index is None:
        raise _no_rows(index)
    opaque.check_under("the index of rows", index)
    rows = np.asarray(index)
    if rows.dtype == bool and rows.ndim == 1:
        if len(rows) != size:
            raise OutOfRange(f"a mask of {len(rows)} for {size} rows", "SELECTION_OUT_OF_RANGE", remedy="give one for each row")
        rows = np.flatnonzero(rows)
    elif rows.size == 0 and rows.ndim == 1:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise _no_rows(index)
    outside = rows[(rows >= size) | (rows < -size)] if rows.dtype.kind == "i" else rows[rows >= size]
    if len(outside):
        raise _outside(int(outside[0]), size)
    if rows.dtype.kind == "i":
        rows = np.where(rows < 0, rows.astype(np.int64) + size, rows)
    return Selected(([], rows.tolist(), []), len(rows))


def _of_torch(index: Any) -> np.ndarray:
    """A tensor of torch with row numbers or a mask, as an array."""
    dtype = str(index.dtype)
    if dtype == "torch.uint8":
        raise Unsupported("a tensor of torch.uint8 is a mask for torch and row numbers here", remedy="convert to bool or int64")
    if dtype in parts.TORCH_WHOLE or dtype == "torch.bool":
        return index.detach().cpu().numpy()
    if index.numel():
        raise _no_rows(index)
    return np.empty(tuple(index.shape))


def _at(index: int, size: int) -> int:
    if not -size <= index < size:
        raise _outside(index, size)
    return index % size


def _outside(row: int, size: int) -> OutOfRange:
    return parts.outside(f"row {row} is outside a set of {size} rows", row)


def _no_rows(index: Any) -> Unsupported:
    remedy = "give a number, a slice, whole numbers in a list or an array of one dimension, or a mask"
    return Unsupported(f"{reprlib.repr(index)} selects no rows", remedy=remedy)
