"""All rows of a storage as a TensorDict that reads a leaf when it is asked for: samplers want one key of many."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from tensordict import TensorDict

from . import values as preparing

_KNOWN = frozenset(("__class__", "__dict__", "_batch_size", "_device", "batch_dims", "batch_size", "device", "dim", "get", "ndim", "shape"))
"""Attributes that tell nothing of the leaves."""


class LazyRows(TensorDict):  # type: ignore[no-untyped-call]
    """Rows of which nothing was read yet. A leaf that is asked for by its key is read alone, as it is then.

    Whatever else is asked for, all leaves are read, of one version, and this is a plain TensorDict from then on.
    """

    def __init__(self, length: int, device: Any, keys: Mapping[str, Any], one: Callable[[str], Any], whole: Callable[[], TensorDict]):
        super().__init__({}, batch_size=[length], device=device)
        self.__dict__["_reads"] = keys, one, whole

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN or "_reads" not in object.__getattribute__(self, "__dict__"):
            return super().__getattribute__(name)
        return getattr(_read(self), name)

    def __getitem__(self, index: Any) -> Any:
        key = preparing.as_key(index)
        keys, one, _ = self.__dict__["_reads"]
        if key is None or any(below.startswith(f"{key}/") for below in keys):
            return _read(self)[index]
        if key not in keys:
            raise KeyError(f"no leaf {key!r}; the storage has {list(keys)}")
        return one(key)

    def get(self, key: Any, default: Any = None, **options: Any) -> Any:
        """Value under a key, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _read(self).__reduce_ex__(protocol)


def _read(rows: LazyRows) -> TensorDict:
    """Reads all leaves: the same object, as a plain TensorDict."""
    _, _, whole = rows.__dict__["_reads"]
    read = whole()
    rows.__dict__.clear()
    rows.__dict__.update(read.__dict__)
    rows.__class__ = TensorDict
    return rows
