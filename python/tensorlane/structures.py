"""Nested dicts and lists: taken apart into what stands at their ends, and put together again in the same form."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from .errors import Invalid

Structure = Mapping[str, Any] | list[Any] | tuple[Any, ...]
"""A mapping, list or tuple whose ends are arrays or targets, or further ones."""


def leaves(structure: Structure) -> list[Any]:
    """Leaves of a structure, in order."""
    found: list[Any] = []
    _walk(structure, found.append, ())
    return found


def rebuilt(structure: Structure, ends: list[Any]) -> Any:
    """A structure of the same form with other ends, in the same order: dicts, lists and tuples."""
    rest = iter(ends)
    return _walk(structure, lambda _: next(rest), ())


def _walk(node: Any, end: Callable[[Any], Any], inside: tuple[int, ...]) -> Any:
    if not isinstance(node, (Mapping, list, tuple)):
        return end(node)
    if id(node) in inside:
        raise Invalid(f"a {type(node).__name__} holds itself", remedy="pass a tree")
    inside = (*inside, id(node))
    if isinstance(node, Mapping):
        return {key: _walk(value, end, inside) for key, value in node.items()}
    walked = [_walk(value, end, inside) for value in node]
    if isinstance(node, list):
        return walked
    return type(node)(*walked) if hasattr(node, "_fields") else tuple(walked)
