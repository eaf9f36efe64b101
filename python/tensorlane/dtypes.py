"""Types of elements, as numpy and torch name them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import Unsupported

_NUMPY = {
    "bool": "bool",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}
"""Types that numpy has itself."""

_ML_DTYPES = {
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
    "float8_e8m0fnu": "f8_e8m0",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
    "float8_e5m2fnuz": "f8_e5m2fnuz",
    "float8_e3m4": "f8_e3m4",
    "float8_e4m3b11fnuz": "f8_e4m3b11fnuz",
    "float8_e4m3": "f8_e4m3_ieee",
}
"""Types that numpy has through the package ml_dtypes."""

_TORCH = {
    **{name: short for name, short in _NUMPY.items()},
    **{name: short for name, short in _ML_DTYPES.items() if name not in ("float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3")},
    "complex32": "c32",
}

_NUMPY_NAMES = {short: name for name, short in _NUMPY.items()}
_ML_NAMES = {short: name for name, short in _ML_DTYPES.items()}
_TORCH_NAMES = {short: name for name, short in _TORCH.items()}

SHORT = frozenset((*_NUMPY_NAMES, *_ML_NAMES, *_TORCH_NAMES))
"""Short names of all types that numpy or torch has."""


def of_numpy(dtype: np.dtype) -> str:
    """The short name of a dtype of numpy."""
    short = _NUMPY.get(dtype.name) or _ML_DTYPES.get(dtype.name)
    if short is None or dtype.fields is not None:
        raise Unsupported(
            f"elements of {dtype} cannot be stored", remedy="convert it first: array.astype(numpy.float32), or view its bytes"
        )
    return short


def is_ml(dtype: np.dtype) -> bool:
    """Returns whether numpy has a dtype through ml_dtypes."""
    return dtype.name in _ML_DTYPES


def of_ours(x: Any) -> str | None:
    """The short name of the dtype of an object of this library, such as a Tensor or a Reference; None for others."""
    dtype = getattr(x, "dtype", None)
    ours = any(kind.__module__.partition(".")[0] == "tensorlane" for kind in type(x).__mro__)
    return dtype if ours and isinstance(dtype, str) else None


def of_torch(dtype: Any) -> str:
    """The short name of a dtype of torch."""
    short = _TORCH.get(str(dtype).removeprefix("torch."))
    if short is None:
        raise Unsupported(f"elements of {dtype} cannot be stored", remedy="convert the tensor first, or view its bytes")
    return short


def to_numpy(short: str) -> np.dtype[Any]:
    """The dtype of numpy for a short name."""
    if short in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[short])
    name = _ML_NAMES.get(short)
    if name is not None:
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(
                f"numpy has no elements of {short}", remedy="`pip install ml_dtypes`, or use .torch() instead of .numpy()"
            ) from None
        return np.dtype(getattr(ml_dtypes, name))
    raise Unsupported(f"numpy has no elements of {short}", remedy="use .torch(), or .tobytes() for the bits")


def torch() -> Any:
    """The module torch, imported when it is used."""
    try:
        import torch as module
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("torch is not installed: `pip install torch`, or use .numpy()", name="torch") from None
    return module


def to_torch(short: str) -> Any:
    """The dtype of torch for a short name."""
    dtype = getattr(torch(), _TORCH_NAMES.get(short, ""), None)
    if dtype is None:
        raise Unsupported(f"torch has no elements of {short}", remedy="use .numpy(), or .tobytes() for the bits")
    return dtype


def torch_if_imported() -> Any:
    """The module torch, where the program has imported it; None while another thread still does."""
    module = sys.modules.get("torch")
    return module if hasattr(module, "Tensor") else None
