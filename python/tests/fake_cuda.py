"""Arrays in the memory of a GPU, for tests over the stand-in for the driver: made, shown and taken by hand, without any library.

Processes that import this are started with the stand-in's folder in LD_LIBRARY_PATH. Its memory is the host's, so bytes are looked
at where they are.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np

GRANULE = 2 << 20


class DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DlTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("kind", c_int32),
        ("id", c_int32),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Unversioned(Structure):
    _fields_ = [("tensor", DlTensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DlTensor),
    ]


NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
STRUCTURES = {False: Unversioned, True: Versioned}
DELETER = ctypes.CFUNCTYPE(None, c_void_p)
# By the interface of C: code and bits of an element.
CODES = {"float32": (2, 32), "uint8": (1, 8), "int64": (0, 64), "bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "odd": (9, 24)}

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
python.PyCapsule_GetPointer.restype = c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
python.PyCapsule_IsValid.argtypes = [ctypes.py_object, c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]


class Driver:
    """The stand-in, with a context of the first GPU."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} answers {code}"

    def allocate(self, nbytes: int) -> int:
        """Address of memory that is never given back: the process is short."""
        size = c_size_t(max(-(-nbytes // GRANULE), 1) * GRANULE)
        # Pinned, exported as a descriptor, on device 0.
        properties = (c_int * 8)(1, 1, 1, 0)
        handle, start = c_uint64(), c_uint64()
        self.call("cuMemCreate", byref(handle), size, properties, c_uint64(0))
        self.call("cuMemAddressReserve", byref(start), size, c_size_t(0), c_uint64(0), c_uint64(0))
        self.call("cuMemMap", start, size, c_size_t(0), handle, c_uint64(0))
        self.call("cuMemSetAccess", start, size, (c_int * 3)(1, 0, 3), c_size_t(1))
        return start.value


class Array:
    """An array on the GPU that speaks DLPack alone. `strides` are in elements."""

    def __init__(self, driver: Driver, values: np.ndarray, kind: str | None = None, strides=None):
        values = np.ascontiguousarray(values)
        self.pointer = driver.allocate(values.nbytes)
        ctypes.memmove(self.pointer, values.ctypes.data, values.nbytes)
        self.kind, self.shape, self.strides = kind or values.dtype.name, values.shape, strides
        self.device, self.asked, self.deleted, self.given = (2, 0), [], 0, []
        self._deleter = DELETER(self._delete)
        self._alive = []

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked.append((stream, max_version))
        return self.capsule(max_version is not None and max_version[0] >= 1)

    def capsule(self, versioned: bool):
        shape = (c_int64 * len(self.shape))(*self.shape)
        strides = None if self.strides is None else (c_int64 * len(self.strides))(*self.strides)
        code, bits = CODES[self.kind]
        rows = ctypes.cast(strides, POINTER(c_int64)) if strides is not None else None
        tensor = DlTensor(
            self.pointer, *self.device, len(self.shape), DataType(code, bits, 1), ctypes.cast(shape, POINTER(c_int64)), rows, 0
        )
        deleter = ctypes.cast(self._deleter, c_void_p)
        managed = Versioned(1, 0, None, deleter, 0, tensor) if versioned else Unversioned(tensor, None, deleter)
        self._alive.append((shape, strides, managed))
        # Without a destructor: what it shows lives as long as this.
        made = python.PyCapsule_New(ctypes.addressof(managed), NAMES[versioned], None)
        self.given.append(made)
        return made


class Interface:
    """The same through the CUDA array interface alone."""

    def __init__(self, array: Array, dtype: str, **more):
        self.array = array
        strides = None if array.strides is None else tuple(stride * np.dtype(dtype).itemsize for stride in array.strides)
        said = {"shape": array.shape, "typestr": np.dtype(dtype).str, "data": (array.pointer, False), "strides": strides, "version": 3}
        self.__cuda_array_interface__ = {**said, **more}


class Taken:
    """A capsule that was taken, as a library does it: renamed, and deleted once."""

    def __init__(self, capsule):
        self.versioned = bool(python.PyCapsule_IsValid(capsule, NAMES[True]))
        name = NAMES[self.versioned]
        if not python.PyCapsule_IsValid(capsule, name):
            raise ValueError("this capsule was taken before")
        self.managed = STRUCTURES[self.versioned].from_address(python.PyCapsule_GetPointer(capsule, name))
        python.PyCapsule_SetName(capsule, b"used_" + name)
        tensor = self.managed.tensor
        self.pointer = tensor.data + tensor.byte_offset
        self.device = (tensor.kind, tensor.id)
        self.kind = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.shape = [tensor.shape[dim] for dim in range(tensor.ndim)]
        self.strides = [tensor.strides[dim] for dim in range(tensor.ndim)] if tensor.strides else None
        self.flags = self.managed.flags if self.versioned else None

    def bytes(self, nbytes: int) -> bytes:
        return ctypes.string_at(self.pointer, nbytes)

    def write(self, data: bytes) -> None:
        ctypes.memmove(self.pointer, data, len(data))

    def delete(self) -> None:
        managed, self.managed = self.managed, None
        DELETER(managed.deleter)(ctypes.addressof(managed))


def obey(place: dict) -> None:
    """Runs what each line of the standard input says, an expression or statements as JSON, and answers with one line each."""
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                compiled = compile(code, "<told>", "eval")
            except SyntaxError:
                exec(compile(code, "<told>", "exec"), place)
                answer = ["did", None]
            else:
                answer = ["did", eval(compiled, place)]
        except Exception as error:
            details = dict(getattr(error, "details", {}))
            answer = ["failed", [type(error).__name__, getattr(error, "reason", None), str(error), details]]
        print(json.dumps(answer, default=repr), flush=True)
