"""Channels and pipes for asyncio: what is taken in order, and what a cancelled task loses: nothing."""

from __future__ import annotations

import asyncio
import gc
import math
import threading

import numpy as np
import pytest

import tensorlane
import tensorlane.aio
from conftest import PATIENCE, python, said


@pytest.fixture
def name(request):
    return request.node.name


def run(sidecar, work):
    """The result of `work(client)` in a loop of its own."""

    async def main():
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            return await asyncio.wait_for(work(client), PATIENCE)

    return asyncio.run(main())


async def begun(call) -> None:
    """Waits until a thread has the call that this gives."""
    while (found := call()) is None or not found.running():
        await asyncio.sleep(0.005)


async def given_up(end) -> None:
    """Asks an end for what comes next, and gives that up once a thread waits for it."""
    before, asked = end._next._wait, asyncio.create_task(end.read(timeout=math.inf))
    # The thread of a read before it may not have ended yet.
    await begun(lambda: None if end._next._wait in (None, before) else end._next._wait.call)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


def test_a_channel_is_written_and_read_in_order(sidecar, name):
    async def work(client):
        async with await client.channel_writer(name, expect_readers=1) as writer:

            async def read():
                async with await client.channel_reader(name) as reader:
                    assert reader.route == "local"
                    return [int(message.value.numpy()[0]) async for message in reader]

            reading = asyncio.create_task(read())
            for number in range(20):
                await writer.write(np.full(3, number), timeout=60)
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


def test_a_write_behind_one_that_was_cancelled_waits_for_it_and_both_arrive_in_order(sidecar, client, name):
    async def work(awaited):
        async with await awaited.channel_writer(name, slots=2) as writer:
            with client.channel_reader(name, hold=1) as reader:
                await writer.write(b"first")
                await writer.write(b"second")
                cancelled = asyncio.create_task(writer.write(b"cancelled", timeout=60))
                await begun(lambda: writer._writing)
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)
                # The time of the next one counts while it waits.
                with pytest.raises(tensorlane.Timeout) as late:
                    await asyncio.wait_for(writer.write(b"late", timeout=0.2), 60)
                behind = asyncio.create_task(writer.write(b"behind", timeout=60))
                await asyncio.sleep(0)
                got = []
                for _ in range(4):
                    message = await asyncio.to_thread(reader.read, timeout=60)
                    got.append(message.value)
                    message.release()
                return got, await behind, "before this one" in str(late.value)

    assert run(sidecar, work) == ([b"first", b"second", b"cancelled", b"behind"], 3, True)


def test_writes_of_several_tasks_to_a_channel_come_in_order(sidecar, client, name):
    async def work(awaited):
        async with await awaited.channel_writer(name, slots=2) as writer:
            with client.channel_reader(name, hold=1) as reader:
                writes = asyncio.gather(*[writer.write(bytes([number])) for number in range(5)])
                got = []
                for _ in range(5):
                    message = await asyncio.to_thread(reader.read, timeout=60)
                    got.append(message.value[0])
                    message.release()
                return got, await writes

    assert run(sidecar, work) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_a_reader_is_evicted_while_a_write_waits_for_it(sidecar, client, name):
    async def work(awaited):
        async with await awaited.channel_writer(name, slots=2, evictable=True) as writer:
            with client.channel_reader(name, hold=1):
                number = client.channels(name)[0]["readers"][0]["reader"]
                # More than there are slots, and nobody reads.
                writes = asyncio.gather(*[writer.write(bytes([byte]), timeout=60) for byte in range(8)])
                while client.channels(name)[0]["written"] < 2:
                    await asyncio.sleep(0)
                await writer.evict(number)
                return await writes, writer.dropped

    assert run(sidecar, work) == (list(range(8)), 0)


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


def test_an_end_that_is_left_waits_for_writes_of_other_tasks(sidecar, name):
    async def work(client):
        async with await client.listen(name) as listener:
            async with await client.connect_pipe(name) as near:
                far = await listener.accept()
                writing = asyncio.create_task(near.write(metadata="last", timeout=60))
                descriptor = await far.read_descriptor()

                async def read():
                    await asyncio.sleep(0.2)
                    return (await far.receive(descriptor)).metadata, await far.read()

                reading = asyncio.create_task(read())
            await writing
            return await reading

    assert run(sidecar, work) == (b"last", None)


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


def test_a_reader_of_the_latest_gets_the_newest_after_a_read_that_timed_out(sidecar, client, name):
    async def work(awaited):
        got = []
        with client.channel_writer(name, policy="latest", slots=8) as writer:
            async with await awaited.channel_reader(name) as reader:
                for _ in range(3):
                    with pytest.raises(tensorlane.Timeout):
                        await reader.read(timeout=0.2)
                    for number in range(10):
                        writer.write(bytes([number]))
                    message = await reader.read()
                    got.append((message.value, message.dropped, reader.dropped))
                    message.release()
        return got

    assert run(sidecar, work) == [(b"\x09", 9, 9), (b"\x09", 9, 18), (b"\x09", 9, 27)]


def test_what_a_cancelled_read_took_is_passed_over_for_a_newer_message_and_else_kept(sidecar, client, name):
    async def work(awaited):
        got = []
        with client.channel_writer(name, policy="latest", slots=8) as writer:
            async with await awaited.channel_reader(name) as reader:
                for last in (0, 9):
                    waiting = asyncio.create_task(reader.read(timeout=math.inf))
                    await asyncio.sleep(0.01)
                    waiting.cancel()
                    # Taken by the thread, whose step is not over yet, or left where it is.
                    writer.write(bytes([0]))
                    await asyncio.gather(waiting, return_exceptions=True)
                    wait = reader._next._wait
                    while wait is not None and not wait.call.done():
                        await asyncio.sleep(0.005)
                    for number in range(1, last + 1):
                        writer.write(bytes([number]))
                    message = await reader.read()
                    assert reader.dropped == message.dropped
                    got.append((message.value, message.dropped))
                    message.release()
        return got

    assert run(sidecar, work) == [(b"\x00", 0), (b"\x09", 9)]


def test_nothing_is_taken_from_a_channel_for_nobody(sidecar, client, name):
    async def work(awaited):
        with client.channel_writer(name, slots=2) as writer:
            async with await awaited.channel_reader(name, hold=1) as reader:
                with pytest.raises(tensorlane.Timeout):
                    await reader.read(timeout=0.02)
                await given_up(reader)
                while not reader._next._wait.call.done():
                    await asyncio.sleep(0.005)
                writer.write(b"first")
                await asyncio.sleep(0.1)
                assert reader._end.read(timeout=0).value == b"first", "it is there yet"
        return True

    assert run(sidecar, work)


def test_a_reader_that_waits_does_nothing_until_a_message_is_there_or_nobody_waits(sidecar, client, name):
    async def work(awaited):
        with client.channel_writer(name) as writer:
            async with await awaited.channel_reader(name) as reader:
                tries, take = [], reader._next._take
                reader._next._take = lambda *given, **named: tries.append(given) or take(*given, **named)
                waiting = asyncio.create_task(reader.read(timeout=math.inf))
                while not tries:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.5)
                assert len(tries) == 1
                writer.write(b"first")
                assert (await waiting).value == b"first"
                waiting = asyncio.create_task(reader.read(timeout=math.inf))
                while len(tries) == 1:
                    await asyncio.sleep(0.005)
                wait = reader._next._wait
                waiting.cancel()
                while not wait.call.done():
                    await asyncio.sleep(0.005)
                assert isinstance(wait.call.exception(), tensorlane.Withdrawn) and len(tries) == 2
        return True

    assert run(sidecar, work)


@pytest.mark.parametrize("kind", ["accept", "read_descriptor", "read", "reader", "watch"])
def test_time_counts_while_another_task_waits_at_the_same_end(sidecar, client, name, kind):
    async def work(awaited):
        async with await awaited.listen(name) as listener:
            near = await awaited.connect_pipe(name)
            far = await listener.accept()
            with client.channel_writer(name):
                reader = await awaited.channel_reader(name)
                watch = awaited.watch(name)
                await watch.next()
                calls = [listener.accept, far.read_descriptor, far.read, reader.read, watch.next]
                call = {"reader": reader.read, "watch": watch.next, **{one.__name__: one for one in calls[:2]}, "read": far.read}[kind]
                first = asyncio.create_task(call(timeout=math.inf))
                await asyncio.sleep(0.02)
                for timeout in (0.1, 0):
                    with pytest.raises(tensorlane.Timeout):
                        await asyncio.wait_for(call(timeout=timeout), 60)
                assert not first.done()
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                await reader.close()
            del near
        return True

    assert run(sidecar, work)


def test_time_counts_while_all_threads_of_the_client_wait(sidecar, name, monkeypatch):
    monkeypatch.setattr(tensorlane.aio, "NEXT_MAX", 1)

    async def work(awaited):
        async with await awaited.listen(name) as listener, await awaited.listen(f"{name}/other") as other:
            waiting = asyncio.create_task(listener.accept(timeout=math.inf))
            await asyncio.sleep(0.02)
            for timeout in (0.1, 0):
                with pytest.raises(tensorlane.Timeout):
                    await asyncio.wait_for(other.accept(timeout=timeout), 60)
            near = await awaited.connect_pipe(name)
            await waiting
            another = await awaited.connect_pipe(f"{name}/other")
            await other.accept(timeout=60)
            del near, another
        return True

    assert run(sidecar, work)


def test_ends_that_nobody_asks_leave_their_threads_to_others(sidecar, name, monkeypatch):
    monkeypatch.setattr(tensorlane.aio, "NEXT_MAX", 3)

    async def work(awaited):
        async with await awaited.listen(name) as listener:
            near = [await awaited.connect_pipe(name) for _ in range(6)]
            far = [await listener.accept() for _ in near]
            waits = [asyncio.create_task(pipe.read(timeout=60)) for pipe in far[:3]]
            for pipe in far[:3]:
                await begun(lambda: pipe._next._wait and pipe._next._wait.call)
            for pipe in far[3:]:
                with pytest.raises(tensorlane.Timeout, match="no thread was free"):
                    await pipe.read(timeout=0.01)
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            writing = asyncio.create_task(near[-1].write(metadata="there", timeout=60))
            received = await far[-1].read(timeout=60)
            await writing
            # What waits longer than a step of its thread gets its message, too.
            waiting = asyncio.create_task(far[0].read(timeout=60))
            await asyncio.sleep(2.2)
            await near[0].write(metadata="later", timeout=60)
            return received.metadata, (await waiting).metadata

    assert run(sidecar, work) == (b"there", b"later")


async def take_for_nobody(reader, writer) -> None:
    """Has the thread of a reader take the message `kept` though nobody asks."""
    end = reader._end
    reader._next._wake = lambda: None
    reader._next._take = lambda left, cancel: end.read(timeout=60)
    await given_up(reader)
    writer.write(b"kept")
    taken = reader._next._wait.call
    while not taken.done():
        await asyncio.sleep(0.005)


def test_what_a_cancelled_read_took_is_kept_while_no_thread_is_free_to_look_for_a_newer_message(sidecar, client, name, monkeypatch):
    monkeypatch.setattr(tensorlane.aio, "NEXT_MAX", 1)

    async def work(awaited):
        with client.channel_writer(name, policy="latest") as writer:
            async with await awaited.channel_reader(name) as reader, await awaited.listen(name) as listener:
                await take_for_nobody(reader, writer)
                waiting = asyncio.create_task(listener.accept(timeout=math.inf))
                await asyncio.sleep(0)
                for _ in range(2):
                    with pytest.raises(tensorlane.Timeout):
                        await asyncio.wait_for(reader.read(timeout=0.1), 60)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                return (await reader.read(timeout=60)).value

    assert run(sidecar, work) == b"kept"


@pytest.mark.parametrize("kind", ["receive", "read"])
def test_time_counts_while_gets_have_all_threads_that_bring_bytes(sidecar, name, monkeypatch, kind):
    monkeypatch.setattr(tensorlane.aio, "GETS_MAX", 1)

    async def main():
        async with await tensorlane.aio.connect(sidecar.directory) as awaited:
            async with await awaited.listen(name) as listener:
                near = await awaited.connect_pipe(name)
                far = await listener.accept()
                taking = asyncio.create_task(awaited.get(f"{name}/missing", wait=60))
                await asyncio.sleep(0)
                writing = asyncio.create_task(near.write(metadata="kept", timeout=60))
                if kind == "receive":
                    descriptor = await far.read_descriptor(timeout=60)
                    call = far.receive(descriptor, timeout=1)
                else:
                    # Bytes have the deadline of the client, and the message has its own time.
                    monkeypatch.setattr(awaited._client, "_deadline", 1.0)
                    call = far.read(timeout=60)
                with pytest.raises(tensorlane.Timeout, match="no thread was free"):
                    await asyncio.wait_for(call, 40)
                monkeypatch.setattr(awaited._client, "_deadline", 30.0)
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
                received = await (far.receive(descriptor, timeout=60) if kind == "receive" else far.read())
                await writing
                return received.metadata

    assert asyncio.run(main()) == b"kept"


def test_a_read_of_the_latest_is_over_in_time_while_a_newer_message_is_looked_for(sidecar, client, name):
    goes_on = threading.Event()

    async def work(awaited):
        with client.channel_writer(name, policy="latest") as writer:
            async with await awaited.channel_reader(name) as reader:
                # The look for a newer one takes long.
                renew = reader._next._renew
                reader._next._renew = lambda kept: goes_on.wait(60) and renew(kept)
                await take_for_nobody(reader, writer)
                with pytest.raises(tensorlane.Timeout):
                    await asyncio.wait_for(reader.read(timeout=0.1), 60)
                goes_on.set()
                return (await reader.read()).value

    assert run(sidecar, work) == b"kept"


def test_a_message_whose_read_was_cancelled_while_its_bytes_came_is_read_by_the_next_call(sidecar, name, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    read = tensorlane.Descriptor.read

    def slow(self, places=None):
        begun.set()
        assert goes_on.wait(60)
        return read(self, places)

    monkeypatch.setattr(tensorlane.Descriptor, "read", slow)

    async def work(awaited):
        async with await awaited.listen(name) as listener:
            near = await awaited.connect_pipe(name)
            far = await listener.accept()
            writing = [asyncio.create_task(near.write(metadata=one)) for one in ("first", "second")]
            reading = asyncio.create_task(far.read())
            await asyncio.to_thread(begun.wait, 20)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            goes_on.set()
            got = [(await far.read()).metadata, (await far.read()).metadata]
            await asyncio.gather(*writing)
        return sorted(got)

    assert run(sidecar, work) == [b"first", b"second"]


def test_writes_that_wait_for_readers_keep_no_put_waiting(sidecar, name):
    async def work(awaited):
        async with await awaited.listen(name) as listener:
            near = await awaited.connect_pipe(name)
            far = await listener.accept()
            writes = [asyncio.create_task(near.write(metadata=str(number), timeout=60)) for number in range(40)]
            await asyncio.sleep(0.05)
            await asyncio.wait_for(awaited.put(np.arange(3)), 30)
            for _ in writes:
                await far.read()
            await asyncio.gather(*writes)
        return True

    assert run(sidecar, work)


@pytest.mark.parametrize("kind", ["connect_pipe", "channel_reader"])
def test_a_wait_for_an_end_that_is_not_there_is_withdrawn_with_its_task_and_its_client(sidecar, name, kind):
    async def main():
        awaited = await tensorlane.aio.connect(sidecar.directory)
        waits = [asyncio.create_task(getattr(awaited, kind)(name, wait=600)) for _ in range(2)]
        await asyncio.sleep(0.1)
        waits[0].cancel()
        await asyncio.wait_for(awaited.close(), 20)
        return [type(one) for one in await asyncio.gather(*waits, return_exceptions=True)]

    assert asyncio.run(main()) == [asyncio.CancelledError, tensorlane.Withdrawn]
