"""Ends of channels and pipes for asyncio, which `tensorlane.aio.AsyncClient` makes.

Whatever is taken (a message, a descriptor, a pipe that was connected) is taken by a thread. A task that is cancelled meanwhile
loses nothing: the next one that asks gets it.
"""

from __future__ import annotations

import asyncio
import functools
import math
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generic, Sequence, TypeVar

from .channels import ChannelReader, ChannelWriter, Message, Value
from .errors import Timeout
from .pipes import Bytes, Descriptor, Listener, Pipe, Received
from .watching import Watch, WatchEvent

if TYPE_CHECKING:
    from .aio import AsyncClient

T = TypeVar("T")


class _Next(Generic[T]):
    """Next result of an end: one thread waits for it, whoever asks."""

    def __init__(self, client: AsyncClient, take: Callable[..., T], what: str):
        self._client, self._take, self._what = client, take, what
        self._turn = asyncio.Lock()
        # In a list, which whoever asks empties: the thread keeps what it gave for a moment, and a message must not be held by that.
        self._waits: Future[list[T]] | None = None

    async def __call__(self, timeout: float | None) -> T:
        seconds = self._client.deadline if timeout is None else timeout
        async with self._turn:
            if self._waits is None:
                # One try waits for nobody; else whoever asks has a deadline, and the thread has none.
                waits = 0.0 if seconds == 0 else math.inf
                self._waits = self._client._begin("next", functools.partial(self._taken, waits))
                seconds = math.inf if waits == 0 else seconds
            if not await _settles(self._waits, seconds):
                raise Timeout(f"{self._what} did not come within {seconds:g} s", "DEADLINE_EXCEEDED", remedy="pass a longer timeout")
            waited, self._waits = self._waits, None
            return waited.result().pop()

    def _taken(self, timeout: float) -> list[T]:
        return [self._take(timeout=timeout)]


async def _settles(call: Future[Any], seconds: float) -> bool:
    """Waits for a call of a thread; False where it goes on after so many seconds."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def told(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            pass  # The loop was closed: nobody waits.

    call.add_done_callback(told)
    try:
        await asyncio.wait_for(done.wait(), None if seconds == math.inf else seconds)
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
        client._ends.add(end)

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

    async def write(self, value: Value, *, timeout: float | None = None) -> int:
        """Writes a message, as `ChannelWriter.write` does. Cancelled after it began, it comes to its end all the same."""
        return await self._client._run("put", None, functools.partial(self._end.write, value, timeout=timeout))

    @property
    def readers(self) -> int:
        """Number of attached readers."""
        return self._end.readers

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
        self._next: _Next[Message | None] = _Next(client, end.read, f"a message of {end.name}")

    @property
    def route(self) -> str:
        """The way of the messages: `local` is a map of the writer's own memory."""
        return self._end.route

    @property
    def dropped(self) -> int:
        """Number of messages that this reader missed so far, in a channel that drops."""
        return self._end.dropped

    async def read(self, *, timeout: float | None = None) -> Message | None:
        """Takes the next message; None when the writer has finished. Cancelled, it loses none."""
        return await self._next(timeout)

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self.read(timeout=math.inf)) is not None:
            yield message

    async def __aenter__(self) -> AsyncChannelReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncPipe(_End):
    """One end of a pipe, to be awaited: a `tensorlane.Pipe`. Tasks may share it."""

    _end: Pipe

    def __init__(self, client: AsyncClient, end: Pipe):
        super().__init__(client, end)
        self._next: _Next[Descriptor | None] = _Next(client, end.read_descriptor, f"a message of {end.client}")

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
        await self._client._run("put", None, write)

    async def write_value(self, value: Any, *, pickle: bool = False, timeout: float | None = None) -> None:
        """Writes a nested value, as `Pipe.write_value` does."""
        await self._client._run("put", None, functools.partial(self._end.write_value, value, pickle=pickle, timeout=timeout))

    async def read_descriptor(self, *, timeout: float | None = None) -> Descriptor | None:
        """Takes the descriptor of the next message; None when the other end has finished. Cancelled, it loses none."""
        return await self._next(timeout)

    async def receive(self, descriptor: Descriptor, places: Sequence[Any] | None = None) -> Received:
        """Reads a message, as `Descriptor.read` does."""
        return await self._client._run("get", None, functools.partial(descriptor.read, places))

    async def read(self, *, timeout: float | None = None) -> Received | None:
        """Reads the next message, all of it mapped; None when the other end has finished."""
        descriptor = await self.read_descriptor(timeout=timeout)
        return None if descriptor is None else await self.receive(descriptor)

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
                await self.finish()
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

    @property
    def revision(self) -> str | None:
        """Revision from which another watch goes on without missing or repeating an event; None before `synced`."""
        return self._end.revision

    async def next(self, *, timeout: float | None = None) -> WatchEvent:
        """Takes the next event, as `Watch.next` does. Cancelled, it loses none."""
        return await self._next(timeout)

    async def __aiter__(self) -> AsyncIterator[WatchEvent]:
        while True:
            yield await self.next(timeout=math.inf)

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
