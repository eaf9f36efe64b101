"""Ray's tensor transport: tensors that actors return stay in shared memory, and other actors map them.

``register()`` in the driver, and ``worker_process_setup_hook="tensorlane.ray.register"`` in the runtime environment, so that
restarted actors and processes that did not create an actor have the transport, too:

    ray.init(runtime_env={"worker_process_setup_hook": "tensorlane.ray.register"})
    tensorlane.ray.register()

Ray makes managers without arguments, so everything is set by the environment: TENSORLANE_SOCKETS is where the sidecar is,
TENSORLANE_RAY_DEADLINE how many seconds a transfer may take (60), TENSORLANE_RAY_KEEP for how many seconds after a put an object
stays though its actor died or Ray gave it up (0).
"""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import Any

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
from .errors import Unsupported, Withdrawn
from .tensor import copy_into

DEADLINE = "TENSORLANE_RAY_DEADLINE"
KEEP = "TENSORLANE_RAY_KEEP"

_VERSION = 1
_PATIENCE = 10.0
_FETCHES_AT_ONCE = 4

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


class Transport(TensorTransportManager):
    """The transport of one process. One-sided: who receives gets by itself; Ray may call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[str, Future] = {}
        self._receiving: dict[str, set[Cancel]] = {}
        self._fetching = ThreadPoolExecutor(_FETCHES_AT_ONCE, thread_name_prefix="tensorlane-fetch")

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        # Asked at every call of a task. An actor without a sidecar says so in the error of its first transfer.
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

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Ends the transfers of an object that are under way here, within 100 ms."""
        with self._lock:
            cancels = list(self._receiving.get(obj_id, ()))
        for cancel in cancels:
            cancel.cancel()

    def _receive(self, obj_id: str, meta: TransportMetadata, buffers: list[Any] | None, cancel: Cancel) -> list[Any]:
        if meta.version != _VERSION:
            raise Unsupported(
                f"object {obj_id} has metadata of version {meta.version}, and this process reads version {_VERSION}",
                remedy="install the same tensorlane everywhere",
            )
        with self._lock:
            self._receiving.setdefault(obj_id, set()).add(cancel)
        try:
            references = [Reference(text) for text in meta.references]
            got = client().get_many(references, deadline=_seconds(DEADLINE, 60.0), cancel=cancel)
            if buffers:
                return [_into(tensor, buffer) for tensor, buffer in zip(got, buffers, strict=True)]
            return [_as_sent(tensor, dtype) for tensor, (_, dtype) in zip(got, meta.tensor_meta, strict=True)]
        except Withdrawn:
            raise RuntimeError(f"the transfer of object {obj_id} was aborted") from None
        finally:
            with self._lock:
                cancels = self._receiving.get(obj_id, set())
                cancels.discard(cancel)
                if not cancels:
                    self._receiving.pop(obj_id, None)


class NumpyTransport(Transport):
    """The same for arrays of numpy, which Ray wants under a name of its own."""

    def tensor_transport_backend(self) -> str:
        return "TENSORLANE_NUMPY"


def register() -> None:
    """Registers `tensorlane` for torch.Tensor and `tensorlane_numpy` for numpy.ndarray, once, however often it is called.

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
    _register("tensorlane_numpy", NumpyTransport, np.ndarray)


def client() -> Client:
    """The client of this process, connected when it is first needed."""
    global _client
    with _lock:
        if _client is None:
            _client = Client(name=f"ray[{os.getpid()}]", patience=_PATIENCE)
        return _client


def _register(name: str, manager: type[Transport], data_type: type) -> None:
    try:
        register_tensor_transport(name, ["cpu"], manager, data_type)
    except ValueError as error:
        if "already registered" not in str(error):
            raise


def _store(tensors: list[Any]) -> tuple[TransportMetadata, list[Stored]]:
    keep = _seconds(KEEP, 0.0)
    stored = client().put_many(tensors, ticket=keep or None, deadline=_seconds(DEADLINE, 60.0))
    device = getattr(tensors[0].device, "type", "cpu") if tensors and hasattr(tensors[0], "device") else "cpu"
    shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
    references = tuple(str(one.reference) for one in stored)
    return TransportMetadata(tensor_meta=shapes, tensor_device=device, references=references), stored


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
