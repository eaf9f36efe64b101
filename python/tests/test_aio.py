"""The client for asyncio: waits, cancellation, ends of loops and programs."""

from __future__ import annotations

import asyncio
import inspect
import time

import numpy as np
import pytest

import tensorlane
import tensorlane.aio
from conftest import PATIENCE, python, said, until


def run(sidecar, work):
    """The result of `work(client)` in a loop of its own."""

    async def main():
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            return await asyncio.wait_for(work(client), PATIENCE)

    return asyncio.run(main())


def test_every_call_of_the_client_can_be_awaited():
    calls = {name for name, value in vars(tensorlane.Client).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert calls <= set(vars(tensorlane.aio.AsyncClient))
    awaited = tensorlane.aio.AsyncClient.get
    assert inspect.iscoroutinefunction(awaited) and inspect.signature(awaited) == inspect.signature(tensorlane.Client.get)


def test_what_is_put_is_got_named_described_and_published(sidecar):
    async def work(client):
        stored = await client.put(np.arange(3), "aio/a")
        first = (await client.get("aio/a")).numpy().tolist()
        described = await client.describe("aio/a")
        names = await client.names("aio/")
        await client.unname("aio/a")
        published = await client.publish({"w": np.ones(2, "f4")}, "aio/policy")
        into = {"w": np.zeros(2, "f4")}
        version = await client.load_into(into, "aio/policy")
        return first, described.shape, names == {"aio/a": stored.reference}, published.version == version, into["w"].tolist()

    assert run(sidecar, work) == ([0, 1, 2], (3,), True, True, [1, 1])


def test_a_hundred_gets_wait_at_once_for_what_the_same_client_puts(sidecar):
    async def work(client):
        gets = [asyncio.create_task(client.get(f"aio/later/{number}", wait=30)) for number in range(100)]
        await asyncio.sleep(0)
        stored = [await client.put(np.full(4, number), f"aio/later/{number}") for number in range(100)]
        got = await asyncio.gather(*gets)
        await client.unname(*[f"aio/later/{number}" for number in range(100)])
        return [int(tensor.numpy()[0]) for tensor in got], len(stored)

    assert run(sidecar, work) == (list(range(100)), 100)


async def begun(client):
    """Waits until a thread has every get that was asked for."""
    await asyncio.sleep(0)
    while client._lanes["get"]._work_queue.qsize():
        await asyncio.sleep(0.005)


def test_a_cancelled_get_is_withdrawn_so_that_its_thread_ends(sidecar):
    async def work(client):
        get = asyncio.create_task(client.get("aio/never", wait=100))
        await begun(client)
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        # It joins the threads, and knows of no get that waits.
        assert not client._pending
        await asyncio.wait_for(client.close(), PATIENCE)
        return True

    assert run(sidecar, work)


def test_a_get_that_is_cancelled_leaves_no_lease(sidecar, client):
    async def work(awaited):
        for _ in range(50):
            get = asyncio.create_task(awaited.get(stored.reference))
            await asyncio.sleep(0)
            get.cancel()
            await asyncio.gather(get, return_exceptions=True)

    with client.put(np.arange(3)) as stored:
        leases = client.status().leases
        run(sidecar, work)
        until("the leases are given back", lambda: client.status().leases <= leases)


def test_a_deadline_of_asyncio_ends_a_get_and_the_client_works_on(sidecar):
    async def work(client):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.get("aio/never", wait=600), 0.05)
        assert sidecar.directory in repr(client)
        return (await client.status()).peer

    assert run(sidecar, work) == "local"


def test_an_exception_has_its_class_and_reason(sidecar):
    async def work(client):
        with pytest.raises(tensorlane.NotFound) as caught:
            await client.get("aio/nobody/put/this")
        assert caught.value.reason == "NOT_FOUND" and "wait=" in caught.value.remedy
        with pytest.raises(tensorlane.Unsupported):
            await client.put("no array")
        results = await asyncio.gather(client.get("aio/x"), client.status(), return_exceptions=True)
        return [type(result) for result in results]

    assert run(sidecar, work) == [tensorlane.NotFound, tensorlane.Status]


def test_a_closed_client_says_so_and_withdraws_what_waits(sidecar):
    async def main():
        client = await tensorlane.aio.connect(sidecar.directory)
        get = asyncio.create_task(client.get("aio/never", wait=600))
        await begun(client)
        await client.close()
        with pytest.raises(tensorlane.Withdrawn):
            await get
        with pytest.raises(tensorlane.Error, match="closed"):
            await client.status()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


CLOSED_LOOP = """
import asyncio, tensorlane.aio
loop = asyncio.new_event_loop()
client = loop.run_until_complete(tensorlane.aio.connect())
tasks = [loop.create_task(client.get("aio/never", wait=600)) for _ in range(10)]
loop.run_until_complete(asyncio.sleep(0.05))
loop.close()
print("closed", flush=True)
"""


def test_a_program_ends_whose_loop_was_closed_with_gets_pending(sidecar):
    began = time.monotonic()
    process = python(CLOSED_LOOP, TENSORLANE_SOCKETS=sidecar.directory)
    out, err = process.communicate(timeout=PATIENCE)
    assert (out, process.returncode) == ("closed\n", 0), err
    assert "RuntimeError" not in err and time.monotonic() - began < PATIENCE


INTERRUPTED = """
import asyncio, os, signal, threading, tensorlane.aio
async def main():
    async with tensorlane.aio.local() as client:
        get = asyncio.create_task(client.get("never", wait=600))
        await client.status()
        os.kill(os.getpid(), signal.SIGINT)
        await get
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_keyboard_interrupt_ends_the_loop_the_gets_and_the_sidecar():
    assert said(python(INTERRUPTED)) == "interrupted\n"


def test_a_connect_that_waits_for_its_sidecar_is_withdrawn(tmp_path):
    async def work():
        connecting = asyncio.create_task(tensorlane.aio.connect(tmp_path, patience=3600))
        await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    # The threads of the loop are waited for when it ends.
    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_time_of_a_call_counts_while_all_threads_of_its_kind_are_busy(sidecar, monkeypatch):
    monkeypatch.setattr(tensorlane.aio, "GETS_MAX", 1)
    monkeypatch.setattr(tensorlane.aio, "WRITES_MAX", 1)

    async def work(client):
        waiting = asyncio.create_task(client.get("aio/never", wait=600))
        await begun(client)
        with pytest.raises(tensorlane.Timeout, match="no thread was free"):
            await client.get("aio/other", deadline=0.1)
        waiting.cancel()
        async with await client.listen("aio/busy") as listener:
            near = await client.connect_pipe("aio/busy")
            far = await listener.accept()
            writing = asyncio.create_task(near.write(metadata="first", timeout=60))
            descriptor = await far.read_descriptor()
            with pytest.raises(tensorlane.Timeout, match="no thread was free") as late:
                await near.write(metadata="second", timeout=0.1)
            await far.receive(descriptor)
            await writing
            return late.value.delivered

    assert run(sidecar, work) == "no"


def test_a_cancel_that_calls_share_is_used_by_its_owner_alone(sidecar):
    async def work(client):
        cancel = tensorlane.Cancel()
        given_up, waits = (asyncio.create_task(client.get(f"aio/shared/{at}", wait=100, cancel=cancel)) for at in range(2))
        await begun(client)
        assert len(client._pending) == 2
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert not cancel.cancelled and len(client._pending) == 1
        cancel.cancel()
        with pytest.raises(tensorlane.Withdrawn):
            await waits
        with pytest.raises(tensorlane.Withdrawn):
            await client.get("aio/shared/1", wait=100, cancel=cancel)
        assert not client._pending
        return True

    assert run(sidecar, work)


def test_awaited_ends_and_clients_have_the_properties_of_the_blocking_ones():
    from tensorlane import aio, channels, pipes, watching

    pairs = [
        (tensorlane.Client, aio.AsyncClient),
        (channels.ChannelWriter, aio.AsyncChannelWriter),
        (channels.ChannelReader, aio.AsyncChannelReader),
        (pipes.Pipe, aio.AsyncPipe),
        (pipes.Listener, aio.AsyncListener),
        (watching.Watch, aio.AsyncWatch),
    ]
    for blocking, awaited in pairs:
        assert {name for name, value in vars(blocking).items() if isinstance(value, property)} <= set(dir(awaited)), awaited


def test_awaited_ends_say_who_is_at_the_other_end_and_what_was_missed(sidecar):
    async def work(client):
        async with await client.channel_writer("aio/told", policy="latest") as writer:
            await writer.write(b"a")
            async with await client.channel_reader("aio/told", oldest=True) as reader:
                told = reader.policy, reader.first, reader.missed, reader.peer, writer.dropped
                assert reader.writer and client.peer and client.exchange
                return told

    assert run(sidecar, work) == ("latest", 0, 0, "", 0)


def test_awaited_times_are_numbers_of_any_kind(sidecar):
    async def work(client):
        async with await client.channel_writer("aio/times") as writer, await client.channel_reader("aio/times") as reader:
            await writer.write(b"a", timeout=np.float16(60))
            assert (await reader.read(timeout=np.float16(60))).value == b"a"
            for wrong in ("5", float("nan")):
                with pytest.raises(tensorlane.Error, match="number of seconds"):
                    await reader.read(timeout=wrong)
                with pytest.raises(tensorlane.Error, match="number of seconds"):
                    await client.get("aio/never", deadline=wrong, wait=1)
        return True

    assert run(sidecar, work)
