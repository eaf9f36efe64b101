"""Sets: nested mappings of arrays that are published by versions and read as one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

import numpy as np

from . import arrays, dtypes
from ._tensorlane import Reference
from .errors import Invalid, Unsupported
from .device import leased
from .tensor import Tensor, copy_into

_PLAIN = (str, int, float, bool, type(None), list, tuple)

Path = tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """A set that was published: its version, and a reference that names it also once the name has gone on."""

    version: int
    reference: Reference


class Set(Mapping[str, Any]):
    """A set of one version, all of it leased and mapped: a mapping of keys to tensors, plain values and mappings.

    Leases end when the last array of a tensor is gone and the set is released or gone.
    """

    def __init__(self, version: int, nodes: list[tuple[list[str], Any]]):
        self.version = version
        (_, self.batch), *below = nodes
        self._entries: dict[str, Any] = {}
        for path, node in below:
            *parents, key = path
            tree = self
            for parent in parents:
                tree = tree._entries[parent]
            tree._entries[key] = _shown(version, node)

    def __getitem__(self, key: str | Path) -> Any:
        """Value under a key, or under a tuple of keys."""
        if isinstance(key, tuple):
            node: Any = self
            for part in key:
                node = node[part]
            return node
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def leaves(self) -> dict[Path, Any]:
        """Tensors and plain values by their paths of keys, in order."""
        found: dict[Path, Any] = {}
        for key, node in self._entries.items():
            below = node.leaves() if isinstance(node, Set) else {(): node}
            found.update({(key, *path): leaf for path, leaf in below.items()})
        return found

    def numpy(self) -> dict[str, Any]:
        """Nested dicts of arrays of numpy, to be read only; nothing is copied."""
        return {key: node.numpy() if isinstance(node, (Set, Tensor)) else node for key, node in self.items()}

    def torch(self) -> dict[str, Any]:
        """Nested dicts of tensors of torch, such as `load_state_dict` takes."""
        return {key: node.torch() if isinstance(node, (Set, Tensor)) else node for key, node in self.items()}

    def release(self) -> None:
        """Gives the leases back, as far as no array needs them."""
        for leaf in self.leaves().values():
            if isinstance(leaf, Tensor):
                leaf.release()

    def __enter__(self) -> Set:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a leased set stays in its process; pickle its name, or what .numpy() gives, copied")

    def __repr__(self) -> str:
        return f"<tensorlane.Set version {self.version}, keys {list(self._entries)}>"


def _shown(version: int, node: Any) -> Any:
    if isinstance(node, list):
        return Set(version, [([], node)])
    return json.loads(node) if isinstance(node, str) else leased(node)


@dataclass
class Flat:
    """A nested mapping as a list: nodes without their tensors, and the tensors apart, each array once."""

    nodes: list[tuple[list[str], Any]]
    """Paths with the batch shape of a tree, the JSON of a value, or the place in `arrays`, as a tuple of one."""
    arrays: list[Any]


def flatten(tree: Mapping[str, Any]) -> Flat:
    """Takes a nested mapping apart. Tensors that lie in the same memory, as tied weights do, are stored once."""
    flat = Flat([([], _batch(tree))], [])
    _flatten(tree, (), flat, {}, set())
    return flat


def _flatten(tree: Mapping[str, Any], path: Path, flat: Flat, known: dict[Any, int], inside: set[int]) -> None:
    if id(tree) in inside:
        raise Invalid(f"{'/'.join(path)} is a mapping that holds itself", remedy="publish a tree")
    for key, value in tree.items():
        here = (*path, key)
        if not isinstance(key, str):
            raise Unsupported(f"the key {key!r} of {'/'.join(path) or 'the set'} is no text", remedy="use str keys")
        if type(value).__name__ == "NonTensorData":
            # What tensordict makes of a plain value.
            value = value.data
        if isinstance(value, Mapping):
            flat.nodes.append((list(here), _batch(value)))
            _flatten(value, here, flat, known, inside | {id(tree)})
        elif isinstance(value, _PLAIN):
            flat.nodes.append((list(here), _json(value, here)))
        else:
            at = known.setdefault(_memory(value), len(flat.arrays))
            if at == len(flat.arrays):
                flat.arrays.append(value)
            flat.nodes.append((list(here), (at,)))


def _batch(tree: Mapping[str, Any]) -> list[int]:
    """The batch shape of a mapping that has one, as those of tensordict do."""
    return [int(size) for size in getattr(tree, "batch_size", ())]


def _json(value: Any, path: Path) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"{'/'.join(path)} is no plain value: {error}", remedy="publish arrays, and values JSON has") from None


def _memory(x: Any) -> Any:
    """Key that two arrays share if they are the same bytes."""
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(x, torch.Tensor) and x.device.type in ("cpu", "cuda") and x.layout == torch.strided and x.numel():
        return x.data_ptr(), x.dtype, tuple(x.shape), x.stride(), x.is_conj(), x.is_neg()
    return id(x)


def load(into: Any, got: Set, *, convert: bool, strict: bool) -> None:
    """Copies a set into a module of torch or a mapping of arrays: all of it, or nothing where something does not fit."""
    wanted = _targets(into)
    leaves = {path: leaf for path, leaf in got.leaves().items() if isinstance(leaf, Tensor)}
    found = {".".join(path): leaf for path, leaf in leaves.items()}
    missing, unexpected = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    if missing or (strict and unexpected):
        words = [f"{what}: {', '.join(sorted(keys))}" for what, keys in (("missing", missing), ("unexpected", unexpected)) if keys]
        raise Invalid(
            f"version {got.version} does not fit, {'; '.join(words)}",
            remedy="load into what was published" + ("" if missing else ", or pass strict=False"),
        )
    for key, target in wanted.items():
        _check(key, target, found[key], convert)
    for key, target in wanted.items():
        _copy(found[key], target)


def _targets(into: Any) -> dict[str, Any]:
    if hasattr(into, "state_dict"):
        into = into.state_dict()
    if not isinstance(into, Mapping):
        raise Unsupported(f"a {type(into).__name__} takes no set", remedy="pass a torch.nn.Module or a mapping of arrays")
    targets: dict[str, Any] = {}
    for key, value in into.items():
        if isinstance(value, Mapping):
            targets.update({f"{key}.{below}": target for below, target in _targets(value).items()})
        elif not isinstance(value, _PLAIN):
            targets[key] = value
    return targets


def _check(key: str, target: Any, leaf: Tensor, convert: bool) -> None:
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(target, torch.Tensor):
        dtype = dtypes.of_torch(target.dtype)
    elif isinstance(target, np.ndarray):
        dtype = dtypes.of_numpy(target.dtype)
        if not target.flags.writeable:
            raise Invalid(f"{key} is an array that cannot be written", remedy="load into a copy")
    else:
        raise Unsupported(f"{key} is a {type(target).__name__}", remedy="load into arrays of numpy or tensors of torch")
    if tuple(target.shape) != leaf.shape:
        raise Invalid(f"{key} has shape {list(target.shape)} and the set {list(leaf.shape)}", remedy="load into the same shapes")
    if dtype != leaf.dtype and not convert:
        raise Invalid(f"{key} is {dtype} and the set {leaf.dtype}", remedy="pass convert=True, or load into the same types")


def _copy(leaf: Tensor, target: Any) -> None:
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(target, torch.Tensor):
        with torch.no_grad():
            leaf._copy_to(target)
    elif dtypes.of_numpy(target.dtype) == leaf.dtype:
        copy_into(leaf, target)
    else:
        np.copyto(target, leaf.numpy(copy=True).astype(target.dtype))


def sources(flat: Flat) -> list[arrays.Source]:
    """The arrays as they are stored, or the error with the keys of the culprit."""
    read = []
    for at, x in enumerate(flat.arrays):
        try:
            read.append(arrays.source(x, gpus=True))
        except Unsupported as error:
            path = next("/".join(path) for path, node in flat.nodes if node == (at,))
            raise Unsupported(f"{path}: {error.message}", remedy=error.remedy) from None
    return read
