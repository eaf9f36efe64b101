"""Cached readers: one message of a channel for several reads of a process, with one value."""

from __future__ import annotations

import math
import os
import pickle
import threading
from collections import Counter

import numpy as np
import pytest

import tensorlane

from conftest import until


@pytest.fixture
def name(request):
    return request.node.name


def counting(reader: tensorlane.ChannelReader) -> list[int]:
    """Has each read of a reader counted in a list."""
    taken, read = [], reader.read

    def counted(**options):
        message = read(**options)
        if message is not None:
            taken.append(message.sequence)
        return message

    reader.read = counted
    return taken


def waits(client, name) -> bool:
    return any(one["waits"] for one in client.channels(name)[0]["readers"])


def test_a_message_is_taken_once_and_has_one_value_for_all_its_reads(client, name):
    """S1.1, S1.3, S1.5"""
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        taken, cached = counting(reader), reader.cached(3)
        for value in ({"step": 7, "obs": [np.arange(3), "text"]}, np.arange(4), b"bytes", None):
            writer.write(value)
        for sequence in range(4):
            first = cached.read()
            assert (first.sequence, cached.kept, taken) == (sequence, 2, list(range(sequence + 1)))
            again = [cached.read(timeout=0), cached.read(timeout=0)]
            assert all(one.value is first.value for one in again), "nothing is waited for, or made anew"
            assert cached.kept == 0, "it is gone after the last"
            if sequence == 0:
                assert first.value["step"] == 7 and first.value["obs"][0].numpy().tolist() == [0, 1, 2]
        with pytest.raises(tensorlane.Timeout):
            cached.read(timeout=0)


def test_threads_share_what_one_of_them_takes(client, name):
    """S1.5"""
    reads, count = 4, 500
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        taken, cached = counting(reader), reader.cached(reads)
        got, together = [], threading.Barrier(reads)

        def consume():
            for _ in range(count):
                with cached.read(timeout=60) as message:
                    got.append((message.sequence, int(message.value["number"].numpy()[0])))
                # As the tasks of a graph do: each reads once for each message.
                together.wait(60)

        threads = [threading.Thread(target=consume) for _ in range(reads)]
        for thread in threads:
            thread.start()
        for number in range(count):
            writer.write({"number": np.full(3, number), "plain": number}, timeout=60)
        for thread in threads:
            thread.join()
    assert taken == list(range(count)), "one read of the channel for each message"
    assert Counter(got) == {(number, number): reads for number in range(count)}


def test_the_place_of_a_message_is_given_back_when_the_last_read_releases_it(client, name):
    with client.channel_writer(name, slots=2) as writer, client.channel_reader(name).cached(2) as cached:
        for _ in range(2):
            writer.write(np.arange(4))
        one, other = cached.read(), cached.read()
        with one:
            one.release()
        one.release()
        with pytest.raises(tensorlane.Timeout):
            writer.write(b"more", timeout=0)
        assert other.value.numpy().tolist() == [0, 1, 2, 3], "that another one released it does no harm"
        other.release()
        writer.write(b"more", timeout=0)
        del one, other
        kept = cached.read()
        with cached.read() as message:
            array = message.value.numpy()
        del kept, message
        with pytest.raises(tensorlane.Timeout):
            writer.write(b"more", timeout=0)
        assert array.tolist() == [0, 1, 2, 3]
        del array
        writer.write(b"more", timeout=0)


def test_a_wait_beside_a_thread_that_takes_has_its_own_time_and_ends_with_what_comes(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        cached, got = reader.cached(2), []
        taking = threading.Thread(target=lambda: got.append(cached.read(timeout=math.inf)))
        taking.start()
        until("it waits", lambda: waits(client, name))
        for timeout in (0, 0.05):
            with pytest.raises(tensorlane.Timeout, match="another thread waits"):
                cached.read(timeout=timeout)
        beside = threading.Thread(target=lambda: got.append(cached.read(timeout=60)))
        beside.start()
        writer.write(b"for both")
        for thread in (taking, beside):
            thread.join()
        assert got[0].value is got[1].value and got[0].value == b"for both" and cached.kept == 0


def test_a_miss_is_an_error_once_the_reader_is_closed(client, name):
    """S1.4"""
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        cached, failed = reader.cached(2), []
        writer.write(b"kept")
        assert cached.read().value == b"kept"
        reader.close()
        assert cached.read().value == b"kept", "what is kept needs no channel"
        with pytest.raises(tensorlane.Error) as missed:
            cached.read()
        assert missed.value.reason == "CHANNEL_ENDED"
        other = client.channel_reader(name).cached(3)

        def read():
            try:
                other.read(timeout=math.inf)
            except tensorlane.Error as error:
                failed.append(error.reason)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        until("one of them waits", lambda: waits(client, name))
        other.close()
        for thread in threads:
            thread.join()
        assert failed == ["CHANNEL_ENDED"] * 3


@pytest.mark.parametrize("finishes", [True, False])
def test_every_read_is_told_the_end_behind_the_last_message(client, name, finishes):
    writer, cached = client.channel_writer(name), client.channel_reader(name).cached(2)
    writer.write(b"last")
    writer.finish() if finishes else writer.close()
    assert [cached.read().value for _ in range(2)] == [b"last"] * 2
    for _ in range(3):
        if finishes:
            assert cached.read() is None
        else:
            with pytest.raises(tensorlane.Error) as lost:
                cached.read()
            assert lost.value.reason == "CHANNEL_ENDED"
    cached.close()


def test_a_message_that_cannot_be_unpickled_here_is_refused_to_each_read_and_the_next_one_comes(client, name):
    with client.channel_writer(name, pickle=True) as writer, client.channel_reader(name).cached(2) as cached:
        writer.write({"tags": {1, 2}})
        writer.write(b"next")
        for _ in range(2):
            with cached.read() as message, pytest.raises(tensorlane.Unsupported, match="does not unpickle"):
                message.value
        assert cached.read().value == b"next"


def test_a_forked_child_is_refused_also_what_is_kept(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name).cached(3) as cached:
        writer.write(np.arange(3))
        ours = cached.read()
        child = os.fork()
        if child == 0:
            try:
                cached.read(timeout=0)
            except tensorlane.Error:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert cached.read(timeout=0).value is ours.value


def test_a_cache_of_no_read_is_refused_and_none_is_pickled(client, name):
    with client.channel_writer(name), client.channel_reader(name) as reader:
        for wrong in (0, -1):
            with pytest.raises(tensorlane.Invalid):
                reader.cached(wrong)
        with pytest.raises(tensorlane.Unsupported):
            reader.cached("2")
        cached = reader.cached(2)
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(cached)
        with pytest.raises(TypeError):
            iter(cached)
        assert cached.name == name and "2 reads of each message" in repr(cached)
