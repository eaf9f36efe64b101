"""Tensors in the memory of a GPU: mapped there to be read, and room there to be written."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import dtypes, gpu
from ._tensorlane import Acquired, Core, DeviceBlock, OnDevice, Reference, Stored
from .errors import Invalid, Unsupported
from .reservation import Reservation
from .tensor import Tensor, torch_of


class DeviceTensor(Tensor):
    """A leased tensor in the memory of a GPU, which is mapped into this process to be read. Nothing of it is copied.

    Writing there is an error of the GPU, of this process alone. What was begun on the GPU when the last of its arrays goes still
    reads it: the lease ends behind that.
    """

    _kept: OnDevice | None = None

    @property
    def device(self) -> str:
        """The GPU as torch names it, such as `cuda:0`."""
        return f"cuda:{self._on_device().gpu}"

    def numpy(self, *, copy: bool = False) -> np.ndarray:
        """The elements as an array of numpy, with `copy` only: they are copied to the host."""
        if not copy:
            raise Unsupported(
                f"the tensor is on {self.device}, where numpy does not read", remedy="pass copy=True, or use .torch() or cupy.from_dlpack"
            )
        wanted = dtypes.to_numpy(self.dtype)
        return np.frombuffer(self._on_device().to_host(), np.uint8).view(wanted).reshape(self.shape)

    def torch(self) -> Any:
        """A tensor of torch over the mapped memory, to be read only. It holds the lease, as every view of it does."""
        return torch_of(self.dtype, lambda bits: self._on_device().capsule(False, bits))

    def tobytes(self) -> bytes:
        """The elements, copied to the host row-major."""
        return bytes(self._on_device().to_host())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy(copy=bool(copy)).astype(dtype or dtypes.to_numpy(self.dtype), copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return gpu.CUDA, self._on_device().gpu

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of DLPack over the mapped memory, marked read-only where the version can say that. It holds the lease.

        No stream waits: the bytes are there. For the host's memory, `dl_device=(1, 0)`, they are copied.
        """
        ours = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != ours:
            if tuple(dl_device) == (1, 0) and copy is not False:
                return self.numpy(copy=True).__dlpack__(max_version=max_version)
            raise BufferError(f"the tensor lies on {self.device}, and device {tuple(dl_device)} was asked for")
        if copy:
            raise BufferError("a copy on the GPU is made by a library of it: leave copy out, then tensor.clone() or array.copy()")
        return self._on_device().capsule(max_version is not None and max_version[0] >= 1, False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3: read-only, and ready on every stream. Its user keeps this object, and so the lease."""
        try:
            kind = dtypes.to_numpy(self.dtype)
        except Unsupported as error:
            raise AttributeError(error.message) from None
        if kind.isbuiltin != 1:
            raise AttributeError(f"the CUDA array interface has no elements of {self.dtype}: use DLPack")
        # Even where this is released: what reads through the interface holds this object alone.
        self._kept = held = self._on_device()
        strides = None if held.is_dense else tuple(stride * kind.itemsize for stride in held.strides)
        return {"shape": self.shape, "typestr": kind.str, "data": (held.pointer, True), "strides": strides, "stream": None, "version": 3}

    def __getitem__(self, index: Any) -> Any:
        """A part as a tensor of torch. It keeps the whole tensor leased, as every view does."""
        return self.torch()[index]

    def _copy_to(self, out: Any) -> None:
        """Copies it into an array of any memory. Done when it returns."""
        held, target = self._on_device(), gpu.array_of(out)
        torch, cupy = dtypes.torch_if_imported(), sys.modules.get("cupy")
        is_torch = torch is not None and isinstance(out, torch.Tensor)
        if target is None and is_torch:
            wanted = dtypes.to_torch(self.dtype)
            with torch.no_grad():
                out.copy_(torch.frombuffer(held.to_host(), dtype=wanted).view(self.shape))
        elif target is None:
            np.copyto(out, self.numpy(copy=True))
        elif (target.gpu, target.dtype) == (held.gpu, self.dtype) and held.is_dense and target.is_dense and not _is_lazy(out):
            held.copy_to(target.pointer, self.nbytes, target.stream)
        elif is_torch:
            with torch.no_grad():
                out.copy_(self.torch())
            # The lease may end as soon as this returns.
            torch.cuda.current_stream(out.device).synchronize()
            torch.cuda.current_stream(self.device).synchronize()
        elif cupy is not None and isinstance(out, cupy.ndarray):
            out[...] = cupy.from_dlpack(self)
            cupy.cuda.get_current_stream().synchronize()
        else:
            raise Unsupported(f"out is a {type(out).__name__} with gaps", remedy="pass a dense array on the GPU of the tensor")


def _is_lazy(out: Any) -> bool:
    """Returns whether a tensor of torch shows other bits than lie in its memory: conjugate or negative ones."""
    return any(getattr(out, word, bool)() for word in ("is_conj", "is_neg"))


class DeviceReservation(Reservation):
    """Room in the memory of a GPU that this process alone sees and writes, until `seal` makes it a tensor.

    Dropped without that, it is given back. What its bytes are before they are written is not said.
    """

    _AGAIN = "make another one: client.empty(shape, dtype, device=…)"

    def __init__(self, core: Core, dtype: str, shape: tuple[int, ...], metadata: list[tuple[str, str]], index: int):
        if 0 in shape:
            raise Invalid("a tensor without bytes has no memory of a GPU", remedy="leave device out")
        super().__init__(core, DeviceBlock(core, dtype, shape, metadata, index), dtype, shape)
        self._gpu = index

    @property
    def device(self) -> str:
        """The GPU as torch names it, such as `cuda:0`."""
        return f"cuda:{self._gpu}"

    @property
    def array(self) -> np.ndarray:
        """Refused: numpy does not write memory of a GPU."""
        raise Unsupported(f"the room is on {self.device}, where numpy does not write", remedy="use .torch(), or cupy.from_dlpack(reservation)")

    def torch(self) -> Any:
        """The room as a tensor of torch, to be written."""
        return torch_of(self.dtype, lambda bits: self._held().capsule(False, bits))

    def __dlpack_device__(self) -> tuple[int, int]:
        return gpu.CUDA, self._gpu

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of DLPack over the room, to be written."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"the room is on {self.device} and is written there: leave copy and dl_device out")
        return self._held().capsule(max_version is not None and max_version[0] >= 1, False)

    def seal(
        self,
        name: str | None = None,
        *,
        keep: bool = True,
        replaces: Reference | Stored | None = None,
        ticket: float | None = None,
        uses: int = 1,
        checksum: bool = False,
        deadline: float | None = None,
        stream: Any = None,
    ) -> Stored:
        """Makes what was written a tensor, as `put` would, and copies nothing. No array of it may be left: nobody writes it again.

        All that this process has given the GPU is waited for; with `stream`, only what is on that one. A seal that is refused gives the room up.
        """
        self._held().wait(None if stream is None else gpu.handle_of(stream))
        return super().seal(name, keep=keep, replaces=replaces, ticket=ticket, uses=uses, checksum=checksum, deadline=deadline)

    def _store(self, options: dict[str, Any]) -> Stored:
        return self._held().put(options)

    def __repr__(self) -> str:
        gone = ", gone" if self._block is None else ""
        return f"<tensorlane.DeviceReservation {self.dtype}{list(self.shape)} on {self.device}{gone}>"


def leased(acquired: Acquired) -> Tensor:
    """The tensor that was acquired, in whichever memory it lies."""
    return Tensor(acquired) if acquired.gpu is None else DeviceTensor(acquired)


def put(core: Core, source: gpu.Array, words: list[tuple[str, str]], keeping: dict[str, Any]) -> Stored:
    """Stores an array in the memory of its GPU: one copy there, behind what is on its stream, which is waited for."""
    dense = source.dense()
    room = DeviceBlock(core, dense.dtype, dense.shape, words, dense.gpu)
    room.fill(dense.pointer, room.nbytes, dense.stream)
    return room.put(keeping)
