"""Channels and pipes for asyncio: what is taken in order, and what a cancelled task loses: nothing."""

from __future__ import annotations

import asyncio
import gc
import math

import numpy as np
import pytest

import tensorlane
import tensorlane.aio
from conftest import python, said, until


@pytest.fixture
def name(request):
    return request.node.name


def run(sidecar, work):
    """The result of `work(client)` in a loop of its own."""

    async def main():
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            return await asyncio.wait_for(work(client), 60)

    return asyncio.run(main())


def test_a_channel_is_written_and_read_in_order(sidecar, name):
    async def work(client):
        async with await client.channel_writer(name, expect_readers=1) as writer:

            async def read():
                async with await client.channel_reader(name) as reader:
                    assert reader.route == "local"
                    return [int(message.value.numpy()[0]) async for message in reader]

            reading = asyncio.create_task(read())
            for number in range(20):
                await writer.write(np.full(3, number), timeout=30)
            assert writer.readers == 1
            await writer.finish()
            return await reading

    assert run(sidecar, work) == list(range(20))


def test_a_cancelled_read_loses_no_message_and_a_late_one_neither(sidecar, name):
    async def work(client):
        async with await client.channel_writer(name) as writer, await client.channel_reader(name) as reader:
            for timeout in (0, 0.02):
                with pytest.raises(tensorlane.Timeout):
                    await reader.read(timeout=timeout)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(timeout=math.inf), 0.02)
            await writer.write(b"first")
            await writer.write(b"second")
            return [(await reader.read()).value, (await reader.read(timeout=0)).value]

    assert run(sidecar, work) == [b"first", b"second"]


def test_pipes_are_accepted_read_and_written_by_tasks(sidecar, name):
    async def work(client):
        async def serve(listener):
            async for pipe in listener:
                async with pipe:
                    async for received in pipe:
                        await pipe.write([received.tensors[0].numpy() * 2], metadata=received.metadata)
                return

        async with await client.listen(name) as listener:
            serving = asyncio.create_task(serve(listener))
            async with await client.connect_pipe(name) as pipe:
                answers = []
                for number in range(10):
                    await pipe.write([np.full(4, number)], metadata=str(number))
                    descriptor = await pipe.read_descriptor()
                    row = np.zeros(4, np.int64)
                    await pipe.receive(descriptor, [row])
                    answers.append((descriptor.metadata, row.tolist()))
            await serving
        return answers

    assert run(sidecar, work) == [(str(number).encode(), [number * 2] * 4) for number in range(10)]


def test_a_cancelled_accept_loses_no_pipe_and_a_cancelled_descriptor_comes_again(sidecar, name):
    async def work(client):
        async with await client.listen(name) as listener:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listener.accept(timeout=math.inf), 0.02)
            near = await client.connect_pipe(name)
            far = await listener.accept()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(far.read(timeout=math.inf), 0.02)
            writing = asyncio.create_task(near.write(metadata="kept"))
            received = await far.read()
            await writing
            # Many ask at once: each message goes to one of them.
            asked = [asyncio.create_task(far.read()) for _ in range(5)]
            await asyncio.gather(*[near.write(metadata=str(number)) for number in range(5)])
            return received.metadata, sorted([(await one).metadata for one in asked])

    assert run(sidecar, work) == (b"kept", [b"0", b"1", b"2", b"3", b"4"])


def test_an_end_that_is_closed_or_gone_ends_what_waits(sidecar, client, name):
    async def work(awaited):
        async with await awaited.listen(name) as listener:
            near = await awaited.connect_pipe(name)
            far = await listener.accept()
            waits = asyncio.create_task(far.read(timeout=math.inf))
            await asyncio.sleep(0)
            await far.close()
            with pytest.raises(tensorlane.Error):
                await waits
            with pytest.raises(tensorlane.Error) as closed:
                await near.read()
            gone = await awaited.connect_pipe(name)
            other = await listener.accept()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gone.read(timeout=math.inf), 0.02)
            del gone
            gc.collect()
            with pytest.raises(tensorlane.Error) as lost:
                await other.read()
            return closed.value.reason, lost.value.reason

    assert run(sidecar, work) == ("PIPE_CLOSED", "PIPE_CLOSED")


def test_the_end_of_a_program_withdraws_ends_that_wait(sidecar, name):
    script = """
import asyncio, sys, math, tensorlane.aio
async def main():
    client = await tensorlane.aio.connect(sys.argv[1])
    listener = await client.listen(sys.argv[2])
    reader = asyncio.create_task(listener.accept(timeout=math.inf))
    await asyncio.sleep(0)
    print("ends")
asyncio.run(main())
"""
    assert said(python(script, sidecar.directory, name)) == "ends\n"
