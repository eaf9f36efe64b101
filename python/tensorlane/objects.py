"""Objects of messages, for readers in the process of their writer.

The ring carries each message as bytes, and says which one comes next. Beside it the writer keeps the object of each message that lies in a
slot: a reader of its process takes that, and decodes nothing. Nobody is waited for, and no lock is taken: the interpreter's is enough.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

Channel = tuple[str, int]
"""A channel of a sidecar of this pod: the sidecar's incarnation, and its number there."""


class Objects:
    """Objects of the messages of a channel that lie in its ring. Its writer and its readers in this process have it, and nobody else."""

    def __init__(self, name: str):
        self.name, self.process = name, os.getpid()
        self.kept: dict[int, Any] = {}
        """Objects by the sequences of their messages. Written by the native half, which takes out what lay in a slot before."""
        self.channel: Channel | None = None
        """The channel, once it was made, which is before its first message."""
        # Entered before it is shown around: a search that begins meanwhile sees it, or is shown it.
        _TABLES[id(self)] = self
        for search in _there(_SEARCHES):
            search.see(self)


class Search:
    """Search of a reader for the objects of its channel. It begins before the attach, after which the writer may have ended by itself."""

    def __init__(self, name: str):
        self._name = name
        self._seen: list[Objects] = []
        _SEARCHES[id(self)] = self
        for objects in _there(_TABLES):
            self.see(objects)

    def see(self, objects: Objects) -> None:
        """Notes objects that may be those, by the name of their channel. A forked child never takes those of its parent."""
        is_named = self._name == objects.name or self._name.endswith(f"/{objects.name}")
        if is_named and objects.process == os.getpid() and objects not in self._seen:
            self._seen.append(objects)

    def found(self, channel: Channel | None) -> list[Objects]:
        """Objects of the channel that the reader is attached to, and those whose channel is not known so far."""
        return [] if channel is None else [objects for objects in self._seen if objects.channel in (None, channel)]


_TABLES: WeakValueDictionary[int, Objects] = WeakValueDictionary()
"""Objects of all channels that this process writes."""

_SEARCHES: WeakValueDictionary[int, Search] = WeakValueDictionary()
"""Searches of readers that are attached just now."""


def _there(entries: WeakValueDictionary[int, T]) -> list[T]:
    """Entries that are still there, in one step: other threads add some meanwhile."""
    return [entry for reference in entries.valuerefs() if (entry := reference()) is not None]
