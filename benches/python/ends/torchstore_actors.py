"""Torchstore's end, on Monarch's actors: one puts, another gets, and a third process is the storage volume."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from answering import serve
from payload import Payload, digest, touch

import torch
import torchstore
from monarch.actor import Actor, endpoint
from torchstore.utils import spawn_actors


class Worker(Actor):
    """Puts tensors that differ, or gets them."""

    def __init__(self) -> None:
        self.payload = Payload()
        self.tensor: Any = None

    @endpoint
    async def put(self, key: str, nbytes: int, turn: int) -> tuple[float, int]:
        made = self.payload.of(nbytes, turn)
        tensor = torch.from_numpy(made)
        began = time.perf_counter()
        await torchstore.put(key, tensor)
        return time.perf_counter() - began, digest(made)

    @endpoint
    async def get(self, key: str) -> tuple[float, int]:
        began = time.perf_counter()
        got = (await torchstore.get(key)).numpy()
        touch(got)
        return time.perf_counter() - began, digest(got)


class Store:
    """Both ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.maker, self.taker = self.loop.run_until_complete(self._begun())

    async def _begun(self) -> tuple[Any, Any]:
        await torchstore.initialize()
        return await spawn_actors(1, Worker, "maker"), await spawn_actors(1, Worker, "taker")

    def hand(self, nbytes: int, turn: int) -> tuple[float, float]:
        """Seconds of a put and of the get; two keys are used in turns."""
        return self.loop.run_until_complete(self._hand(f"tensor-{turn % 2}", nbytes, turn))

    async def _hand(self, key: str, nbytes: int, turn: int) -> tuple[float, float]:
        put, made = await self.maker.put.call_one(key, nbytes, turn)
        get, got = await self.taker.get.call_one(key)
        assert made == got, f"turn {turn}: {nbytes} bytes came with checksum {got:#x} and not {made:#x}"
        return put, get

    def keep(self) -> None:
        """Nothing is to be done: both keys stay."""

    def drop(self) -> None:
        """Nothing is to be done: the next turn but one takes the place of a key."""


if __name__ == "__main__":
    serve(Store())
