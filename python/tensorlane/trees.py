"""Nested values: a plain tree in CBOR, and the arrays of it beside it, each where a placeholder stands.

Plain are None, bool, int, float, str, bytes, and dicts, lists and tuples of them. What is read is plain, too: no byte of another
process makes an object here, but where both ends say that they pickle.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any, Callable, Iterable, Sequence

import cbor2
import numpy as np

from . import arrays, dtypes, opaque
from .errors import Error, Invalid, Unsupported

DEPTH_MAX = 64
"""Containers that may stand in each other."""

TREE_MAX = 4 << 20
"""Bytes of a tree. A byte of it may become an object of a hundred bytes at the reader: arrays are beside the tree, and bounded by the message."""

_OUT_OF_BAND = 4096
"""Bytes from which a pickle, or a buffer of one, is an array beside the tree: 1,024 arrays of a message are as much as a tree may have."""

_TOLD_MAX = 8
"""Culprits that an error names."""

_ARRAY, _TUPLE, _SCALAR, _PICKLED, _PAIRS = range(0x544C_0001, 0x544C_0006)
"""Tags: an array by its number, a tuple, a scalar of numpy by dtype and bytes, an object that was pickled with its buffers, a dict with
integers among its keys as keys and values in turn."""

_INT_KEYS = range(-(1 << 63), 1 << 64)
"""Integers that may be keys. The hash of longer ones is no secret, and a dict of many with one hash would take hours to make."""

_MADE_BY_CBOR2 = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""Tags of which cbor2 makes dates, patterns, sets, shared references and the like: none of them is plain."""

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_KEYS = frozenset((str, int, bytes))

CONTAINERS = (dict, OrderedDict, list, tuple)
"""Types that are containers of a tree however it is written; what is derived from them is an object where objects are pickled."""

_Path = tuple[Any, Any] | None
"""The path of the container, and the key in it; None for the value as a whole."""

_ARRAYS = (list, tuple)
_MAPS = (dict, cbor2.frozendict)
"""Types of which cbor2 makes arrays and maps: inside of a tag those that do not change."""


def as_array(x: Any) -> arrays.Source | None:
    """Reads what a message carries beside its tree; None for what is plain."""
    if type(x) in _PLAIN or isinstance(x, (str, bytes, list, tuple)) or opaque.is_mapping(x):
        return None
    try:
        return arrays.source(x)
    except Unsupported:
        return None


def as_arrays(xs: Iterable[Any]) -> list[arrays.Source] | None:
    """Reads arrays; None if one of them is plain."""
    sources = []
    for x in xs:
        source = as_array(x)
        if source is None:
            return None
        sources.append(source)
    return sources


def encode(value: Any, *, pickles: bool, most: int) -> tuple[bytes, list[Any]]:
    """A value as CBOR, and its arrays in the order of their placeholders.

    Raises `Unsupported`, a TypeError, whose `details` say by the path of each culprit what is wrong, and `Invalid` for a tree of more
    than `most` bytes, or TREE_MAX.
    """
    writing = _Writing(pickles, most)
    plain = writing.node(value, None)
    if writing.culprits:
        raise _unsupported(writing.culprits, pickles)
    tree = cbor2.dumps(plain)
    writing.check(len(tree))
    return tree, writing.arrays


def decode(tree: bytes, tensors: Sequence[Any], *, pickles: bool, where: str) -> Any:
    """The value of a tree and the arrays beside it; `where` says in errors what was read.

    Raises MESSAGE_DAMAGED for what no writer of this library writes, `Unsupported` for objects where this end does not pickle.
    """
    if len(tree) > TREE_MAX:
        raise _damaged(where, f"its tree has {len(tree)} bytes, and {TREE_MAX} are the most")
    reading = _Reading(tensors, pickles, where)
    value = reading.node(_parsed(tree, where), None, 0)
    if reading.next != len(tensors):
        raise _damaged(where, f"it has {len(tensors)} arrays and {reading.next} places for them")
    return value


class _Writing:
    """A tree on its way into CBOR: what was found in it."""

    def __init__(self, pickles: bool, most: int):
        self._pickles, self._most, self._bytes = pickles, min(most, TREE_MAX), 0
        # Containers on the way from the whole value to where it is now.
        self._inside: set[int] = set()
        self.arrays: list[Any] = []
        self.culprits: list[tuple[str, str]] = []

    def node(self, x: Any, path: _Path) -> Any:
        kind = type(x)
        if kind in _PLAIN:
            return self._plain(x, path)
        self._count(1)
        if not self._pickles and opaque.is_plain(x):
            return self.node(opaque.plain_of(x), path)
        if kind is dict or kind is OrderedDict or (opaque.is_mapping(x) and not self._pickles):
            return self._nested(x, path, self._dict)
        if kind is list or kind is tuple:
            return self._nested(x, path, self._items)
        if isinstance(x, np.generic):
            return self._scalar(x, path)
        return self._other(x, path)

    def _plain(self, x: Any, path: _Path) -> Any:
        self._count(1 + (len(x) if isinstance(x, (str, bytes)) else x.bit_length() // 8 if type(x) is int else 0))
        if type(x) is str and not x.isascii():
            try:
                x.encode()
            except UnicodeEncodeError:
                return self._culprit(path, "a text with half of a surrogate pair")
        return x

    def _nested(self, x: Any, path: _Path, taken: Callable[[Any, _Path], Any]) -> Any:
        if id(x) in self._inside:
            return self._culprit(path, f"the {type(x).__name__} that it stands in: a cycle")
        if len(self._inside) == DEPTH_MAX:
            return self._culprit(path, f"deeper than {DEPTH_MAX} containers")
        self._inside.add(id(x))
        try:
            return taken(x, path)
        finally:
            self._inside.discard(id(x))

    def _items(self, x: Any, path: _Path) -> Any:
        items = [self.node(item, (path, at)) for at, item in enumerate(x)]
        return items if type(x) is list else cbor2.CBORTag(_TUPLE, items)

    def _dict(self, x: Any, path: _Path) -> Any:
        made: dict[Any, Any] = {}
        for key, item in opaque.items(x):
            if type(key) not in _KEYS:
                self._culprit((path, key), f"under a key of type {type(key).__name__}")
            elif type(key) is int and key not in _INT_KEYS:
                self._culprit((path, key), "under an integer of more than 64 bits")
            else:
                self._plain(key, (path, key))
                made[key] = self.node(item, (path, key))
        if any(type(key) is int for key in made):
            return cbor2.CBORTag(_PAIRS, [one for pair in made.items() for one in pair])
        return made

    def _scalar(self, x: np.generic, path: _Path) -> Any:
        try:
            return cbor2.CBORTag(_SCALAR, [dtypes.of_numpy(x.dtype), x.astype(x.dtype.newbyteorder("=")).tobytes()])
        except Unsupported as error:
            return self._object(x, path, error.message)

    def _other(self, x: Any, path: _Path) -> Any:
        try:
            arrays.source(x)
        except Unsupported as error:
            torch = dtypes.torch_if_imported()
            helped = f"{error.message} ({error.remedy})"
            if torch is not None and isinstance(x, torch.Tensor):
                return self._culprit(path, helped)
            speaks = any(hasattr(x, word) for word in ("dtype", "__array__", "__dlpack__"))
            return self._object(x, path, helped if speaks else f"a {type(x).__name__} is neither plain nor an array")
        return self._array(x)

    def _array(self, x: Any) -> Any:
        self.arrays.append(x)
        return cbor2.CBORTag(_ARRAY, len(self.arrays) - 1)

    def _object(self, x: Any, path: _Path, why: str) -> Any:
        if not self._pickles:
            return self._culprit(path, why)
        try:
            pickled, buffers = pickled_apart(x, _OUT_OF_BAND)
        except Exception as error:
            return self._culprit(path, f"a {type(x).__name__} that cannot be pickled: {error}")
        if len(pickled) < _OUT_OF_BAND:
            self._count(len(pickled))
        first = pickled if len(pickled) < _OUT_OF_BAND else self._array(np.frombuffer(pickled, np.uint8))
        return cbor2.CBORTag(_PICKLED, [first, [self._array(np.frombuffer(one, np.uint8)) for one in buffers]])

    def _culprit(self, path: _Path, why: str) -> None:
        self.culprits.append((_told(path), why))

    def _count(self, more: int) -> None:
        """Counts what the tree has at least, so that a small value that stands in itself many times ends, too."""
        self._bytes += more
        self.check(self._bytes)

    def check(self, size: int) -> None:
        """Refuses a tree of so many bytes where that is too much."""
        if size > self._most:
            words = f"the plain part of the message has more than the {self._most} bytes that it may have"
            slots = "" if self._most == TREE_MAX else "make the channel with larger slots (slot_bytes=), or "
            raise Invalid(words, "TOO_LARGE", remedy=f"{slots}send long texts and bytes as arrays: numpy.frombuffer(data, 'u1')")


class _Reading:
    """A tree on its way out of CBOR: how many arrays were placed."""

    def __init__(self, tensors: Sequence[Any], pickles: bool, where: str):
        self._tensors, self._pickles, self._where = tensors, pickles, where
        self.next = 0

    def node(self, x: Any, path: _Path, depth: int) -> Any:
        kind = type(x)
        if kind in _PLAIN:
            return x
        if depth > DEPTH_MAX:
            raise _damaged(self._where, f"{_told(path)} is deeper than {DEPTH_MAX} containers")
        if kind in _ARRAYS:
            return [self.node(item, (path, at), depth + 1) for at, item in enumerate(x)]
        if kind in _MAPS:
            return {key: self.node(item, (path, key), depth + 1) for key, item in x.items()}
        if kind is cbor2.CBORTag:
            return self._tagged(x.tag, x.value, path, depth)
        raise _damaged(self._where, f"{_told(path)} is a {kind.__name__}")

    def _tagged(self, tag: int, value: Any, path: _Path, depth: int) -> Any:
        kinds = [type(one) for one in value] if type(value) in _ARRAYS else []
        if tag == _TUPLE and type(value) in _ARRAYS:
            return tuple(self.node(value, path, depth))
        if tag == _PAIRS and type(value) in _ARRAYS and len(value) % 2 == 0:
            return self._pairs(value[::2], value[1::2], path, depth)
        if tag == _ARRAY and type(value) is int:
            return self._array(value, path)
        if tag == _SCALAR and kinds == [str, bytes]:
            return self._scalar(value[0], value[1], path)
        if tag == _PICKLED and len(kinds) == 2 and kinds[0] in (bytes, cbor2.CBORTag) and kinds[1] in _ARRAYS:
            return self._object(value[0], value[1], path)
        raise _damaged(self._where, f"{_told(path)} has the tag {tag}, or not what belongs to it")

    def _array(self, number: int, path: _Path) -> Any:
        if number != self.next or number >= len(self._tensors):
            raise _damaged(self._where, f"{_told(path)} is array {number}, where {self.next} of {len(self._tensors)} comes next")
        self.next += 1
        return self._tensors[number]

    def _pairs(self, keys: Any, items: Any, path: _Path, depth: int) -> Any:
        made: dict[Any, Any] = {}
        for key, item in zip(keys, items):
            if type(key) not in _KEYS or (type(key) is int and key not in _INT_KEYS) or key in made:
                raise _damaged(self._where, f"a key of {_told(path)} is a {type(key).__name__} that is none, or comes twice")
            made[key] = self.node(item, (path, key), depth + 1)
        return made

    def _scalar(self, short: str, raw: bytes, path: _Path) -> Any:
        dtype = dtypes.to_numpy(short)
        if len(raw) != dtype.itemsize:
            raise _damaged(self._where, f"{_told(path)} is a scalar of {len(raw)} bytes, and {short} has {dtype.itemsize}")
        return np.frombuffer(raw, dtype)[0]

    def _object(self, pickled: Any, buffers: Any, path: _Path) -> Any:
        if not self._pickles:
            raise Unsupported(
                f"{_told(path)} of {self._where} is an object that its writer pickled, and this reader does not unpickle",
                remedy="attach with pickle=True if you trust the writer with your process; the next message can be read",
            )
        first, *tensors = [self.node(one, path, 0) for one in (pickled, *buffers)]
        try:
            return pickle.loads(memoryview(first), buffers=[memoryview(tensor) for tensor in tensors])
        except Exception as error:
            words = f"{_told(path)} of {self._where} cannot be unpickled here: {type(error).__name__}: {error}"
            raise Unsupported(words, remedy="let this program import what the writer's does; the next message can be read") from error


def _parsed(tree: bytes, where: str) -> Any:
    decoder = cbor2.CBORDecoder(
        io.BytesIO(tree),
        semantic_decoders={tag: _refused for tag in _MADE_BY_CBOR2},
        # A tag is a level of its own there.
        max_depth=3 * DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        # Texts and bytes, whose hashes are a secret of each process: others are in pairs, and looked at before they are hashed.
        strict_hashable_types=True,
    )
    try:
        plain = decoder.decode()
    except Exception as error:
        raise _damaged(where, f"its tree is no CBOR that this library writes: {error}") from None
    try:
        decoder.read(1)
    except cbor2.CBORDecodeEOF:
        return plain
    raise _damaged(where, "bytes stand behind its tree")


def _refused(*_: Any) -> Any:
    raise ValueError("a tag that is not plain")


def pickled_apart(x: Any, least: int) -> tuple[bytes, list[memoryview]]:
    """An object in pickle, and its buffers of `least` bytes and more beside it."""
    buffers: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < least:
            return True
        buffers.append(raw)
        return False

    return pickle.dumps(x, protocol=5, buffer_callback=stays), buffers


def _unsupported(culprits: list[tuple[str, str]], pickles: bool) -> Unsupported:
    told = "; ".join(f"{path}: {why}" for path, why in culprits[:_TOLD_MAX])
    more = f"; and {len(culprits) - _TOLD_MAX} more" if len(culprits) > _TOLD_MAX else ""
    remedy = "send plain values (dict, list, tuple, None, bool, int, float, str, bytes) and arrays"
    if not pickles:
        remedy += "; or say pickle=True at both ends"
    return Unsupported(f"the message cannot be sent: {told}{more}", details=dict(culprits[:_TOLD_MAX]), remedy=remedy)


def _damaged(where: str, what: str) -> Error:
    remedy = "restart its writer, which writes what cannot be; then attach anew"
    return Error(f"{where} is damaged: {what}", "MESSAGE_DAMAGED", remedy=remedy)


def _told(path: _Path) -> str:
    """A path as Python says it: `value['a'][3]`."""
    keys = []
    while path is not None:
        path, key = path
        keys.append(f"[{_shown(key):.40}]")
    return "value" + "".join(reversed(keys))


def _shown(key: Any) -> str:
    try:
        return repr(key)
    except Exception:
        # Such as an integer of more than 4,300 digits.
        return f"<{type(key).__name__}>"
