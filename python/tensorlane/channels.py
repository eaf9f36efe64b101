"""Channels: messages from one process to many, written once into shared memory and read where they lie."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any, Iterator, Mapping, Self, Sequence

import numpy as np

from . import arrays, opaque, sizes, trees
from ._tensorlane import Cancel, Reader, Writer
from .errors import Error, Invalid, Timeout, Unavailable
from .objects import Objects
from .tensor import Tensor

_KIND = "tensorlane.value"
_KEY = "tensorlane.key"

_KEY_MAX = 4096
"""Bytes of a key that metadata can say."""

_ATTACH_AGAIN = "attach again, with a wait, or read with follow=True, which does; client.peers() says what was wrong with the peer"
"""Remedy where a peer was lost."""

_Parts = list[tuple[Any, str, tuple[int, ...], list[tuple[str, str]]]]

_Layout = list[tuple[str, tuple[int, ...]]]

_ABSENT: Any = object()
"""Object of a message of which none is kept."""

Value = Any
"""Bytes, an array, or any tree of dicts, lists and tuples of None, bool, int, float, str, bytes and arrays."""


class ChannelWriter:
    """The only writer of a channel. Leaving a `with` without an exception finishes it; else readers see that it was lost."""

    def __init__(
        self,
        name: str,
        core: Writer,
        *,
        message_bytes: int,
        pickle: bool = False,
        fixed: bool = False,
        objects: Objects | None = None,
    ):
        self.name, self._core, self._message_bytes, self._pickle = name, core, message_bytes, pickle
        self._dropped, self._is_fixed = 0, fixed
        # Objects of the messages in the ring, until it is closed: readers that drain have them, too.
        self._objects = objects
        if objects is not None:
            objects.channel = core.channel
        # Types and shapes of the arrays of the first message, once it was written.
        self._layout: _Layout | None = None

    def write(self, value: Value, *, timeout: float | None = None) -> int:
        """Copies a message into the ring, once, and returns its sequence.

        Where the policy is "block", it waits for the slowest reader when the ring is full: `timeout` seconds, the client's deadline by default; 0 is one try,
        `math.inf` for ever. The error BLOCKED_BY names the reader. What cannot be sent is an `Unsupported`, a TypeError, with the
        path of each culprit: `value['a'][3]`. More than 4 MiB beside the arrays of a nested value is TOO_LARGE, and so is a message that
        is larger than a slot, or than the growth of a channel that has some. Nothing was written then.

        With `same_object`, it is kept as it is, besides, for readers of this process that say so, too: do not change it any more.
        """
        objects = self._objects
        kept = None if objects is None else (objects.kept, value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            dense, timeout = arrays.bytes_of(memoryview(value)), sizes.seconds("timeout", timeout)
            self._check([])
            return self._wrote(self._core.write_bytes(dense, timeout, kept), [])
        timeout, parts = sizes.seconds("timeout", timeout), _parts(value, self._pickle, self._message_bytes)
        layout = [(dtype, shape) for _, dtype, shape, words in parts if (_KIND, "tree") not in words] if self._is_fixed else []
        self._check(layout)
        return self._wrote(self._core.write(parts, timeout, kept), layout)

    def _check(self, layout: _Layout) -> None:
        """Raises where a layout was fixed, and this is another one."""
        if self._is_fixed and self._layout is not None and layout != self._layout:
            expected, found = _told(self._layout), _told(layout)
            what = f"the message has {found}, and the layout of {self.name} was fixed to {expected} by its first message; nothing was written"
            remedy = "write arrays of these types and shapes, or make the channel without fixed=True"
            raise Invalid(what, "LAYOUT_MISMATCH", {"expected": expected, "found": found}, remedy=remedy)

    def _wrote(self, written: tuple[int, int, bool], layout: _Layout) -> int:
        sequence, _, is_dropped = written
        self._layout = layout
        self._dropped += is_dropped
        return sequence

    @property
    def dropped(self) -> int:
        """Number of messages that no reader gets, because readers held every slot when they were written. 0 under "block"."""
        return self._dropped

    @property
    def readers(self) -> int:
        """Number of attached readers, without those that were evicted."""
        return self._core.readers

    def evict(self, reader: int) -> None:
        """Evicts a reader of an `evictable` channel, by the number that BLOCKED_BY and `client.channels()` tell.

        Writes wait for it no longer, also one of another thread that waits just now, and its next read is EVICTED. What it holds stays as it is. Readers of another peer are one.
        """
        self._core.evict(sizes.whole("reader", reader))

    def finish(self) -> None:
        """Says that no message comes any more: readers take what is there, and end."""
        self._end(True)

    def close(self) -> None:
        """Lets the channel go without finishing it: readers take what is there, and are told that the writer was lost."""
        self._end(False)

    def _end(self, finishes: bool) -> None:
        self._core.close(finishes)
        self._objects = None

    def __enter__(self) -> ChannelWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind is None)

    def __reduce__(self) -> Any:
        raise TypeError("a channel's writer stays in its process; pass the channel's name")

    def __repr__(self) -> str:
        return f"<tensorlane.ChannelWriter {self.name!r}>"


class Message:
    """A message, where its writer wrote it. Its place is the writer's again when this and every array of it are gone."""

    dropped: int
    """Number of messages that this reader missed just before this one. Where the policy is "block", only a reader that follows misses
    some: over a way that was lost, or of the next channel before it was found."""

    epoch: int
    """Number of channels that had the name before, since a reader that follows was attached. Sequences begin anew in each."""

    def __init__(
        self,
        sequence: int,
        plain: bool,
        tensors: list[Tensor],
        *,
        channel: str,
        dropped: int = 0,
        epoch: int = 0,
        pickle: bool = False,
        kept: Any = _ABSENT,
    ):
        self.sequence, self._plain, self._tensors, self._channel, self._pickle = sequence, plain, tensors, channel, pickle
        self.dropped, self.epoch, self._kept = dropped, epoch, kept

    @property
    def value(self) -> Value:
        """Value as it was written, with a `tensorlane.Tensor` for each array: no array is copied, and what is plain is made anew.
        For a reader whose route is `process`, it is the very object that was written, and stays when the message is released.

        Raises `Unsupported` for an object that was pickled, where this reader does not unpickle, and MESSAGE_DAMAGED for what no
        writer writes. The reader goes on with the next message.
        """
        if self._kept is not _ABSENT:
            return self._kept
        if self._plain:
            return self._tensors[0].tobytes()
        kind = self._tensors[0].metadata.get(_KIND)
        if kind == "one":
            return self._tensors[0]
        if kind == "dict":
            return {tensor.metadata[_KEY]: tensor for tensor in self._tensors}
        if kind == "tuple":
            return tuple(self._tensors)
        if kind == "tree":
            where = f"message {self.sequence} of the channel {self._channel}"
            # Copied before it is read: the writer's memory might change meanwhile.
            return trees.decode(self._tensors[0].tobytes(), self._tensors[1:], pickles=self._pickle, where=where)
        return list(self._tensors)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of the message, in order; plain bytes as one of `u8`, and so is the tree of a nested value, which comes first."""
        return list(self._tensors)

    def release(self) -> None:
        """Gives the place back, as far as no array needs it."""
        for tensor in self._tensors:
            tensor.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<tensorlane.{type(self).__name__} {self.sequence}, {len(self._tensors)} tensors>"


class _Shared:
    """State of a message that its reads have in common."""

    def __init__(self, message: Message, reads: int):
        self.message, self.left, self.lock = message, reads, threading.Lock()
        self.made, self.value = False, None


class SharedMessage(Message):
    """Read of a message that several reads give: `value` is one object for all, and the last one's release gives the place back."""

    def __init__(self, shared: _Shared):
        self.__dict__.update(shared.message.__dict__)
        self._shared, self._released = shared, False

    @property
    def value(self) -> Value:
        """Value as it was written, made once: whoever changes a list or a dict of it changes it for every reader."""
        shared = self._shared
        with shared.lock:
            if not shared.made:
                shared.value, shared.made = shared.message.value, True
            return shared.value

    def release(self) -> None:
        """Notes that this read needs it no more, once; after all of them the place goes back, as far as no array needs it."""
        shared = self._shared
        with shared.lock:
            if self._released:
                return
            self._released = True
            shared.left -= 1
            if shared.left > 0:
                return
            shared.value, shared.made = None, False
        super().release()


class ChannelReader:
    """A reader of a channel: `for message in reader` takes every message in order and ends when the writer has finished.

    In a channel that drops, a slow reader misses messages: `Message.dropped` says how many just before, `dropped` how many in all.
    """

    def __init__(
        self, name: str, core: Reader, *, deadline: float, pickle: bool = False, objects: Sequence[Objects] = ()
    ):
        self.name, self.deadline, self._core, self._pickle = name, deadline, core, pickle
        self._dropped = self._told = self._epoch = 0
        # Those of its channel are among them, if its writer is in this process and keeps some. Until all was read.
        self._objects, self._is_same = objects, False

    @property
    def policy(self) -> str:
        """Policy for messages when this reader is slow: "block", "drop_oldest" or "latest"."""
        return self._core.policy

    @property
    def dropped(self) -> int:
        """Number of messages that this reader missed so far. A message says how many just before it (`Message.dropped`)."""
        return self._dropped

    @property
    def epoch(self) -> int:
        """Number of channels of this name that have ended meanwhile. Others than 0 only for a reader that follows."""
        return self._epoch

    @property
    def first(self) -> int:
        """Sequence of the first message that this reader gets; none from there on is missed, or `dropped` counts it."""
        return self._core.first

    @property
    def missed(self) -> int:
        """Number of messages before the first one that can be read, if the oldest was asked for.

        For a reader that follows, of the last channel; `dropped` counts those of each channel that it went on with.
        """
        return self._core.missed

    @property
    def route(self) -> str:
        """The way of the messages: `process` gives the very objects that were written in this process, `local` is a map of the writer's own
        memory, `tcp` brings them from another peer."""
        self._kept()
        return "process" if self._is_same else self._core.route

    @property
    def peer(self) -> str:
        """The peer that has the channel; empty for this one."""
        return self._core.peer

    @property
    def writer(self) -> str:
        """The client that writes."""
        return self._core.writer

    def read(self, *, timeout: float | None = None) -> Message | None:
        """Takes the next message; None when the writer has finished and all was read.

        It waits `timeout` seconds, the client's deadline by default; 0 is one try, `math.inf` for ever. CHANNEL_ENDED is raised
        for a writer that died or let the channel go, once all that it wrote was read; PEER_UNREACHABLE for a lost peer, or the way to
        it, once all that came was read; EVICTED for a writer that has evicted this reader.
        A reader that follows waits for another channel instead, in the same time.
        """
        return self._read(timeout, None)

    def _read(self, timeout: float | None, cancel: Cancel | None) -> Message | None:
        """Takes the next message, unless `cancel` is used and `_wake` called before."""
        timeout = sizes.seconds("timeout", timeout)
        until = time.monotonic() + (self.deadline if timeout is None else timeout)
        got = self._core.read(timeout, cancel)
        while isinstance(got, int) or got == "epoch":
            if isinstance(got, int):
                # The message behind the gap is there already, or the end.
                self._dropped += got
            else:
                self._epoch += 1
                # What the next channel had before it was found is missed, as a gap is.
                self._dropped += self._core.missed
            got = self._core.read(max(0.0, until - time.monotonic()), cancel)
        if isinstance(got, str):
            self._objects = ()
        if got == "finished":
            return None
        if got == "cut":
            raise Unavailable(f"the peer of {self.name} was lost, or the way to it", "PEER_UNREACHABLE", remedy=_ATTACH_AGAIN)
        if got == "lost":
            raise Error(f"the writer of {self.name} is gone and has not finished it", "CHANNEL_ENDED")
        sequence, plain, acquired = got
        dropped, self._told = self._dropped - self._told, self._dropped
        tensors = [Tensor(one) for one in acquired]
        told = {"dropped": dropped, "epoch": self._epoch}
        kept = self._kept().get(sequence, _ABSENT)
        return Message(sequence, plain, tensors, channel=self.name, pickle=self._pickle, kept=kept, **told)

    def _kept(self) -> Mapping[int, Any]:
        """Objects of messages that lie in the ring, by their sequences; none where the writer keeps none for this reader."""
        for objects in self._objects:
            if objects.channel == self._core.channel:
                self._is_same = True
                return objects.kept
        return {}

    def _wake(self) -> None:
        self._core.wake()

    def cached(self, reads: int) -> CachedReader:
        """The reader with a cache: each message is taken once, and is given to so many reads of this process, by any thread.

        From then on messages are read by the cache alone.
        """
        return CachedReader(self, reads)

    def close(self) -> None:
        """Ends the reader; a read of it in another thread comes back. Arrays of messages stay as they are."""
        self._core.close()
        self._objects = ()

    def __iter__(self) -> Iterator[Message]:
        while (message := self.read(timeout=float("inf"))) is not None:
            yield message

    def __enter__(self) -> ChannelReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a channel's reader stays in its process; pass the channel's name")

    def __repr__(self) -> str:
        return f"<tensorlane.ChannelReader {self.name!r} by {self.route}>"


class CachedReader:
    """A reader that gives each message to a number of reads, by any threads of the process, with one value for all of them.

    The first of them takes the message, and waits for it; the others have it at once. After the last one it is gone from here. Reads are
    counted, and not who reads: each of so many consumers reads once for each message.
    """

    __iter__: None = None
    """Loops would get each message several times."""

    def __init__(self, reader: ChannelReader, reads: int):
        self._reader, self._reads = reader, sizes.whole("reads", reads, sizes.MANY)
        if self._reads == 0:
            raise Invalid("reads is 0", remedy="give the number of reads of each message, at least 1")
        # The message that was taken, as many times as it may still be read.
        self._kept: deque[_Shared] = deque()
        self._taking, self._closed, self._process = threading.Lock(), False, os.getpid()

    @property
    def name(self) -> str:
        """Name of the channel, as the reader was given it."""
        return self._reader.name

    @property
    def kept(self) -> int:
        """Number of reads that have the message without a wait."""
        return len(self._kept)

    def read(self, *, timeout: float | None = None) -> SharedMessage | None:
        """Gives the message that is kept, or takes the next one; None when the writer has finished and all was read.

        Timeouts and errors are those of `ChannelReader.read`, and are not kept: the next read tries again. One thread takes a message
        while others that have none wait for it.
        """
        if os.getpid() != self._process:
            # Refused, as any read is in a forked child: places of messages are the parent's.
            self._reader.read(timeout=0)
        timeout = sizes.seconds("timeout", timeout)
        seconds = self._reader.deadline if timeout is None else timeout
        until = time.monotonic() + seconds
        while True:
            try:
                return SharedMessage(self._kept.popleft())
            except IndexError:
                left = max(0.0, until - time.monotonic())
            if not self._taking.acquire(timeout=-1 if left >= threading.TIMEOUT_MAX else left):
                words = f"a message of {self.name}, which another thread waits for, did not come within {seconds:.3g} s"
                raise Timeout(words, "DEADLINE_EXCEEDED", remedy="pass a longer timeout")
            try:
                # Another thread may have taken one meanwhile.
                if not self._kept:
                    return self._taken(max(0.0, until - time.monotonic()))
            finally:
                self._taking.release()

    def _taken(self, timeout: float) -> SharedMessage | None:
        message = self._reader.read(timeout=timeout)
        if message is None:
            return None
        shared = _Shared(message, self._reads)
        self._kept.extend([shared] * (self._reads - 1))
        if self._closed:
            self._kept.clear()
        return SharedMessage(shared)

    def close(self) -> None:
        """Ends the reader and lets go of what is kept; a read of it in another thread comes back. Arrays stay as they are."""
        self._closed = True
        self._reader.close()
        self._kept.clear()

    def __enter__(self) -> CachedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a channel's reader stays in its process; pass the channel's name")

    def __repr__(self) -> str:
        return f"<tensorlane.CachedReader of {self._reader!r}, {self._reads} reads of each message>"


def _parts(value: Value, pickles: bool, message_bytes: int) -> _Parts:
    """A value as parts of a message: flat ones as arrays alone, others as a tree with the arrays behind it.

    Where objects are pickled, what is derived from a list, a tuple or a mapping is one, and comes back as what it was.
    """
    if not pickles and opaque.is_plain(value):
        value = opaque.plain_of(value)
    if pickles and isinstance(value, (Mapping, list, tuple)) and type(value) not in trees.CONTAINERS:
        pass
    elif isinstance(value, Mapping) or (opaque.is_mapping(value) and not pickles):
        # Neither the truth nor the iteration of a TensorDict is about its keys.
        found = list(opaque.items(value))
        keys = [key for key, _ in found]
        if keys and all(map(_is_text, keys)) and (sources := trees.as_arrays(item for _, item in found)) is not None:
            return [_part(source, [(_KIND, "dict"), (_KEY, key)]) for key, source in zip(keys, sources)]
    elif isinstance(value, (list, tuple)):
        if value and (sources := trees.as_arrays(value)) is not None:
            kind = "tuple" if isinstance(value, tuple) else "list"
            return [_part(source, [(_KIND, kind)]) for source in sources]
    elif (source := trees.as_array(value)) is not None:
        return [_part(source, [(_KIND, "one")])]
    tree, found = trees.encode(value, pickles=pickles, most=message_bytes)
    first = _part(arrays.source(np.frombuffer(tree, np.uint8)), [(_KIND, "tree")])
    return [first, *(_part(arrays.source(array), []) for array in found)]


def _part(source: arrays.Source, metadata: Sequence[tuple[str, str]]) -> tuple[Any, str, tuple[int, ...], list[tuple[str, str]]]:
    return source.dense(), source.dtype, source.shape, list(metadata)


def _told(layout: _Layout) -> str:
    """A layout in words: `f32[3, 4], u8[2]`."""
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in layout) or "no array"


def _is_text(key: Any) -> bool:
    """Returns whether metadata can say a key; others stand in a tree, or are refused there."""
    if not isinstance(key, str) or any("\ud800" <= sign <= "\udfff" for sign in ("" if key.isascii() else key)):
        return False
    return len(key.encode()) <= _KEY_MAX
