"""Numbers, times, shapes and names as callers give them: checked before they reach the native half."""

from __future__ import annotations

import math
import operator
import reprlib
from typing import Any

from .errors import Invalid, Unsupported

MANY = (1 << 32) - 1
"""Most of what is counted by 32 bits: slots, readers, uses, versions."""

DEPTH_MAX = 64
"""Containers that may stand in each other, as in messages of channels."""

_MOST = (1 << 63) - 1
_TIMES = "give a number from 0 on, such as 60 or 0.5"


def whole(what: str, given: Any, most: int = _MOST) -> int:
    """A whole number from 0 on, of Python or numpy."""
    try:
        number = operator.index(given)
    except TypeError:
        raise Unsupported(f"{what} is {_told(given)}, and no whole number", remedy="give an int") from None
    if not 0 <= number <= most:
        raise Invalid(f"{what} is {_told(number)}", remedy=f"give a whole number from 0 to {most}")
    return number


def time(what: str, given: Any) -> float:
    """A time in seconds, of Python or numpy; infinity is for ever."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__float__"):
        raise Unsupported(f"{what} is {_told(given)}, and no number of seconds", remedy=_TIMES)
    try:
        seconds = float(given)
    except OverflowError:
        seconds = math.inf if given > 0 else -math.inf
    if not seconds >= 0:
        raise Invalid(f"{what} is {seconds:g}, and no number of seconds", remedy=_TIMES)
    return seconds


def seconds(what: str, given: Any) -> float | None:
    """A time; None where nothing is said."""
    return None if given is None else time(what, given)


def flag(what: str, given: Any) -> bool:
    """True or False, of Python or numpy."""
    if type(given).__name__ not in ("bool", "bool_"):
        raise Unsupported(f"{what} is {_told(given)}", remedy="give True or False")
    return bool(given)


def retry_id(given: Any) -> bytes | None:
    """The id of a call that may be repeated; None where nothing is said."""
    if given is not None and (not isinstance(given, bytes) or len(given) != 16):
        raise Invalid(f"the retry id is {_told(given)}, and it has 16 bytes", remedy="pass uuid.uuid4().bytes")
    return given


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


def name(given: Any) -> str | None:
    """A name of a tensor; None where it has none."""
    if given == "":
        raise Invalid("the name is empty", remedy="leave it out for a tensor without a name")
    return None if given is None else text("the name", given)


def depth(key: str, inside: int, remedy: str = "make it flatter") -> None:
    """Refuses a container that stands in as many others as may be."""
    if inside >= DEPTH_MAX:
        # Where it stands is as long as it is deep.
        what = f"{_told(key)} is deeper than {DEPTH_MAX} containers in each other"
        raise Invalid(what, details={"most": str(DEPTH_MAX)}, remedy=remedy)


def texts(what: str, given: Any) -> list[str]:
    """Several texts. A lone one, whose characters would be taken for them, is refused."""
    if isinstance(given, (str, bytes)):
        raise Unsupported(f"{what} is the one text {_told(given)}, and a list is asked for", remedy=f"give [{_told(given)}]")
    try:
        several = list(given)
    except TypeError:
        raise Unsupported(f"{what} is {_told(given)}, and no list of texts", remedy="give a list of str") from None
    return [text(f"{what}[{at}]", one) for at, one in enumerate(several)]


def patterns(what: str, given: Any) -> list[str] | None:
    """Patterns of names of peers; None where nothing is said."""
    return None if given is None else texts(what, given)


def _told(given: Any) -> str:
    return reprlib.repr(given)
