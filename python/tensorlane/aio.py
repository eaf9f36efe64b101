"""The client for asyncio: the calls of `tensorlane.Client`, to be awaited.

>>> import asyncio, numpy, tensorlane.aio
>>> async def main():
...     async with tensorlane.aio.local() as client:
...         stored = await client.put(numpy.arange(3), "a")
...         return (await client.get("a", wait=10)).numpy()
>>> asyncio.run(main())
array([0, 1, 2])

Each call runs on a thread of a bounded pool. Cancelling a task that awaits a get withdraws the get. A put that is cancelled
after it began comes to its end; its lease is given up, and a name that it gave stays.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, Concatenate, Coroutine, Mapping, ParamSpec, Sequence, TypeVar, Unpack, overload

from . import client as blocking, sizes
from ._tensorlane import Cancel, Stored
from .awaited import AsyncChannelReader, AsyncChannelWriter, AsyncListener, AsyncPipe, AsyncWatch
from .errors import Error, NotFound, Timeout, Unavailable, Withdrawn
from .local import local as blocking_local
from .mutable import Committed, Keys, MutableSet, Rows, SetStatus, Snapshot
from .structures import Structure

P = ParamSpec("P")
R = TypeVar("R")

GETS_MAX = 256
"""Gets of a client under way at once; others wait in line. Each costs a thread, of some 100 KiB."""

NEXT_MAX = 256
"""Readers, pipes, listeners and watches of a client that wait at once for what comes next; each costs a thread, too."""

WRITES_MAX = 256
"""Writes to channels and pipes of a client under way at once, which wait for readers; each costs a thread, too."""

_STEP = 2.0
"""Seconds within which a wait for a channel or a listener ends that was withdrawn."""

_BEGINS = 1.0
"""Seconds within which a thread that is free begins."""

_BUSY = "await fewer calls of the kind at once, or open another client"

_CONNECT_SLICE = 0.25
"""Seconds after which a connect that waits for its sidecar asks whether it was withdrawn."""
_PUTS_MAX = 32
_SHORT_MAX = 4

_clients: weakref.WeakSet[AsyncClient] = weakref.WeakSet()


def _call(
    lane: str, method: Callable[Concatenate[blocking.Client, P], R], withdrawn: bool = False
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """The method to be awaited, on a thread of the lane; one that takes `cancel` is withdrawn with its task."""

    async def awaited(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        cancel: Any = None
        if withdrawn:
            # The caller's may be shared by calls of other tasks, which this task's end does not withdraw.
            theirs: Any = kwargs.get("cancel")
            cancel = Cancel() if theirs is None else theirs.part()
            kwargs["cancel"] = cancel
        given: dict[str, Any] = dict(kwargs)
        deadline, wait = (sizes.seconds(word, given.get(word)) for word in ("deadline", "wait"))
        deadline = None if deadline is None else deadline + (wait or 0.0)
        return await self._run(lane, cancel, functools.partial(method, self._client, *args, **kwargs), deadline)

    functools.update_wrapper(awaited, method)
    return awaited


class AsyncClient:
    """A connection to a sidecar, for one event loop. Its methods are those of `tensorlane.Client`.

    Puts, gets, writes to channels and pipes, and short calls have threads of their own: a put never waits behind the gets that wait
    for it, nor behind readers. A forked child opens its own client.
    """

    def __init__(self, client: blocking.Client):
        """Wraps a client, which this one closes."""
        self._client, self._process, self._closed = client, os.getpid(), False
        bounds = {"get": GETS_MAX, "put": _PUTS_MAX, "short": _SHORT_MAX, "next": NEXT_MAX, "write": WRITES_MAX}
        self._lanes = {lane: ThreadPoolExecutor(most, f"tensorlane-{lane}") for lane, most in bounds.items()}
        self._pending: set[Cancel] = set()
        self._ends: weakref.WeakSet[Any] = weakref.WeakSet()
        # Ends come by the loop, and are closed by another thread.
        self._ends_lock = threading.Lock()
        _clients.add(self)

    @property
    def directory(self) -> str:
        """Directory of the sockets: what TENSORLANE_SOCKETS is to be for other processes."""
        return self._client.directory

    @property
    def exchange(self) -> str:
        """The exchange of the sidecar."""
        return self._client.exchange

    @property
    def peer(self) -> str:
        """The name of the sidecar in its exchange."""
        return self._client.peer

    @property
    def deadline(self) -> float:
        """The deadline of calls that name none, in seconds."""
        return self._client.deadline

    @overload
    async def put(self, x: Structure, name: None = None, **options: Unpack[blocking.PutOptions]) -> Any: ...
    @overload
    async def put(self, x: Any, name: str | None = None, **options: Unpack[blocking.PutOptions]) -> Stored: ...

    async def put(self, x: Any, name: str | None = None, **options: Any) -> Any:
        """Stores an array, or nested dicts and lists of arrays, as `tensorlane.Client.put` does."""
        return await self._run("put", None, functools.partial(self._client.put, x, name, **options), options.get("deadline"))

    # Sealing what it gives is a short call that is not awaited; `await asyncio.to_thread(reservation.seal, name)` leaves the loop free.
    empty = _call("put", blocking.Client.empty)
    put_many = _call("put", blocking.Client.put_many)
    put_file = _call("put", blocking.Client.put_file, withdrawn=True)
    publish = _call("put", blocking.Client.publish)
    get = _call("get", blocking.Client.get, withdrawn=True)
    get_many = _call("get", blocking.Client.get_many, withdrawn=True)
    redeem = _call("get", blocking.Client.redeem, withdrawn=True)
    ticket = _call("short", blocking.Client.ticket)
    get_file = _call("get", blocking.Client.get_file, withdrawn=True)
    get_set = _call("get", blocking.Client.get_set, withdrawn=True)
    load_into = _call("get", blocking.Client.load_into, withdrawn=True)
    publish_file = _call("put", blocking.Client.publish_file, withdrawn=True)
    save_set = _call("get", blocking.Client.save_set, withdrawn=True)
    mutable_sets = _call("short", blocking.Client.mutable_sets)
    drop_set = _call("short", blocking.Client.drop_set)
    describe = _call("short", blocking.Client.describe)
    names = _call("short", blocking.Client.names)
    unname = _call("short", blocking.Client.unname)
    status = _call("short", blocking.Client.status)
    peers = _call("short", blocking.Client.peers)
    flush = _call("short", blocking.Client.flush)
    release_idle = _call("short", blocking.Client.release_idle)
    channels = _call("short", blocking.Client.channels)

    async def channel_writer(
        self,
        name: str,
        *,
        slots: int = 4,
        slot_bytes: int = 1 << 20,
        expect_readers: int = 0,
        readers_max: int = 0,
        policy: str = "block",
        pickle: bool = False,
        fixed: bool = False,
        readers: Sequence[str] | None = None,
        evictable: bool = False,
        evict_after: float | None = None,
        same_object: bool = False,
        growth: int = 0,
    ) -> AsyncChannelWriter:
        """Makes a channel that this process writes, as `tensorlane.Client.channel_writer` does."""
        make = functools.partial(
            self._client.channel_writer,
            name,
            slots=slots,
            slot_bytes=slot_bytes,
            expect_readers=expect_readers,
            readers_max=readers_max,
            policy=policy,
            pickle=pickle,
            fixed=fixed,
            readers=readers,
            evictable=evictable,
            evict_after=evict_after,
            same_object=same_object,
            growth=growth,
        )
        return AsyncChannelWriter(self, await self._run("short", None, make))

    async def channel_reader(
        self,
        name: str,
        *,
        oldest: bool = False,
        hold: int = 2,
        wait: float | None = None,
        pickle: bool = False,
        follow: bool = False,
        require: str = "",
        same_object: bool = False,
    ) -> AsyncChannelReader:
        """Attaches to a channel, as `tensorlane.Client.channel_reader` does."""
        attach = self._client.channel_reader
        make = functools.partial(
            attach, name, oldest=oldest, hold=hold, pickle=pickle, follow=follow, require=require, same_object=same_object
        )
        cancel = Cancel()
        return AsyncChannelReader(self, await self._run("get", cancel, functools.partial(_in_steps, make, wait, cancel)))

    def watch(self, prefix: str = "", *, after: str | None = None, peer: str | None = None) -> AsyncWatch:
        """Watches the names of a peer that begin so, as `tensorlane.Client.watch` does: `async for event in client.watch()`."""
        return AsyncWatch(self, self._client.watch(prefix, after=after, peer=peer))

    async def listen(self, name: str, *, allow: Sequence[str] | None = None) -> AsyncListener:
        """Opens an entry point for pipes of this peer, as `tensorlane.Client.listen` does."""
        listen = functools.partial(self._client.listen, name, allow=allow)
        return AsyncListener(self, await self._run("short", None, listen))

    async def connect_pipe(self, to: str, *, wait: float | None = None) -> AsyncPipe:
        """Connects to a listener, as `tensorlane.Client.connect_pipe` does."""
        connect, cancel = functools.partial(self._client.connect_pipe, to), Cancel()
        return AsyncPipe(self, await self._run("get", cancel, functools.partial(_in_steps, connect, wait, cancel)))

    async def create_set(
        self,
        name: str,
        rows: int | None = None,
        leaves: Mapping[str, Any] | None = None,
        *,
        writers: Sequence[str] = (),
        directory: str | None = None,
        open: bool = False,
        durability: str | None = None,
        contiguous: bool = False,
    ) -> AsyncMutableSet:
        """Makes a mutable set, as `tensorlane.Client.create_set` does."""
        create = self._client.create_set
        make = functools.partial(
            create, name, rows, leaves, writers=writers, directory=directory, open=open, durability=durability, contiguous=contiguous
        )
        return AsyncMutableSet(self, await self._run("short", None, make))

    async def open_set(self, target: MutableSet | str, *, wait: float | None = None) -> AsyncMutableSet:
        """Opens a mutable set, as `tensorlane.Client.open_set` does. A task that is cancelled waits no longer."""
        cancel = Cancel()
        find = functools.partial(self._client.open_set, target, wait=wait, cancel=cancel)
        return AsyncMutableSet(self, await self._run("get" if wait else "short", cancel, find))

    def _begin(self, lane: str, work: Callable[[], R]) -> Future[R]:
        if self._closed:
            raise Error("this client was closed", "CLOSED", remedy="connect again")
        if self._process != os.getpid():
            raise Error("this client belongs to the parent of this process", remedy="connect in each process")
        return self._lanes[lane].submit(work)

    def _add_end(self, end: Any) -> None:
        with self._ends_lock:
            self._ends.add(end)
        if self._closed:
            end.close()

    async def _run(
        self, lane: str, cancel: Cancel | None, work: Callable[[], R], seconds: float | None = None, delivered: str | None = None
    ) -> R:
        """Runs a call on a thread of the lane. One that gets none in the seconds that it was given is a Timeout.

        A call that names no time waits in line: many at once take long, and none of them is late. `delivered` is of its message.
        """
        # Before it begins: a close of another thread that comes between has it withdrawn.
        if cancel is not None:
            self._pending.add(cancel)
        try:
            return await self._result(self._begin(lane, work), cancel, seconds, delivered)
        finally:
            if cancel is not None:
                self._pending.discard(cancel)

    async def _result(self, call: Future[R], cancel: Cancel | None, seconds: float | None, delivered: str | None = None) -> R:
        """The result of a call of a thread, which is given up where it has not begun in the seconds that it was given."""
        loop, seconds = asyncio.get_running_loop(), sizes.seconds("the time", seconds)
        waiter: asyncio.Future[R] = loop.create_future()

        def ended(call: Future[R]) -> None:
            try:
                loop.call_soon_threadsafe(_settle, waiter, call)
            except RuntimeError:
                pass  # The loop was closed: nobody waits.

        def give_up() -> None:
            if call.cancel() and not waiter.done():
                late = self._no_thread(seconds or 0.0)
                late.delivered = delivered
                waiter.set_exception(late)

        call.add_done_callback(ended)
        timer = None if seconds is None or seconds == math.inf else loop.call_later(max(seconds, _BEGINS), give_up)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            # Early only where the task was cancelled, or its loop is gone.
            if not call.done():
                call.cancel()
                self._withdraw([] if cancel is None else [cancel])

    def _no_thread(self, seconds: float) -> Timeout:
        words = f"no thread was free for the call within {max(0.0, seconds):.3g} s"
        return Timeout(words, "DEADLINE_EXCEEDED", remedy=_BUSY)

    def _withdraw(self, cancels: list[Cancel]) -> None:
        for cancel in cancels:
            cancel.cancel()

    def _end_waits(self) -> None:
        self._closed = True
        if self._process != os.getpid():
            return  # All of it is the parent's.
        self._withdraw(list(self._pending))
        with self._ends_lock:
            ends = list(self._ends)
        for end in ends:
            end.close()

    async def close(self) -> None:
        """Withdraws gets that wait, closes channels and pipes, lets puts end, and ends the use of this client.

        Arrays stay readable.
        """
        await asyncio.to_thread(self._end_waits)
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.shutdown)
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a client stays in its process; connect in each one")

    def __repr__(self) -> str:
        return f"<tensorlane.aio.AsyncClient of {self.directory}>"


class AsyncMutableSet:
    """A mutable set, whose reads and commits are awaited. `set` is the same one for threads, and pickles as its reference."""

    def __init__(self, client: AsyncClient, whole: MutableSet):
        self._client, self.set = client, whole

    @property
    def reference(self) -> str:
        """Text that names the set from anywhere in the exchange."""
        return self.set.reference

    async def read(self, rows: Any = slice(None), keys: Keys = None, *, deadline: float | None = None) -> Rows:
        """Reads rows as `tensorlane.MutableSet.read` does. A task that is cancelled withdraws the read."""
        cancel = Cancel()
        read = functools.partial(self.set.read, rows, keys, deadline=deadline, cancel=cancel)
        return await self._client._run("get", cancel, read, deadline)

    async def map(self, rows: Any = slice(None), keys: Keys = None, *, deadline: float | None = None) -> Rows:
        """Shows rows where they lie, as `tensorlane.MutableSet.map` does: use what it gives with `with`."""
        cancel = Cancel()
        show = functools.partial(self.set.map, rows, keys, deadline=deadline, cancel=cancel)
        return await self._client._run("get", cancel, show, deadline)

    async def write(
        self, rows: Any, values: Any, *, expects: int | None = None, retry_id: bytes | None = None, deadline: float | None = None
    ) -> Committed:
        """Writes rows as `tensorlane.MutableSet.write` does. A commit that has begun comes to its end."""
        write = functools.partial(self.set.write, rows, values, expects=expects, retry_id=retry_id, deadline=deadline)
        return await self._client._run("put", None, write, deadline)

    async def assign(self, index: Any, values: Any) -> None:
        """Writes what `replay[index] = values` of a `tensorlane.MutableSet` does, such as a part of rows: `numpy.s_[3:10, "obs", :, ::2]`.

        A part that has begun comes to its end: it is committed, or refused, within the deadline of the client.
        """
        await self._client._run("put", None, functools.partial(self.set.__setitem__, index, values))

    async def extend(
        self, values: Any, *, expects: int | None = None, retry_id: bytes | None = None, deadline: float | None = None
    ) -> Committed:
        """Writes rows behind the last extension, as `tensorlane.MutableSet.extend` does."""
        extend = functools.partial(self.set.extend, values, expects=expects, retry_id=retry_id, deadline=deadline)
        return await self._client._run("put", None, extend, deadline)

    async def snapshot(self, name: str | None = None, *, keep: int = 2, deadline: float | None = None) -> Snapshot:
        """Publishes all rows as they are at one moment, as `tensorlane.MutableSet.snapshot` does."""
        publish = functools.partial(self.set.snapshot, name, keep=keep, deadline=deadline)
        return await self._client._run("put", None, publish, deadline)

    async def flush(self) -> SetStatus:
        """Brings what was committed to the disk, as `tensorlane.MutableSet.flush` does."""
        return await self._client._run("put", None, self.set.flush)

    async def status(self) -> SetStatus:
        """The set as it is now, as its owner says."""
        return await self._client._run("short", None, self.set.status)


async def connect(
    directory: str | os.PathLike[str] | None = None, *, name: str | None = None, deadline: float = 30.0, patience: float = 0.0
) -> AsyncClient:
    """Connects as `tensorlane.connect` does. Use it as `async with await tensorlane.aio.connect() as client`."""
    until = time.monotonic() + (sizes.seconds("patience", patience) or 0.0)
    while True:
        # In slices: a thread that waits cannot be withdrawn.
        within = max(0.0, min(_CONNECT_SLICE, until - time.monotonic()))
        make = functools.partial(blocking.connect, directory, name=name, deadline=deadline, patience=within)
        try:
            return AsyncClient(await asyncio.to_thread(make))
        except (Unavailable, Timeout):
            if time.monotonic() >= until:
                raise


@asynccontextmanager
async def local(
    *,
    arena: str | int = "1Gi",
    export: bool = False,
    peers: str | os.PathLike[str] | None = None,
    peer: str | None = None,
    settings: dict[str, str] | None = None,
) -> AsyncIterator[AsyncClient]:
    """Starts a sidecar for this program and connects to it, as `tensorlane.local` does."""
    context = blocking_local(arena=arena, export=export, peers=peers, peer=peer, settings=settings)
    starting = asyncio.ensure_future(asyncio.to_thread(context.__enter__))
    try:
        client = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # What started ends, too.
        await asyncio.wait([starting])
        if starting.exception() is None:
            await asyncio.to_thread(context.__exit__, None, None, None)
        raise
    try:
        async with AsyncClient(client) as awaited:
            yield awaited
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def _in_steps(make: Callable[..., R], wait: float | None, cancel: Cancel) -> R:
    """Makes an end that may not be there yet, by waits of which each is short: one of these is withdrawn by nothing."""
    wait = sizes.seconds("wait", wait)
    until = time.monotonic() + (wait or 0.0)
    while True:
        left = until - time.monotonic()
        if left <= _STEP:
            return make(wait=wait if wait is None else max(0.0, left))
        try:
            return make(wait=_STEP)
        except (NotFound, Timeout):
            if cancel.cancelled:
                raise Withdrawn("the wait was withdrawn", "WITHDRAWN") from None


def _settle(waiter: asyncio.Future[R], call: Future[R]) -> None:
    if waiter.done():
        return
    if call.cancelled():
        waiter.cancel()
    elif (error := call.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(call.result())


def _at_the_end() -> None:
    for client in list(_clients):
        client._end_waits()


# The end of a program joins the threads of every pool, so what waits is withdrawn before. The pools' own hook is registered the
# same way, at the import above; the latest is called first.
threading._register_atexit(_at_the_end)  # type: ignore[attr-defined]
