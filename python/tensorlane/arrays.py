"""Arrays that may be put: those of numpy and torch, and whatever speaks DLPack, the array interface or the buffer protocol."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from . import dtypes, gpu, opaque
from .errors import Unsupported


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
        return _of_dlpack(x, torch)
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


def _of_dlpack(x: Any, torch: Any) -> Source:
    try:
        return _of_numpy(np.from_dlpack(x))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if torch is None:
            raise Unsupported(
                f"numpy cannot take the {type(x).__name__}: {error}", remedy="import torch, which knows more types, or copy it to the host"
            ) from error
        return _of_torch(torch.from_dlpack(x), torch)
