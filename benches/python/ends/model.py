"""Tensorlane's end for the weights of a model: `model.py SOCKETS`. They are those of a small sentence transformer: 103 tensors, 90.9 MB."""

from __future__ import annotations

import sys
import time
from typing import Any

from answering import serve
from payload import digest

import torch

import tensorlane

_VOCABULARY, _WIDTH, _INNER, _LAYERS = 30_522, 384, 1536, 6


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights, all of float32."""
    every: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (_VOCABULARY, _WIDTH),
        "embeddings.position_embeddings.weight": (512, _WIDTH),
        "embeddings.token_type_embeddings.weight": (2, _WIDTH),
    }

    def dense(name: str, out: int, into: int) -> None:
        every.update({f"{name}.weight": (out, into), f"{name}.bias": (out,)})

    def norm(name: str) -> None:
        every.update({f"{name}.weight": (_WIDTH,), f"{name}.bias": (_WIDTH,)})

    norm("embeddings.LayerNorm")
    for number in range(_LAYERS):
        layer = f"encoder.layer.{number}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{layer}.attention.{part}", _WIDTH, _WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", _INNER, _WIDTH)
        dense(f"{layer}.output.dense", _WIDTH, _INNER)
        norm(f"{layer}.output.LayerNorm")
    dense("pooler.dense", _WIDTH, _WIDTH)
    return every


class Weights:
    """Puts or publishes the weights of a model, or gets them."""

    def __init__(self, sockets: str):
        self.client = tensorlane.connect(sockets)
        self.state: dict[str, torch.Tensor] = {}
        self.got: dict[str, torch.Tensor] = {}
        self.held: list[Any] = []

    def make(self, turn: int) -> tuple[int, int]:
        """Has weights ready that follow from the turn; their number and bytes."""
        torch.manual_seed(turn)
        self.state = {name: torch.randn(shape) for name, shape in shapes().items()}
        return len(self.state), sum(tensor.nbytes for tensor in self.state.values())

    def put(self) -> tuple[float, dict[str, str]]:
        """Seconds of a put of all weights, and their references by name."""
        began = time.perf_counter()
        stored = self.client.put(self.state)
        took = time.perf_counter() - began
        self.held.append(stored)
        return took, {name: str(one.reference) for name, one in stored.items()}

    def publish(self, name: str) -> float:
        """Seconds until a version of a name has all weights."""
        began = time.perf_counter()
        self.client.publish(self.state, name, keep=1)
        return time.perf_counter() - began

    def get(self, token: dict[str, str]) -> tuple[float, float]:
        """Seconds until all weights are mapped, each with an array of it, and of making them tensors of torch from there."""
        references = {name: tensorlane.Reference(text) for name, text in token.items()}
        began = time.perf_counter()
        got = self.client.get(references)
        arrays = [tensor.numpy() for tensor in got.values()]
        mapped = time.perf_counter()
        self.got = {name: tensor.torch() for name, tensor in got.items()}
        ended = time.perf_counter()
        del arrays
        return mapped - began, ended - mapped

    def get_set(self, name: str) -> float:
        """Seconds until all weights of the latest version are mapped, each with an array of it."""
        began = time.perf_counter()
        got = self.client.get_set(name)
        arrays = got.numpy()
        took = time.perf_counter() - began
        self.got = got.torch()
        del arrays
        return took

    def unname(self, name: str) -> None:
        """Takes all names of a set away."""
        for one in self.client.names(name):
            self.client.unname(one)

    def hash_made(self) -> list[int]:
        """Checksums of all weights, in the order of their names."""
        return [digest(self.state[name].numpy()) for name in sorted(self.state)]

    def hash_got(self) -> list[int]:
        """Checksums of what was got last."""
        return [digest(self.got[name].numpy()) for name in sorted(self.got)]

    def drop(self) -> None:
        """Gives up all that is held."""
        self.held, self.got = [], {}


if __name__ == "__main__":
    serve(Weights(sys.argv[1]))
