"""Ray's tensor transport: tensors that actors return stay in shared memory, and other actors map them.

``register()`` in the driver, and ``worker_process_setup_hook="tensorlane.ray.register"`` in the runtime environment, so that
restarted actors and processes that did not create an actor have the transport, too:

    ray.init(runtime_env={"worker_process_setup_hook": "tensorlane.ray.register"})
    tensorlane.ray.register()

That is one-sided: tensors are put when a task returns, and whoever receives gets them. ``register(two_sided=True)`` adds
`tensorlane_two_sided`: the source keeps them, puts when Ray has it send, and the receiver waits for that.

Ray makes managers without arguments, so everything is set by the environment: TENSORLANE_SOCKETS is where the sidecar is,
TENSORLANE_RAY_DEADLINE how many seconds a transfer may take (60), TENSORLANE_RAY_KEEP for how many seconds after a put an object
stays though its actor died or Ray gave it up (0).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
import uuid
import warnings
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, TypeVar

import numpy as np

try:
    from ray.experimental import (
        CommunicatorMetadata,
        TensorTransportManager,
        TensorTransportMetadata,
        register_tensor_transport,
    )
    from ray.experimental.rdt.tensor_transport_manager import FetchRequest
except ImportError as error:
    raise ImportError(f"tensorlane.ray needs Ray 2.60 with its tensor transports ({error}): pip install 'ray==2.60.*'") from error

from ._tensorlane import Cancel, Reference, Stored
from .client import Client
from .errors import Error, NotFound, Timeout, Unsupported, Withdrawn
from .pipes import Listener, Pipe
from .tensor import copy_into

DEADLINE = "TENSORLANE_RAY_DEADLINE"
KEEP = "TENSORLANE_RAY_KEEP"

_VERSION = 1
_PATIENCE = 10.0
_FETCHES_AT_ONCE = 4

SENDS_MAX = 64
"""Transfers of two sides that wait for their receivers at once; others wait in line. Each costs a thread."""

# A message has 64 KiB of metadata, and a reference some 100 bytes.
_REFERENCES_AT_ONCE = 256

# For so long a wait for the other side cannot be aborted.
_SLICE = 0.1

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_client: Client | None = None


@dataclass
class TransportMetadata(TensorTransportMetadata):
    """References that travel in place of the tensors, one for each."""

    references: tuple[str, ...] = ()
    version: int = _VERSION


@dataclass
class TransportCommunicator(CommunicatorMetadata):
    """Nothing: whoever has a reference gets the tensor by itself."""


@dataclass
class Fetch(FetchRequest):
    """A transfer under way. Dropped before it is over, it is withdrawn."""

    future: Future = field(default_factory=Future)
    cancel: Cancel = field(default_factory=Cancel)

    def __del__(self) -> None:
        self.cancel.cancel()


@dataclass
class TwoSidedMetadata(TensorTransportMetadata):
    """The object, and the peer that will send it."""

    obj_id: str = ""
    peer: str = ""
    version: int = _VERSION


@dataclass
class TwoSidedCommunicator(CommunicatorMetadata):
    """One transfer, by the name at which the two sides meet. Both of them have it."""

    transfer: str = ""


class _Manager(TensorTransportManager):
    """What both forms have in common: transfers that come here, and their end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receiving: dict[str, set[Cancel]] = {}
        self._told: set[Any] = set()

    def _tell_of_hanging(self, receiver: Any) -> None:
        """Says once of an actor that Ray has no thread in it to receive with.

        An exception would be too much: Ray asks from a thread that it ends with its process.
        """
        if getattr(receiver, "_ray_enable_tensor_transport", True) or (known := str(receiver)) in self._told:
            return
        self._told.add(known)
        _logger.warning(
            "%s is given tensors, and no method of its class has a tensor transport: it may wait for ever, since Ray has it "
            "receive behind the task that waits; decorate the class with @ray.remote(enable_tensor_transport=True)",
            known,
        )

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        # Asked at every call of a task. An actor without a sidecar says so in the error of its first transfer.
        return True

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Ends the transfers of an object that come here, within 100 ms."""
        with self._lock:
            cancels = list(self._receiving.get(obj_id, ()))
        for cancel in cancels:
            cancel.cancel()

    @contextmanager
    def _under_way(self, obj_id: str, version: int, cancel: Cancel) -> Iterator[None]:
        """A transfer that comes here and may be aborted."""
        if version != _VERSION:
            raise Unsupported(
                f"object {obj_id} has metadata of version {version}, and this process reads version {_VERSION}",
                remedy="install the same tensorlane everywhere",
            )
        with self._lock:
            self._receiving.setdefault(obj_id, set()).add(cancel)
        try:
            yield
        except Withdrawn:
            raise RuntimeError(f"the transfer of object {obj_id} was aborted") from None
        finally:
            with self._lock:
                cancels = self._receiving.get(obj_id, set())
                cancels.discard(cancel)
                if not cancels:
                    self._receiving.pop(obj_id, None)


class Transport(_Manager):
    """The transport of one process. One-sided: who receives gets by itself; Ray may call from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[str, Future] = {}
        self._fetching = ThreadPoolExecutor(_FETCHES_AT_ONCE, thread_name_prefix="tensorlane-fetch")

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> TransportMetadata:
        """Stores the tensors of an object. A retry finds what was stored before."""
        with self._lock:
            known = self._stored.get(obj_id)
            if known is None:
                mine = self._stored[obj_id] = Future()
        if known is not None:
            return known.result()[0]
        try:
            made = _store(rdt_object)
        except BaseException as error:
            with self._lock:
                self._stored.pop(obj_id, None)
            mine.set_exception(error)
            raise
        mine.set_result(made)
        return made[0]

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> TransportCommunicator:
        self._tell_of_hanging(dst_actor)
        return TransportCommunicator()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Gets the tensors of an object: mapped, or copied into the buffers."""
        return self._receive(obj_id, tensor_transport_metadata, target_buffers, Cancel())

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Begins to get the tensors of an object."""
        cancel = Cancel()
        future = self._fetching.submit(self._receive, obj_id, tensor_transport_metadata, target_buffers, cancel)
        return Fetch(obj_id=obj_id, tensors=[], future=future, cancel=cancel)

    def wait_fetch_complete(self, fetch_request: Fetch, timeout: float = -1) -> list[Any]:
        """Waits for a fetch: for ever with -1, not at all with 0."""
        try:
            fetch_request.tensors = fetch_request.future.result(None if timeout < 0 else timeout)
        except (NotYet, CancelledError) as error:
            if fetch_request.future.done():
                raise
            raise TimeoutError(f"object {fetch_request.obj_id} did not come within {timeout} s") from error
        return fetch_request.tensors

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("tensorlane is one-sided: who receives gets the tensors by itself")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TransportMetadata, tensors: list[Any]) -> None:
        """Releases the tensors that were stored for an object; the sidecar frees it once nobody maps it."""
        with self._lock:
            known = self._stored.pop(obj_id, None)
        if known is not None and known.exception() is None:
            _release(known.result()[1])

    def _receive(self, obj_id: str, meta: TransportMetadata, buffers: list[Any] | None, cancel: Cancel) -> list[Any]:
        with self._under_way(obj_id, meta.version, cancel):
            references = [Reference(text) for text in meta.references]
            got = client().get_many(references, deadline=_seconds(DEADLINE, 60.0), cancel=cancel)
            return _given(got, meta, buffers)


class NumpyTransport(Transport):
    """The same for arrays of numpy, which Ray wants under a name of its own."""

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE_NUMPY"


class _Sending:
    """One transfer from here: tensors that are put, until their receiver has them."""

    def __init__(self, transfer: str, tensors: list[Any]):
        self.withdrawn = False
        self._stored = client().put_many(tensors, deadline=_seconds(DEADLINE, 60.0))
        self._pipe: Pipe | None = None
        try:
            self._listener: Listener = client().listen(transfer)
        except BaseException:
            _release(self._stored)
            raise

    def hand_over(self) -> None:
        """Waits for the receiver, tells it the references, and waits until it has the tensors."""
        deadline = time.monotonic() + _seconds(DEADLINE, 60.0)
        try:
            with self._listener, self._listener.accept(timeout=_left(deadline)) as self._pipe:
                if self.withdrawn:
                    raise Withdrawn("the transfer was given up")
                for start in range(0, len(self._stored), _REFERENCES_AT_ONCE):
                    some = self._stored[start : start + _REFERENCES_AT_ONCE]
                    self._pipe.write(metadata="\n".join(str(one.reference) for one in some), timeout=_left(deadline))
        finally:
            _release(self._stored)

    def withdraw(self) -> None:
        """Ends it; a receiver that waits is told."""
        self.withdrawn = True
        self._listener.close()
        if self._pipe is not None:
            self._pipe.close()


class TwoSidedTransport(_Manager):
    """The transport of one process whose tensors are put only when Ray has them sent, once for each receiver.

    Both sides meet in a pipe, at a name of the transfer that its communicator metadata bring to them. A send returns when the
    tensors are put; they are released when the receiver has them, when the object is collected, or with this process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sending: dict[str, tuple[str, _Sending]] = {}
        self._handing_over = ThreadPoolExecutor(SENDS_MAX, thread_name_prefix="tensorlane-send")
        _two_sided.add(self)

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE_TWO_SIDED"

    @staticmethod
    def is_one_sided() -> bool:
        return False

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> TwoSidedMetadata:
        """Describes the tensors of an object, which stay where they are."""
        shapes, device = _described(rdt_object)
        return TwoSidedMetadata(tensor_meta=shapes, tensor_device=device, obj_id=obj_id, peer=client().peer)

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> TwoSidedCommunicator:
        """Names a new transfer."""
        self._tell_of_hanging(dst_actor)
        return TwoSidedCommunicator(f"ray/{uuid.uuid4().hex}")

    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: TwoSidedMetadata, communicator_metadata: TwoSidedCommunicator
    ) -> None:
        """Puts the tensors, and has them handed over to the receiver of this transfer when it comes."""
        transfer = communicator_metadata.transfer
        sending = _Sending(transfer, tensors)
        with self._lock:
            self._sending[transfer] = (tensor_transport_metadata.obj_id, sending)
        self._handing_over.submit(self._hand_over, transfer, sending)

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TwoSidedMetadata,
        communicator_metadata: TwoSidedCommunicator,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Waits until the source has put the tensors, and gets them: mapped, or copied into the buffers."""
        meta, cancel, got = tensor_transport_metadata, Cancel(), []
        with self._under_way(obj_id, meta.version, cancel):
            deadline = time.monotonic() + _seconds(DEADLINE, 60.0)
            entry = f"{meta.peer}/{communicator_metadata.transfer}"
            with _sliced(lambda seconds: client().connect_pipe(entry, wait=seconds), deadline, cancel) as pipe:
                while (message := _sliced(lambda seconds: pipe.read_descriptor(timeout=seconds), deadline, cancel)) is not None:
                    references = [Reference(text) for text in message.metadata.decode().split("\n")]
                    got += client().get_many(references, deadline=_left(deadline), cancel=cancel)
                    # Tells the source that they are here.
                    message.read()
            return _given(got, meta, target_buffers)

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TwoSidedMetadata, tensors: list[Any]) -> None:
        """Ends what is still sent of an object."""
        with self._lock:
            left = [sending for of, sending in self._sending.values() if of == obj_id]
        for sending in left:
            sending.withdraw()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Ends a transfer on its side that is here."""
        with self._lock:
            _, sending = self._sending.get(getattr(communicator_metadata, "transfer", ""), (obj_id, None))
        if sending is not None:
            sending.withdraw()
        super().abort_transport(obj_id, communicator_metadata)

    def withdraw_all(self) -> None:
        """Ends every transfer from here."""
        with self._lock:
            left = list(self._sending.values())
        for _, sending in left:
            sending.withdraw()

    def _hand_over(self, transfer: str, sending: _Sending) -> None:
        try:
            sending.hand_over()
        except Error as error:
            # The receiver has an error of its own, which Ray shows.
            if not sending.withdrawn:
                _logger.warning("transfer %s was not handed over: %s", transfer, error)
        finally:
            with self._lock:
                self._sending.pop(transfer, None)


class TwoSidedNumpyTransport(TwoSidedTransport):
    """The same for arrays of numpy."""

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE_TWO_SIDED_NUMPY"


def register(two_sided: bool = False) -> None:
    """Registers `tensorlane` for torch.Tensor and `tensorlane_numpy` for numpy.ndarray, once, however often it is called.

    With `two_sided` also `tensorlane_two_sided` and `tensorlane_two_sided_numpy`, of which nothing is put before it is sent.
    Ray's `put`, and `get` in a driver, are for the others.

    The first task that returns arrays by `tensorlane_numpy` makes Ray pickle all other arrays of numpy in its process, too,
    which is slow for large ones. With tensors of torch, `torch.from_numpy(array)`, that concerns tensors of torch only.
    """
    if importlib.util.find_spec("torch") is None:
        warnings.warn(
            "torch is not installed: `tensorlane` is not registered, only `tensorlane_numpy`, and Ray cannot abort transfers "
            "that fail (its monitor of failures imports torch); pip install torch",
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        import torch

        _register("tensorlane", Transport, torch.Tensor)
        if two_sided:
            _register("tensorlane_two_sided", TwoSidedTransport, torch.Tensor)
    _register("tensorlane_numpy", NumpyTransport, np.ndarray)
    if two_sided:
        _register("tensorlane_two_sided_numpy", TwoSidedNumpyTransport, np.ndarray)


def register_two_sided() -> None:
    """Registers all that `register(two_sided=True)` does, as a hook that can be named: `tensorlane.ray.register_two_sided`."""
    register(two_sided=True)


def client() -> Client:
    """The client of this process, connected when it is first needed."""
    global _client
    with _lock:
        if _client is None:
            _client = Client(name=f"ray[{os.getpid()}]", patience=_PATIENCE)
        return _client


def _register(name: str, manager: type[TensorTransportManager], data_type: type) -> None:
    try:
        register_tensor_transport(name, ["cpu"], manager, data_type)
    except ValueError as error:
        if "already registered" not in str(error):
            raise


def _store(tensors: list[Any]) -> tuple[TransportMetadata, list[Stored]]:
    keep = _seconds(KEEP, 0.0)
    stored = client().put_many(tensors, ticket=keep or None, deadline=_seconds(DEADLINE, 60.0))
    shapes, device = _described(tensors)
    references = tuple(str(one.reference) for one in stored)
    return TransportMetadata(tensor_meta=shapes, tensor_device=device, references=references), stored


def _described(tensors: list[Any]) -> tuple[list[tuple[Any, Any]], str]:
    """Shapes and types of tensors, and the kind of device where they are."""
    device = getattr(tensors[0].device, "type", "cpu") if tensors and hasattr(tensors[0], "device") else "cpu"
    return [(tensor.shape, tensor.dtype) for tensor in tensors], device


def _given(got: list[Any], meta: TensorTransportMetadata, buffers: list[Any] | None) -> list[Any]:
    """What Ray is given for tensors that were got."""
    if buffers:
        return [_into(tensor, buffer) for tensor, buffer in zip(got, buffers, strict=True)]
    return [_as_sent(tensor, dtype) for tensor, (_, dtype) in zip(got, meta.tensor_meta, strict=True)]


def _sliced(attempt: Callable[[float], T], deadline: float, cancel: Cancel) -> T:
    """Waits for the other side, and looks now and then at whether the transfer was aborted."""
    while True:
        if cancel.cancelled:
            raise Withdrawn("the transfer was aborted")
        try:
            return attempt(min(_SLICE, _left(deadline)))
        except (NotFound, Timeout):
            if time.monotonic() > deadline:
                raise


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _release(stored: list[Stored]) -> None:
    for one in stored:
        one.release()
    if stored:
        client().flush()


def _into(tensor: Any, buffer: Any) -> Any:
    with tensor:
        return copy_into(tensor, buffer)


def _as_sent(tensor: Any, dtype: Any) -> Any:
    return tensor.numpy() if isinstance(dtype, np.dtype) else tensor.torch()


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{variable} is {text!r}; give a number of seconds") from None


_two_sided: weakref.WeakSet[TwoSidedTransport] = weakref.WeakSet()


def _at_the_end() -> None:
    for manager in list(_two_sided):
        manager.withdraw_all()


# The end of a program joins the threads of every pool, so what waits for its receiver is withdrawn before.
threading._register_atexit(_at_the_end)  # type: ignore[attr-defined]
