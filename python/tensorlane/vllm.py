"""A message queue with the interface of vLLM's, over a channel: one writer, readers in any pod and on any node.

`MessageQueue` stands where vLLM has `vllm.distributed.device_communicators.shm_broadcast.MessageQueue`. vLLM is not imported. Objects
are pickled, as vLLM's are: whoever writes a queue can run what it likes in its readers.
"""

from __future__ import annotations

import logging
import math
import pickle
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._tensorlane import Reference, Stored
from .channels import ChannelReader, ChannelWriter, Message
from .client import Client, default
from .errors import Error, Exhausted, Invalid, Timeout, Unavailable
from .pipes import Listener, Pipe
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
"""Seconds that a large object may take to come, once its message did: a get that gave up would lose it."""

_CANCELS = 0.1
"""Seconds within which a wait sees that its `cancel` was set: an event has nothing else to wait for."""


@dataclass(frozen=True)
class Handle:
    """Name of a queue, for its readers: picklable, and good at any peer of the exchange."""

    peer: str
    channel: str
    n_reader: int
    local_reader_ranks: list[int] = field(default_factory=list)


class MessageQueue:
    """One end of a queue of objects: the writer where it is constructed, a reader where it is made from a handle.

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
        self._handle = Handle(self._client.peer, f"vllm/{uuid.uuid4().hex}", n_reader, ranks)
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
        pg: Any, max_chunk_bytes: int = 24 << 20, max_chunks: int = 10, writer_rank: int = 0, blocking: bool = True
    ) -> MessageQueue:
        """Makes a queue of all ranks of a group of torch.distributed, or of one of vLLM's that has `broadcast_obj`.

        Every rank calls it. With `blocking` it returns when all of them are attached.
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
        """Waits until the writer and all readers are there: every end calls it once. None waits for ever."""
        self._end.wait_until_ready(_Clock(timeout))

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Writes an object for every reader; waits where the ring is full, `timeout` seconds or for ever.

        Raises a TimeoutError that names the reader that is behind, and `Unavailable` where readers are gone.
        """
        if not isinstance(self._end, _WritingEnd):
            raise Invalid("this end of the queue reads", remedy="call dequeue")
        self._end.write(obj, _Clock(timeout))

    def dequeue(self, timeout: float | None = None, cancel: threading.Event | None = None, indefinite: bool = False) -> Any:
        """Takes the next object; waits `timeout` seconds or for ever, until `cancel` is set.

        `indefinite` says that a long wait is no news, and is not logged. Raises a TimeoutError, a RuntimeError when cancelled, and
        CHANNEL_ENDED where the writer is gone.
        """
        if not isinstance(self._end, _ReadingEnd):
            raise Invalid("this end of the queue writes", remedy="call enqueue")
        return self._end.read(_Clock(timeout), cancel, indefinite)

    def broadcast_object(self, obj: Any = None) -> Any:
        """The object that the writer gives, at every end."""
        if not self._is_writer:
            return self.dequeue()
        self.enqueue(obj)
        return obj

    def shutdown(self) -> None:
        """Ends this end: a writer's readers take what is there, and a call that waits in another thread comes back."""
        self._end.close()

    def __reduce__(self) -> Any:
        raise TypeError("an end of a queue stays in its process; pass export_handle()")

    def __repr__(self) -> str:
        end = "writer" if self._is_writer else "reader"
        return f"<tensorlane.vllm.MessageQueue {self._handle.channel!r} of {self._handle.peer}, {end}>"


class _Clock:
    """Time that a call has: some seconds, or no end."""

    def __init__(self, timeout: float | None):
        self._started = time.monotonic()
        self._until = math.inf if timeout is None else self._started + timeout

    def left(self, most: float = math.inf) -> float:
        """Seconds that are left, `most` of them; 0 is one try."""
        return max(0.0, min(most, self._until - time.monotonic()))

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    @property
    def waited(self) -> float:
        return time.monotonic() - self._started


class _WritingEnd:
    """Writer of a queue."""

    def __init__(self, client: Client, handle: Handle, chunk_bytes: int, slots: int):
        self._client, self._handle, self._chunk_bytes, self._slots = client, handle, chunk_bytes, slots
        readers = max(1, handle.n_reader)
        self._writer: ChannelWriter = client.channel_writer(handle.channel, slots=slots, slot_bytes=chunk_bytes, readers_max=readers)
        self._listener: Listener | None = client.listen(_ready(handle.channel))
        self._pipes: list[tuple[str, Pipe]] = []
        self._attached, self._checked = 0, 0.0
        # Large objects, by the message that names them, until every reader has given that message back.
        self._leases: deque[tuple[int, list[Stored]]] = deque()

    def wait_until_ready(self, clock: _Clock) -> None:
        if self._listener is None:
            return
        while len(self._pipes) < self._handle.n_reader:
            self._attached = max(self._attached, self._writer.readers)
            try:
                pipe = self._listener.accept(timeout=clock.left(_CHECKS))
            except Timeout:
                if self._writer.readers < self._attached:
                    raise self._gone([]) from None
                if clock.is_over:
                    words = f"{len(self._pipes)} of {self._handle.n_reader} readers of the queue are ready after {clock.waited:g} s"
                    raise Timeout(words, "DEADLINE_EXCEEDED", remedy="let every reader call wait_until_ready") from None
                continue
            said = pipe.read(timeout=clock.left())
            self._pipes.append(("?" if said is None else said.metadata.decode(), pipe))
        for _, pipe in self._pipes:
            pipe.write(metadata=b"READY", timeout=clock.left())
        self._listener.close()
        self._listener, self._attached = None, self._writer.readers
        self._checked = time.monotonic()

    def write(self, obj: Any, clock: _Clock) -> None:
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
        says = _SAYS
        while True:
            try:
                return self._writer.write(value, timeout=clock.left(_CHECKS))
            except Timeout as blocked:
                self._check()
                if clock.is_over:
                    raise
                if clock.waited >= says:
                    says += _SAYS
                    _log.warning("waited %.0f s to write: %s", clock.waited, blocked.message)

    def _put(self, parts: list[np.ndarray], clock: _Clock) -> list[Stored]:
        """Stores a large object, as soon as readers are done with enough of those before it."""
        while True:
            self._let_go(self._given_back())
            try:
                return self._client.put_many(parts, deadline=_CHECKS if self._leases else None)
            except Exhausted:
                self._check()
                if not self._leases or clock.is_over:
                    raise

    def _given_back(self) -> int:
        """The first message that some reader may not have given back yet."""
        for channel in self._client.channels(self._handle.channel):
            if channel["name"] == self._handle.channel and channel["readers"]:
                # A reader of another peer has what was sent there, and gives it back later.
                behind = [one["behind"] + (0 if one["route"] == "local" else self._slots) for one in channel["readers"]]
                return int(channel["written"] - max(behind))
        return 0

    def _let_go(self, before: int) -> None:
        while self._leases and self._leases[0][0] < before:
            _release(self._leases.popleft()[1])

    def _check(self) -> None:
        """Raises where readers are gone. The channel goes on without them, and whoever writes has to know."""
        now = time.monotonic()
        fewer = self._writer.readers < self._attached
        if not fewer and now < self._checked + _CHECKS:
            return
        self._checked = now
        gone = [rank for rank, pipe in self._pipes if not _lives(pipe)]
        if fewer or gone:
            raise self._gone(gone)

    def _gone(self, ranks: list[str]) -> Unavailable:
        who = f"of rank {', '.join(ranks)} " if ranks else ""
        words = f"readers {who}are gone from the queue {self._handle.channel}, which was made for {self._handle.n_reader}"
        return Unavailable(words, remedy="make the workers and the queue anew")

    def close(self) -> None:
        self._writer.finish()
        if self._listener is not None:
            self._listener.close()
        for _, pipe in self._pipes:
            pipe.close()


class _ReadingEnd:
    """Reader of a queue."""

    def __init__(self, client: Client, handle: Handle, rank: int):
        self._client, self._rank = client, rank
        self._at = handle.channel if client.peer == handle.peer else f"{handle.peer}/{handle.channel}"
        self._reader: ChannelReader = client.channel_reader(self._at, wait=_SAYS)
        self._pipe: Pipe | None = None

    def wait_until_ready(self, clock: _Clock) -> None:
        if self._pipe is not None:
            return
        pipe = self._client.connect_pipe(_ready(self._at))
        pipe.write(metadata=str(self._rank), timeout=clock.left())
        if pipe.read(timeout=clock.left()) is None:
            raise Error(f"the writer of the queue {self._at} has shut it down", "CHANNEL_ENDED")
        # Kept open: the writer sees by it that this process lives.
        self._pipe = pipe

    def read(self, clock: _Clock, cancel: threading.Event | None, indefinite: bool) -> Any:
        with self._next(clock, cancel, indefinite) as message:
            value = message.value
            if isinstance(value, list):
                return _unpickled(value)
            tensors = [self._client.get(Reference(text), deadline=_GETS) for text in value["references"]]
            try:
                return _unpickled(tensors)
            finally:
                for tensor in tensors:
                    tensor.release()

    def _next(self, clock: _Clock, cancel: threading.Event | None, indefinite: bool) -> Message:
        says, step = _SAYS, _SAYS if cancel is None else _CANCELS
        while cancel is None or not cancel.is_set():
            try:
                message = self._reader.read(timeout=clock.left(step))
            except Timeout:
                if clock.is_over:
                    raise
                if clock.waited >= says and not indefinite:
                    says += _SAYS
                    _log.warning("waited %.0f s for an object of %s, whose writer %s lives", clock.waited, self._at, self._reader.writer)
                continue
            if message is None:
                raise Error(f"the writer of the queue {self._at} has shut it down", "CHANNEL_ENDED")
            return message
        raise RuntimeError("cancelled")

    def close(self) -> None:
        self._reader.close()
        if self._pipe is not None:
            self._pipe.close()


def _ready(channel: str) -> str:
    return f"{channel}/ready"


def _pickled(obj: Any) -> list[np.ndarray]:
    """An object as bytes, with its large buffers behind it."""
    buffers: list[memoryview] = []

    def taken(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    first = memoryview(pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=taken))
    return [np.frombuffer(raw, np.uint8) for raw in (first, *buffers)]


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
