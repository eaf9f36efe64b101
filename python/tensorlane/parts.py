"""Parts of tensors: what an index asks for, in the words of the sidecar. Only the bytes of the part travel."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dtypes, opaque
from ._tensorlane import Reference
from .errors import Invalid, OutOfRange, Unsupported

Bounds = tuple[int | None, int | None, int]
"""Start, stop and step of one dimension; None for its beginning or its end."""

_WHOLE: Bounds = (None, None, 1)

TORCH_WHOLE = frozenset(f"torch.{name}" for name in ("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"))
"""Dtypes of torch whose elements are row numbers; torch.uint8 is a mask for torch."""

RANGE_MAX = 1 << 20
"""Rows of a `range` where nothing says how many there are."""


@dataclass(frozen=True)
class Part:
    """A part of a tensor that is not got yet: pass it to `get` in the place of the reference."""

    reference: Reference
    index: Any

    def __post_init__(self) -> None:
        selection(self.index, self.reference.shape)


def of(reference: Reference, index: Any) -> Part:
    """The part of a tensor that an index of numpy means."""
    return Part(reference, index)


def selection(index: Any, shape: tuple[int, ...] | None) -> tuple[list[Bounds], list[int] | None, list[int]]:
    """Ranges of the leading dimensions, or rows of the first, and the dimensions that go.

    Without a shape, as for names, indices count from the beginning and an ellipsis stands at the end.
    """
    index = tuple(map(_plain, index)) if isinstance(index, tuple) else _plain(index)
    if isinstance(index, (list, np.ndarray, range)):
        return [], _rows(index, shape), []
    entries = _expanded(index if isinstance(index, tuple) else (index,), shape)
    if shape is not None and len(entries) > len(shape):
        raise Invalid(f"{len(entries)} indices for a tensor of shape {list(shape)}", remedy="give at most one for each dimension")
    ranges: list[Bounds] = []
    gone: list[int] = []
    for dim, entry in enumerate(entries):
        size = None if shape is None else shape[dim]
        if isinstance(entry, slice):
            ranges.append(_range(entry, size, dim))
        elif isinstance(entry, (int, np.integer)) and not isinstance(entry, (bool, np.bool_)):
            at = _at(int(entry), size, dim)
            ranges.append((at, at + 1, 1))
            gone.append(dim)
        else:
            raise Unsupported(
                f"{entry!r} is no index of dimension {dim}",
                remedy="use numbers and slices, or one list of rows alone; for more, get the tensor and index its .numpy()",
            )
    return ranges, None, gone


def _plain(entry: Any) -> Any:
    """An index without torch, and a number where it is one."""
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(entry, torch.Tensor) and (str(entry.dtype) in TORCH_WHOLE or entry.shape == (0,)):
        entry = entry.detach().cpu().numpy()
    return int(entry) if isinstance(entry, np.ndarray) and entry.ndim == 0 and entry.dtype.kind in "iu" else entry


def _expanded(entries: tuple[Any, ...], shape: tuple[int, ...] | None) -> list[Any]:
    at = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    if not at:
        return list(entries)
    (place, *more), given = at, len(entries) - 1
    if more or (shape is None and place != given):
        raise Invalid("an ellipsis stands in the middle or twice", remedy="index a reference, with one ellipsis")
    missing = max(0, len(shape or ()) - given)
    return [*entries[:place], *[slice(None)] * missing, *entries[place + 1 :]]


def whole_slice(entry: slice) -> slice:
    """A slice whose bounds are whole numbers of Python, or None."""
    try:
        return slice(*(None if bound is None else operator.index(bound) for bound in (entry.start, entry.stop, entry.step)))
    except TypeError:
        raise Unsupported(f"the bounds of {entry!r} are no whole numbers", remedy="give int, or leave them out") from None


def _range(entry: slice, size: int | None, dim: int) -> Bounds:
    entry = whole_slice(entry)
    step = 1 if entry.step is None else entry.step
    if step < 1:
        raise Unsupported(f"the step {step} of dimension {dim} is below 1", remedy="get it forwards and turn the array round")
    if size is None:
        for bound in (entry.start, entry.stop):
            if bound is not None and bound < 0:
                raise Invalid(f"{bound} counts from the end of dimension {dim}", remedy="index a reference, which knows its shape")
        return entry.start, entry.stop, step
    if entry == slice(None):
        return _WHOLE
    start, stop, _ = entry.indices(size)
    return start, max(start, stop), step


def _at(index: int, size: int | None, dim: int) -> int:
    if size is not None and -size <= index < size:
        return index % size
    if size is None and index >= 0:
        return index
    if size is not None:
        raise outside(f"index {index} of dimension {dim} is outside a size of {size}", index)
    raise Invalid(f"index {index} of dimension {dim} counts from the end", remedy="index a reference, which knows its shape")


def outside(message: str, index: int) -> OutOfRange:
    """The error about an index that is not there."""
    return OutOfRange(message, "SELECTION_OUT_OF_RANGE", {"index": str(index)}, remedy="give an index that is there")


def _rows(index: Any, shape: tuple[int, ...] | None) -> list[int]:
    opaque.check_under("the index", index)
    if shape == ():
        raise Invalid("a scalar has no rows", remedy="get all of it")
    if isinstance(index, range) and len(index):
        # Before a list is made of it.
        for end in (index[0], index[-1]):
            _at(end, None if shape is None else shape[0], 0)
        if shape is None and len(index) > RANGE_MAX:
            raise Invalid(f"{index!r} has {len(index)} rows, and at most {RANGE_MAX} of a name", remedy="give a slice")
    rows = np.asarray(index)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise Unsupported(f"{index!r} is no list of rows", remedy="give whole numbers; for a mask, numpy.flatnonzero(mask)")
    return [_at(int(row), None if shape is None else shape[0], 0) for row in rows]
