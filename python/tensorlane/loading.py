"""Loading of sets: what is written, and how, is known and checked before the first byte of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

import numpy as np

from . import dtypes, opaque, sizes
from .errors import Error, Invalid, Unsupported
from .sets import PLAIN, Path, Set
from .tensor import Tensor, check_writable, copy_into, writing

_GATHER = "load it by torch.distributed.checkpoint.state_dict.set_model_state_dict(module, got.torch(), options=...)"


@dataclass
class Target:
    """Arrays that a set is loaded into, by their paths of keys."""

    arrays: dict[Path, Any]
    state: Mapping[str, Any] | None = None
    """State dict of an object that hands out copies or plain values: it goes by `load_state_dict`, as a whole."""


def names(into: Any) -> list[str]:
    """Names of what a module of torch or a mapping takes, with dots between the keys."""
    target = _target(into)
    plain = [] if target.state is None else [path for path, _ in _plain(target.state)]
    return [".".join(path) for path in (*target.arrays, *plain)]


def load(into: Any, got: Set, *, convert: bool, strict: bool, partial: bool = False) -> None:
    """Copies a set into a module of torch or a mapping of arrays: all of it, or nothing if something does not fit.

    With `partial`, what the set has not stays in `into` as it is.
    """
    target = _target(into)
    leaves = got.leaves()
    tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}
    wanted, found = _joined(target.arrays, "the target"), _joined(tensors, f"version {got.version}")
    plain = {} if target.state is None else _joined(dict(_plain(target.state)), "the target")
    if partial:
        there = {".".join(path) for path in leaves}
        wanted, plain = ({key: path for key, path in keys.items() if key in there} for keys in (wanted, plain))
    missing = (wanted.keys() - found.keys()) | (plain.keys() - {".".join(path) for path in leaves.keys() - tensors.keys()})
    unexpected = found.keys() - wanted.keys()
    if missing or (strict and unexpected):
        words = [f"{what}: {', '.join(sorted(keys))}" for what, keys in (("missing", missing), ("unexpected", unexpected)) if keys]
        raise Invalid(
            f"version {got.version} does not fit, {'; '.join(words)}",
            remedy="load into what was published" + ("" if missing else ", or pass strict=False"),
        )
    for key, path in wanted.items():
        _check(key, target.arrays[path], tensors[found[key]], convert, in_place=target.state is None)
    if target.state is None:
        for key, path in wanted.items():
            _copy(tensors[found[key]], target.arrays[path])
        return
    values = _joined(leaves, f"version {got.version}")
    state = _filled(target.state, (), {key: leaves[path] for key, path in values.items()})
    if (versions := getattr(target.state, "_metadata", None)) is not None:
        state._metadata = versions  # type: ignore[attr-defined]
    try:
        into.load_state_dict(state)
    except Exception as error:
        told = f"{type(into).__name__}.load_state_dict refuses version {got.version}"
        what = f"{told}, of which it may have taken a part: {error}"
        raise Error(what, remedy="load it anew, or make the object anew") from error


def _target(into: Any) -> Target:
    """Finds what is written in place, and what goes by `load_state_dict`."""
    if isinstance(into, Mapping):
        # Read twice, with both kept: what is made for a reader is not the same then.
        first, again = dict(_arrays(into)), dict(_arrays(into))
        for path, array in first.items():
            if _place(array) != _place(again.get(path)):
                what = f"{'/'.join(path)} of the {type(into).__name__} is a copy, and what is written there is lost"
                raise Unsupported(what, remedy="load into a dict of arrays, or into tensordict.to_tensordict()")
        return Target(first)
    if not hasattr(into, "state_dict") or not hasattr(into, "load_state_dict"):
        what = f"a {type(into).__name__} takes no set"
        raise Unsupported(what, remedy="pass a torch.nn.Module or a mapping of arrays")
    state = into.state_dict()
    arrays, own = dict(_arrays(state)), _own(into)
    # Those that are refused by their keys count as in place.
    others = [array for array in arrays.values() if not _is_opaque(array) and _place(array) is not None and _storage(array) not in own]
    return Target(arrays, state if others or dict(_plain(state)) else None)


def _walked(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Ends of a nested mapping by their paths."""
    sizes.depth("/".join(path), len(path), "load into a flatter target")
    for key, value in tree.items():
        if not isinstance(key, str):
            raise Unsupported(f"the key {key!r} of {'/'.join(path) or 'the target'} is no text", remedy="use str keys")
        if isinstance(value, Mapping) and not opaque.is_plain(value):
            yield from _walked(value, (*path, key))
        else:
            yield (*path, key), value


def _arrays(tree: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    return ((path, value) for path, value in _walked(tree) if not _is_value(value))


def _plain(tree: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    return ((path, value) for path, value in _walked(tree) if _is_value(value))


def _is_value(value: Any) -> bool:
    return isinstance(value, PLAIN) or opaque.is_plain(value)


def _place(array: Any) -> Any:
    """Key that two arrays share if they lie in the same place; None for one without elements."""
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(array, torch.Tensor):
        # Those without bytes of their own are refused later, by their keys.
        return id(array) if _is_opaque(array) else array.data_ptr() if array.numel() else None
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0] if array.size else None
    return id(array)


def _is_opaque(array: Any) -> bool:
    try:
        opaque.check(array)
    except Unsupported:
        return True
    return False


def _storage(array: Any) -> Any:
    """The memory that a tensor shows, or a part of; what is no tensor stands for itself."""
    torch = dtypes.torch_if_imported()
    if torch is None or not isinstance(array, torch.Tensor):
        return id(array)
    return array.device, array.untyped_storage().data_ptr()


def _own(module: Any) -> set[Any]:
    """Memory of the parameters and buffers of a module."""
    torch = dtypes.torch_if_imported()
    if torch is None or not isinstance(module, torch.nn.Module):
        return set()
    return {_storage(one) for one in (*module.parameters(), *module.buffers()) if not _is_opaque(one)}


def _joined(paths: Mapping[Path, Any], of: str) -> dict[str, Path]:
    """Paths by their keys joined with dots, as modules have them, where each means one path."""
    found: dict[str, Path] = {}
    for path in paths:
        other = found.setdefault(".".join(path), path)
        if other != path:
            what = f"{'/'.join(other)} and {'/'.join(path)} of {of} are the same key for a module, {'.'.join(path)}"
            raise Invalid(what, remedy="copy the tensors of client.get_set one by one, or publish under other keys")
    return found


def _check(key: str, target: Any, leaf: Tensor, convert: bool, *, in_place: bool) -> None:
    torch = dtypes.torch_if_imported()
    is_torch = torch is not None and isinstance(target, torch.Tensor)
    if not is_torch and not isinstance(target, np.ndarray):
        raise Unsupported(f"{key} is a {type(target).__name__}", remedy="load into arrays of numpy or tensors of torch")
    try:
        if in_place:
            check_writable(key, target)
        else:
            opaque.check_under(key, target)
    except Unsupported as error:
        remedy = _GATHER if hasattr(type(target), "full_tensor") else error.remedy
        raise Unsupported(error.message, remedy=remedy) from None
    dtype = dtypes.of_torch(target.dtype) if is_torch else dtypes.of_numpy(target.dtype)
    if tuple(target.shape) != leaf.shape:
        raise Invalid(f"{key} has shape {list(target.shape)} and the set {list(leaf.shape)}", remedy="load into the same shapes")
    if dtype == leaf.dtype:
        return
    if not convert:
        raise Invalid(f"{key} is {dtype} and the set {leaf.dtype}", remedy="pass convert=True, or load into the same types")
    _check_converts(key, leaf.dtype, target, is_torch)


def _check_converts(key: str, given: str, target: Any, is_torch: bool) -> None:
    """Converts one element, which shows whether all of them can be."""
    try:
        if is_torch:
            torch = dtypes.torch_if_imported()
            torch.zeros(1, dtype=dtypes.to_torch(given), device="cpu").to(target.dtype)
        else:
            np.zeros(1, dtypes.to_numpy(given)).astype(target.dtype)
    except Unsupported as error:
        raise opaque.under(key, error) from None
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        what = f"{key} is {target.dtype}, which {given} is not converted to: {error}"
        raise Unsupported(what, remedy="load into the same types") from None


def _copy(leaf: Tensor, target: Any) -> None:
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(target, torch.Tensor):
        with writing(target):
            leaf._copy_to(target)
    elif dtypes.of_numpy(target.dtype) == leaf.dtype:
        copy_into(leaf, target)
    else:
        np.copyto(target, leaf.numpy(copy=True).astype(target.dtype))


def _filled(state: Mapping[str, Any], path: Path, found: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A state dict of the same form whose tensors and plain values are those of the set, where that has them."""
    torch = dtypes.torch_if_imported()
    made: OrderedDict[str, Any] = OrderedDict()
    for key, value in state.items():
        here = (*path, key)
        if isinstance(value, Mapping) and not opaque.is_plain(value):
            made[key] = _filled(value, here, found)
        elif ".".join(here) not in found:
            made[key] = value
        elif _is_value(value):
            made[key] = found[".".join(here)]
        else:
            is_torch = torch is not None and isinstance(value, torch.Tensor)
            made[key] = torch.empty(value.shape, dtype=value.dtype, device=value.device) if is_torch else np.empty_like(value)
            _copy(found[".".join(here)], made[key])
    return made
