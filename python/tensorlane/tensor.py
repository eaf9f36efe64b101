"""Tensors that were got: leased, mapped, and shown to numpy, torch and whatever speaks DLPack."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Iterator

import numpy as np

from . import dtypes, gpu, opaque
from ._tensorlane import Memory
from .errors import Unsupported

_CPU = (1, 0)


class Tensor(Memory):
    """A leased tensor whose bytes are mapped into this process.

    Arrays that are made of it hold the lease, too: it ends when the last of them is gone and this is released or gone.
    """

    @property
    def dtype(self) -> str:
        """The short name of the type of its elements, such as `f32`."""
        return self._layout[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return tuple(self._layout[1])

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self._layout[3]

    @property
    def metadata(self) -> dict[str, str]:
        """Words that its writer put beside it."""
        return dict(self._metadata)

    @property
    def route(self) -> str:
        """Way by which the bytes came to this peer, and why by no better one: `local`, or `tcp by 2 lanes, not shm: other_node`."""
        return self._route

    @property
    def device(self) -> str:
        """Device in whose memory it lies, as torch names it: `cpu`, or `cuda:0` for one of a GPU (`DeviceTensor`)."""
        return "cpu"

    def numpy(self, *, copy: bool = False) -> np.ndarray:
        """The very bytes as an array of numpy, to be read only; nothing is copied. With `copy`, an array of its own."""
        wanted = dtypes.to_numpy(self.dtype)
        if wanted.isbuiltin == 1:
            array = np.asarray(memoryview(self))
        else:
            array = np.asarray(memoryview(self._raw())).view(wanted)
        return array.copy() if copy else array

    def torch(self) -> Any:
        """A tensor of torch, which may be written: what is written is this tensor's own, and nobody else sees it.

        Small ones are copied. Large ones are mapped, and pages of them copied where they are written.
        """
        # Refuses what torch has no type for before anything is mapped.
        dtypes.to_torch(self.dtype)
        return torch_of(self.dtype, lambda bits: self._capsule(False, True, False, bits))

    def tobytes(self) -> bytes:
        """The elements, copied row-major."""
        return self._bytes()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"elements of {array.dtype} become {np.dtype(dtype)} by a copy only")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of DLPack. Its bytes are marked read-only where the version can say that and they are no copy.

        A library that writes all the same, as torch does, writes pages of its own: nobody else sees it.
        """
        if dl_device is not None and tuple(dl_device) != _CPU:
            raise BufferError(f"the tensor lies in host memory, and device {dl_device} was asked for")
        if stream is not None:
            raise BufferError(f"host memory has no stream, and {stream} was given")
        versioned = max_version is not None and max_version[0] >= 1
        if copy is False and not versioned:
            raise BufferError("DLPack before 1.0 cannot say that memory is read-only: leave copy out, or use .numpy()")
        # Who must have no copy has a map of its own, however few the bytes are.
        return self._capsule(versioned, True, versioned and not copy, False, copy is False)

    def __getitem__(self, index: Any) -> np.ndarray:
        """A part as an array of numpy. It keeps the whole tensor leased, as every view does."""
        return self.numpy()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        """The truth of its only element, as numpy says; of several it is a ValueError."""
        return bool(self[...])

    def __iter__(self) -> Iterator[Any]:
        """Parts along the first dimension, as those of an array of numpy."""
        if not self.shape:
            raise TypeError("a scalar has no parts to iterate over: use .numpy()[()] or .numpy().item()")
        return iter(self[...])

    def __contains__(self, element: Any) -> bool:
        """Returns whether an element is in it, as numpy says."""
        return element in self[...]

    def _copy_to(self, out: Any) -> None:
        """Copies it into an array of the same shape."""
        torch = dtypes.torch_if_imported()
        if isinstance(out, np.ndarray):
            np.copyto(out, self.numpy())
        elif torch is not None and isinstance(out, torch.Tensor):
            out.copy_(self.torch())
        else:
            raise _elsewhere(out)

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a leased tensor stays in its process; pickle its reference, or .numpy().copy()")

    def __repr__(self) -> str:
        if self.released:
            return "<tensorlane.Tensor, released>"
        return f"<tensorlane.Tensor {self.dtype}{list(self.shape)} by {self.route}>"


def torch_of(dtype: str, capsule: Callable[[bool], Any]) -> Any:
    """A tensor of torch over a capsule of DLPack. It is asked for floats of 8 bits as plain bytes, since torch reads these alone."""
    bits = dtype.startswith("f8_")
    made = dtypes.torch().from_dlpack(capsule(bits))
    return made.view(dtypes.to_torch(dtype)) if bits else made


def copy_into(tensor: Tensor, out: Any) -> Any:
    """Copies a tensor into an array of numpy or torch, or one on a GPU, of the same shape and type."""
    check_fits(tensor.dtype, tensor.shape, out)
    with writing(out):
        tensor._copy_to(out)
    return out


def writing(out: Any) -> ContextManager[Any]:
    """Context in which an array is written: parameters of torch, too, and what was made in inference mode."""
    torch = dtypes.torch_if_imported()
    if torch is None or not isinstance(out, torch.Tensor):
        return nullcontext()
    return torch.inference_mode() if out.is_inference() else torch.no_grad()


def check_writable(key: str, out: Any) -> None:
    """Raises where elements of an array of numpy or torch cannot be written, each at a place of its own."""
    opaque.check_under(key, out)
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(out, torch.Tensor):
        strides = out.stride()
    elif isinstance(out, np.ndarray):
        strides = out.strides
        if not out.flags.writeable:
            raise Unsupported(f"{key} is an array that cannot be written", remedy="pass a copy of it")
    else:
        return
    if any(stride == 0 and size > 1 for stride, size in zip(strides, out.shape)) and 0 not in out.shape:
        what = f"{key} has one place for several elements, as expanded arrays do"
        raise Unsupported(what, remedy="pass a copy of it")


def check_fits(dtype: str, shape: tuple[int, ...], out: Any, *, on_host: bool = False) -> None:
    """Raises where a tensor of that type and shape, or one `on_host`, cannot be copied into `out`."""
    check_writable("out", out)
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(out, torch.Tensor):
        same = (dtypes.of_torch(out.dtype), tuple(out.shape)) == (dtype, shape)
    elif isinstance(out, np.ndarray):
        same = (dtypes.of_numpy(out.dtype), out.shape) == (dtype, shape)
    elif (array := gpu.array_of(out)) is not None:
        # Arrays of jax never change, and do not say so.
        if array.read_only or type(out).__module__.partition(".")[0] in ("jax", "jaxlib"):
            raise Unsupported("out is an array that cannot be written", remedy="pass a copy of it")
        if on_host:
            raise _elsewhere(out)
        if (array.dtype, array.shape) != (dtype, shape):
            given = f"{array.dtype}{list(array.shape)}"
            raise Unsupported(f"out is {given} and the tensor {dtype}{list(shape)}", remedy="pass one of the same type and shape")
        return
    else:
        raise Unsupported(f"out is of {type(out).__name__}", remedy="pass an array of numpy or a tensor of torch")
    if not same:
        given = f"{out.dtype}{list(out.shape)}"
        raise Unsupported(f"out is {given} and the tensor {dtype}{list(shape)}", remedy="pass one of the same type and shape")


def _elsewhere(out: Any) -> Unsupported:
    what = f"out is a {type(out).__name__} on a GPU, and the tensor in memory of the host"
    return Unsupported(what, remedy="pass a tensor of torch, or copy .numpy() there")
