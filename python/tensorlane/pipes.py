"""Pipes: messages between two processes, read in three steps: descriptor, allocation, read."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import arrays, sizes, trees
from ._tensorlane import PipeDescriptor, PipeEnd, PipeListener, PipeWriting, Reference, Stored
from .errors import Error, Invalid, Unsupported
from .reservation import Reservation
from .tensor import Tensor, check_fits, copy_into

if TYPE_CHECKING:
    from .client import Client

Bytes = bytes | bytearray | memoryview | str
"""Bytes; a text is written as UTF-8."""


_VALUE = b"tensorlane.tree"
"""Metadata of a message that is a nested value: its only payload is the tree, and its tensors are the arrays of it."""


class _Skip:
    """The type of SKIP."""

    def __repr__(self) -> str:
        return "tensorlane.SKIP"


SKIP = _Skip()
"""The place of a tensor that is not wanted."""


@dataclass(frozen=True)
class TensorDescriptor:
    """Meaning of one tensor of a message, before its bytes are asked for."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    about: bytes
    """Bytes that the writer says about the tensor."""


class Received:
    """A message that was read. Its tensors are leased until the last array of them is gone, or it is released."""

    def __init__(self, metadata: bytes, payloads: list[bytes], tensors: list[Any]):
        self.metadata, self.payloads, self.tensors = metadata, payloads, tensors

    def value(self, *, pickle: bool = False) -> Any:
        """The nested value that `Pipe.write_value` wrote, with what was read in the place of each array.

        With `pickle`, objects that the writer pickled are made here: it can run what it likes in this process then.
        """
        if self.metadata != _VALUE or len(self.payloads) != 1:
            raise Invalid("this message is no nested value", remedy="use its metadata, payloads and tensors; write_value writes values")
        return trees.decode(self.payloads[0], self.tensors, pickles=pickle, where="this message of the pipe")

    def release(self) -> None:
        """Gives the leases back, as far as no array needs them."""
        for tensor in self.tensors:
            if isinstance(tensor, Tensor):
                tensor.release()

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<tensorlane.Received {len(self.payloads)} payloads, {len(self.tensors)} tensors>"


class Descriptor:
    """A message without its bytes. Given up unread, it is what the next `read_descriptor` gives."""

    def __init__(self, core: PipeDescriptor):
        self._core = core
        self.sequence, self.metadata, self.payloads = core.sequence, core.metadata, list(core.payloads)
        self.tensors = [TensorDescriptor(dtype, tuple(shape), nbytes, about) for dtype, shape, nbytes, about in core.tensors]
        # Payloads and tensors that came, until all are where they belong.
        self._came: tuple[list[bytes], list[Tensor | None]] | None = None

    def read(self, places: Sequence[Any] | None = None, *, timeout: float | None = None) -> Received:
        """Brings the bytes, and tells the writer that its message was read: within `timeout` seconds, the client's deadline by default.

        A place for each tensor: None maps it without a copy, an array of the same type and shape is copied into, SKIP leaves
        it. Without places all are mapped. Places that cannot be written are refused before. A read that fails may be tried again, with
        SKIP for what it left.
        """
        timeout = sizes.seconds("timeout", timeout)
        if places is None:
            places = [None] * len(self.tensors)
        if len(places) != len(self.tensors):
            words = f"{len(places)} places are given, and the message has {len(self.tensors)} tensors; nothing was read"
            raise Invalid(words, "LAYOUT_MISMATCH", remedy="give a place for each of descriptor.tensors")
        for place, tensor in zip(places, self.tensors):
            if place is not None and place is not SKIP:
                check_fits(tensor.dtype, tensor.shape, place, on_host=True)
        if self._came is None:
            payloads, acquired = self._core.read([place is not SKIP for place in places], timeout)
            self._came = payloads, [None if one is None else Tensor(one) for one in acquired]
        payloads, came = self._came
        if any(one is None and place is not SKIP for one, place in zip(came, places)):
            raise Invalid("the read before left a tensor that is wanted now", "LAYOUT_MISMATCH", remedy="give SKIP in its place again")
        for one, place in zip(came, places):
            if one is not None and place is not None and place is not SKIP:
                copy_into(one, place)
        self._came = None
        return Received(self.metadata, payloads, [_placed(one, place) for one, place in zip(came, places)])

    def read_or_return(self) -> Received:
        """Reads all of it, mapped. A read that fails gives it up: it comes again, also while the exception lives, which has it."""
        try:
            return self.read()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives it up unread."""
        self._came = None
        self._core.release()

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a descriptor stays in its process; read it here")

    def __repr__(self) -> str:
        return f"<tensorlane.Descriptor {self.sequence}, {len(self.payloads)} payloads, {len(self.tensors)} tensors>"


class Writing:
    """A write under way. Given up before it is over, its message is withdrawn."""

    def __init__(self, core: PipeWriting, sent: _Sent, kept: list[Any]):
        self._core, self._sent, self._kept = core, sent, kept

    def wait(self) -> None:
        """Waits until the other end has read the message. The exception's `delivered` is "no" or "unknown"; `stored` as of `Pipe.write`."""
        try:
            self._core.wait()
        except Error as error:
            self._sent.keep(error)
            raise
        finally:
            self._release()

    def withdraw(self) -> None:
        """Takes the message back; the other end may have read it already."""
        self._core.withdraw()
        self._release()

    def _release(self) -> None:
        self._kept = []
        self._sent.release()

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()

    def __reduce__(self) -> Any:
        raise TypeError("a write stays in its process")


class Pipe:
    """End of a pipe. Threads may share it.

    Leaving a `with` without an exception waits for each `write` of another thread, within the client's deadline. Then it is finished and
    closed: the other end has read what is there, and ends. What `begin` began is withdrawn unless it was waited for. With an exception, or when it
    is dropped, it is closed alone: the other end gets PIPE_CLOSED.
    """

    def __init__(self, client: Client, core: PipeEnd):
        self._client, self._core = client, core
        # An event for each write under way. No lock: a child that is forked meanwhile would find it held.
        self._writes: set[threading.Event] = set()

    @property
    def peer(self) -> str:
        """The peer of the other end."""
        return self._core.peer

    @property
    def client(self) -> str:
        """The client at the other end, as it calls itself."""
        return self._core.client

    @property
    def route(self) -> str:
        """The way of descriptors: `local` is through the sidecar of this pod, `tcp` over the connection to its peer."""
        return self._core.route

    def write(
        self,
        tensors: Sequence[Any] = (),
        *,
        metadata: Bytes = b"",
        payloads: Sequence[Bytes] = (),
        about: Sequence[Bytes] = (),
        timeout: float | None = None,
    ) -> None:
        """Writes a message and waits until the other end has read it: `timeout` seconds, the client's deadline by default.

        Room for all arrays together is waited for as long, too. An array is copied into the shared memory once. A `Reservation` is sealed,
        and a `Stored` or `Reference` named, without a copy. `about` are words for the reader of each tensor. `delivered` of the exception is "no" where the other end has
        not seen the message and will not, else "unknown". `stored` of it has the reservations, which are sealed: write these again.
        """
        timeout, ended = sizes.seconds("timeout", timeout), threading.Event()
        self._writes.add(ended)
        try:
            sent = _Sent(self._client, tensors, about, timeout)
            try:
                self._core.write(self._client._core, sent.message(metadata, payloads), timeout)
            except Error as error:
                sent.keep(error)
                raise
            finally:
                sent.release()
        finally:
            self._writes.discard(ended)
            ended.set()

    def write_value(self, value: Any, *, pickle: bool = False, timeout: float | None = None) -> None:
        """Writes a nested value, such as `ChannelWriter.write` takes, and waits as `write` does; `Received.value` gives it.

        What cannot be sent is an `Unsupported`, a TypeError, with the path of each culprit. With `pickle`, it may have objects of any
        kind, for a reader that says so, too.
        """
        tree, found = trees.encode(value, pickles=pickle, most=trees.TREE_MAX)
        self.write(found, metadata=_VALUE, payloads=[tree], timeout=timeout)

    def begin(
        self,
        tensors: Sequence[Any] = (),
        *,
        metadata: Bytes = b"",
        payloads: Sequence[Bytes] = (),
        about: Sequence[Bytes] = (),
        timeout: float | None = None,
    ) -> Writing:
        """Begins to write a message, so that others can be written behind it; `wait` ends it. Arguments are those of `write`."""
        timeout = sizes.seconds("timeout", timeout)
        sent = _Sent(self._client, tensors, about, timeout)
        try:
            core = self._core.begin(self._client._core, sent.message(metadata, payloads), timeout)
        except BaseException as error:
            sent.keep(error)
            sent.release()
            raise
        return Writing(core, sent, list(tensors))

    def read_descriptor(self, *, timeout: float | None = None) -> Descriptor | None:
        """Takes the descriptor of the next message, in the order of writes; None when the other end has finished.

        It waits `timeout` seconds, the client's deadline by default; 0 is one try, `math.inf` for ever. PIPE_CLOSED and
        PIPE_LOST are raised where the other end is no more and has not finished.
        """
        core = self._core.read_descriptor(sizes.seconds("timeout", timeout))
        return None if core is None else Descriptor(core)

    def read(self, *, timeout: float | None = None) -> Received | None:
        """Reads the next message, all of it mapped; None when the other end has finished.

        It waits for a message as `read_descriptor` does; its bytes have the client's deadline from then on.
        """
        descriptor = self.read_descriptor(timeout=timeout)
        return None if descriptor is None else descriptor.read_or_return()

    def finish(self) -> None:
        """Says that this end writes nothing more. Reading goes on."""
        self._core.finish()

    def close(self) -> None:
        """Closes this end; calls of it that wait in other threads are withdrawn. Arrays stay as they are."""
        self._core.close()

    def __iter__(self) -> Iterator[Received]:
        while (received := self.read(timeout=float("inf"))) is not None:
            yield received

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._leave()
        finally:
            self._core.close()

    def _leave(self) -> None:
        """Waits for the writes that are under way, and finishes: a close takes back what is unread."""
        until = time.monotonic() + self._client.deadline
        for ended in list(self._writes):
            ended.wait(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
        self._core.finish()

    def __reduce__(self) -> Any:
        raise TypeError("a pipe's end stays in its process; pass the listener's name")

    def __repr__(self) -> str:
        return f"<tensorlane.Pipe to {self.client!r} of {self.peer} by {self.route}>"


class Listener:
    """An entry point for pipes of this process. Closed or dropped it ends, and so does every pipe that was not accepted."""

    def __init__(self, client: Client, name: str, core: PipeListener):
        self.name, self._client, self._core = name, client, core

    def accept(self, *, timeout: float | None = None) -> Pipe:
        """Takes the next pipe that was connected, in order; waits `timeout` seconds, the client's deadline by default."""
        return Pipe(self._client, self._core.accept(sizes.seconds("timeout", timeout)))

    def close(self) -> None:
        """Ends it; an accept of it in another thread is withdrawn. Pipes that were accepted go on."""
        self._core.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a listener stays in its process; pass its name")

    def __repr__(self) -> str:
        return f"<tensorlane.Listener {self.name!r}>"


class _Sent:
    """Tensors of a message: those that were put for it, which are given up after it, and those of the caller."""

    def __init__(self, client: Client, tensors: Sequence[Any], about: Sequence[Bytes], timeout: float | None):
        if isinstance(tensors, (str, bytes)) or not isinstance(tensors, Sequence):
            raise Unsupported(f"tensors is a {type(tensors).__name__}", remedy="pass a list of arrays: pipe.write([array])")
        if isinstance(about, (str, bytes, bytearray, memoryview)):
            raise Unsupported(f"about is a {type(about).__name__}", remedy="pass a list with one for each tensor: about=[word]")
        if about and len(about) != len(tensors):
            raise Invalid(f"{len(about)} words are given about {len(tensors)} tensors", remedy="give one for each tensor")
        words = [_bytes(one) for one in about] or [b""] * len(tensors)
        ready = (Stored, Reference, Reservation)
        # Read before anything is stored.
        sources = [None if isinstance(one, ready) else arrays.source_under(f"tensors[{at}]", one) for at, one in enumerate(tensors)]
        self._put: list[Stored] = []
        self._sealed: list[Stored] = []
        try:
            within = client.deadline if timeout is None else timeout
            self._put += client._stage([source for source in sources if source is not None], within=within)
            stored = iter(self._put)
            self._items: list[tuple[Reference, tuple[str, tuple[int, ...]] | None, bytes]] = []
            for one, source, word in zip(tensors, sources, words):
                if source is not None:
                    self._items.append((next(stored).reference, (source.dtype, source.shape), word))
                elif isinstance(one, Reservation):
                    sealed = one.seal()
                    self._sealed.append(sealed)
                    self._items.append((sealed.reference, (one.dtype, one.shape), word))
                else:
                    self._items.append((one.reference if isinstance(one, Stored) else one, None, word))
        except BaseException as error:
            self.keep(error)
            self.release()
            if isinstance(error, Error):
                error.delivered = "no"
            raise

    def message(self, metadata: Bytes, payloads: Sequence[Bytes]) -> tuple[bytes, list[bytes], list[Any]]:
        if isinstance(payloads, (str, bytes, bytearray, memoryview)):
            raise Unsupported(f"payloads is a {type(payloads).__name__}", remedy="pass a list: payloads=[bytes]")
        return _bytes(metadata), [_bytes(payload) for payload in payloads], self._items

    def keep(self, error: BaseException) -> None:
        """Gives reservations to the error of a write that failed: their bytes are nowhere else."""
        if isinstance(error, Error) and self._sealed:
            error.stored, self._sealed = tuple(self._sealed), []

    def release(self) -> None:
        for stored in self._put + self._sealed:
            stored.release()


def _bytes(given: Bytes) -> bytes:
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(arrays.bytes_of(memoryview(given)))
    raise Unsupported(f"a {type(given).__name__} is no bytes", remedy="pass bytes, or a text")


def _placed(tensor: Tensor | None, place: Any) -> Any:
    if tensor is None or place is None:
        return tensor
    tensor.release()
    return None if place is SKIP else place
