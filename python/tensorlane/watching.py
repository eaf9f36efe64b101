"""Watching names: those that there are, then each that comes, is replaced or goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Literal, cast

from . import _tensorlane, sizes
from ._tensorlane import Reference
from .errors import WatchCut

Kind = Literal["present", "synced", "appeared", "replaced", "gone"]


@dataclass(frozen=True)
class WatchEvent:
    """Event of a watch."""

    kind: Kind
    """`present`: the name was there when the watch began. `synced`: all of these are told, and changes follow. `appeared`,
    `replaced` (the name was given to another tensor) and `gone`: a change."""
    name: str
    """The name; empty for `synced`."""
    reference: Reference | None
    """Tensor that the name stands for since then, or stood for, if it is gone. None if that tensor is gone already."""
    revision: str | None
    """Revision to go on from after this event: pass it as `after`. None for `present`."""


class Watch:
    """A watch of the names that begin alike: `for event in watch` goes on until it is closed.

    It has no place at the sidecar, which remembers the latest changes of all names. A loop that is too slow gets WATCH_CUT; the
    next call begins anew, with the names that there are.
    """

    def __init__(self, prefix: str, core: _tensorlane.Watch, after: str | None):
        self.prefix, self._core, self._revision = prefix, core, after

    @property
    def revision(self) -> str | None:
        """Revision from which another watch goes on without missing or repeating an event; None before `synced`."""
        return self._revision

    def next(self, *, timeout: float | None = None) -> WatchEvent:
        """Takes the next event.

        It waits `timeout` seconds, the client's deadline by default; 0 is one try, `math.inf` for ever. WATCH_CUT is raised where
        changes were missed: the next call begins anew.
        """
        try:
            kind, name, reference, revision = self._core.next(sizes.seconds("timeout", timeout))
        except WatchCut:
            self._revision = None
            raise
        self._revision = revision or self._revision
        return WatchEvent(cast(Kind, kind), name, reference, revision)

    def close(self) -> None:
        """Ends it; a call of it in another thread comes back."""
        self._core.close()

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        return self.next(timeout=float("inf"))

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a watch stays in its process; pass its prefix and its revision")

    def __repr__(self) -> str:
        return f"<tensorlane.Watch {self.prefix!r} after {self._revision}>"
