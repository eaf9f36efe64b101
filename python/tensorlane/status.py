"""Answers of the sidecar about itself, its peers and its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from ._tensorlane import Reference


@dataclass(frozen=True)
class Status:
    """The state of the sidecar."""

    version: str
    exchange: str
    peer: str
    uptime_seconds: float
    tensors: int
    copies: int
    leases: int
    names: int
    tickets: int
    sessions: int
    waiting: int
    arena_bytes: int
    free_bytes: int
    sealed_bytes: int
    retired_bytes: int
    largest_put_bytes: int


@dataclass(frozen=True)
class Peer:
    """A peer of the exchange, as the sidecar knows it."""

    name: str
    state: str
    """`self`, `connected`, `connecting`, `unreachable`, `idle` or `left`."""
    node: str
    addresses: list[str]
    route: str | None
    """The way by which its tensors would come, and why by no better one; None for this peer itself."""
    bytes_in: int
    bytes_out: int
    last_error: str


@dataclass(frozen=True)
class Description:
    """A tensor as it is known without being moved."""

    reference: Reference
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    metadata: dict[str, str]
    names: list[str]
    leases: int
    tickets: int
    here: bool
