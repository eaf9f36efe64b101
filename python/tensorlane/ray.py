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

Processes outside Ray get what an actor returned by its `references`; actors get what others have put by `client().get(reference)`.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import threading
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
    import ray
    from ray.experimental import (
        CommunicatorMetadata,
        TensorTransportManager,
        TensorTransportMetadata,
        register_tensor_transport,
    )
    from ray.experimental.rdt import util as rdt
    from ray.experimental.rdt.tensor_transport_manager import FetchRequest
except ImportError as error:
    raise ImportError(f"tensorlane.ray needs Ray 2.60 with its tensor transports ({error}): pip install 'ray==2.60.*'") from error

from ._tensorlane import Cancel, Reference, Stored
from .client import Client
from .errors import Error, SessionLost, Timeout, Unsupported, Withdrawn
from .tensor import copy_into
from .transfers import Names, Sending, Waiting, aborted, left, release

T = TypeVar("T")

DEADLINE = "TENSORLANE_RAY_DEADLINE"
KEEP = "TENSORLANE_RAY_KEEP"

_VERSION = 1
_PATIENCE = 10.0
_FETCHES_AT_ONCE = 4

SENDS_MAX = 64
"""Transfers of two sides that wait for their receivers at once; others wait in line. Each costs a thread."""

# For so long a wait for the other side cannot be aborted. A connect that is given up may leave a pipe that nobody reads.
_SLICE = 0.1
_CONNECT_SLICE = 1.0

_logger = logging.getLogger(__name__)
# Of torch, whose tensors may lie on a GPU. Every process registers both: where there is no GPU, no tensor says that it is on one.
_DEVICES = ["cpu", "cuda"]

# Seconds within which Ray has told of the tensors of an object that is ready.
_TOLD = 2.0

_lock = threading.Lock()
_client: Client | None = None


@dataclass
class TransportMetadata(TensorTransportMetadata):
    """References that travel in place of the tensors, one for each."""

    references: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    """Kinds of device where they were, one for each; none by releases that had no tensors on GPUs."""
    version: int = _VERSION


@dataclass
class TransportCommunicator(CommunicatorMetadata):
    """Name of one transfer, by which it is aborted. Whoever has a reference gets the tensor by itself."""

    transfer: str = field(default_factory=lambda: uuid.uuid4().hex)


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
    devices: tuple[str, ...] = ()
    version: int = _VERSION


@dataclass
class TwoSidedCommunicator(CommunicatorMetadata):
    """Transfer, by the name at which the two sides meet. Both of them have it."""

    transfer: str = ""


class _Manager(TensorTransportManager):
    """Common half of both forms: transfers that come here, and their end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receiving: dict[str, set[Cancel]] = {}
        # Ray has transfers begin one after the other, and aborts those that have not begun, too.
        self._aborted = Names()
        self._ended = False
        self._told: set[Any] = set()
        _managers.add(self)

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

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Ends a transfer that comes here, within 100 ms, or 1 s while it connects; refuses it where it has not begun."""
        with self._lock:
            self._aborted.add(communicator_metadata.transfer)
            cancels = list(self._receiving.get(communicator_metadata.transfer, ()))
        for cancel in cancels:
            cancel.cancel()

    def end(self) -> None:
        """Ends every transfer that comes here, and refuses others: the interpreter ends."""
        with self._lock:
            self._ended = True
            cancels = [cancel for some in self._receiving.values() for cancel in some]
        for cancel in cancels:
            cancel.cancel()

    def _check(self, obj_id: str, transfer: str) -> None:
        """Refuses a transfer that was aborted before it begins here. The lock is held."""
        if self._ended:
            raise RuntimeError(f"the transfer of object {obj_id} is refused, since its process ends")
        if transfer in self._aborted:
            raise aborted(obj_id)

    @contextmanager
    def _under_way(self, obj_id: str, transfer: str, version: int, cancel: Cancel) -> Iterator[None]:
        """A transfer that comes here and may be aborted."""
        if version != _VERSION:
            raise Unsupported(
                f"object {obj_id} has metadata of version {version}, and this process reads version {_VERSION}",
                remedy="install the same tensorlane everywhere",
            )
        with self._lock:
            self._check(obj_id, transfer)
            self._receiving.setdefault(transfer, set()).add(cancel)
        try:
            yield
        except Withdrawn:
            raise aborted(obj_id) from None
        finally:
            with self._lock:
                cancels = self._receiving.get(transfer, set())
                cancels.discard(cancel)
                if not cancels:
                    self._receiving.pop(transfer, None)


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
            if known is not None and _is_gone(known):
                known = None
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
        communicator_metadata: TransportCommunicator,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Gets the tensors of an object: mapped, or copied into the buffers."""
        return self._receive(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers, Cancel())

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TransportMetadata,
        communicator_metadata: TransportCommunicator,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Begins to get the tensors of an object."""
        cancel, meta = Cancel(), tensor_transport_metadata
        future = self._fetching.submit(self._receive, obj_id, meta, communicator_metadata, target_buffers, cancel)
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
            release(client(), known.result()[1])

    def end(self) -> None:
        super().end()
        self._fetching.shutdown(wait=False, cancel_futures=True)

    def _receive(
        self, obj_id: str, meta: TransportMetadata, comm: TransportCommunicator, buffers: list[Any] | None, cancel: Cancel
    ) -> list[Any]:
        with self._under_way(obj_id, comm.transfer, meta.version, cancel):
            references = [Reference(text) for text in meta.references]
            got = _again(lambda: client().get_many(references, deadline=_seconds(DEADLINE, 60.0), cancel=cancel))
            return _given(got, meta, buffers)


class NumpyTransport(Transport):
    """Transport of arrays of numpy, which Ray wants under a name of its own."""

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE_NUMPY"


class TwoSidedTransport(_Manager):
    """The transport of one process whose tensors are put only when Ray has them sent, once for each receiver.

    Both sides meet in a pipe, at a name of the transfer that its communicator metadata bring to them. A send returns when the
    tensors are put; they are released when the receiver has them, at the deadline, when the object is collected, or with this
    process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sending: dict[str, Sending] = {}
        self._sent = Names()
        self._handing_over = ThreadPoolExecutor(SENDS_MAX, thread_name_prefix="tensorlane-send")

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE_TWO_SIDED"

    @staticmethod
    def is_one_sided() -> bool:
        return False

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> TwoSidedMetadata:
        """Describes the tensors of an object, which stay where they are."""
        return TwoSidedMetadata(**_described(rdt_object), obj_id=obj_id, peer=client().peer)

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> TwoSidedCommunicator:
        """Names a new transfer."""
        self._tell_of_hanging(dst_actor)
        return TwoSidedCommunicator(f"ray/{uuid.uuid4().hex}")

    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: TwoSidedMetadata, communicator_metadata: TwoSidedCommunicator
    ) -> None:
        """Puts the tensors, and has them handed over to the receiver of this transfer when it comes; once, if Ray asks again."""
        obj_id, transfer = tensor_transport_metadata.obj_id, communicator_metadata.transfer
        with self._lock:
            self._check(obj_id, transfer)
            if transfer in self._sending or transfer in self._sent:
                return
            # Known before it is put, so that an abort meanwhile finds it.
            sending = self._sending[transfer] = Sending(obj_id, transfer, _seconds(DEADLINE, 60.0))
        try:
            _settle(tensors)
            _again(lambda: sending.put(client(), tensors))
            self._handing_over.submit(self._hand_over, transfer, sending)
        except BaseException:
            with self._lock:
                self._sending.pop(transfer, None)
            sending.release()
            raise

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TwoSidedMetadata,
        communicator_metadata: TwoSidedCommunicator,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Waits until the source has put the tensors, and gets them: mapped, or copied into the buffers."""
        meta, transfer = tensor_transport_metadata, communicator_metadata.transfer
        cancel, entry, got = Cancel(), f"{meta.peer}/{transfer}", []
        with self._under_way(obj_id, transfer, meta.version, cancel):
            waiting = Waiting(obj_id, meta.peer, _seconds(DEADLINE, 60.0), cancel)
            with waiting.until(lambda seconds: _again(lambda: client().connect_pipe(entry, wait=seconds)), _CONNECT_SLICE) as pipe:
                while (message := waiting.until(lambda seconds: pipe.read_descriptor(timeout=seconds), _SLICE)) is not None:
                    references = [Reference(text) for text in message.metadata.decode().split("\n")]
                    got += client().get_many(references, deadline=left(waiting.deadline), cancel=cancel)
                    # Tells the source that they are here.
                    message.read()
            return _given(got, meta, target_buffers)

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TwoSidedMetadata, tensors: list[Any]) -> None:
        """Ends what is still sent of an object."""
        with self._lock:
            under_way = [sending for sending in self._sending.values() if sending.obj_id == obj_id]
        for sending in under_way:
            sending.withdraw()

    def abort_transport(self, obj_id: str, communicator_metadata: TwoSidedCommunicator) -> None:
        """Ends a transfer on its side that is here, or refuses it where it has not begun."""
        super().abort_transport(obj_id, communicator_metadata)
        with self._lock:
            sending = self._sending.get(communicator_metadata.transfer)
        if sending is not None:
            sending.withdraw()

    def end(self) -> None:
        super().end()
        self.withdraw_all()

    def withdraw_all(self) -> None:
        """Ends every transfer from here."""
        with self._lock:
            under_way = list(self._sending.values())
        for sending in under_way:
            sending.withdraw()

    def _hand_over(self, transfer: str, sending: Sending) -> None:
        try:
            sending.hand_over()
        except Error as error:
            # A receiver that has not connected is told at its own deadline alone.
            if not sending.withdrawn:
                _logger.warning("object %s was not handed over by transfer %s: %s", sending.obj_id, transfer, error)
        finally:
            with self._lock:
                self._sending.pop(transfer, None)
                self._sent.add(transfer)
            sending.release()


class TwoSidedNumpyTransport(TwoSidedTransport):
    """Two-sided transport for arrays of numpy."""

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

        _register("tensorlane", Transport, torch.Tensor, _DEVICES)
        if two_sided:
            _register("tensorlane_two_sided", TwoSidedTransport, torch.Tensor, _DEVICES)
    _register("tensorlane_numpy", NumpyTransport, np.ndarray, ["cpu"])
    if two_sided:
        _register("tensorlane_two_sided_numpy", TwoSidedNumpyTransport, np.ndarray, ["cpu"])


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


def references(ref: ray.ObjectRef, *, timeout: float | None = None) -> list[Reference]:
    """References of the tensors of an object that goes by `tensorlane` or `tensorlane_numpy`, in the order in which it holds them.

    Any process of the exchange gets the tensors by them, inside of Ray or outside, for as long as Ray has references to the object. It
    waits up to `timeout` seconds, by default those of TENSORLANE_RAY_DEADLINE, for the task; what that raised is raised here.
    """
    seconds = _seconds(DEADLINE, 60.0) if timeout is None else timeout
    manager = ray._private.worker.global_worker.rdt_manager
    if not manager.is_managed_object(ref.hex()):
        remedy = 'call a method with @ray.method(tensor_transport="tensorlane"), or ray.put(tensor, _tensor_transport="tensorlane")'
        raise Unsupported(f"object {ref.hex()} has no tensors that this process knows of", remedy=remedy)
    ready, _ = ray.wait([ref], timeout=seconds, fetch_local=False)
    if not ready:
        what = f"the task of object {ref.hex()} has not ended within {seconds:g} s"
        raise Timeout(what, "DEADLINE_EXCEEDED", remedy="pass a longer timeout")
    meta = manager.wait_for_tensor_transport_metadata(ref.hex(), _TOLD)
    if meta is None:
        # The task has failed, and says how.
        ray.get(ref, timeout=_TOLD)
        raise Timeout(f"Ray has not told of the tensors of object {ref.hex()}", remedy="ask its owner")
    if not isinstance(meta, TransportMetadata):
        known = manager.get_rdt_metadata(ref.hex())
        backend = "another transport" if known is None else known.tensor_transport_backend
        what = f"object {ref.hex()} goes by {backend}, whose tensors have no references"
        raise Unsupported(what, remedy='use tensor_transport="tensorlane"')
    return [Reference(text) for text in meta.references]


def _register(name: str, manager: type[TensorTransportManager], data_type: type, devices: list[str]) -> None:
    try:
        register_tensor_transport(name, devices, manager, data_type)
    except ValueError as error:
        if "already registered" not in str(error):
            raise
        there = rdt.transport_manager_info.get(name.upper())
        if there is not None and (there.transport_manager_class, there.data_type) != (manager, data_type):
            warnings.warn(
                f"`{name}` is registered in this process for {there.data_type.__name__} by {there.transport_manager_class.__name__}, and stays "
                f"so: register() means {data_type.__name__}; register by hand in no process, or in the same way in all of them",
                RuntimeWarning,
                stacklevel=3,
            )


def _store(tensors: list[Any]) -> tuple[TransportMetadata, list[Stored]]:
    keep = _seconds(KEEP, 0.0, least=0.0)
    _settle(tensors)
    stored = _again(lambda: client().put_many(tensors, ticket=keep or None, deadline=_seconds(DEADLINE, 60.0)))
    references = tuple(str(one.reference) for one in stored)
    return TransportMetadata(**_described(tensors), references=references), stored


def _is_gone(stored: Future) -> bool:
    """Returns whether what was stored went with its sidecar: a retry stores it anew."""
    return stored.done() and stored.exception() is None and not all(one.held for one in stored.result()[1])


def _again(call: Callable[[], T]) -> T:
    """Calls once more where the session had ended, which is told once: the sidecar is a new one, and no task fails for that."""
    try:
        return call()
    except SessionLost:
        return call()


def _settle(tensors: list[Any]) -> None:
    """Waits for what was given to the GPUs of tensors, on whichever stream a task did so: they are put from another one."""
    for device in {tensor.device for tensor in tensors if getattr(tensor, "is_cuda", False)}:
        import torch

        torch.cuda.synchronize(device)


def _described(tensors: list[Any]) -> dict[str, Any]:
    """Shapes and types of tensors, and the kinds of device where they are. Ray takes one for all: a GPU, if any is on one."""
    devices = tuple(str(getattr(getattr(tensor, "device", None), "type", "cpu")) for tensor in tensors)
    one = "cuda" if "cuda" in devices else next(iter(devices), "cpu")
    return {"tensor_meta": [(tensor.shape, tensor.dtype) for tensor in tensors], "tensor_device": one, "devices": devices}


def _given(got: list[Any], meta: TransportMetadata | TwoSidedMetadata, buffers: list[Any] | None) -> list[Any]:
    """Turns tensors that were got into what Ray expects."""
    if buffers:
        return [_into(tensor, buffer) for tensor, buffer in zip(got, buffers, strict=True)]
    devices = meta.devices or ("cpu",) * len(got)
    return [_as_sent(tensor, dtype, device) for tensor, (_, dtype), device in zip(got, meta.tensor_meta, devices, strict=True)]


def _into(tensor: Any, buffer: Any) -> Any:
    with tensor:
        return copy_into(tensor, buffer)


def _as_sent(tensor: Any, dtype: Any, device: str) -> Any:
    """An array or a tensor as it was sent. One of a GPU that is not reached came by the host, and goes to a GPU if there is one here."""
    if isinstance(dtype, np.dtype):
        return tensor.numpy()
    made = tensor.torch()
    if device != "cuda" or made.is_cuda or not _has_gpu():
        return made
    with tensor:
        return made.cuda()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _seconds(variable: str, default: float, least: float = 0.001) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not least <= seconds < math.inf:
        raise ValueError(f"{variable} is {text!r}; give a number of seconds, {least:g} or more") from None
    return seconds


_managers: weakref.WeakSet[_Manager] = weakref.WeakSet()


def _at_the_end() -> None:
    for manager in list(_managers):
        manager.end()


# The end of a program joins the threads of every pool, so what waits for another process is withdrawn before.
threading._register_atexit(_at_the_end)  # type: ignore[attr-defined]
