"""Transfers between the two sides of Ray's transport: sends that wait for a receiver, receivers that wait for a send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ._tensorlane import Cancel, Stored
from .errors import Error, NotFound, Timeout, Withdrawn
from .pipes import Listener, Pipe

if TYPE_CHECKING:
    from .client import Client

NAMES_MAX = 4096
"""Transfers that are over and known as such; the oldest is forgotten first."""
NAMES_KEPT = 600.0
"""Seconds for which a transfer that is over is known as such."""

# A message has 64 KiB of metadata, and a reference some 100 bytes.
_REFERENCES_AT_ONCE = 256

# Reasons of a write whose reader has gone.
_GONE = ("PIPE_CLOSED", "PIPE_LOST")

T = TypeVar("T")


class Names:
    """Names of transfers that are over, for a time and up to a number. The lock of its owner is held."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, name: str) -> None:
        """Adds a name, and forgets the oldest one beyond the number."""
        self._until.pop(name, None)
        self._until[name] = time.monotonic() + NAMES_KEPT
        if len(self._until) > NAMES_MAX:
            del self._until[next(iter(self._until))]

    def __contains__(self, name: str) -> bool:
        return self._until.get(name, 0.0) > time.monotonic()

    def __len__(self) -> int:
        return len(self._until)


class Sending:
    """Transfer from here: tensors that are put, until their receiver has them or the deadline is over."""

    def __init__(self, obj_id: str, transfer: str, seconds: float):
        self.obj_id, self._transfer, self.withdrawn = obj_id, transfer, False
        self._deadline = time.monotonic() + seconds
        self._client: Client | None = None
        self._stored: list[Stored] = []
        self._listener: Listener | None = None
        self._pipe: Pipe | None = None

    def put(self, client: Client, tensors: list[Any]) -> None:
        """Puts the tensors, and lets the receiver connect."""
        self._client = client
        self._stored = client.put_many(tensors, deadline=left(self._deadline))
        self._listener = client.listen(self._transfer)
        if self.withdrawn:
            raise aborted(self.obj_id)

    def hand_over(self) -> None:
        """Waits for the receiver, tells it the references, and waits until it has the tensors.

        A receiver that gave up a connect, and knows nothing of the pipe that came of it, connects again.
        """
        assert self._listener is not None
        while True:
            self._pipe = None
            try:
                with self._listener.accept(timeout=left(self._deadline)) as self._pipe:
                    self._tell(self._pipe)
                return
            except Error as error:
                if self.withdrawn or self._pipe is None or error.reason not in _GONE:
                    raise

    def _tell(self, pipe: Pipe) -> None:
        if self.withdrawn:
            raise Withdrawn("the transfer was given up")
        for start in range(0, len(self._stored), _REFERENCES_AT_ONCE):
            some = self._stored[start : start + _REFERENCES_AT_ONCE]
            pipe.write(metadata="\n".join(str(one.reference) for one in some), timeout=left(self._deadline))

    def withdraw(self) -> None:
        """Ends it. A receiver that has connected is told; another one waits until its own deadline."""
        self.withdrawn = True
        if self._listener is not None:
            self._listener.close()
        if (pipe := self._pipe) is not None:
            pipe.close()
        # Its thread may come late, or never.
        for one in self._stored:
            one.release()

    def release(self) -> None:
        """Gives up what was put, and the name at which the receiver connects."""
        if self._listener is not None:
            self._listener.close()
        if self._client is not None:
            release(self._client, self._stored)


class Waiting:
    """Patience of a receiver with the peer that sends an object."""

    def __init__(self, obj_id: str, peer: str, seconds: float, cancel: Cancel):
        self._seconds, self.deadline = seconds, time.monotonic() + seconds
        self._obj_id, self._peer, self._cancel = obj_id, peer, cancel

    def until(self, attempt: Callable[[float], T], seconds: float) -> T:
        """Tries for so many seconds at once, and looks in between at whether the transfer was aborted."""
        while True:
            if self._cancel.cancelled:
                raise Withdrawn("the transfer was aborted")
            try:
                return attempt(min(seconds, left(self.deadline)))
            except (NotFound, Timeout) as error:
                if time.monotonic() >= self.deadline:
                    words = f"object {self._obj_id} was not sent by peer {self._peer} within {self._seconds:g} s"
                    remedy = "see the log of the actor that made it, which may have ended, or set TENSORLANE_RAY_DEADLINE to more seconds"
                    raise Timeout(words, "DEADLINE_EXCEEDED", remedy=remedy) from error


def aborted(obj_id: str) -> RuntimeError:
    """The exception of a transfer that was aborted."""
    return RuntimeError(f"the transfer of object {obj_id} was aborted")


def left(deadline: float) -> float:
    """Seconds that are left until a deadline."""
    return max(deadline - time.monotonic(), 0.0)


def release(client: Client, stored: list[Stored]) -> None:
    """Gives up what was put."""
    for one in stored:
        one.release()
    if stored:
        client.flush()
