"""Lists of peers that may read a channel and connect a pipe, readers that are evicted, and readers that follow a name."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import tensorlane
import tensorlane.aio

from conftest import until


@pytest.fixture
def name(request):
    return request.node.name


def fill(writer: tensorlane.ChannelWriter) -> int:
    """Writes until a reader holds the writer up: the number of that."""
    for _ in range(100):
        try:
            writer.write(b"x", timeout=0)
        except tensorlane.Error as blocked:
            assert blocked.reason == "BLOCKED_BY"
            return int(blocked.details["reader"])
    raise AssertionError("nobody holds the writer up")


def test_other_peers_read_and_connect_as_they_are_named(clients, name):
    there, here = clients
    for patterns, allowed in ((["node-0", "x*"], False), ([], False), (("node-*",), True)):
        with there.channel_writer(name, readers=patterns) as writer, there.channel_reader(name) as own:
            if allowed:
                with here.channel_reader(f"node-0/{name}") as reader:
                    writer.write(b"to both")
                    assert reader.read().value == b"to both"
            else:
                with pytest.raises(tensorlane.Refused) as refused:
                    here.channel_reader(f"node-0/{name}")
                assert refused.value.reason == "PERMISSION_DENIED" and refused.value.details["peer"] == "node-1"
                writer.write(b"to its own pod")
            assert own.read().value.startswith(b"to ")
            assert there.channels(name)[0]["allowed"] == list(patterns)
        with there.listen(name, allow=patterns) as listener:
            if allowed:
                with here.connect_pipe(f"node-0/{name}"):
                    assert listener.accept(timeout=60).peer == "node-1"
            else:
                with pytest.raises(tensorlane.Refused):
                    here.connect_pipe(f"node-0/{name}")


def test_one_pattern_alone_is_refused_with_what_was_meant(client, name):
    for call in (lambda: client.channel_writer(name, readers="rollout-*"), lambda: client.listen(name, allow="rollout-*")):
        with pytest.raises(TypeError, match=r"give \['rollout-\*'\]"):
            call()
    with pytest.raises(TypeError, match="no list of texts"):
        client.channel_writer(name, readers=7)


def test_more_readers_than_a_channel_may_have_are_not_expected(client, name):
    with pytest.raises(tensorlane.Invalid, match="3 readers are expected") as refused:
        client.channel_writer(name, readers_max=2, expect_readers=3)
    assert refused.value.details == {"expect_readers": "3", "most": "2"}


def test_a_reader_is_evicted_by_hand_and_in_time_and_keeps_its_arrays(client, name):
    with client.channel_writer(name, evictable=True) as writer, client.channel_reader(name) as slow:
        writer.write(np.arange(100))
        held = slow.read().value.numpy()
        writer.evict(fill(writer))
        for number in range(50):
            writer.write(np.full(100, number), timeout=60)
        assert writer.readers == 0 and (held == np.arange(100)).all()
        with pytest.raises(tensorlane.Error) as evicted:
            slow.read()
        assert evicted.value.reason == "EVICTED"
        assert [reader["evicted"] for reader in client.channels(name)[0]["readers"]] == [True]
    with client.channel_writer(f"{name}-2", evict_after=0.2) as writer, client.channel_reader(f"{name}-2") as slow:
        for _ in range(20):
            writer.write(b"x", timeout=60)
        with pytest.raises(tensorlane.Error) as evicted:
            slow.read()
        assert evicted.value.reason == "EVICTED"
    with client.channel_writer(f"{name}-3") as writer, pytest.raises(tensorlane.Invalid, match="evictable"):
        writer.evict(1)


def test_messages_larger_than_a_slot_are_views_and_those_above_the_growth_are_refused(client, name):
    with client.channel_writer(name, slot_bytes=4096, growth=1 << 20) as writer, client.channel_reader(name) as reader:
        for count in (10, 100_000, 3, 131_072, 0):
            array = np.arange(count)
            writer.write(array)
            with reader.read() as message:
                np.testing.assert_array_equal(message.value.numpy(), array)
        writer.write({"tree": [b"x" * 8000, np.full(50_000, 7.0)], "step": 7})
        value = reader.read().value
        assert value["step"] == 7 and value["tree"][0] == b"x" * 8000
        kept = value["tree"][1].numpy()
        assert not kept.flags.writeable
        with pytest.raises(tensorlane.Invalid, match="1048584 bytes is larger than the 1048576 .* more growth") as refused:
            writer.write(np.arange(131_073))
        assert refused.value.reason == "TOO_LARGE" and refused.value.details["growth"] == "1048576"
        for number in range(3):
            writer.write(np.full(1_000, number), timeout=60)
            assert reader.read().value.numpy().max() == number
        assert (kept == 7.0).all()
        del value, kept
    until("nothing is left", lambda: not client.channels(name))
    with pytest.raises(tensorlane.Invalid, match="growth"):
        client.channel_writer(name, slot_bytes=4096, growth=10)


def test_an_awaited_writer_writes_messages_larger_than_a_slot(sidecar, name):
    async def run() -> None:
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            async with await client.channel_writer(name, slot_bytes=64, growth=1 << 20) as writer:
                async with await client.channel_reader(name) as reader:
                    await writer.write(np.arange(10_000), timeout=60)
                    with await reader.read(timeout=60) as message:
                        assert message.value.numpy().sum() == 49_995_000

    asyncio.run(run())


def test_a_reader_that_follows_counts_epochs_and_waits_within_its_timeout(client, name):
    with client.channel_writer(name) as writer:
        reader = client.channel_reader(name, follow=True)
        writer.write(b"0")
    assert (reader.read().epoch, reader.epoch) == (0, 0)
    with pytest.raises(tensorlane.Timeout):
        reader.read(timeout=0.2)
    for epoch in (1, 2):
        with client.channel_writer(name) as writer:
            writer.write(str(epoch).encode())
            message = reader.read(timeout=60)
            assert (message.epoch, message.sequence, message.value, message.dropped) == (epoch, 0, str(epoch).encode(), 0)
            del message
    reader.close()
    with pytest.raises(tensorlane.Error) as closed:
        reader.read()
    assert closed.value.reason == "CHANNEL_ENDED"
    until("nothing is left", lambda: not client.channels(name))


def test_a_reader_that_follows_counts_what_was_gone_of_the_next_channel(client, name):
    with client.channel_writer(name) as writer:
        reader = client.channel_reader(name, follow=True)
        writer.write(b"0")
    with reader.read() as message:
        assert (message.dropped, reader.missed, reader.dropped) == (0, 0, 0)
    # Nobody is attached: four slots are written over and over.
    with client.channel_writer(name, slots=4) as writer:
        for number in range(10):
            writer.write(str(number).encode())
        with reader.read(timeout=60) as message:
            assert (message.epoch, message.value) == (1, str(message.sequence).encode())
            assert 6 <= message.sequence < 10
            assert message.dropped == reader.missed == reader.dropped == message.sequence
        with reader.read(timeout=60) as message:
            assert (message.dropped, reader.dropped) == (0, reader.missed)
    reader.close()


def test_an_awaited_reader_follows_and_an_awaited_writer_evicts(sidecar, name):
    async def run() -> None:
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            async with await client.channel_writer(name) as writer:
                reader = await client.channel_reader(name, follow=True)
                await writer.write(b"0")
            assert (await reader.read()).epoch == 0
            async with await client.channel_writer(name, evictable=True) as writer:
                await writer.write(b"1")
                assert (await reader.read(timeout=60)).epoch == reader.epoch == 1
                with pytest.raises(tensorlane.Error, match="no reader 999"):
                    await writer.evict(999)
            await reader.close()

    asyncio.run(run())


def test_a_map_is_insisted_on_by_its_name(clients, name):
    there, here = clients
    with there.channel_writer(name), there.channel_reader(name, require="zero_copy,same_node") as own:
        assert own.route == "local"
        with pytest.raises(tensorlane.Error) as refused:
            here.channel_reader(f"node-0/{name}", require="zero_copy")
        assert refused.value.reason == "REQUIREMENT_NOT_MET"
        with pytest.raises(tensorlane.Invalid, match="zero_copy, same_node and encrypted"):
            here.channel_reader(f"node-0/{name}", require="fast")
