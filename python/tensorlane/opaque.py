"""Arrays that are no block of plain elements: refused with what helps, before anything is read or written.

And what tensordict has beside its TensorDict: values that it wrapped, classes with fields, stacks whose parts lie apart.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Iterable, Mapping

import numpy as np

from . import dtypes
from .errors import Unsupported

STACK_DIM = "stack_dim"
"""Key that says along which dimension the parts of a lazy stack, under `0`, `1` and so on, are stacked: as directories of tensordict say it."""

_FIRST_LINE = 200
"""Characters of an error of torch that are told."""


def is_plain(x: Any) -> bool:
    """Returns whether tensordict wraps plain values in `x`: NonTensorData, or a NonTensorStack, a mapping without keys."""
    return bool(getattr(type(x), "_is_non_tensor", False))


def plain_of(x: Any) -> Any:
    """Value that tensordict wrapped; of a stack, lists of them."""
    is_stack = isinstance(x, Mapping)
    return x.tolist() if is_stack else x.data


def is_mapping(x: Any) -> bool:
    """Returns whether `x` has keys: a mapping, or a tensorclass, whose keys are its fields."""
    return isinstance(x, Mapping) or is_tensorclass(x)


def is_lazy(x: Any) -> bool:
    """Returns whether `x` is a lazy stack of tensordict, or a tensorclass over one: its parts lie apart, and may have different shapes."""
    if is_tensorclass(x):
        return is_lazy(x._tensordict)
    kind = getattr(sys.modules.get("tensordict"), "LazyStackedTensorDict", None)
    return kind is not None and isinstance(x, kind) and not is_plain(x)


def class_of(x: Any) -> str | None:
    """Name of the class of a lazy stack or a tensorclass, as directories of tensordict write it; None of anything else."""
    if is_lazy(x):
        return str(sys.modules["tensordict"].LazyStackedTensorDict)
    return str(type(x)) if is_tensorclass(x) else None


def items(x: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of what has keys: of a tensorclass its fields; of a lazy stack its dimension, and its parts by their numbers."""
    if is_lazy(x):
        along = (x._tensordict if is_tensorclass(x) else x).stack_dim
        return [(STACK_DIM, along), *((str(at), part) for at, part in enumerate(x.unbind(along)))]
    return stacked_items(x)


def stacked_items(x: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of what has keys, those of a lazy stack stacked; or the error that its parts do not fit together."""
    if not is_lazy(x):
        return _fields(x) if is_tensorclass(x) else x.items()
    inner = x._tensordict if is_tensorclass(x) else x
    try:
        found = list(_fields(x) if is_tensorclass(x) else x.items())
        keys = [set(part.keys()) for part in inner.unbind(inner.stack_dim)]
    except (KeyError, RuntimeError) as error:
        raise _misfit(x, str(error).partition("\n")[0][:_FIRST_LINE]) from None
    # A stack shows the keys that all parts have, and is silent about others.
    partial = set.union(*keys) - set.intersection(*keys) if keys else set()
    if partial:
        raise _misfit(x, f"not all of them have {', '.join(sorted(map(str, partial)))[:_FIRST_LINE]}")
    return found


def _misfit(x: Any, why: str) -> Unsupported:
    what = f"the parts of the {type(x).__name__} do not fit together: {why}"
    return Unsupported(what, remedy="write rows of one shape and with the same keys, or publish it: a set keeps its parts apart")


def is_tensorclass(x: Any) -> bool:
    """Returns whether `x` is of a tensorclass, and no plain value that tensordict wrapped."""
    return bool(getattr(type(x), "_is_tensorclass", False)) and not is_plain(x)


def _fields(x: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(x, field.name)) for field in dataclasses.fields(x)]


def check(x: Any) -> None:
    """Raises where `x` is an array of numpy or torch that is more, or less, than a block of elements."""
    if isinstance(x, np.ma.MaskedArray):
        remedy = "pass array.filled(value), or the data and the mask apart: numpy.ma.getdata(array), numpy.ma.getmaskarray(array)"
        raise Unsupported("the array has a mask, which would be lost", remedy=remedy)
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(x, torch.Tensor):
        if (why := _of_torch(x, torch)) is not None:
            raise Unsupported(why[0], remedy=why[1])
    elif not isinstance(x, np.ndarray) and (nulls := _nulls(x)):
        remedy = "fill them first, such as by array.fill_null(0), or pass the values and which are there apart"
        raise Unsupported(f"the {type(x).__name__} has {nulls} nulls, which would be lost", remedy=remedy)


def check_under(key: str, x: Any) -> None:
    """Raises as `check` does, and names the key."""
    try:
        check(x)
    except Unsupported as error:
        raise under(key, error) from None


def _nulls(x: Any) -> int:
    """Number of elements that are null, as arrays of Arrow count them. numpy reads those of whole numbers as floats."""
    count = getattr(x, "null_count", 0)
    count = count() if callable(count) else count
    return count if isinstance(count, int) else 0


def under(key: str, error: Unsupported) -> Unsupported:
    """The error about what stands under a key."""
    return Unsupported(f"{key}: {error.message}", error.reason, error.details, error.remedy)


def unshown(error: Exception) -> Unsupported:
    """The error about a tensor whose bytes torch does not show."""
    told = str(error).partition("\n")[0][:_FIRST_LINE]
    what = f"torch does not show the elements of the tensor: {told}"
    return Unsupported(what, remedy="pass a plain tensor, outside of what transforms or traces functions")


def _of_torch(x: Any, torch: Any) -> tuple[str, str] | None:
    """Says of a tensor without plain bytes what it is, and what helps."""
    kind = type(x).__name__
    if isinstance(x, torch.nn.parameter.UninitializedTensorMixin):
        return f"the {kind} has no shape yet", "run its module once, which makes lazy parameters real"
    if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _of_wrapper(x, kind)
    if x.is_nested:
        return "the tensor is nested, of parts of several shapes", "pass its parts: tensor.unbind()"
    if x.is_quantized:
        remedy = "pass tensor.dequantize(), or tensor.int_repr() beside its scale and zero point"
        return f"the tensor is quantized, {x.dtype}", remedy
    if x.layout != torch.strided:
        return f"the tensor is of layout {x.layout}", "pass tensor.to_dense(), or its parts"
    if x.device.type == "meta":
        remedy = "make it on a device first: module.to_empty(device='cpu'), torch.empty_like(tensor, device='cpu')"
        return "the tensor is on meta, and has no elements", remedy
    return None


def _of_wrapper(x: Any, kind: str) -> tuple[str, str]:
    """Says of a tensor that answers by code of its own what it is, and what helps."""
    if hasattr(type(x), "full_tensor"):
        remedy = "pass tensor.full_tensor(), or tensor.to_local(), the part of this process"
        return f"a {kind} lies in the processes of a mesh", remedy
    if hasattr(type(x), "get_mask"):
        remedy = "pass tensor.to_tensor(value), or tensor.get_data() and tensor.get_mask() apart"
        return f"the {kind} has a mask, which would be lost", remedy
    if hasattr(type(x), "fake_mode") or hasattr(x, "fake_mode"):
        return f"a {kind} has no elements", "pass a tensor that was made outside of FakeTensorMode"
    if x.is_nested:
        remedy = "pass its parts: tensor.unbind(), or tensor.values() and tensor.offsets()"
        return f"the {kind} is nested, of parts of several shapes", remedy
    remedy = "make it a plain tensor first, such as by tensor.dequantize() or tensor.to_local()"
    return f"a {kind} shows its elements by code of its own", remedy
