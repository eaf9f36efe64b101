"""Ends of channels and pipes for asyncio, which `tensorlane.aio.AsyncClient` makes.

Whatever is taken (a message, a descriptor, a pipe that was connected) is taken by a thread. A task that is cancelled meanwhile
loses nothing: the next one that asks gets it. Time counts from the call on, also while other tasks ask before.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
import weakref
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generic, Sequence, TypeVar

from . import sizes
from ._tensorlane import Cancel
from .channels import ChannelReader, ChannelWriter, Message, Value
from .errors import Error, Timeout, WatchCut, Withdrawn
from .pipes import Bytes, Descriptor, Listener, Pipe, Received
from .watching import Watch, WatchEvent

if TYPE_CHECKING:
    from .aio import AsyncClient

T = TypeVar("T")

_STEP = 0.05
"""Seconds that one try waits for the tasks before it, and for a thread that was just told to end."""

_SLICE = 2.0
"""Seconds within which a thread ends that waits for a descriptor, a pipe or a change, and for which nobody asks any more."""

_GRACE = 1.0
"""Seconds within which a thread begins, and comes back when its time is over."""


class _Wait(Generic[T]):
    """A wait of a thread for the next result."""

    call: Future[list[T]]
    """In a list, which whoever asks empties: the thread keeps what it gave for a moment, and a message must not be held by that."""

    def __init__(self, until: float):
        self.until, self.cancel = until, Cancel()

    @property
    def is_left(self) -> bool:
        """True once nobody asks any more: the thread ends, and what it has taken by then is kept."""
        return self.cancel.cancelled

    @property
    def is_vain(self) -> bool:
        """True where it ended without anything."""
        if not self.call.done() or self.call.cancelled():
            return self.call.done()
        error = self.call.exception()
        return isinstance(error, Timeout) or (self.is_left and isinstance(error, Withdrawn))


class _Line:
    """Line of the tasks that use an end: one has its turn, and the time of the others counts."""

    def __init__(self, client: AsyncClient, missed: str):
        self._client, self._missed = client, missed
        self._turns = asyncio.Lock()

    def until(self, timeout: float | None) -> float:
        """The time of the clock at which a call is over."""
        timeout = sizes.seconds("timeout", timeout)
        return time.monotonic() + (self._client.deadline if timeout is None else timeout)

    @asynccontextmanager
    async def turn(self, until: float) -> AsyncIterator[None]:
        """The turn of one task: the others wait in line, and their time counts."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(None if until == math.inf else max(until - began, _STEP)):
                await self._turns.acquire()
        except TimeoutError:
            raise self.late(until - began) from None
        try:
            yield
        finally:
            self._turns.release()

    def late(self, seconds: float) -> Timeout:
        """The error of a call whose time is over."""
        words = f"{self._missed} within {max(0.0, seconds):.3g} s"
        return Timeout(words, "DEADLINE_EXCEEDED", remedy="pass a longer timeout")


class _Next(_Line, Generic[T]):
    """Next result of an end: one thread waits for it, whoever asks.

    With `wake` the thread takes nothing when nobody asks: it is told to end then, by its cancel and `wake`. Without, it ends within
    `_SLICE`, by itself: what is taken early is as good later. `renew` is given what was taken for nobody, and gives what a call gets
    instead of it.
    """

    def __init__(
        self,
        client: AsyncClient,
        take: Callable[..., T],
        what: str,
        *,
        wake: Callable[[], None] | None = None,
        renew: Callable[[T], T] | None = None,
    ):
        super().__init__(client, f"{what} did not come")
        self._take, self._wake, self._renew = take, wake, renew
        self._wait: _Wait[T] | None = None

    async def __call__(self, timeout: float | None) -> T:
        until = self.until(timeout)
        async with self.turn(until):
            return await self.take(until)

    async def take(self, until: float) -> T:
        """Takes the next result, by the task whose turn it is."""
        began = time.monotonic()
        while True:
            wait = self._asked(until)
            # A thread that ends by itself is waited for: it has one try at least.
            ends_itself = wait.until <= until or (wait.is_left and self._wake is not None)
            latest = until + _GRACE if ends_itself else max(until, time.monotonic() + _STEP)
            try:
                is_over = await _settles(wait.call, latest)
            except BaseException:
                self._leave(wait)
                raise
            if not is_over:
                raise self.late(until - began) if self._leave(wait) else self._client._no_thread(until - began)
            if wait.is_left and self._renew is not None and not wait.is_vain and wait.call.exception() is None:
                self._wait = wait = self._renewed(wait)
                if not await _settles(wait.call, max(until, time.monotonic() + _GRACE)):
                    raise self.late(until - began)
            self._wait = None
            if not wait.is_vain:
                return wait.call.result().pop()
            # Or of a thread that was told to end before somebody asked again.
            if time.monotonic() >= until:
                raise self.late(until - began)

    def _asked(self, until: float) -> _Wait[T]:
        """The wait that goes on, or a new one."""
        if self._wait is None or self._wait.is_vain:
            is_one_try = until <= time.monotonic()
            self._wait = _Wait(until if is_one_try or self._wake is not None else math.inf)
            self._wait.call = self._client._begin("next", functools.partial(self._taken, self._wait))
        return self._wait

    def _renewed(self, kept: _Wait[T]) -> _Wait[T]:
        fresh: _Wait[T] = _Wait(-math.inf)
        renew, taken = self._renew, kept.call.result()
        assert renew is not None
        fresh.call = self._client._begin("next", lambda: [renew(taken.pop())])
        return fresh

    def _leave(self, wait: _Wait[T]) -> bool:
        """Tells a thread that nobody asks; False where none has begun."""
        # What is renewed was taken, and is not given up.
        if wait.until != -math.inf and wait.call.cancel():
            self._wait = None
            return False
        wait.cancel.cancel()
        if self._wake is not None:
            self._wake()
        return True

    def _taken(self, wait: _Wait[T]) -> list[T]:
        while True:
            left = max(0.0, wait.until - time.monotonic())
            if self._wake is not None:
                return [self._take(left, wait.cancel)]
            ends = time.monotonic() + _SLICE
            try:
                return [self._take(timeout=min(left, _SLICE))]
            except Timeout:
                if wait.is_left or left <= _SLICE or time.monotonic() < ends - _SLICE / 2:
                    raise


async def _settles(call: Future[Any], until: float) -> bool:
    """Waits for a call of a thread; False where it goes on at that time of the clock."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def told(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            pass  # The loop was closed: nobody waits.

    call.add_done_callback(told)
    try:
        async with asyncio.timeout(None if until == math.inf else max(0.0, until - time.monotonic())):
            await done.wait()
    except TimeoutError:
        return call.done()
    return True


class _End:
    """An end that is closed with its client, with its context, or when it is gone."""

    def __init__(self, client: AsyncClient, end: Any):
        self._client, self._end = client, end
        # What waits for it is withdrawn then.
        self._closes = weakref.finalize(self, end.close)
        self._closes.atexit = False
        client._add_end(end)

    async def close(self) -> None:
        """Closes it as the blocking one does; calls that wait end."""
        await asyncio.to_thread(self._end.close)

    def __reduce__(self) -> Any:
        raise TypeError("an end of a channel or a pipe stays in its process; pass its name")

    def __repr__(self) -> str:
        return f"<awaited {self._end!r}>"


class AsyncChannelWriter(_End):
    """The only writer of a channel, to be awaited: a `tensorlane.ChannelWriter`."""

    _end: ChannelWriter

    def __init__(self, client: AsyncClient, end: ChannelWriter):
        super().__init__(client, end)
        self._line = _Line(client, f"the writes to {end.name} before this one did not end")
        # The last write, which goes on where its task was cancelled.
        self._writing: Future[int] | None = None

    @property
    def dropped(self) -> int:
        """Number of messages that no reader gets, because readers held every slot when they were written. 0 under "block"."""
        return self._end.dropped

    async def write(self, value: Value, *, timeout: float | None = None) -> int:
        """Writes a message, as `ChannelWriter.write` does. Tasks may share it: their writes come in order, and time counts from the call on.

        Cancelled after it began, it comes to its end all the same: the message is published once there is room, within its own timeout.
        The next write waits for that.
        """
        began = time.monotonic()
        until = self._line.until(timeout)
        async with self._line.turn(until):
            if self._writing is not None and not await _settles(self._writing, max(until, time.monotonic() + _STEP)):
                raise self._line.late(until - began)
            left = max(0.0, until - time.monotonic())
            self._writing = self._client._begin("write", functools.partial(self._end.write, value, timeout=left))
            try:
                return await self._client._result(self._writing, None, None if timeout is None else left)
            finally:
                if self._writing.done():
                    self._writing = None

    @property
    def readers(self) -> int:
        """Number of attached readers, without those that were evicted."""
        return self._end.readers

    async def evict(self, reader: int) -> None:
        """Evicts a reader, as `ChannelWriter.evict` does: beside a write that waits for it, or one that was cancelled and goes on."""
        await asyncio.to_thread(self._end.evict, reader)

    async def finish(self) -> None:
        """Says that no message comes any more."""
        await asyncio.to_thread(self._end.finish)

    async def __aenter__(self) -> AsyncChannelWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await (self.finish() if kind is None else self.close())


class AsyncChannelReader(_End):
    """A reader of a channel, to be awaited: `async for message in reader`."""

    _end: ChannelReader

    def __init__(self, client: AsyncClient, end: ChannelReader):
        super().__init__(client, end)
        renew = functools.partial(_newest, end) if end.policy == "latest" else None
        self._next: _Next[Message | None] = _Next(client, end._read, f"a message of {end.name}", wake=end._wake, renew=renew)
        self._dropped = 0

    @property
    def route(self) -> str:
        """The way of the messages: `process` gives the very objects that were written, `local` is a map of the writer's own memory."""
        return self._end.route

    @property
    def policy(self) -> str:
        """Policy for messages when this reader is slow: "block", "drop_oldest" or "latest"."""
        return self._end.policy

    @property
    def first(self) -> int:
        """Sequence of the first message that this reader gets."""
        return self._end.first

    @property
    def missed(self) -> int:
        """Number of messages before the first one that can be read, if the oldest was asked for."""
        return self._end.missed

    @property
    def peer(self) -> str:
        """The peer that has the channel; empty for this one."""
        return self._end.peer

    @property
    def writer(self) -> str:
        """The client that writes."""
        return self._end.writer

    @property
    def epoch(self) -> int:
        """Number of channels of this name that have ended meanwhile, for a reader that follows."""
        return self._end.epoch

    @property
    def dropped(self) -> int:
        """Number of messages that this reader missed so far, in a channel that drops."""
        return self._dropped

    async def read(self, *, timeout: float | None = None) -> Message | None:
        """Takes the next message; None when the writer has finished.

        Cancelled, it loses none: what was just taken then is what the next call gets, or a newer one where the policy is "latest".
        """
        message = await self._next(timeout)
        if message is None:
            # Behind the last message, too.
            self._dropped = max(self._dropped, self._end.dropped)
        else:
            self._dropped += message.dropped
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self.read(timeout=math.inf)) is not None:
            yield message

    async def __aenter__(self) -> AsyncChannelReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncPipe(_End):
    """End of a pipe, to be awaited: a `tensorlane.Pipe`. Tasks may share it."""

    _end: Pipe

    def __init__(self, client: AsyncClient, end: Pipe):
        super().__init__(client, end)
        self._next: _Next[Descriptor | None] = _Next(client, end.read_descriptor, f"a message of {end.client}")
        # What a read began to bring, of which the task was cancelled.
        self._reading: tuple[Descriptor, Future[list[Received]]] | None = None

    @property
    def peer(self) -> str:
        """The peer of the other end."""
        return self._end.peer

    @property
    def client(self) -> str:
        """The client at the other end, as it calls itself."""
        return self._end.client

    @property
    def route(self) -> str:
        """The way of descriptors."""
        return self._end.route

    async def write(
        self,
        tensors: Sequence[Any] = (),
        *,
        metadata: Bytes = b"",
        payloads: Sequence[Bytes] = (),
        about: Sequence[Bytes] = (),
        timeout: float | None = None,
    ) -> None:
        """Writes a message and waits until it was read, as `Pipe.write` does. Cancelled after it began, it comes to its end."""
        write = functools.partial(
            self._end.write, tensors, metadata=metadata, payloads=payloads, about=about, timeout=timeout
        )
        await self._client._run("write", None, write, timeout, "no")

    async def write_value(self, value: Any, *, pickle: bool = False, timeout: float | None = None) -> None:
        """Writes a nested value, as `Pipe.write_value` does."""
        write = functools.partial(self._end.write_value, value, pickle=pickle, timeout=timeout)
        await self._client._run("write", None, write, timeout, "no")

    async def read_descriptor(self, *, timeout: float | None = None) -> Descriptor | None:
        """Takes the descriptor of the next message; None when the other end has finished. Cancelled, it loses none."""
        return await self._next(timeout)

    async def receive(self, descriptor: Descriptor, places: Sequence[Any] | None = None, *, timeout: float | None = None) -> Received:
        """Reads a message, as `Descriptor.read` does. Cancelled after it began, it comes to its end: the writer hears that it was read."""
        until = self._next.until(timeout)

        def read() -> Received:
            return descriptor.read(places, timeout=max(0.0, until - time.monotonic()))

        return await self._client._run("get", None, read, max(0.0, until - time.monotonic()))

    async def read(self, *, timeout: float | None = None) -> Received | None:
        """Reads the next message, all of it mapped; None when the other end has finished.

        Cancelled, it loses none: a message that was being read then is what the next `read` gives.
        """
        until = self._next.until(timeout)
        async with self._next.turn(until):
            if self._reading is None:
                descriptor = await self._next.take(until)
                if descriptor is None:
                    return None
                self._reading = descriptor, self._client._begin("get", functools.partial(_whole, descriptor))
            descriptor, reading = self._reading
            deadline = self._client.deadline
            # One that has begun ends by itself.
            if not await _settles(reading, time.monotonic() + deadline) and reading.cancel():
                self._reading = None
                descriptor.release()
                raise self._client._no_thread(deadline)
            await _settles(reading, math.inf)
            self._reading = None
            return reading.result().pop()

    async def finish(self) -> None:
        """Says that this end writes nothing more. Reading goes on."""
        await asyncio.to_thread(self._end.finish)

    async def __aiter__(self) -> AsyncIterator[Received]:
        while (received := await self.read(timeout=math.inf)) is not None:
            yield received

    async def __aenter__(self) -> AsyncPipe:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await asyncio.to_thread(self._end._leave)
        finally:
            await self.close()


class AsyncListener(_End):
    """An entry point for pipes, to be awaited: `async for pipe in listener`."""

    _end: Listener

    def __init__(self, client: AsyncClient, end: Listener):
        super().__init__(client, end)
        self._next: _Next[Pipe] = _Next(client, end.accept, f"a pipe of {end.name}")

    async def accept(self, *, timeout: float | None = None) -> AsyncPipe:
        """Takes the next pipe that was connected. Cancelled, it loses none."""
        return AsyncPipe(self._client, await self._next(timeout))

    async def __aiter__(self) -> AsyncIterator[AsyncPipe]:
        while True:
            yield await self.accept(timeout=math.inf)

    async def __aenter__(self) -> AsyncListener:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncWatch(_End):
    """A watch of the names that begin alike, to be awaited: `async for event in watch`."""

    _end: Watch

    def __init__(self, client: AsyncClient, end: Watch):
        super().__init__(client, end)
        self._next: _Next[WatchEvent] = _Next(client, end.next, f"a change of a name that begins with {end.prefix!r}")
        # That of the thread runs ahead of what was given.
        self._revision = end.revision

    @property
    def revision(self) -> str | None:
        """Revision from which another watch goes on without missing or repeating an event; None before `synced`."""
        return self._revision

    async def next(self, *, timeout: float | None = None) -> WatchEvent:
        """Takes the next event, as `Watch.next` does. Cancelled, it loses none."""
        try:
            event = await self._next(timeout)
        except WatchCut:
            self._revision = None
            raise
        self._revision = event.revision or self._revision
        return event

    async def __aiter__(self) -> AsyncIterator[WatchEvent]:
        while True:
            yield await self.next(timeout=math.inf)

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _newest(end: ChannelReader, kept: Message | None) -> Message | None:
    """The newest message, where that is not the one that was taken for nobody."""
    try:
        newer = None if kept is None else end.read(timeout=0)
    except Error:
        # None is there, or as many are held as may be; what ended the channel is told again.
        return kept
    if kept is None or newer is None:
        return kept
    newer.dropped += kept.dropped + 1
    kept.release()
    return newer


def _whole(descriptor: Descriptor) -> list[Received]:
    return [descriptor.read_or_return()]
