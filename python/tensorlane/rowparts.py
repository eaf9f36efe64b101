"""Parts of rows: rows of a leaf that were read, written in part, and given whole to a commit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import arrays, dtypes
from . import values as preparing
from ._tensorlane import Reference, Stored
from .errors import OutOfRange, Unsupported
from .tensor import Tensor


class ReadRows:
    """Rows of a leaf, copied as bytes: a last dimension has those of one element, whatever its type is."""

    def __init__(self, key: str, read: Tensor):
        self._key, self._dtype, self._shape = key, read.dtype, read.shape
        count = math.prod(read.shape)
        size = read.nbytes // max(1, count)
        if size * count != read.nbytes:
            raise Unsupported(f"{key}: elements of {read.dtype} are no whole bytes", remedy="write whole rows")
        self._bytes = np.array(memoryview(read.tobytes())).reshape(*read.shape, size)

    def write(self, one: bool, inner: tuple[Any, ...], value: Any, of_torch: bool) -> bool:
        """Writes the part that indices behind the rows mean, of the only row or of each; False if that has no elements."""
        whole: Any = self._bytes
        # A number beside a list is a list for numpy, and goes first for torch.
        index: tuple[Any, ...] = (0 if one else slice(None), *inner, slice(None))
        if of_torch:
            whole = dtypes.torch().from_numpy(self._bytes)
            whole, index = (whole[0], index[1:]) if one else (whole, index)
        try:
            shape = tuple(whole[index].shape)
        except IndexError as error:
            what = f"{self._key}: rows of shape {list(self._shape[1:])} have no such part: {error}"
            raise OutOfRange(what, "SELECTION_OUT_OF_RANGE", remedy="give indices that are there, one for each dimension at most") from None
        given = self._given(value, shape[:-1])
        if 0 in shape:
            return False
        part = np.frombuffer(given, np.uint8).reshape(shape)
        whole[index] = dtypes.torch().from_numpy(part.copy()) if of_torch else part
        return True

    def source(self) -> arrays.Source:
        """All of the rows, to be stored."""
        dense = self._bytes.reshape(-1)
        return arrays.Source(self._dtype, self._shape, dense.nbytes, dense, lambda block: np.copyto(np.frombuffer(block, np.uint8), dense))

    def _given(self, value: Any, shape: tuple[int, ...]) -> Any:
        """Bytes of a value that was made an array of the leaf's type, of this shape."""
        from .mutable import Leaf

        if isinstance(value, (Reference, Stored)):
            raise Unsupported(f"{self._key}: a tensor that was put is written as whole rows", remedy="get it, and write what that gives")
        made = preparing.prepared({self._key: value}, {self._key: Leaf(self._dtype, shape)}, 1)[self._key]
        return arrays.source_under(self._key, made).dense()
