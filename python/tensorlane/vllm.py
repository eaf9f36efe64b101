"""A message queue with the interface of vLLM's, over a channel: one writer, readers in any pod and on any node.

`MessageQueue` stands where vLLM has `vllm.distributed.device_communicators.shm_broadcast.MessageQueue`. vLLM is not imported. Objects
are pickled, as vLLM's are: whoever writes a queue can run what it likes in its readers.
"""

from __future__ import annotations

import hmac
import logging
import math
import pickle
import secrets
import threading
import time
import uuid
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Iterator

import numpy as np

from . import sizes, trees
from ._tensorlane import Cancel, Reference, Stored
from .channels import ChannelReader, ChannelWriter, Message
from .client import Client, default
from .errors import Error, Exhausted, Invalid, NotFound, Timeout, Unavailable, Withdrawn
from .pipes import Listener, Pipe, Writing
from .tensor import Tensor

_log = logging.getLogger(__name__)

_OUT_OF_BAND = 1 << 20
"""Bytes from which a buffer of an object is a part of its own, as at vLLM."""

_PARTS_MAX = 1_000
_ALIGN = 64

_SAYS = 60.0
"""Seconds after which a wait without an end says for whom it waits."""

_CHECKS = 1.0
"""Seconds between two looks whether readers live, whose death the count of readers does not show."""

_GETS = 600.0
"""Seconds that a large object may take to come, once its message did; the next dequeue tries again."""

_CANCELS = 0.1
"""Seconds within which a wait sees that its `cancel` was set: an event has nothing else to wait for."""

_ENDS = 10.0
"""Seconds for which `shutdown` keeps large objects for readers that have not given their messages back."""

_HEARS = 0.05
"""Seconds for which whoever just connected is waited for to say that it is a reader, before others are accepted."""

_SILENT_MAX = 64
"""Pipes that have not said whose they are; the oldest is closed for another one."""

_LOOKS = 0.01
"""Seconds between two looks of `shutdown` at how far readers are."""


class WrongEnd(Invalid, RuntimeError):
    """A call that belongs to the other end of the queue."""


@dataclass(frozen=True)
class Handle:
    """Name of a queue, for its readers: picklable, and good at any peer of the exchange."""

    peer: str
    channel: str
    n_reader: int
    local_reader_ranks: list[int] = field(default_factory=list)
    token: str = field(default="", repr=False)
    """Word by which the writer knows readers: whoever has the handle."""


class MessageQueue:
    """End of a queue of objects: the writer where it is constructed, a reader where it is made from a handle.

    Each reader gets every object in order. One call at a time uses an end.
    """

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: list[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        *,
        client: Client | None = None,
    ):
        """Makes a queue that this process writes, with `max_chunks` objects of `max_chunk_bytes` in the pod's shared memory.

        Larger objects are put as tensors of their own. A reader finds its way by itself: how many are local is not asked, and
        `connect_ip` is not used. `client` is by default that of $TENSORLANE_SOCKETS.
        """
        if not 0 <= n_local_reader <= n_reader:
            raise Invalid(f"{n_local_reader} of {n_reader} readers are local", remedy="pass n_local_reader from 0 to n_reader")
        ranks = list(range(n_local_reader)) if local_reader_ranks is None else list(local_reader_ranks)
        if len(ranks) != n_local_reader:
            raise Invalid(f"{len(ranks)} ranks for {n_local_reader} local readers", remedy="pass a rank for each of them")
        self._client = client or default()
        self._handle = Handle(self._client.peer, f"vllm/{uuid.uuid4().hex}", n_reader, ranks, secrets.token_hex(16))
        self._end: _WritingEnd | _ReadingEnd = _WritingEnd(self._client, self._handle, max_chunk_bytes, max(2, max_chunks))

    def export_handle(self) -> Handle:
        """The handle with which readers are made."""
        return self._handle

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, *, client: Client | None = None) -> MessageQueue:
        """Attaches a reader, in any process of the exchange: it gets every object from here on."""
        made = object.__new__(MessageQueue)
        made._client, made._handle = client or default(), handle
        made._end = _ReadingEnd(made._client, handle, rank)
        return made

    @staticmethod
    def create_from_process_group(
        pg: Any, max_chunk_bytes: int = 24 << 20, max_chunks: int = 10, writer_rank: int = 0, *, blocking: bool = True
    ) -> MessageQueue:
        """Makes a queue of all ranks of a group of torch.distributed, or of one of vLLM's that has `broadcast_obj`.

        Every rank calls it. With `blocking` it returns when all of them are attached. Arguments of vLLM's that are not here are refused.
        """
        import torch.distributed as dist

        stateless = hasattr(pg, "broadcast_obj")
        rank = pg.rank if stateless else dist.get_rank(pg)
        size = pg.world_size if stateless else dist.get_world_size(pg)
        made = MessageQueue(size - 1, 0, [], max_chunk_bytes, max_chunks) if rank == writer_rank else None
        handle = None if made is None else made.export_handle()
        if stateless:
            handle = pg.broadcast_obj(handle, writer_rank)
        else:
            box = [handle]
            dist.broadcast_object_list(box, src=dist.get_global_rank(pg, writer_rank), group=pg)
            handle = box[0]
        if made is None:
            assert handle is not None
            made = MessageQueue.create_from_handle(handle, rank)
        if blocking:
            made.wait_until_ready()
        return made

    @property
    def _is_writer(self) -> bool:
        return isinstance(self._end, _WritingEnd)

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Waits until the writer and all readers are there, `timeout` seconds or for ever: every end calls it.

        Raises a TimeoutError, after which it may be called again, `Unavailable` once for readers that are gone meanwhile, and
        CHANNEL_ENDED where either end is shut down.
        """
        self._end.wait_until_ready(_Clock(timeout))

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Writes an object for every reader; waits where the ring is full, `timeout` seconds or for ever.

        Raises a TimeoutError that says who or what is behind, `Unavailable` where readers are gone, and `Exhausted` where an object
        never fits, or something else fills the arena. Without readers it does nothing.
        """
        if not isinstance(self._end, _WritingEnd):
            raise WrongEnd("this end of the queue reads", remedy="call dequeue")
        self._end.write(obj, _Clock(timeout))

    def dequeue(self, timeout: float | None = None, cancel: threading.Event | None = None, indefinite: bool = False) -> Any:
        """Takes the next object; waits `timeout` seconds or for ever, until `cancel` is set.

        `indefinite` says that a long wait is no news, and is not logged. Raises a TimeoutError, a RuntimeError when cancelled, and
        CHANNEL_ENDED where the writer is gone. A large object that does not come in time is what the next call takes; one of
        another node needs time to come, so that `timeout=0` does not get it.
        """
        if not isinstance(self._end, _ReadingEnd):
            raise WrongEnd("this end of the queue writes", remedy="call enqueue")
        return self._end.read(_Clock(timeout), cancel, indefinite)

    def broadcast_object(self, obj: Any = None) -> Any:
        """The object that the writer gives, at every end."""
        if not self._is_writer:
            return self.dequeue()
        self.enqueue(obj)
        return obj

    def shutdown(self) -> None:
        """Ends this end: a writer's readers take what is there, and a call that waits in another thread comes back.

        A writer of large objects waits up to 10 s until readers have taken them: what they have not taken then goes with it.
        """
        self._end.close()

    def __reduce__(self) -> Any:
        raise TypeError("an end of a queue stays in its process; pass export_handle()")

    def __repr__(self) -> str:
        end = "writer" if self._is_writer else "reader"
        return f"<tensorlane.vllm.MessageQueue {self._handle.channel!r} of {self._handle.peer}, {end}>"


class _Clock:
    """Time that a call has: some seconds, or no end."""

    def __init__(self, timeout: float | None):
        # What is left of a caller's time may be below 0: it is over then.
        given = max(timeout, 0.0) if isinstance(timeout, (int, float)) else timeout
        self._started, timeout = time.monotonic(), sizes.seconds("timeout", given)
        self._until = math.inf if timeout is None else self._started + timeout
        self._says = _SAYS

    def left(self, most: float = math.inf) -> float:
        """Seconds that are left, `most` of them; 0 is one try."""
        return max(0.0, min(most, self._until - time.monotonic()))

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    @property
    def waited(self) -> float:
        return time.monotonic() - self._started

    def says(self) -> bool:
        """Returns true when it is time to say for whom the call waits: every 60 s."""
        if self.waited < self._says:
            return False
        self._says += _SAYS
        return True


@dataclass(eq=False)
class _Joined:
    """A reader, as the writer knows it by its pipe: its rank, and whether it was told to begin."""

    pipe: Pipe
    rank: str
    is_told: bool = False


class _WritingEnd:
    """Writer of a queue."""

    def __init__(self, client: Client, handle: Handle, chunk_bytes: int, slots: int):
        self._client, self._handle, self._chunk_bytes, self._slots = client, handle, chunk_bytes, slots
        readers = max(1, handle.n_reader)
        self._writer: ChannelWriter = client.channel_writer(handle.channel, slots=slots, slot_bytes=chunk_bytes, readers_max=readers)
        self._listener: Listener | None = client.listen(_ready(handle.channel))
        self._joined: list[_Joined] = []
        # Pipes that have not said whose they are.
        self._silent: list[Pipe] = []
        self._attached, self._checked, self._is_closed = 0, 0.0, False
        # Large objects, by the message that names them, until every reader has given that message back.
        self._leases: deque[tuple[int, list[Stored]]] = deque()
        self._letting_go = threading.Lock()

    def wait_until_ready(self, clock: _Clock) -> None:
        while (listener := self._listener) is not None:
            self._attached = max(self._attached, self._writer.readers)
            try:
                if self._is_ready(listener, clock.left(_CHECKS)):
                    listener.close()
                    self._forget_silent()
                    self._listener, self._attached, self._checked = None, self._writer.readers, time.monotonic()
            except Timeout:
                if self._is_closed:
                    raise _shut_down(self._handle.channel) from None
                self._bury()
                words = f"{len(self._joined)} of {self._handle.n_reader} readers of the queue are ready after {clock.waited:g} s"
                if clock.is_over:
                    raise Timeout(words, "DEADLINE_EXCEEDED", remedy="let every reader call wait_until_ready") from None
                if clock.says():
                    _log.warning("%s", words)
            except Error:
                if self._is_closed:
                    raise _shut_down(self._handle.channel) from None
                self._bury()
                raise

    def _is_ready(self, listener: Listener, timeout: float) -> bool:
        """Takes one step: hears readers, accepts one, or tells one to begin; true when all are told."""
        self._hear(timeout)
        if len(self._joined) < self._handle.n_reader:
            pipe = listener.accept(timeout=min(timeout, _HEARS) if self._silent else timeout)
            self._silent.append(pipe)
            if len(self._silent) > _SILENT_MAX:
                self._silent.pop(0).close()
            return False
        for one in self._joined:
            if not one.is_told:
                self._tell(one, timeout)
                return False
        return True

    def _hear(self, timeout: float) -> None:
        """Takes those for readers that say so by the token of the handle; any peer may connect, and be silent."""
        for pipe in list(self._silent):
            if len(self._joined) == self._handle.n_reader:
                return
            is_newest = pipe is self._silent[-1]
            try:
                descriptor = pipe.read_descriptor(timeout=min(timeout, _HEARS) if is_newest else 0)
                token, _, rank = (b"" if descriptor is None else descriptor.metadata).partition(b" ")
                is_reader = hmac.compare_digest(token, self._handle.token.encode())
                if is_reader and descriptor is not None:
                    descriptor.read()
            except Timeout:
                continue
            except Error:
                is_reader = False
            self._silent.remove(pipe)
            if is_reader:
                self._joined.append(_Joined(pipe, rank.decode(errors="replace")))
            else:
                pipe.close()

    def _tell(self, one: _Joined, timeout: float) -> None:
        self._bury()
        try:
            one.pipe.write(metadata=b"READY", timeout=timeout)
            one.is_told = True
        except Timeout as late:
            # What may have been read is not written again. The others are not to wait for this one.
            one.is_told = late.delivered != "no"
            self._joined.remove(one)
            self._joined.append(one)
            raise

    def _forget_silent(self) -> None:
        while self._silent:
            self._silent.pop().close()

    def _bury(self) -> None:
        """Drops readers that died before the queue was ready, and raises for them, once: others may come in their places."""
        dead = [one for one in self._joined if not _lives(one.pipe)]
        fewer = self._writer.readers < self._attached
        if dead or fewer:
            self._joined = [one for one in self._joined if one not in dead]
            self._attached = self._writer.readers
            raise self._gone(dead)

    def write(self, obj: Any, clock: _Clock) -> None:
        if self._handle.n_reader == 0:
            return
        self.wait_until_ready(clock)
        self._check()
        parts = _pickled(obj)
        stored: list[Stored] = []
        value: Any = parts
        if len(parts) > _PARTS_MAX or sum(-part.nbytes // _ALIGN * -_ALIGN for part in parts) > self._chunk_bytes:
            stored = self._put(parts, clock)
            value = {"references": [str(one.reference) for one in stored]}
        try:
            sequence = self._written(value, clock)
        except BaseException:
            _release(stored)
            raise
        if stored:
            self._leases.append((sequence, stored))
        # Rings of other peers have as many places again.
        self._let_go(sequence - 2 * self._slots)

    def _written(self, value: Any, clock: _Clock) -> int:
        while True:
            try:
                return self._writer.write(value, timeout=clock.left(_CHECKS))
            except Timeout as blocked:
                self._check()
                if clock.is_over:
                    raise
                if clock.says():
                    _log.warning("waited %.0f s to write: %s", clock.waited, blocked.message)

    def _put(self, parts: list[np.ndarray], clock: _Clock) -> list[Stored]:
        """Stores a large object, as soon as readers are done with enough of those before it."""
        while True:
            if self._is_closed:
                raise _shut_down(self._handle.channel)
            self._let_go(self._given_back())
            try:
                return self._client.put_many(parts, deadline=clock.left(_CHECKS))
            except (Exhausted, Timeout) as full:
                self._check()
                # Room comes of the objects before, or from whoever else fills the arena: that one is given as long as any put.
                if full.reason == "NEVER_FITS" or not (self._leases or clock.left(self._client.deadline - clock.waited)):
                    raise
                words = f"waited {clock.waited:.1f} s for room: readers have not given back the {len(self._leases)} large objects before"
                if clock.is_over:
                    raise Timeout(words, "DEADLINE_EXCEEDED", remedy="let readers dequeue, or give the sidecar a larger arena") from full
                if clock.says():
                    _log.warning("%s", words)

    def _given_back(self) -> int:
        """The first message that some reader may not have given back yet."""
        for channel in self._client.channels(self._handle.channel):
            if channel["name"] == self._handle.channel and channel["readers"]:
                if channel["readers_left_out"]:
                    break
                # A reader of another peer has what was sent there, and gives it back later.
                behind = [one["behind"] + (0 if one["route"] == "local" else self._slots) for one in channel["readers"]]
                return int(channel["written"] - max(behind))
        return 0

    def _let_go(self, before: float) -> None:
        with self._letting_go:
            while self._leases and self._leases[0][0] < before:
                _release(self._leases.popleft()[1])

    def _check(self) -> None:
        """Raises where readers are gone. The channel goes on without them, and whoever writes has to know."""
        now = time.monotonic()
        fewer = self._writer.readers < self._attached
        if not fewer and now < self._checked + _CHECKS:
            return
        self._checked = now
        gone = [one for one in self._joined if not _lives(one.pipe)]
        if fewer or gone:
            raise self._gone(gone)

    def _gone(self, readers: list[_Joined]) -> Unavailable:
        who = f"of rank {', '.join(one.rank for one in readers)} " if readers else ""
        words = f"readers {who}are gone from the queue {self._handle.channel}, which was made for {self._handle.n_reader}"
        return Unavailable(words, remedy="make the workers and the queue anew")

    def close(self) -> None:
        self._is_closed = True
        self._writer.finish()
        # Another thread may be done with it meanwhile.
        if (listener := self._listener) is not None:
            listener.close()
        try:
            self._wait_for_readers(_Clock(_ENDS))
        finally:
            for one in self._joined:
                one.pipe.close()
            self._forget_silent()
            self._let_go(math.inf)

    def _wait_for_readers(self, clock: _Clock) -> None:
        """Keeps large objects until their messages were given back; a reader that has come to the end closes its pipe."""
        self._let_go(self._given_back() if self._leases else 0)
        while self._leases and not clock.is_over and any(_lives(one.pipe) for one in self._joined):
            time.sleep(_LOOKS)
            self._let_go(self._given_back())


class _ReadingEnd:
    """Reader of a queue."""

    def __init__(self, client: Client, handle: Handle, rank: int):
        self._client, self._hello = client, f"{handle.token} {rank}"
        self._at = handle.channel if client.peer == handle.peer else f"{handle.peer}/{handle.channel}"
        self._reader: ChannelReader = client.channel_reader(self._at, wait=_SAYS)
        # Kept open: the writer sees by it that this process lives.
        self._pipe: Pipe | None = None
        self._said: Writing | None = None
        self._is_ready = self._is_closed = False
        # The message of a large object that did not come yet, and what withdraws the call that gets it.
        self._pending: Message | None = None
        self._getting = Cancel()

    def wait_until_ready(self, clock: _Clock) -> None:
        if self._is_ready:
            return
        try:
            # What a call before this one began goes on.
            if self._pipe is None:
                self._pipe = self._client.connect_pipe(_ready(self._at))
            if self._is_closed:
                self._pipe.close()
            if self._said is None:
                self._said = self._pipe.begin(metadata=self._hello, timeout=math.inf)
            ready = self._pipe.read(timeout=clock.left())
        except Error as error:
            if self._is_closed or error.reason in ("PIPE_CLOSED", "PIPE_LOST"):
                raise _shut_down(self._at) from error
            raise
        if ready is None:
            raise _shut_down(self._at)
        self._is_ready = True

    def read(self, clock: _Clock, cancel: threading.Event | None, indefinite: bool) -> Any:
        message = self._pending or self._next(clock, cancel, indefinite)
        self._pending = None
        value = message.value
        if isinstance(value, dict):
            self._pending = message
            tensors = self._got(value["references"], message.sequence, clock, cancel)
            self._pending = None
        else:
            tensors = value
        with message:
            try:
                return _unpickled(tensors)
            finally:
                for tensor in tensors:
                    tensor.release()

    def _got(self, references: list[str], sequence: int, clock: _Clock, event: threading.Event | None) -> list[Tensor]:
        """Gets a large object."""
        withdrawal = self._getting = Cancel()
        if self._is_closed:
            raise _shut_down(self._at)
        try:
            with _withdrawn_by(event, withdrawal):
                return self._client.get_many([Reference(one) for one in references], deadline=clock.left(_GETS), cancel=withdrawal)
        except NotFound as gone:
            self._pending = None
            words = f"the large object of message {sequence} of the queue {self._at} went with its writer, before it was read here"
            raise Error(words, "CHANNEL_ENDED", remedy="dequeue sooner than 10 s after the writer's shutdown") from gone
        except Withdrawn:
            if self._is_closed:
                raise _shut_down(self._at) from None
            raise RuntimeError("cancelled") from None

    def _next(self, clock: _Clock, cancel: threading.Event | None, indefinite: bool) -> Message:
        step = _SAYS if cancel is None else _CANCELS
        while cancel is None or not cancel.is_set():
            try:
                message = self._reader.read(timeout=clock.left(step))
            except Timeout:
                if clock.is_over:
                    raise
                if not indefinite and clock.says():
                    _log.warning("waited %.0f s for an object of %s, whose writer %s lives", clock.waited, self._at, self._reader.writer)
                continue
            if message is None:
                # The writer may wait for that.
                if self._pipe is not None:
                    self._pipe.close()
                raise _shut_down(self._at)
            return message
        raise RuntimeError("cancelled")

    def close(self) -> None:
        self._is_closed, self._pending = True, None
        self._getting.cancel()
        self._reader.close()
        if self._pipe is not None:
            self._pipe.close()


def _ready(channel: str) -> str:
    return f"{channel}/ready"


def _shut_down(queue: str) -> Error:
    return Error(f"the queue {queue} was shut down at an end of it", "CHANNEL_ENDED", remedy="make the workers and the queue anew")


@contextmanager
def _withdrawn_by(event: threading.Event | None, withdrawal: Cancel) -> Iterator[None]:
    """Withdraws a call when an event is set; the thread that waits for it ends within 100 ms of the call."""
    if event is None:
        yield
        return
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            if event.wait(_CANCELS):
                withdrawal.cancel()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _pickled(obj: Any) -> list[np.ndarray]:
    """An object as bytes, with its large buffers behind it."""
    first, buffers = trees.pickled_apart(obj, _OUT_OF_BAND)
    return [np.frombuffer(raw, np.uint8) for raw in (memoryview(first), *buffers)]


def _unpickled(tensors: list[Tensor]) -> Any:
    """An object of its own: its arrays may be written, and hold no place of the ring."""
    first, *buffers = [memoryview(tensor) for tensor in tensors]
    return pickle.loads(first, buffers=[bytearray(buffer) for buffer in buffers])


def _lives(pipe: Pipe) -> bool:
    try:
        return pipe.read_descriptor(timeout=0) is not None
    except Timeout:
        return True
    except Error:
        return False


def _release(stored: list[Stored]) -> None:
    for one in stored:
        one.release()
