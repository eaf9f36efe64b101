"""Whole numbers, shapes and names as callers give them: checked before they reach the native half."""

from __future__ import annotations

import operator
import reprlib
from typing import Any

from .errors import Invalid, Unsupported

MANY = (1 << 32) - 1
"""Most of what is counted by 32 bits: slots, readers, uses, versions."""

_MOST = (1 << 63) - 1


def whole(what: str, given: Any, most: int = _MOST) -> int:
    """A whole number from 0 on, of Python or numpy."""
    try:
        number = operator.index(given)
    except TypeError:
        raise Unsupported(f"{what} is {_told(given)}, and no whole number", remedy="give an int") from None
    if not 0 <= number <= most:
        raise Invalid(f"{what} is {_told(number)}", remedy=f"give a whole number from 0 to {most}")
    return number


def shape_of(given: Any, what: str = "the shape") -> tuple[int, ...]:
    """A shape: one whole number, or several."""
    if hasattr(given, "__index__") and getattr(given, "ndim", 0) == 0:
        return (whole(what, given),)
    try:
        sizes = tuple(given)
    except TypeError:
        raise Unsupported(f"{what} is {_told(given)}", remedy="give whole numbers, such as (3, 4)") from None
    return tuple(whole(f"{what} {_told(given)}: a size", size) for size in sizes)


def text(what: str, given: Any) -> str:
    """A name, which UTF-8 can say."""
    if not isinstance(given, str):
        raise Unsupported(f"{what} is {_told(given)}, and no text", remedy="give a str")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} {_told(given)} has half of a surrogate pair", remedy="give whole characters") from None
    return given


def _told(given: Any) -> str:
    return reprlib.repr(given)
