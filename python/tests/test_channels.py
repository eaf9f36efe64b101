"""Channels of a pod from Python: values of one writer to readers of other processes, and the end of either."""

from __future__ import annotations

import math
import os
import signal
import threading

import numpy as np
import pytest
import torch

import tensorlane

from conftest import python, said, until


@pytest.fixture
def name(request):
    return request.node.name


def test_a_value_is_read_as_it_was_written_and_is_not_copied(client, name):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    values = [
        b"bytes",
        b"",
        array,
        torch.arange(6, dtype=torch.bfloat16),
        [array, np.arange(3)],
        {"obs": array, "reward": np.float64(1.5)},
        [np.zeros((0, 5))],
        array.T,
    ]
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        for sequence, value in enumerate(values):
            assert writer.write(value) == sequence
            with reader.read() as message:
                assert message.sequence == sequence
                got = message.value
                if isinstance(value, bytes):
                    assert got == value
                elif isinstance(value, dict):
                    assert {key: tensor.numpy().tolist() for key, tensor in got.items()} == {"obs": array.tolist(), "reward": 1.5}
                elif isinstance(value, list):
                    assert [tensor.numpy().tolist() for tensor in got] == [one.tolist() for one in value]
                elif isinstance(value, torch.Tensor):
                    assert torch.equal(got.torch(), value)
                else:
                    np.testing.assert_array_equal(got.numpy(), value)
                    assert not got.numpy().flags.writeable and got.route == "local"


def test_readers_in_other_processes_get_every_message_in_order(client, name):
    script = """
import sys, tensorlane
with tensorlane.connect(sys.argv[1]) as client:
    with client.channel_reader(sys.argv[2], wait=60) as reader:
        print(sum(int(message.value.numpy().sum()) for message in reader), reader.first)
"""
    readers = [python(script, client.directory, name) for _ in range(2)]
    with client.channel_writer(name, expect_readers=2, slot_bytes=4096) as writer:
        for number in range(1000):
            writer.write(np.full(100, number), timeout=60)
    assert [said(reader) for reader in readers] == [f"{100 * sum(range(1000))} 0\n"] * 2


def test_arrays_of_a_message_hold_its_place_and_are_counted(client, name):
    with client.channel_writer(name, slots=2) as writer, client.channel_reader(name) as reader:
        writer.write(np.arange(4))
        kept = reader.read().value.numpy()
        writer.write(np.arange(5))
        other = reader.read().value.numpy()
        with pytest.raises(tensorlane.Error) as limited:
            reader.read(timeout=0)
        assert limited.value.reason == "HOLD_LIMIT"
        with pytest.raises(tensorlane.Timeout) as blocked:
            writer.write(b"more", timeout=0)
        assert blocked.value.reason == "BLOCKED_BY" and f"python[{os.getpid()}]" in str(blocked.value)
        del kept
        writer.write(b"more", timeout=0)
        np.testing.assert_array_equal(other, np.arange(5))


def test_waits_end_in_time_and_name_what_was_waited_for(client, name):
    with pytest.raises(tensorlane.NotFound):
        client.channel_reader(name)
    with client.channel_writer(name, expect_readers=2) as writer:
        with pytest.raises(tensorlane.Timeout, match="0 of the 2 readers"):
            writer.write(b"nobody", timeout=0.05)
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        for timeout in (0, 0.05):
            with pytest.raises(tensorlane.Timeout):
                reader.read(timeout=timeout)
        with pytest.raises(tensorlane.NameTaken):
            client.channel_writer(name)
        assert client.channels(name)[0]["readers"][0]["behind"] == 0
        with pytest.raises(tensorlane.Invalid, match="TOO_LARGE"):
            writer.write(np.zeros(1 << 20))
        for wrong in (object(), {1: set()}, [np.zeros(1), len], np.zeros(1, object)):
            with pytest.raises(tensorlane.Unsupported):
                writer.write(wrong)
        writer.write(b"well")
        assert reader.read().value == b"well"


def test_an_exception_in_the_writer_is_no_orderly_end(client, name):
    reader = None
    with pytest.raises(RuntimeError), client.channel_writer(name) as writer:
        reader = client.channel_reader(name)
        writer.write(b"last")
        raise RuntimeError
    assert reader.read().value == b"last"
    with pytest.raises(tensorlane.Error) as lost:
        reader.read()
    assert lost.value.reason == "CHANNEL_ENDED"


def test_a_killed_writer_ends_a_read_that_sleeps(client, name):
    script = """
import sys, tensorlane
writer = tensorlane.connect(sys.argv[1]).channel_writer(sys.argv[2], expect_readers=1)
writer.write(b"only")
sys.stdin.read()
"""
    process = python(script, client.directory, name)
    with client.channel_reader(name, wait=60) as reader:
        assert reader.read().value == b"only"
        killer = threading.Thread(
            target=lambda: (until("the reader sleeps", lambda: client.channels(name)[0]["readers"][0]["waits"]), process.kill())
        )
        killer.start()
        with pytest.raises(tensorlane.Error) as lost:
            reader.read(timeout=math.inf)
        killer.join()
    assert lost.value.reason == "CHANNEL_ENDED"
    process.communicate()


def test_a_read_that_waits_for_ever_is_interrupted_and_closed(client, name):
    script = """
import math, sys, tensorlane
reader = tensorlane.connect(sys.argv[1]).channel_reader(sys.argv[2], wait=60)
print("reads", flush=True)
try:
    reader.read(timeout=math.inf)
except KeyboardInterrupt:
    print("interrupted")
"""
    with client.channel_writer(name):
        process = python(script, client.directory, name)
        assert process.stdout.readline() == "reads\n"
        until("the reader sleeps", lambda: client.channels(name)[0]["readers"][0]["waits"])
        process.send_signal(signal.SIGINT)
        assert said(process) == "interrupted\n"
        reader = client.channel_reader(name)
        failed = []

        def read():
            try:
                reader.read(timeout=math.inf)
            except tensorlane.Error as error:
                failed.append(error.reason)

        reading = threading.Thread(target=read)
        reading.start()
        until("the reader sleeps", lambda: any(one["waits"] for one in client.channels(name)[0]["readers"]))
        reader.close()
        reading.join()
        assert failed == ["CHANNEL_ENDED"]
        until("the closed reader is gone, though its object lives", lambda: not client.channels(name)[0]["readers"])
        assert reader.writer


@pytest.mark.parametrize("ends", ["reader.close()", "writer.finish()", "writer.close()"])
def test_a_signal_handler_may_close_the_end_that_its_thread_waits_for(client, name, ends):
    script = f"""
import math, signal, sys, tensorlane
client = tensorlane.connect(sys.argv[1])
writer = client.channel_writer(sys.argv[2], slots=2)
reader = client.channel_reader(sys.argv[2], hold=1)

def close(*_):
    {ends}
    print("closed", writer.readers, flush=True)

signal.signal(signal.SIGTERM, close)
print("waits", flush=True)
try:
    if "{ends}".startswith("reader"):
        reader.read(timeout=math.inf)
    else:
        while True:
            writer.write(b"more", timeout=math.inf)
except tensorlane.Error as error:
    print(type(error).__name__, error.reason)
"""
    process = python(script, client.directory, name)
    assert process.stdout.readline() == "waits\n"
    until("it waits", lambda: any(one["waits"] or one["behind"] == 2 for one in client.channels(name)[0]["readers"]))
    process.send_signal(signal.SIGTERM)
    told = said(process)
    assert told.startswith("closed 1") and ("CHANNEL_ENDED" in told or "Withdrawn" in told), told


def test_a_forked_child_is_refused_and_harms_nothing(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        writer.write(b"before")
        held = reader.read()
        attributes = lambda: (reader.first, reader.missed, reader.route, reader.peer, reader.writer, reader.policy, repr(reader))
        told = attributes()
        child = os.fork()
        if child == 0:
            refused = 0
            if attributes() != told:
                os._exit(2)
            for call in (lambda: reader.read(timeout=0), lambda: writer.write(b"child", timeout=0)):
                try:
                    call()
                except tensorlane.Error:
                    refused += 1
            held.release()
            reader.close()
            os._exit(0 if refused == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert held.value == b"before"
        held.release()
        writer.write(b"after")
        assert reader.read().value == b"after"


def test_a_channel_of_another_peer_is_read_by_the_name_of_the_peer(clients, name):
    there, here = clients
    with there.channel_writer(name, expect_readers=2) as writer:
        with there.channel_reader(name) as beside, here.channel_reader(f"node-0/{name}") as reader:
            writer.write({"obs": np.arange(1000)})
            assert (beside.peer, beside.route) == ("", "local")
            assert (reader.peer, reader.route) == ("node-0", "tcp")
            for one in (beside, reader):
                np.testing.assert_array_equal(one.read().value["obs"].numpy(), np.arange(1000))
            with pytest.raises(tensorlane.NotFound):
                here.channel_reader(name)


@pytest.mark.parametrize(("policy", "missed"), [("latest", 19), ("drop_oldest", 16)])
def test_a_slow_reader_of_a_channel_that_drops_is_told_what_it_missed(client, name, policy, missed):
    with client.channel_writer(name, slots=4, policy=policy) as writer, client.channel_reader(name) as reader:
        assert (reader.policy, reader.dropped) == (policy, 0)
        for number in range(20):
            assert writer.write(np.full(10, number), timeout=0) == number
        message = reader.read()
        assert (message.sequence, message.dropped, reader.dropped) == (missed, missed, missed)
        assert message.value.numpy().tolist() == [missed] * 10
        # What is held stays, however far the writer goes.
        for number in range(20, 1000):
            writer.write(np.full(10, number), timeout=0)
        assert message.value.numpy().tolist() == [missed] * 10
        [channel] = client.channels(name)
        assert (channel["policy"], channel["written"]) == (policy, 1000)
        assert channel["readers"][0]["dropped"] == missed
        assert (channel["readers_left_out"], channel["allowed_left_out"]) == (0, 0)
        message.release()
        writer.finish()
        rest = [(message.sequence, message.dropped) for message in reader]
        assert rest[-1][0] == 999 and rest[0][1] > 0 and all(dropped == 0 for _, dropped in rest[1:])
        assert reader.dropped + len(rest) + 1 == 1000


def test_a_policy_that_is_none_is_refused_with_those_there_are(client, name):
    with pytest.raises(tensorlane.Invalid, match="block, drop_oldest or latest"):
        client.channel_writer(name, policy="newest")


def test_a_layout_that_is_fixed_is_held_to_and_the_error_names_both(client, name):
    with client.channel_writer(name, fixed=True) as writer, client.channel_reader(name) as reader:
        with pytest.raises(tensorlane.Invalid, match="TOO_LARGE"):
            writer.write(np.zeros(1 << 20))
        for step in range(2):
            writer.write({"step": step, "obs": np.zeros((3, 4), np.float32), "mask": [np.ones(2, np.uint8)]})
            assert reader.read().value["step"] == step
        for wrong, found in (
            ({"obs": np.zeros((3, 5), np.float32), "mask": [np.ones(2, np.uint8)]}, "f32[3, 5], u8[2]"),
            ([np.zeros((3, 4), np.float64), np.ones(2, np.uint8)], "f64[3, 4], u8[2]"),
            ({"step": 3}, "no array"),
            (b"bytes", "no array"),
        ):
            with pytest.raises(tensorlane.Invalid) as refused:
                writer.write(wrong)
            assert refused.value.reason == "LAYOUT_MISMATCH"
            assert refused.value.details == {"expected": "f32[3, 4], u8[2]", "found": found}
        assert writer.write([np.zeros((3, 4), np.float32), np.ones(2, np.uint8)]) == 2, "what was refused was not written"


def test_bytes_with_gaps_between_them_are_a_message(client, request):
    name = request.node.name
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        for given in (memoryview(b"abcdef")[::2], memoryview(b"abc")[::-1], memoryview(b"abcd").cast("B", (2, 2))):
            writer.write(given)
            assert reader.read().value == given.tobytes()


def test_memory_of_any_elements_is_a_message_of_bytes(client, name):
    arrays = [np.ones(3, complex), np.arange(3, dtype=">i4"), np.zeros(2, [("a", "i4"), ("O", "f8")]), np.ones((2, 3), ">f8").T, np.zeros(0, "c8")]
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        for array in arrays:
            writer.write(memoryview(array))
            assert reader.read().value == array.tobytes()
        for array in (np.array([object()]), np.zeros(2, [("a", "O")])):
            with pytest.raises(tensorlane.Unsupported, match="objects of Python"):
                writer.write(memoryview(array))


def test_keys_of_any_length_are_sent(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        for key in ("k" * 4096, "k" * 4097, "\u00e9" * 2048, "\u00e9" * 2049):
            writer.write({key: np.ones(2)})
            assert list(reader.read().value) == [key]


def test_times_are_numbers_of_any_kind_and_never_nan(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        writer.write(b"a", timeout=np.float32(60))
        assert reader.read(timeout=np.float16(60)).value == b"a"
        writer.write(b"b")
        assert reader.cached(1).read(timeout=np.float16(60)).value == b"b"
        watch, listener = client.watch(name), client.listen(name)
        calls = [lambda time: writer.write(b"c", timeout=time), lambda time: reader.read(timeout=time)]
        calls += [lambda time: watch.next(timeout=time), lambda time: listener.accept(timeout=time)]
        for call in calls:
            with pytest.raises(tensorlane.Invalid, match="timeout is nan"):
                call(float("nan"))
            with pytest.raises(tensorlane.Unsupported, match="timeout is '5'"):
                call("5")
        watch.close()
        listener.close()
