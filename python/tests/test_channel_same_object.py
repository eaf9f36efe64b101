"""Readers in the process of their writer: the very objects that were written, and what becomes of them."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch

import tensorlane
import tensorlane.aio

from conftest import PATIENCE, python, said, until

VALUES = [
    {"step": 7, "obs": [np.arange(3), ("text", None)]},
    np.arange(4),
    [np.ones(2), np.zeros(3)],
    torch.arange(5),
    b"bytes",
    bytearray(b"more"),
    None,
    2.5,
]


@pytest.fixture
def name(request):
    return request.node.name


def alive(references) -> list[int]:
    """Numbers of the objects that somebody has."""
    gc.collect()
    return [number for number, reference in enumerate(references) if reference() is not None]


def written(writer, *numbers: int) -> list[weakref.ref]:
    """Writes an array for each number, which nobody has but the channel."""
    references = []
    for number in numbers:
        array = np.full(3, number)
        references.append(weakref.ref(array))
        writer.write(array, timeout=60)
    return references


def blocker(writer) -> int:
    """Number of the reader that holds a writer up. Errors keep the frames of their call, and so what is written."""
    try:
        writer.write(b"more", timeout=0)
    except tensorlane.Timeout as blocked:
        return int(blocked.details["reader"])
    raise AssertionError("nobody holds the writer up")


def reason(reader) -> str:
    """Reason for which a reader gets nothing."""
    try:
        reader.read()
    except tensorlane.Error as refused:
        return refused.reason
    raise AssertionError("it gets a message")


@pytest.mark.parametrize("apart", [False, True], ids=["one-client", "two-clients"])
def test_a_reader_in_the_process_of_its_writer_gets_the_very_object(sidecar, client, name, apart):
    """S1.2, S1.7, S1.22"""
    with ExitStack() as stack:
        other = stack.enter_context(tensorlane.connect(sidecar.directory)) if apart else client
        writer = stack.enter_context(client.channel_writer(name, same_object=True))
        reader = stack.enter_context(other.channel_reader(name, same_object=True))
        [told] = client.channels(name)[0]["readers"]
        assert (reader.route, told["route"]) == ("process", "local"), "the sidecar carries the bytes, and knows no objects"
        for sequence, value in enumerate(VALUES):
            assert writer.write(value) == sequence
            with reader.read() as message:
                assert message.sequence == sequence and message.value is value
            assert message.value is value, "it needs no place in the ring"
        writer.write(np.arange(3))
        assert reader.read().tensors[0].numpy().tolist() == [0, 1, 2], "the bytes are there, too"


@pytest.mark.parametrize(("writes", "reads"), [(True, False), (False, True), (False, False)])
def test_an_end_that_does_not_say_so_has_messages_as_always(client, name, writes, reads):
    with client.channel_writer(name, same_object=writes) as writer, client.channel_reader(name, same_object=reads) as reader:
        writer.write(array := np.arange(3))
        with reader.read() as message:
            assert reader.route == "local" and message.value is not array
            assert isinstance(message.value, tensorlane.Tensor) and message.value.numpy().tolist() == [0, 1, 2]


def test_readers_elsewhere_get_what_was_written_and_those_here_what_it_is(client, name):
    """S1.22, S1.23"""
    script = """
import sys, tensorlane
with tensorlane.connect(sys.argv[1]).channel_reader(sys.argv[2], wait=60, same_object=True) as reader:
    print(reader.route, [message.value["obs"].numpy().tolist() for message in reader])
"""
    elsewhere = python(script, client.directory, name)
    with client.channel_writer(name, expect_readers=3, same_object=True) as writer:
        here, maps = client.channel_reader(name, same_object=True), client.channel_reader(name)
        writer.write(value := {"obs": np.arange(3)}, timeout=60)
        value["obs"][0] = 9
        with here.read() as same, maps.read() as mapped:
            assert same.value is value
            assert mapped.value["obs"].numpy().tolist() == [0, 1, 2], "what is changed behind the write is changed here alone"
    assert said(elsewhere) == "local [[0, 1, 2]]\n"


def test_a_value_that_the_ring_refuses_is_refused_and_not_kept(client, name):
    options = {"slots": 2, "slot_bytes": 4096, "fixed": True, "same_object": True}
    with client.channel_writer(name, **options) as writer, client.channel_reader(name, same_object=True) as reader:
        array = np.zeros(8192)
        lost = [weakref.ref(array)]
        with pytest.raises(tensorlane.Invalid, match="TOO_LARGE"):
            writer.write(array)
        kept = written(writer, 0)
        for kind, beside in ((tensorlane.Unsupported, [object()]), (tensorlane.Invalid, [])):
            array = np.zeros(7)
            lost.append(weakref.ref(array))
            with pytest.raises(kind):
                writer.write([array, *beside])
        kept += written(writer, 1)
        array = np.full(3, 2)
        lost.append(weakref.ref(array))
        with pytest.raises(tensorlane.Timeout):
            writer.write(array, timeout=0)
        del array
        until("nothing of it is kept", lambda: alive(lost) == [])
        assert alive(kept) == [0, 1]
        for number in range(2):
            assert reader.read().value is kept[number]()
        writer.write(array := np.full(3, 3))
        assert reader.read().value is array


def test_an_object_is_kept_for_as_long_as_its_message_lies_in_the_ring(client, name):
    with client.channel_writer(name, slots=3, same_object=True) as writer, client.channel_reader(name, same_object=True) as reader:
        kept = []
        for number in range(10):
            kept += written(writer, number)
            assert reader.read().value is kept[number]()
        assert alive(kept) == [7, 8, 9]
        kept += written(writer, 10)
        writer.finish()
        assert reader.read().value is kept[10](), "a reader has what it has not read"
        assert reader.read() is None
        assert (alive(kept), reader.route) == ([], "process")


def test_nothing_is_left_of_readers_that_lag_are_closed_or_are_evicted(client, name):
    with client.channel_writer(name, slots=4, evictable=True, same_object=True) as writer:
        lags, closed, evicted = (client.channel_reader(name, same_object=True) for _ in range(3))
        kept = written(writer, *range(4))
        closed.close()
        until("the closed one is gone", lambda: writer.readers == 2)
        for _ in range(2):
            writer.evict(blocker(writer))
        kept += written(writer, *range(4, 20))
        assert alive(kept) == [16, 17, 18, 19]
        assert [reason(reader) for reader in (lags, evicted)] == ["EVICTED"] * 2
        late = client.channel_reader(name, oldest=True, same_object=True)
        assert late.read().value is kept[late.first](), "also of messages from before its attach"
        del lags, closed, evicted
        writer.finish()
        assert alive(kept) == [16, 17, 18, 19], "the late one has not read them"
        late.close()
        until("all are gone", lambda: alive(kept) == [])


def test_a_writer_and_a_reader_that_are_dropped_leave_nothing(client, name):
    writer = client.channel_writer(name, same_object=True)
    reader = client.channel_reader(name, same_object=True)
    kept = written(writer, 0, 1)
    del writer
    assert reader.read().value is kept[0]()
    assert alive(kept) == [0, 1]
    del reader
    until("all are gone", lambda: alive(kept) == [])


@pytest.mark.parametrize("policy", ["block", "latest", "drop_oldest"])
def test_each_message_comes_with_its_object_however_slow_its_reader_is(client, name, policy):
    count, values, most = 2000, {}, 0

    def write(writer, kept):
        nonlocal most
        for number in range(count):
            # Known before a reader may see it.
            values[number] = {"number": number}
            assert writer.write(values[number], timeout=60) == number
            most = max(most, len(kept))
        writer.finish()

    with client.channel_writer(name, slots=6, policy=policy, same_object=True) as writer, ThreadPoolExecutor(1) as pool:
        readers = [client.channel_reader(name, same_object=True) for _ in range(2)]
        writing = pool.submit(write, writer, writer._objects.kept)
        got, held = [0, 0], {}
        while readers[0] is not None or readers[1] is not None:
            for which, reader in enumerate(readers):
                if reader is None:
                    continue
                message = reader.read(timeout=60)
                if message is None:
                    assert got[which] + reader.dropped == count
                    readers[which] = None
                    continue
                assert message.value is values[message.sequence]
                got[which] += 1
                # One is held behind the next: its slot is passed over.
                held[which] = message
                del message
        writing.result(60)
    assert most <= 6 and all(one.value is values[one.sequence] for one in held.values())


def test_a_reader_that_waits_has_the_objects_of_a_writer_that_is_gone_when_it_is_attached(client, name):
    def read(channel):
        with client.channel_reader(channel, wait=60, same_object=True) as reader:
            return [message.value for message in reader]

    with ThreadPoolExecutor(1) as pool:
        for number in range(30):
            channel, values = f"{name}-{number}", [np.arange(3) for _ in range(3)]
            reading = pool.submit(read, channel)
            with client.channel_writer(channel, expect_readers=1, same_object=True) as writer:
                for value in values:
                    writer.write(value, timeout=60)
            del writer
            got = reading.result(PATIENCE)
            assert len(got) == 3 and all(map(operator.is_, got, values))


def test_channels_of_one_name_at_two_sidecars_are_told_apart(clients, name):
    there, here = clients
    far, near = {"obs": np.arange(3)}, {"obs": np.arange(4)}
    with ExitStack() as stack:
        writers = [stack.enter_context(client.channel_writer(name, same_object=True)) for client in clients]
        own = stack.enter_context(there.channel_reader(f"node-0/{name}", same_object=True))
        own_too = stack.enter_context(here.channel_reader(name, same_object=True))
        remote = stack.enter_context(here.channel_reader(f"node-0/{name}", same_object=True))
        assert [reader.route for reader in (own, own_too, remote)] == ["process", "process", "tcp"]
        for writer, value in zip(writers, (far, near)):
            writer.write(value)
        assert own.read().value is far and own_too.read().value is near
        assert remote.read(timeout=60).value["obs"].numpy().tolist() == [0, 1, 2]


def test_a_forked_child_gets_none_of_the_objects_of_its_parent(client, name):
    value = {"obs": np.arange(3)}
    with client.channel_writer(name, same_object=True) as writer, client.channel_reader(name, same_object=True) as ours:
        writer.write(value)

        def attached():
            try:
                return client.channel_reader(name, oldest=True, same_object=True)
            except tensorlane.Error:
                return None

        child = os.fork()
        if child == 0:
            code = 1
            try:
                reader = until("it is attached", attached)
                got = reader.read(timeout=60).value
                code = 0 if reader.route == "local" and got is not value and got["obs"].numpy().tolist() == [0, 1, 2] else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert ours.read().value is value


def test_a_cache_gives_the_very_object_to_each_of_its_reads(client, name):
    """S1.1, S1.22"""
    with client.channel_writer(name, same_object=True) as writer, client.channel_reader(name, same_object=True).cached(2) as cached:
        for value in VALUES:
            writer.write(value)
            for _ in range(2):
                with cached.read() as message:
                    assert message.value is value


def test_what_is_pickled_for_others_is_itself_here(client, name):
    with client.channel_writer(name, pickle=True, same_object=True) as writer:
        with client.channel_reader(name, same_object=True) as reader:
            writer.write(tags := {1, 2})
            assert reader.read().value is tags


def test_a_reader_that_follows_takes_no_objects(client, name):
    with pytest.raises(tensorlane.Invalid, match="leave out follow"):
        client.channel_reader(name, follow=True, same_object=True)


def test_an_awaited_reader_gets_the_very_object(sidecar, name):
    async def main():
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            async with await client.channel_writer(name, same_object=True) as writer:
                async with await client.channel_reader(name, same_object=True) as reader:
                    for value in VALUES:
                        await writer.write(value, timeout=60)
                        assert (await reader.read(timeout=60)).value is value
                    assert reader.route == "process"

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
