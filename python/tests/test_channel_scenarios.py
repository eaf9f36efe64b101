"""Scenarios of Ray's and vLLM's tests of channels, and faults that nobody plans, written anew: docs/channels.md maps them to lines."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

import tensorlane

from conftest import PATIENCE, in_time, nodes_of, pid_of, python, said, until


@pytest.fixture
def name(request):
    return request.node.name


@pytest.fixture
def three_clients(tmp_path):
    """A client of each of three nodes."""
    with nodes_of(tmp_path, 3, first_host=31, arena="256Mi") as nodes, ExitStack() as stack:
        clients = [stack.enter_context(tensorlane.connect(node.directory)) for node in nodes]
        for client in clients:
            until("all are connected", lambda client=client: sum(one.state == "connected" for one in client.peers()) == 2)
        yield clients


def numbers(reader: tensorlane.ChannelReader) -> list[int]:
    """Takes everything until the writer has finished; each message is its number again and again."""
    got = []
    for message in reader:
        with message:
            array = message.value.numpy()
            assert array.min() == array.max() == message.sequence
            got.append(int(array[0]))
            del array
    return got


def test_twenty_four_readers_get_a_thousand_messages_each(client, name):
    """Ray's mutable_object_test.cc, test_channel.py: one writer and many readers that read at the same time."""
    with ThreadPoolExecutor(24) as pool, client.channel_writer(name, expect_readers=24) as writer:
        reading = [pool.submit(numbers, client.channel_reader(name)) for _ in range(24)]
        for number in range(1000):
            assert writer.write(np.full(1 + number % 50, number), timeout=60) == number
        writer.finish()
        assert [one.result(60) for one in reading] == [list(range(1000))] * 24


def test_more_readers_than_were_expected_may_come_and_no_more_than_the_most(client, name):
    """Ray's test_channel.py: more readers than were said."""
    with client.channel_writer(name, expect_readers=1, readers_max=2) as writer:
        readers = [client.channel_reader(name) for _ in range(2)]
        writer.write(b"both")
        assert [reader.read().value for reader in readers] == [b"both"] * 2
        with pytest.raises(tensorlane.Exhausted) as refused:
            client.channel_reader(name)
        assert refused.value.reason == "LIMIT_EXCEEDED" and "2 readers already" in str(refused.value)
        readers[0].close()
        until("the closed one is gone", lambda: writer.readers == 1)
        with client.channel_reader(name) as later:
            writer.write(b"another")
            assert later.read().value == readers[1].read().value == b"another"


def test_an_end_writes_or_reads_and_never_both(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        assert not hasattr(writer, "read") and not hasattr(reader, "write")
        # One process may have both, as two ends.
        writer.write(b"to myself")
        assert reader.read().value == b"to myself"


def test_each_other_node_has_one_ring_that_its_readers_share(three_clients, name):
    """Every write comes to every node, into one ring for all readers there."""
    there, *others = three_clients
    with there.channel_writer(name, expect_readers=3) as writer, ThreadPoolExecutor(4) as pool:
        beside = there.channel_reader(name)
        elsewhere = [client.channel_reader(f"node-0/{name}") for client in (others[0], others[0], others[1])]
        assert [reader.route for reader in (beside, *elsewhere)] == ["local", "tcp", "tcp", "tcp"]
        assert writer.readers == 3, "those of one node are one"
        for client, readers in zip(others, (2, 1)):
            [ring] = client.channels()
            assert len(ring["readers"]) == readers
        free = [client.status().free_bytes for client in others]
        with others[1].channel_reader(f"node-0/{name}") as late:
            assert free[1] - others[1].status().free_bytes < 1 << 20, "another reader takes no ring of its own"
            assert late.route == "tcp" and writer.readers == 3
        reading = [pool.submit(numbers, reader) for reader in (beside, *elsewhere)]
        for number in range(100):
            writer.write(np.full(10_000, number), timeout=60)
        writer.finish()
        assert [one.result(60) for one in reading] == [list(range(100))] * 4
        for reader in (beside, *elsewhere):
            reader.close()
    until("nothing is left", lambda: all(not client.channels() for client in three_clients))


def test_channels_of_two_nodes_cross_in_both_directions(clients, name):
    """Ray's test_channel.py: several channels between two nodes."""

    def read(client, peer, number):
        with client.channel_reader(f"{peer}/{name}-{number}", wait=20) as reader:
            return numbers(reader)

    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        reading = [pool.submit(read, clients[1 - n % 2], f"node-{n % 2}", n) for n in range(6)]
        writers = [stack.enter_context(clients[n % 2].channel_writer(f"{name}-{n}", expect_readers=1)) for n in range(6)]
        for number in range(200):
            for writer in writers:
                writer.write(np.full(100, number), timeout=60)
        for writer in writers:
            writer.finish()
        assert [one.result(60) for one in reading] == [list(range(200))] * 6


def test_types_and_shapes_may_change_with_every_message_in_a_pod_and_on_another_node(clients, name):
    """Ray's test_torch_tensor_transport: dynamic shapes and types; each list comes in its order, whole."""
    there, here = clients
    with there.channel_writer(name, expect_readers=2) as writer:
        with there.channel_reader(name) as beside, here.channel_reader(f"node-0/{name}") as reader:
            for number in range(60):
                given = [
                    np.arange(number * 3, dtype=("u1", "f4", "i8")[number % 3]).reshape(3, number),
                    np.full((), number),
                    np.zeros((0, number % 4), np.float16),
                ]
                writer.write(given, timeout=60)
                for one in (beside, reader):
                    with one.read() as message:
                        got = [tensor.numpy(copy=True) for tensor in message.value]
                    for due, came in zip(given, got, strict=True):
                        assert due.dtype == came.dtype and due.shape == came.shape and np.array_equal(due, came)


def test_types_and_shapes_travel_only_where_they_change(client, name):
    """Ray's test_torch_tensor_transport: static metadata. A ring has eight places for layouts, so that many that change are a wait."""
    with client.channel_writer(name, slots=64) as writer, client.channel_reader(name) as reader:
        for number in range(20):
            writer.write(np.full(3, number), timeout=0)
        with pytest.raises(tensorlane.Timeout) as blocked:
            for number in range(20, 40):
                writer.write(np.full(number, number), timeout=0)
        assert blocked.value.reason == "BLOCKED_BY" and number == 27, "seven others have a place"
        for number in range(27):
            with reader.read(timeout=0) as message:
                assert message.value.numpy().tolist() == [number] * (3 if number < 20 else number)
        writer.write(np.zeros(100), timeout=0)


def test_a_ring_for_which_there_is_no_room_is_refused_and_leaves_nothing(name):
    with tensorlane.local(arena="64Mi") as client, tensorlane.connect(client.directory, deadline=1, patience=PATIENCE) as soon:
        with pytest.raises(tensorlane.Error) as never:
            client.channel_writer(name, slots=4, slot_bytes=32 << 20)
        assert never.value.reason == "NEVER_FITS"
        kept = client.put(np.zeros(40 << 20, np.uint8))
        full = in_time(tensorlane.Exhausted, lambda: soon.channel_writer(name, slots=4, slot_bytes=8 << 20))
        assert full.reason == "ARENA_FULL"
        assert not client.channels() and client.status().tensors == 1
        kept.release()
        until("its room is free", lambda: client.status().sealed_bytes == 0)
        with client.channel_writer(name, slots=4, slot_bytes=8 << 20) as writer, client.channel_reader(name) as reader:
            writer.write(b"fits")
            assert reader.read().value == b"fits"


def test_a_reader_whose_node_has_no_room_for_a_ring_is_told_so_and_holds_nobody(three_clients, name):
    there, here, _ = three_clients
    kept = here.put(np.zeros(200 << 20, np.uint8))
    with there.channel_writer(name, slots=4, slot_bytes=16 << 20) as writer:
        with tensorlane.connect(here.directory, deadline=2, patience=PATIENCE) as soon:
            full = in_time(tensorlane.Exhausted, lambda: soon.channel_reader(f"node-0/{name}"))
        assert full.reason == "ARENA_FULL"
        for _ in range(10):
            writer.write(b"alone", timeout=60)
        until("nobody is attached", lambda: writer.readers == 0)
        kept.release()
        until("its room is free", lambda: here.status().sealed_bytes == 0)
        with here.channel_reader(f"node-0/{name}") as reader:
            writer.write(b"now")
            assert reader.read(timeout=60).value == b"now"


WRITES = """
import sys, numpy, tensorlane
writer = tensorlane.connect(sys.argv[1]).channel_writer(sys.argv[2], expect_readers=1)
number = 0
while True:
    writer.write([numpy.full(1 + number * 7919 % 100_000, number), numpy.full(3, number)], timeout=60)
    number += 1
"""


def test_a_writer_that_is_killed_in_the_middle_of_its_writes_leaves_whole_messages(client, name):
    """Ray's mutable_object_test.cc: the writer fails at any point."""
    for turn in range(10):
        process = python(WRITES, client.directory, f"{name}-{turn}")
        number = 0
        with client.channel_reader(f"{name}-{turn}", wait=60) as reader, pytest.raises(tensorlane.Error) as lost:
            while True:
                with reader.read(timeout=60) as message:
                    assert message.sequence == number
                    large, small = (tensor.numpy(copy=True) for tensor in message.value)
                assert large.size == 1 + number * 7919 % 100_000 and (large == number).all()
                assert small.tolist() == [number] * 3
                number += 1
                if number == 11 * turn + 1:
                    process.kill()
        assert lost.value.reason == "CHANNEL_ENDED"
        process.communicate()
    until("nothing is left", lambda: not client.channels(name))


HOLDS = """
import os, sys, tensorlane
reader = tensorlane.connect(sys.argv[1]).channel_reader(sys.argv[2], wait=60)
held = reader.read(timeout=60).value.numpy()
if sys.argv[3] == "and a child":
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(int(held.sum() != 28))
print("holds", child if sys.argv[3] == "and a child" else 0, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("whose", ["alone", "and a child"])
def test_a_reader_that_is_killed_with_a_message_in_hand_is_waited_for_no_longer(client, name, whose):
    """Ray's mutable_object_test.cc: the reader fails after it acquired; a child of it may still map the message."""
    with client.channel_writer(name, slots=2, expect_readers=1) as writer:
        process = python(HOLDS, client.directory, name, whose)
        writer.write(np.arange(8), timeout=60)
        assert process.stdout.readline().startswith("holds")
        writer.write(b"second")
        with pytest.raises(tensorlane.Timeout) as blocked:
            writer.write(b"third", timeout=0)
        assert blocked.value.reason == "BLOCKED_BY" and f"python[{process.pid}]" in str(blocked.value)
        process.kill()
        process.wait(60)
        writer.write(b"third", timeout=60)
        until("it is no reader any more", lambda: writer.readers == 0)
        process.communicate()


def test_a_writer_that_comes_back_under_its_name_is_read_by_those_who_attach_again(client, name):
    script = """
import sys, numpy, tensorlane
with tensorlane.connect(sys.argv[1]) as client, client.channel_writer(sys.argv[2], expect_readers=1) as writer:
    writer.write(sys.argv[3].encode(), timeout=60)
    if sys.argv[3] == "first":
        sys.stdin.read()
"""
    first = python(script, client.directory, name, "first")
    with client.channel_reader(name, wait=60) as reader:
        assert reader.read().value == b"first"
        first.kill()
        with pytest.raises(tensorlane.Error) as lost:
            reader.read(timeout=60)
        assert lost.value.reason == "CHANNEL_ENDED"
        second = python(script, client.directory, name, "second")
        with client.channel_reader(name, wait=60) as again:
            assert (again.first, again.read(timeout=60).value) == (0, b"second")
            assert again.read(timeout=60) is None
        assert said(second) == ""
    first.communicate()


def test_a_peer_that_is_lost_is_another_error_than_a_writer_that_is_gone(tmp_path, name):
    with nodes_of(tmp_path, 2, first_host=91, arena="64Mi", TENSORLANE_GC_LEASE_GRACE="1s") as (there, here):
        with tensorlane.connect(there.directory) as owner, tensorlane.connect(here.directory) as client:
            writer = owner.channel_writer(name, slots=2, slot_bytes=1 << 16)
            with client.channel_reader(f"node-0/{name}") as reader:
                writer.write(b"last", timeout=60)
                assert reader.read(timeout=60).value == b"last"
                os.kill(pid_of(there), signal.SIGKILL)
                with pytest.raises(tensorlane.Unavailable) as lost:
                    reader.read(timeout=60)
                assert lost.value.reason == "PEER_UNREACHABLE" and "follow=True" in lost.value.remedy
            writer.close()
