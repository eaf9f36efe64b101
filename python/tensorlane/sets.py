"""Sets: nested mappings of arrays that are published by versions and read as one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

from . import arrays, dtypes, opaque, sizes
from ._tensorlane import Reference
from .errors import Invalid, Unsupported
from .device import leased
from .tensor import Tensor

PLAIN = (str, int, float, bool, type(None), list, tuple)
"""Types of plain values, and of what they stand in below the keys of a set."""

METADATA = "tensorlane.set"
"""Key in the metadata of a tensor that is the manifest of a set."""

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
        (_, root), *below = nodes
        self.batch: list[int] = root[0] if isinstance(root, tuple) else root
        self.classes: list[str] = root[1] if isinstance(root, tuple) else []
        """Texts of the `meta.json` of each class of tensordict that it is, from the outside in; empty for a mapping or a TensorDict."""
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
                if not isinstance(node, Set):
                    raise KeyError(key)
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


def asked(keys: Any) -> list[str] | None:
    """Keys that are asked for, with `/` in nested ones; None for all."""
    if keys is None:
        return None
    if isinstance(keys, (list, tuple)):
        is_path = [isinstance(key, tuple) and all(isinstance(part, str) for part in key) for key in keys]
        keys = ["/".join(key) if path else key for key, path in zip(keys, is_path)]
    return sizes.texts("keys", keys)


def _shown(version: int, node: Any) -> Any:
    if isinstance(node, (list, tuple)):
        return Set(version, [([], node)])
    return json.loads(node) if isinstance(node, str) else leased(node)


@dataclass
class Flat:
    """A nested mapping as a list: nodes without their tensors, and the tensors apart, each array once."""

    nodes: list[tuple[list[str], Any]]
    """Paths with the batch shape of a tree, in a tuple with the texts of its classes if it has any, the JSON of a value, or the place in `arrays`."""
    arrays: list[Any]


def flatten(tree: Mapping[str, Any]) -> Flat:
    """Takes a nested mapping apart. Tensors that lie in the same memory, as tied weights do, are stored once."""
    flat = Flat([([], _shape(tree, ()))], [])
    _flatten(tree, (), flat, {}, set())
    return flat


def _flatten(tree: Mapping[str, Any], path: Path, flat: Flat, known: dict[Any, int], inside: set[int]) -> None:
    if id(tree) in inside:
        raise Invalid(f"{'/'.join(path)} is a mapping that holds itself", remedy="publish a tree")
    sizes.depth("/".join(path), len(inside), "publish a flatter tree")
    for key, value in opaque.items(tree):
        here = (*path, key)
        if not isinstance(key, str):
            raise Unsupported(f"the key {key!r} of {'/'.join(path) or 'the set'} is no text", remedy="use str keys")
        sizes.text(f"the key {'/'.join(path)}{'/' if path else ''}", key)
        if (text := _value(value, here)) is not None:
            flat.nodes.append((list(here), text))
        elif opaque.is_mapping(value):
            flat.nodes.append((list(here), _shape(value, here)))
            _flatten(value, here, flat, known, inside | {id(tree)})
        else:
            opaque.check_under("/".join(here), value)
            at = known.setdefault(_memory(value), len(flat.arrays))
            if at == len(flat.arrays):
                flat.arrays.append(value)
            flat.nodes.append((list(here), at))


def _shape(tree: Mapping[str, Any], path: Path) -> Any:
    """The batch shape of a mapping that has one, as those of tensordict do. Parts of a lazy stack have one each.

    That of a lazy stack or a tensorclass is in a tuple with what tensordict writes of it: the class, and its plain values.
    """
    batch = [] if opaque.is_lazy(tree) else [int(size) for size in getattr(tree, "batch_size", ())]
    if (kind := opaque.class_of(tree)) is None:
        return batch
    values = {key: _value(value, (*path, key)) for key, value in opaque.items(tree)}
    said = {"_type": json.dumps(kind), **{key: text for key, text in values.items() if text is not None}}
    return batch, ["{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in said.items()) + "}"]


def _value(value: Any, path: Path) -> str | None:
    """The JSON of a plain value; None for all else."""
    if opaque.is_plain(value):
        return _json(opaque.plain_of(value), path)
    return _json(value, path) if isinstance(value, PLAIN) and not opaque.is_mapping(value) else None


def _json(value: Any, path: Path) -> str:
    _check_plain(value, "/".join(path), ())
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"{'/'.join(path)} is no plain value: {error}", remedy="publish arrays, and values JSON has") from None


def _check_plain(value: Any, path: str, inside: tuple[int, ...]) -> None:
    """Raises for what JSON would change, and for more containers in each other than readers take."""
    if isinstance(value, str):
        sizes.text(f"{path}: the text", value)
    if not isinstance(value, (dict, list, tuple)):
        return
    if id(value) in inside:
        raise Invalid(f"{path} is a {type(value).__name__} that holds itself", remedy="publish a tree")
    if len(inside) == sizes.DEPTH_MAX:
        what = f"{path} is deeper than {sizes.DEPTH_MAX} containers in each other"
        details = {"key": path, "most": str(sizes.DEPTH_MAX)}
        raise Invalid(what, details=details, remedy="publish a flatter value, or its text: json.dumps(value)")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(key, str):
            raise Unsupported(f"{path} is no plain value: the key {key!r} is no text", remedy="use str keys")
        if isinstance(value, dict):
            sizes.text(f"{path}: the key", key)
        _check_plain(item, path, (*inside, id(value)))


def _memory(x: Any) -> Any:
    """Key that two arrays share if they are the same bytes."""
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(x, torch.Tensor) and x.device.type in ("cpu", "cuda") and x.layout == torch.strided and x.numel():
        return x.data_ptr(), x.dtype, tuple(x.shape), x.stride(), x.is_conj(), x.is_neg()
    return id(x)


def sources(flat: Flat) -> list[arrays.Source]:
    """The arrays as they are stored, or the error with the keys of the culprit."""
    keys: dict[int, str] = {}
    for path, node in flat.nodes:
        if isinstance(node, int):
            keys.setdefault(node, "/".join(path))
    return [arrays.source_under(keys[at], x, gpus=True) for at, x in enumerate(flat.arrays)]
