"""Values of a mutable set: layouts and rows that are given, made what the leaves of the set are."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence

import numpy as np

from . import arrays, dtypes, gpu, opaque, sizes
from ._tensorlane import Reference, Stored
from .errors import Invalid, Unsupported
from .reservation import Reservation, dtype_of
from .tensor import Tensor

if TYPE_CHECKING:
    from .mutable import Leaf

_NUMBERS = (bool, int, float, complex, np.generic)

_SPEAKS = ("__array__", "__array_interface__", "__dlpack__")
"""Methods of what numpy takes as an array."""


def joined(path: Sequence[str]) -> str:
    """The key of a leaf that stands under a path of keys."""
    return "/".join(path)


def as_key(index: Any) -> str | None:
    """The key that an index is: a text, or texts in a tuple; None for an index of rows."""
    if isinstance(index, str):
        return index
    if isinstance(index, tuple) and index and all(isinstance(part, str) for part in index):
        return joined(index)
    return None


def walked(tree: Mapping[str, Any], path: tuple[str, ...] = (), inside: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Keys of the leaves of a nested mapping, with what stands there."""
    if id(tree) in inside:
        raise Invalid(f"{joined(path)} is a mapping that holds itself", remedy="pass a tree")
    sizes.depth(joined(path), len(inside))
    for key, value in opaque.stacked_items(tree):
        if not isinstance(key, str):
            raise Unsupported(f"the key {key!r} of {joined(path) or 'the set'} is no text", remedy="use str keys")
        sizes.text(f"the key {joined(path)}{'/' if path else ''}", key)
        here = (*path, key)
        if opaque.is_plain(value):
            raise Unsupported(f"{joined(here)} is a plain value", remedy="leave it out: mutable sets have arrays alone")
        if opaque.is_mapping(value):
            yield from walked(value, here, (*inside, id(tree)))
        else:
            yield joined(here), value


def once(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of a nested mapping by their keys, each of which is given once."""
    found: dict[str, Any] = {}
    for key, value in walked(tree):
        if key in found:
            raise Invalid(f"{key} is given twice", remedy="give each leaf once")
        found[key] = value
    return found


def row_of(key: str, leaf: Any) -> tuple[str, tuple[int, ...]]:
    """Dtype and row shape that are meant by `(dtype, row shape)`, or by an array of rows."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        if len(leaf.shape) == 0:
            raise Invalid(f"{key} is an array without dimensions", remedy="give an array of rows, or (dtype, row shape)")
        return dtypes.of_ours(leaf) or _dtype(key, leaf.dtype), tuple(int(size) for size in leaf.shape[1:])
    if not (isinstance(leaf, tuple) and len(leaf) == 2):
        raise Unsupported(f"{key} is given by a {type(leaf).__name__}", remedy='give (dtype, row shape), such as ("uint8", (480, 640, 3))')
    dtype, shape = leaf
    return _dtype(key, dtype), sizes.shape_of(shape, f"{key} has the row shape {shape!r}, which")


def flat(values: Any, leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """Values by the keys of leaves. A number is for every leaf, and an array for the only one."""
    if not opaque.is_mapping(values):
        if isinstance(values, _NUMBERS):
            return {key: values for key in leaves}
        if len(leaves) != 1:
            raise Unsupported(f"a {type(values).__name__} for a set of {len(leaves)} leaves", remedy=f"pass a mapping of {list(leaves)}")
        return {key: values for key in leaves}
    found = once(values)
    for key in found:
        if key not in leaves:
            raise no_leaf(key, leaves)
    if not found:
        raise Invalid("no leaf is written", remedy=f"pass a mapping of some of {list(leaves)}")
    return found


def no_leaf(key: str, leaves: Mapping[str, Any]) -> Invalid:
    """The error about a key that a set does not have."""
    return Invalid(f"the set has no leaf {key!r}", "SET_MISMATCH", remedy=f"its keys are {list(leaves)}")


def counted(values: Mapping[str, Any], leaves: Mapping[str, Leaf]) -> int:
    """Number of rows that values are: the size of the dimension beyond a row; one where none has it."""
    for key, value in values.items():
        opaque.check_under(key, value)
        value = _named(value)
        shape = _shape(value, key) if isinstance(value, (list, tuple)) else getattr(value, "shape", ())
        if shape is not None and len(shape) == len(leaves[key].row_shape) + 1:
            return int(shape[0])
    return 1


def _shape(value: Any, key: str, depth: int = 0) -> tuple[int, ...]:
    """The shape of a list, as its first elements say."""
    if isinstance(value, (list, tuple)):
        sizes.depth(key, depth)
        return (len(value), *(_shape(value[0], key, depth + 1) if value else ()))
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def prepared(values: Any, leaves: Mapping[str, Leaf], count: int) -> dict[str, Any]:
    """Arrays of `count` rows of some leaves, each repeated where it is smaller; or references of tensors that were put."""
    return {key: _rows(key, leaves[key], _named(value), count) for key, value in flat(values, leaves).items()}


def _named(value: Any) -> Any:
    """Reference of what was put; anything else as it is."""
    return value.reference if isinstance(value, Stored) else value


def _put(key: str, leaf: Leaf, reference: Reference, shape: tuple[int, ...]) -> Reference:
    """The reference of a tensor that is exactly so many rows of a leaf."""
    # A reference does not say very many dimensions: the owner of the set checks them.
    given = shape if reference.shape is None else reference.shape
    _same(key, leaf, reference.dtype, given, shape)
    if given != shape:
        what = f"{key} is a tensor of shape {list(given)} that was put, and these rows are {list(shape)}"
        raise Invalid(what, "SET_MISMATCH", {"key": key}, remedy="put as many rows as are written: a tensor is not repeated")
    return reference


def _rows(key: str, leaf: Leaf, value: Any, count: int) -> Any:
    opaque.check_under(key, value)
    shape = (count, *leaf.row_shape)
    if isinstance(value, Reference):
        return _put(key, leaf, value, shape)
    torch = dtypes.torch_if_imported()
    if isinstance(value, (list, tuple)) and _has_arrays(value, key):
        value = _stacked(key, leaf.dtype, value)
    elif isinstance(value, (list, tuple, *_NUMBERS)):
        value = _numbers(key, leaf.dtype, value)
    if isinstance(value, Tensor):
        _same(key, leaf, value.dtype, value.shape, shape)
        return value if value.shape == shape else np.broadcast_to(value.numpy(), shape)
    array = _array(key, value)
    if torch is not None and isinstance(array, torch.Tensor):
        if array.requires_grad:
            raise Unsupported(f"{key} requires gradients, which a set does not keep", remedy="write tensor.detach()")
        _same(key, leaf, dtypes.of_torch(array.dtype), array.shape, shape)
        return array.expand(shape)
    _same(key, leaf, dtypes.of_numpy(array.dtype), array.shape, shape)
    return np.broadcast_to(array, shape)


def _has_arrays(value: Any, key: str, depth: int = 0) -> bool:
    """True where a list has arrays, whose types are never converted, at any depth."""
    if isinstance(value, (list, tuple)):
        sizes.depth(key, depth)
        return any(_has_arrays(one, key, depth + 1) for one in value)
    return not isinstance(value, _NUMBERS) and any(hasattr(value, word) for word in ("dtype", *_SPEAKS))


def _stacked(key: str, dtype: str, value: Any) -> Any:
    """A list of arrays as one array, which is of torch where one of them is. Numbers beside them are made of the leaf's type."""
    if not _has_arrays(value, key):
        return _numbers(key, dtype, value)
    torch = dtypes.torch_if_imported()
    opaque.check_under(key, value)
    if not isinstance(value, (list, tuple)):
        array = value.numpy() if isinstance(value, Tensor) else _array(key, value)
        of_torch = torch is not None and isinstance(array, torch.Tensor)
        given = dtypes.of_torch(array.dtype) if of_torch else dtypes.of_numpy(array.dtype)
        if given != dtype:
            raise _mismatch(key, f"{key} has an array of {given} in its list, and the leaf is {dtype}")
        return array
    parts = [_stacked(key, dtype, one) for one in value]
    try:
        if torch is not None and any(isinstance(one, torch.Tensor) for one in parts):
            return torch.stack([one if isinstance(one, torch.Tensor) else torch.tensor(one, device="cpu") for one in parts])
        return np.stack(parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Invalid(f"{key}: {error}", "SET_MISMATCH", {"key": key}, remedy="stack the arrays first, of one shape and one kind") from None


def _array(key: str, value: Any) -> Any:
    """An array of numpy or a tensor of torch, whichever shows what was given."""
    torch = dtypes.torch_if_imported()
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return value
    if isinstance(value, Reservation):
        raise Unsupported(f"{key}: a reservation is no tensor yet", remedy="seal it, and write what that gives")
    if not any(hasattr(value, word) for word in _SPEAKS) and not isinstance(value, (memoryview, bytes, bytearray)):
        raise Unsupported(f"{key}: a {type(value).__name__} is no array", remedy="pass an array of numpy or torch, or numbers")
    on_gpu = gpu.array_of(value)
    if on_gpu is not None:
        raise gpu.refused(on_gpu)
    if hasattr(value, "__dlpack__"):
        try:
            return arrays.of_dlpack(value)
        except Unsupported as error:
            raise opaque.under(key, error) from None
    return np.asarray(memoryview(value) if isinstance(value, (bytes, bytearray)) else value)


def _same(key: str, leaf: Leaf, dtype: str, given: Sequence[int], shape: tuple[int, ...]) -> None:
    """Checks the type of an array, and that it can be repeated to a shape."""
    fits = len(given) <= len(shape) and all(
        size in (1, due) for size, due in zip(reversed(tuple(given)), reversed(shape), strict=False)
    )
    told = f"{key} is given as {dtype}{list(given)}, and these rows are {leaf.dtype}{list(shape)}"
    if dtype != leaf.dtype:
        raise _mismatch(key, told)
    if not fits:
        raise Invalid(told, "SET_MISMATCH", {"key": key}, remedy="give as many rows as are written, each of the shape of the leaf")


def _mismatch(key: str, message: str) -> Invalid:
    """The error about an array that is not of the type of its leaf."""
    return Invalid(message, "SET_MISMATCH", {"key": key}, remedy="convert the array first: types are never converted in silence")


def _numbers(key: str, dtype: str, value: Any) -> Any:
    """Numbers of Python as an array of a leaf's type, if that can say them."""
    try:
        given = np.asarray(value.item() if isinstance(value, np.generic) else value)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{key}: {error}", "SET_MISMATCH", {"key": key}, remedy="give lists of one length") from None
    if dtypes.is_ml(given.dtype):
        given = given.astype(np.float64)
    try:
        wanted = dtypes.to_numpy(dtype)
    except Unsupported:
        torch = dtypes.torch_if_imported()
        if torch is None or given.dtype.kind not in "biuf":
            raise
        made = torch.as_tensor(given, dtype=dtypes.to_torch(dtype), device="cpu")
        if not _says(made.to(torch.complex128 if made.is_complex() else torch.float64).numpy(), given, value):
            raise _unsaid(key, dtype, value) from None
        return made
    allowed = {"b": "biu", "i": "biu", "u": "biu", "c": "biufc"}
    with np.errstate(all="ignore"):
        if given.dtype.kind not in allowed.get(wanted.kind, "biuf"):
            raise _unsaid(key, dtype, value)
        made = given.astype(wanted)
        wide = made if wanted.kind in "biu" else made.astype(np.complex128 if wanted.kind == "c" else np.float64)
        if not _says(wide, given, value):
            raise _unsaid(key, dtype, value)
    return made


def _says(made: np.ndarray, given: np.ndarray, value: Any) -> bool:
    """True where numbers are what was given: whole ones exactly, others as near as the type allows, but not infinite."""
    if given.dtype.kind in "biu":
        # Objects are compared exactly; a type in common may round both.
        return bool(np.all(made.astype(object) == given.astype(object)))
    if not np.all((np.isfinite(made) == np.isfinite(given)) & (np.isnan(made) == np.isnan(given))):
        return False
    # Whole numbers beside others: numpy has made them floats before.
    told = np.asarray(value, dtype=object) if isinstance(value, (list, tuple)) else np.empty(0, dtype=object)
    return all(made.item(at) == int(number) for at, number in enumerate(told.flat) if isinstance(number, (int, np.integer)))


def _unsaid(key: str, dtype: str, value: Any) -> Invalid:
    """The error about numbers that a type does not have."""
    what = f"{key}: {reprlib.repr(value)} cannot be said as {dtype}"
    return Invalid(what, "SET_MISMATCH", {"key": key}, remedy="give numbers that the leaf has")


def _dtype(key: str, given: Any) -> str:
    try:
        return dtype_of(given)
    except Invalid as error:
        raise Invalid(f"{key}: {error.message}", remedy=error.remedy) from None
    except Unsupported as error:
        raise opaque.under(key, error) from None
