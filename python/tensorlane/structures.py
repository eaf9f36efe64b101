"""Nested dicts and lists: taken apart into what stands at their ends, and put together again in the same form."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from . import opaque, sizes
from .errors import Invalid, Unsupported

Structure = Mapping[str, Any] | list[Any] | tuple[Any, ...]
"""A mapping, list or tuple whose ends are arrays or targets, or further ones."""


def leaves(structure: Structure) -> list[Any]:
    """Leaves of a structure, in order."""
    return [leaf for _, leaf in keyed(structure)]


def keyed(structure: Structure) -> list[tuple[str, Any]]:
    """Leaves of a structure with their keys, in order; those of nested ones are joined by `/`."""
    found: list[tuple[str, Any]] = []
    _walk(structure, lambda key, leaf: found.append((key, leaf)), (), "")
    return found


def rebuilt(structure: Structure, ends: list[Any]) -> Any:
    """A structure of the same form with other ends, in the same order: dicts, lists and tuples."""
    rest = iter(ends)
    return _walk(structure, lambda *_: next(rest), (), "")


def _walk(node: Any, end: Callable[[str, Any], Any], inside: tuple[int, ...], path: str) -> Any:
    if opaque.is_plain(node):
        remedy = "leave it out, or publish it in a set, which has such values"
        raise Unsupported(f"{path or 'it'} is a plain value of tensordict", remedy=remedy)
    if not isinstance(node, (Mapping, list, tuple)):
        return end(path, node)
    if id(node) in inside:
        raise Invalid(f"a {type(node).__name__} holds itself", remedy="pass a tree")
    sizes.depth(path, len(inside))
    inside = (*inside, id(node))
    if isinstance(node, Mapping):
        return {key: _walk(value, end, inside, _joined(path, key)) for key, value in node.items()}
    walked = [_walk(value, end, inside, _joined(path, at)) for at, value in enumerate(node)]
    if isinstance(node, list):
        return walked
    return type(node)(*walked) if hasattr(node, "_fields") else tuple(walked)


def _joined(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
