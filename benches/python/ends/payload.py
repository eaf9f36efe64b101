"""Bytes that are handed over, and their checksums: the same at every end."""

from __future__ import annotations

import zlib

import numpy as np

PAGE = 4096
_MARKS = 256 << 10
_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)


class Payload:
    """Bytes of which no two pages are alike, and which differ from turn to turn."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, nbytes: int, turn: int) -> np.ndarray:
        """The bytes of a turn, in memory that is warm; those of the turn before are gone."""
        if len(self._bytes) != nbytes:
            self._bytes = pattern(nbytes)
        self._bytes[::_MARKS] = turn % 251
        return self._bytes


def pattern(nbytes: int) -> np.ndarray:
    """So many bytes, always the same."""
    words = np.arange(nbytes // 8, dtype=np.uint64)
    words *= _ODD
    return words.view(np.uint8)


def pattern_rows(index: list[int], row: int) -> np.ndarray:
    """Rows of so many bytes of the pattern."""
    words = np.asarray(index, np.uint64)[:, None] * np.uint64(row // 8) + np.arange(row // 8, dtype=np.uint64)
    return (words * _ODD).view(np.uint8)


def touch(array: np.ndarray) -> int:
    """Reads one byte of every page: a get without a copy owes that still."""
    return int(array[::PAGE].sum(dtype=np.int64))


def digest(array: np.ndarray) -> int:
    """Checksum of all bytes."""
    return zlib.crc32(memoryview(np.ascontiguousarray(array)).cast("B"))


def forget(array: np.ndarray) -> None:
    """Spoils memory that is read into, so that its checksum is wrong unless the bytes come again."""
    array[::_MARKS] = 251
