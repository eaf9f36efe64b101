"""Arrays in the memory of GPUs: read from torch, cupy, jax and whatever speaks DLPack or the CUDA array interface.

None of these libraries is imported here: those that the program has imported are asked, and all others through the interfaces.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import dtypes, opaque
from ._tensorlane import capsule_array
from .errors import Invalid, Unsupported

CUDA = 2
"""The kind of device that DLPack has for memory of a GPU."""
_MANAGED = 13

LEGACY = 1
"""The handle of the default stream, which waits for all others that do not opt out."""

_MASKED = "copy the elements that count into an array without a mask"


class Array:
    """An array in the memory of a GPU: where it is and what it means, and the object that keeps it there."""

    def __init__(
        self,
        owner: Any,
        pointer: int,
        gpu: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        stream: int,
        read_only: bool = False,
        capsule: Any = None,
    ):
        """`strides` are in elements, `stream` is the one on which the array is ready. An untaken capsule keeps the memory, too."""
        self.owner, self.pointer, self.gpu, self.dtype, self.shape, self.strides = owner, pointer, gpu, dtype, shape, strides
        self.stream, self.read_only, self._capsule = stream, read_only, capsule

    @property
    def is_dense(self) -> bool:
        """Says whether the elements lie row-major and without gaps."""
        if self.strides is None or 0 in self.shape:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def place(self) -> str:
        """The device as torch names it."""
        return f"cuda:{self.gpu}"

    def dense(self) -> Array:
        """Array made dense on the GPU by its own library, if it is not dense."""
        if self.is_dense:
            return self
        torch, cupy = dtypes.torch_if_imported(), sys.modules.get("cupy")
        if torch is not None and isinstance(self.owner, torch.Tensor):
            return _of_torch(self.owner.contiguous(), torch)
        if cupy is not None and isinstance(self.owner, cupy.ndarray):
            return _of_interface(made := cupy.ascontiguousarray(self.owner), made.__cuda_array_interface__)
        raise Unsupported(
            f"the {type(self.owner).__name__} on {self.place} has gaps between its elements, or another order",
            remedy="make it dense with its own library, or pass it as a tensor of torch: torch.from_dlpack(array)",
        )


def array_of(x: Any) -> Array | None:
    """Reads `x` where it is an array in the memory of a GPU. None for all others."""
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, torch) if x.device.type == "cuda" else None
    if isinstance(x, (np.ndarray, np.generic)):
        return None
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        kind = int(x.__dlpack_device__()[0])
        if kind == _MANAGED:
            raise Unsupported(f"the {type(x).__name__} is in managed memory", remedy="copy it into memory of the GPU, or of the host")
        return _of_dlpack(x) if kind == CUDA else None
    interface = getattr(x, "__cuda_array_interface__", None)
    return None if interface is None else _of_interface(x, interface)


def refused(array: Array) -> Unsupported:
    """The error of a call that takes arrays of the host alone."""
    what = f"the {type(array.owner).__name__} is on {array.place}, and this takes arrays of the host"
    return Unsupported(what, remedy="pass a copy there, such as tensor.cpu() or cupy.asnumpy(array); client.put takes it as it is")


def _of_torch(x: Any, torch: Any) -> Array:
    opaque.check(x)
    dtype = dtypes.of_torch(x.dtype)
    # Conjugation and negation may be pending: bytes are what they make of them.
    x = x.detach().resolve_conj().resolve_neg()
    stream = torch.cuda.current_stream(x.device).cuda_stream
    return Array(x, x.data_ptr(), x.device.index, dtype, tuple(x.shape), tuple(x.stride()), stream)


def _of_dlpack(x: Any) -> Array:
    # The producer lets the default stream wait for whatever still writes the array.
    try:
        capsule = x.__dlpack__(stream=LEGACY, max_version=(1, 1))
    except TypeError:
        capsule = x.__dlpack__(stream=LEGACY)
    pointer, gpu, dtype, shape, strides, read_only = capsule_array(capsule)
    return Array(x, pointer, gpu, dtype, tuple(shape), None if strides is None else tuple(strides), LEGACY, read_only, capsule)


def _of_interface(x: Any, interface: dict[str, Any]) -> Array:
    if interface.get("version", 0) < 2 or interface.get("mask") is not None:
        raise Unsupported(f"the {type(x).__name__} has a mask, or a CUDA array interface before version 2", remedy=_MASKED)
    kind = np.dtype(interface["typestr"])
    if not kind.isnative:
        raise Unsupported(f"the {type(x).__name__} has elements in the order of another processor", remedy="convert it first")
    stream = interface.get("stream")
    if stream == 0:
        raise Invalid("the CUDA array interface of this array says stream 0, which may be either of two", remedy="say 1 or 2 there")
    strides = interface.get("strides")
    if strides is not None:
        if any(stride % kind.itemsize for stride in strides):
            raise Unsupported(f"the {type(x).__name__} has strides that are no multiples of its elements", remedy="copy it first")
        strides = tuple(stride // kind.itemsize for stride in strides)
    pointer, read_only = interface["data"]
    shape = tuple(int(size) for size in interface["shape"])
    return Array(x, int(pointer or 0), _index(x), dtypes.of_numpy(kind), shape, strides, LEGACY if stream is None else int(stream), read_only)


def _index(x: Any) -> int:
    """The GPU of an array whose interface does not say it. That the memory is there is looked at before it is read."""
    index = getattr(getattr(x, "device", None), "id", 0)
    return index if isinstance(index, int) else 0


def index_of(device: Any) -> int | None:
    """Index of the GPU in `"cuda:1"`, `"cuda"`, a `torch.device` or a number; None for the host's memory."""
    if device is None or isinstance(device, int):
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda" or not (number == "" or number.isdecimal()):
        raise Invalid(f"the device {device} is none", remedy="pass device='cuda:0', or leave it out for the host's memory")
    if number:
        return int(number)
    torch = dtypes.torch_if_imported()
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


def handle_of(stream: Any) -> int:
    """The handle of a stream of torch or cupy, or the number itself."""
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if not isinstance(handle, int):
        raise Unsupported(f"a {type(stream).__name__} is no stream", remedy="pass a stream of torch or cupy, or its handle")
    return handle
