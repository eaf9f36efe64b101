"""Arrays that may be put: those of numpy and torch, and whatever speaks DLPack, the array interface or the buffer protocol."""

from __future__ import annotations

import re
from pickle import PickleBuffer
from typing import Any, Callable

import numpy as np

from . import dtypes, gpu, opaque
from .errors import Unsupported

_REFUSALS = (AttributeError, BufferError, RuntimeError, TypeError, ValueError)
"""Exceptions by which libraries refuse what is no array for them."""

_NAMES = re.compile(r":[^:]*:")
"""Names of fields in the format of a buffer."""


class Source:
    """An array to be stored: what it is, its bytes where they lie densely, and how to write them elsewhere."""

    on_gpu: gpu.Array | None = None
    """The array where it is in the memory of a GPU; its bytes are not read here then."""

    def __init__(
        self, dtype: str, shape: tuple[int, ...], nbytes: int, dense: np.ndarray | None, write: Callable[[memoryview], None]
    ):
        self.dtype, self.shape, self.nbytes, self.write = dtype, shape, nbytes, write
        self._dense = dense

    @property
    def is_dense(self) -> bool:
        """Says whether the bytes lie in order and without gaps."""
        return self._dense is not None

    def dense(self) -> np.ndarray | bytearray:
        """Bytes in order, copied if they do not lie so."""
        if self._dense is not None:
            return self._dense
        buffer = bytearray(self.nbytes)
        self.write(memoryview(buffer))
        return buffer


def source(x: Any, *, gpus: bool = False) -> Source:
    """Reads the kind, shape and bytes of `x`. One in the memory of a GPU is refused, unless `gpus` are welcome."""
    opaque.check(x)
    on_gpu = gpu.array_of(x)
    if on_gpu is not None:
        return _of_gpu(on_gpu, gpus)
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, torch)
    if isinstance(x, np.ndarray) or isinstance(x, np.generic):
        return _of_numpy(np.asarray(x))
    if hasattr(x, "__dlpack__"):
        shown = of_dlpack(x)
        return _of_numpy(shown) if isinstance(shown, np.ndarray) else _of_torch(shown, torch)
    if hasattr(x, "__array_interface__") or hasattr(x, "__array__"):
        return _of_numpy(np.asarray(x))
    try:
        return _of_numpy(np.asarray(memoryview(x)))
    except TypeError:
        raise Unsupported(
            f"a {type(x).__name__} is no array", remedy="pass numpy.asarray(it), or anything with __dlpack__ or a buffer"
        ) from None


def source_under(key: str, x: Any, *, gpus: bool = False) -> Source:
    """Reads `x` as `source` does, and names its key in errors."""
    try:
        return source(x, gpus=gpus)
    except Unsupported as error:
        raise opaque.under(key, error) from None


def bytes_of(memory: memoryview) -> memoryview | bytes:
    """Bytes of memory with whatever elements, copied where gaps lie between them."""
    if "O" in _NAMES.sub("", memory.format):
        raise Unsupported("the memory has objects of Python, whose bytes mean nothing elsewhere", remedy="send the objects as a list")
    # A cast takes elements of C alone.
    return PickleBuffer(memory).raw() if memory.nbytes and memory.c_contiguous else memory.tobytes()


def _of_gpu(array: gpu.Array, welcome: bool) -> Source:
    if not welcome:
        raise gpu.refused(array)
    if 0 in array.shape:
        # Without bytes there is no memory to lie in.
        return Source(array.dtype, array.shape, 0, np.empty(0, np.uint8), lambda _: None)
    made = Source(array.dtype, array.shape, 0, None, lambda _: None)
    made.on_gpu = array
    return made


def _of_numpy(x: np.ndarray) -> Source:
    dtype = dtypes.of_numpy(x.dtype)
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    dense = x.reshape(-1).view(np.uint8) if x.flags.c_contiguous else None

    def write(block: memoryview) -> None:
        np.copyto(np.frombuffer(block, dtype=x.dtype).reshape(x.shape), x)

    return Source(dtype, x.shape, x.nbytes, dense, write)


def _of_torch(x: Any, torch: Any) -> Source:
    if x.device.type != "cpu":
        raise Unsupported(f"the tensor is on {x.device}", remedy="put tensor.cpu()")
    dtype = dtypes.of_torch(x.dtype)
    try:
        # Conjugation and negation may be pending: bytes are what they make of them.
        x = x.detach().resolve_conj().resolve_neg()
        # Dimensions of one element may have any stride, which a view of the bytes would trip over.
        dense = x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy() if x.is_contiguous() and x.numel() else None
    except (RuntimeError, TypeError, ValueError) as error:
        raise opaque.unshown(error) from error
    if not x.numel():
        dense = np.empty(0, np.uint8)

    def write(block: memoryview) -> None:
        torch.frombuffer(block, dtype=x.dtype).view(x.shape).copy_(x)

    return Source(dtype, tuple(x.shape), x.numel() * x.element_size(), dense, write)


def of_dlpack(x: Any) -> Any:
    """An array of numpy over what speaks DLPack; a tensor of torch, if that is imported, where numpy has no such elements."""
    try:
        return np.from_dlpack(x)
    except _REFUSALS as error:
        refused: Exception = error
    if hasattr(x, "__array__"):
        # DLPack of numpy has no types of ml_dtypes, and numpy itself has.
        try:
            array = np.asarray(x)
            dtypes.of_numpy(array.dtype)
            return array
        except _REFUSALS:
            pass
    torch = dtypes.torch_if_imported()
    remedy = "import torch, which knows more types, or copy it to the host"
    if torch is not None:
        try:
            return torch.from_dlpack(x)
        except _REFUSALS as error:
            refused, remedy = error, "convert it to a type that numpy or torch has, or copy it to the host"
    told = str(refused).partition("\n")[0]
    module = "numpy" if torch is None else "torch"
    raise Unsupported(f"{module} cannot take the {type(x).__name__}: {told}", remedy=remedy) from refused
