"""Scenarios of TensorPipe's own tests, written anew, in a pod and between two nodes: docs/pipes.md maps them to lines."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tensorlane

from conftest import in_time, python, said, until


@pytest.fixture
def name(request):
    return request.node.name


@pytest.fixture(params=["pod", "nodes"])
def way(request):
    """Two clients, and what the first one puts before the name of a listener of the second: the rest is the same."""
    if request.param == "pod":
        client = request.getfixturevalue("client")
        return client, client, ""
    there, here = request.getfixturevalue("clients")
    return here, there, "node-0/"


@pytest.fixture
def ends(way, name):
    """Both ends of a pipe: the one that connected, and the one that was accepted."""
    near_client, far_client, prefix = way
    with far_client.listen(name) as listener:
        near = near_client.connect_pipe(prefix + name, wait=20)
        far = listener.accept(timeout=60)
    assert near.route == ("tcp" if prefix else "local")
    yield near, far
    near.close()
    far.close()


def own(client: tensorlane.Client) -> int:
    """Number of tensors that were put at a sidecar: copies of other peers' may come and go."""
    status = client.status()
    return status.tensors - status.copies


def test_messages_of_nothing_and_of_empty_parts_pass_between_full_ones(ends):
    """NopWrite, EmptyBuffer, EmptyTensor, EmptyAndNonEmptyTensors, NullPointer"""
    near, far = ends
    empty, full = np.zeros((0, 3), np.float32), np.arange(5)
    given = [
        ([], []),
        ([], [b""]),
        ([empty], []),
        ([full, empty, full[:1], empty], [b"", b"x", b""]),
        ([], []),
        ([full], [b"last"]),
    ]
    writes = [near.begin(tensors, payloads=payloads, timeout=60) for tensors, payloads in given]
    for tensors, payloads in given:
        with far.read(timeout=60) as received:
            assert received.metadata == b"" and received.payloads == payloads
            assert [tensor.shape for tensor in received.tensors] == [array.shape for array in tensors]
            for tensor, array in zip(received.tensors, tensors):
                np.testing.assert_array_equal(tensor.numpy(), array)
    for writing in writes:
        writing.wait()


def test_messages_with_and_without_tensors_alternate_and_none_overtakes(ends):
    """MixedTensorMessage, PayloadsOnly, TensorsOnly, QueueWritesBeforeReads"""
    near, far = ends

    def parts(number):
        tensors = [np.full(50_000 if number % 4 == 1 else 3, number)] if number % 2 else []
        return tensors, [bytes([number]) * (100_000 if number % 3 == 0 else 1)] if number % 3 != 1 else []

    writes = []
    for number in range(40):
        tensors, payloads = parts(number)
        writes.append(near.begin(tensors, payloads=payloads, metadata=str(number), timeout=60))
    for number in range(40):
        tensors, payloads = parts(number)
        with far.read(timeout=60) as received:
            assert received.metadata == str(number).encode() and received.payloads == payloads
            assert [tensor.numpy().tolist() for tensor in received.tensors] == [array.tolist() for array in tensors]
    for writing in writes:
        writing.wait()


def test_two_pings_are_written_before_any_answer_and_come_back_from_received_memory(ends):
    """ServerPingPongTwice"""
    near, far = ends
    pings = [near.begin([np.full(20_000, number)], metadata=str(number), timeout=60) for number in range(2)]
    received = [far.read(timeout=60) for _ in pings]
    pongs = [far.begin([one.tensors[0].numpy()], metadata=one.metadata, timeout=60) for one in received]
    for number in range(2):
        with near.read(timeout=60) as answer:
            assert answer.metadata == str(number).encode() and (answer.tensors[0].numpy() == number).all()
    for writing in pings + pongs:
        writing.wait()


def test_both_ends_write_before_either_reads(ends):
    """WriteFromBothThenRead, SendTensorsBothWays, SendMultipleTensors"""
    arrays = [np.full(1 << 18, number) for number in range(3)]
    writes = [end.begin(arrays, metadata=str(number), timeout=60) for number in range(3) for end in ends]
    for number in range(3):
        for end in ends:
            with end.read(timeout=60) as received:
                assert received.metadata == str(number).encode()
                assert [int(tensor.numpy().sum()) for tensor in received.tensors] == [number << 18 for number in range(3)]
    for writing in writes:
        writing.wait()


def test_ten_accepts_wait_for_ten_connects_and_the_reverse(way, name):
    """AcceptCallbacksAreQueued, IncomingConnectionsAreQueued"""
    near_client, far_client, prefix = way
    with far_client.listen(name) as listener, ThreadPoolExecutor(10) as pool:
        accepting = [pool.submit(listener.accept, timeout=60) for _ in range(10)]
        nears = [near_client.connect_pipe(prefix + name, wait=20) for _ in range(10)]
        fars = [one.result(60) for one in accepting]
        more = [near_client.connect_pipe(prefix + name) for _ in range(10)]
        writes = [near.begin(metadata=str(number), timeout=60) for number, near in enumerate(nears + more)]
        fars += [listener.accept(timeout=60) for _ in more]
        got = [far.read(timeout=60).metadata for far in fars]
        assert sorted(got[:10], key=int) == [str(number).encode() for number in range(10)]
        assert got[10:] == [str(number).encode() for number in range(10, 20)], "in the order of connects"
        for writing in writes:
            writing.wait()
        for end in nears + more + fars:
            end.close()


def test_many_connect_to_one_listener_at_once(way, name):
    near_client, far_client, prefix = way
    with far_client.listen(name) as listener, ThreadPoolExecutor(20) as pool:
        connecting = [pool.submit(near_client.connect_pipe, prefix + name, wait=20) for _ in range(300)]
        fars = [listener.accept(timeout=60) for _ in connecting]
        nears = [one.result(60) for one in connecting]
        for end in nears + fars:
            end.close()
        with pytest.raises(tensorlane.Timeout):
            listener.accept(timeout=0)


def test_one_payload_may_be_many_times_larger_than_what_travels_at_a_time(ends):
    """Chunking, LargeWrite"""
    near, far = ends
    large = np.random.default_rng(7).bytes(80 << 20)
    writing = near.begin(payloads=[b"small", large, large[: 16 << 20]], timeout=60)
    with far.read(timeout=60) as received:
        assert received.payloads == [b"small", large, large[: 16 << 20]]
    writing.wait()


def test_what_nobody_reads_takes_no_memory_of_its_reader_and_has_a_bound_at_its_writer(clients, name):
    """Reads that are not asked for, or late, hold the writer back, and memory at neither end grows without end."""
    there, here = clients
    with there.listen(name) as listener:
        near = here.connect_pipe(f"node-0/{name}", wait=20)
        far = listener.accept(timeout=60)
    before, free = own(here), there.status().free_bytes
    array = np.zeros(1 << 17)
    writes = [near.begin([array], metadata=str(number), timeout=120) for number in range(64)]
    with pytest.raises(tensorlane.Error) as full:
        near.begin([array], timeout=60).wait()
    assert (full.value.reason, full.value.delivered) == ("LIMIT_EXCEEDED", "no")
    shown = far.read_descriptor(timeout=60)
    until("the refused one is given back", lambda: own(here) == before + 64)
    assert free - there.status().free_bytes < 1 << 20, "descriptors alone have come"
    # Late is as good as early.
    assert shown.read().metadata == b"0"
    assert [far.read(timeout=60).metadata for _ in range(63)] == [str(number).encode() for number in range(1, 64)]
    for writing in writes:
        writing.wait()
    until("all is given back", lambda: own(here) == before)
    near.close()
    far.close()


def test_a_close_gives_back_every_write_that_is_under_way(ends):
    """Every write ends, and says whether the other end has seen its message."""
    near, far = ends
    writes = [near.begin([np.full(10, number)], metadata=str(number), timeout=120) for number in range(60)]
    shown = [far.read_descriptor(timeout=60) for _ in range(3)]
    assert [descriptor.metadata for descriptor in shown] == [b"0", b"1", b"2"]
    far.close()
    told = []
    for writing in writes:
        with pytest.raises(tensorlane.Error) as closed:
            writing.wait()
        assert closed.value.reason == "PIPE_CLOSED"
        told.append(closed.value.delivered)
    assert told == ["unknown"] * 3 + ["no"] * 57
    with pytest.raises(tensorlane.Error) as gone:
        shown[0].read()
    assert gone.value.reason == "PIPE_CLOSED"


def test_a_forked_child_that_gives_up_what_it_inherited_withdraws_nothing_of_its_parent(ends):
    near, far = ends
    writing = near.begin([np.arange(3)], metadata="kept", timeout=60)
    descriptor = far.read_descriptor(timeout=60)
    child = os.fork()
    if child == 0:
        descriptor.release()
        writing.withdraw()
        near.close()
        far.close()
        del writing, descriptor
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with descriptor.read() as received:
        assert received.metadata == b"kept" and received.tensors[0].numpy().tolist() == [0, 1, 2]
    writing.wait()


def test_a_forked_child_waits_for_no_write_of_its_parent_and_takes_no_answer_of_it(ends):
    near, far = ends
    writing = near.begin([np.arange(3)], metadata="kept", timeout=60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writing.wait()
        except tensorlane.Error as refused:
            code = 0 if refused.delivered == "unknown" and "forked" in str(refused) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    with far.read(timeout=60) as received:
        assert received.metadata == b"kept"
    writing.wait()


def test_a_message_for_which_there_is_no_room_is_refused_and_the_pipe_goes_on(name):
    # A write has its own deadline, and not that of its client.
    with tensorlane.local(arena="64Mi") as own, tensorlane.connect(own.directory, deadline=3600) as client:
        with client.listen(name) as listener, client.connect_pipe(name) as near, listener.accept() as far:
            with pytest.raises(tensorlane.Error) as never:
                near.write([np.zeros(100 << 20, np.uint8)], timeout=60)
            assert (never.value.reason, never.value.delivered) == ("NEVER_FITS", "no")
            kept = client.put(np.zeros(40 << 20, np.uint8))
            full = in_time(tensorlane.Exhausted, lambda: near.write([np.ones(3), np.zeros(30 << 20, np.uint8)], timeout=1))
            assert (full.reason, full.delivered) == ("ARENA_FULL", "no")
            until("what was put for it is given back", lambda: client.status().tensors == 1)
            with pytest.raises(tensorlane.Timeout):
                far.read_descriptor(timeout=0)
            kept.release()
            writing = near.begin([np.ones(3)], metadata="fits", timeout=60)
            assert far.read(timeout=60).metadata == b"fits"
            writing.wait()


@pytest.mark.parametrize("way", ["dense", "strided"])
def test_a_write_of_several_arrays_waits_once_for_room(name, monkeypatch, way):
    tried, alone = [], tensorlane.Client._alone

    def counted(self, source, *rest):
        tried.append(source)
        return alone(self, source, *rest)

    monkeypatch.setattr(tensorlane.Client, "_alone", counted)
    with tensorlane.local(arena="64Mi") as client:
        with client.listen(name) as listener, client.connect_pipe(name) as near, listener.accept() as far:
            kept = client.put(np.zeros(40 << 20, np.uint8))
            large = np.zeros((2, 30 << 20), np.uint8)[0] if way == "dense" else np.zeros((30 << 20, 2), np.uint8)[:, 0]

            def write():
                tried.clear()
                near.write([np.ones(3), *[large] * 8], timeout=1)

            full = in_time(tensorlane.Exhausted, write)
            assert (full.reason, full.delivered) == ("ARENA_FULL", "no")
            assert len(tried) == 1, "eight of them would wait for room eight times"
            until("what was put for it is given back", lambda: client.status().tensors == 1)
            kept.release()
            small = np.arange(20 << 17).reshape(-1, 2)[:, 0] if way == "strided" else np.arange(10 << 17)
            writing = near.begin([small, np.ones(3), small], timeout=60)
            received = far.read(timeout=60)
            for got, given in zip(received.tensors, (small, np.ones(3), small)):
                np.testing.assert_array_equal(got.numpy(), given)
            writing.wait()


READS = """
import sys, tensorlane
pipe = tensorlane.connect(sys.argv[1]).connect_pipe(sys.argv[2], wait=60)
print("reads", flush=True)
for received in pipe:
    received.release()
"""


def test_a_process_that_is_stopped_is_named_and_reads_on_when_it_goes_on(client, name):
    with client.listen(name) as listener:
        other = python(READS, client.directory, name)
        far = listener.accept(timeout=60)
        assert other.stdout.readline() == "reads\n"
        other.send_signal(signal.SIGSTOP)
        until("it is stopped", lambda: Path(f"/proc/{other.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")

        def late():
            with pytest.raises(tensorlane.Timeout) as late:
                far.write(metadata="too early", timeout=0.3)
            assert late.value.delivered in ("no", "unknown")
            return f"python[{other.pid}]" in str(late.value)

        until("the sidecar names it in time", late)
        writing = far.begin(metadata="later", timeout=60)
        other.send_signal(signal.SIGCONT)
        writing.wait()
        far.finish()
        assert said(other) == ""
        far.close()


def test_a_message_that_is_taken_back_after_it_was_shown_is_an_error_of_its_read_alone(way, ends):
    (writes, *_), (near, far) = way, ends
    before = own(writes)

    def taken_back():
        shown = None
        with pytest.raises(tensorlane.Timeout) as late:
            writing = near.begin([np.zeros(1000)], metadata="taken back", timeout=1)
            with contextlib.suppress(tensorlane.Timeout):
                shown = far.read_descriptor(timeout=0.5)
            writing.wait()
        assert shown is None or late.value.delivered == "unknown"
        return shown

    # One that was over before it could be shown is written again.
    shown = until("a message is shown in time", taken_back)
    until("its bytes are gone", lambda: own(writes) == before)
    with pytest.raises(tensorlane.Error, match="has taken it back") as withdrawn:
        shown.read()
    assert withdrawn.value.reason == "MESSAGE_WITHDRAWN"
    del shown
    gc.collect()
    writing = near.begin([np.ones(3)], metadata="next", timeout=60)
    with far.read(timeout=60) as received:
        assert received.metadata == b"next" and received.tensors[0].numpy().tolist() == [1, 1, 1]
    writing.wait()


def test_both_ends_may_finish_at_once(ends):
    for _ in range(2):
        writes = [end.begin(metadata="last", timeout=60) for end in ends]
        for end in ends:
            assert end.read(timeout=60).metadata == b"last"
        for writing in writes:
            writing.wait()
    with ThreadPoolExecutor(2) as pool:
        for finishing in [pool.submit(end.finish) for end in ends]:
            finishing.result(60)
    for end in ends:
        assert end.read(timeout=60) is None and end.read(timeout=60) is None
        with pytest.raises(tensorlane.Error) as closed:
            end.write(metadata="late", timeout=60)
        assert (closed.value.reason, closed.value.delivered) == ("PIPE_CLOSED", "no")


def test_a_sidecar_that_is_killed_is_told_to_both_ends_and_what_was_read_stays(name):
    with tensorlane.Sidecar(arena="64Mi") as sidecar:
        theirs, ours = (tensorlane.connect(sidecar.directory) for _ in range(2))
        with theirs.listen(name) as listener:
            near, far = ours.connect_pipe(name), listener.accept()
        first = near.begin([np.arange(1000)], timeout=60)
        array = far.read(timeout=60).tensors[0].numpy()
        first.wait()
        writing = near.begin([np.arange(3)], timeout=60)
        shown = far.read_descriptor(timeout=60)
        keeper = sidecar._process.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        [running] = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().startswith("tensorlane-side")]
        os.kill(running, signal.SIGKILL)
        with pytest.raises(tensorlane.Error) as lost:
            writing.wait()
        assert lost.value.delivered == "unknown"
        for call in (shown.read, lambda: far.read(timeout=60), lambda: near.read(timeout=60)):
            with pytest.raises(tensorlane.Error):
                call()
        np.testing.assert_array_equal(array, np.arange(1000))


TAKES = """
import sys, tensorlane
client = tensorlane.connect(sys.argv[1])
pipe = client.connect_pipe(sys.argv[2], wait=60)
descriptor = pipe.read_descriptor(timeout=60)
print("shown", flush=True)
descriptor.read()
"""


def test_a_reader_of_another_node_that_is_killed_while_bytes_come_gives_the_message_back(two_nodes, clients, name):
    there, here = clients
    before = own(there), here.status().sealed_bytes
    with there.listen(name) as listener:
        other = python(TAKES, two_nodes[1].directory, f"node-0/{name}")
        far = listener.accept(timeout=60)
        came = sum(peer.bytes_in for peer in here.peers())
        writing = far.begin([np.zeros(768 << 20, np.uint8)], timeout=120)
        assert other.stdout.readline() == "shown\n"
        until("bytes come", lambda: sum(peer.bytes_in for peer in here.peers()) > came)
        other.kill()
        with pytest.raises(tensorlane.Error) as lost:
            writing.wait()
        assert (lost.value.reason, lost.value.delivered) == ("PIPE_LOST", "unknown")
        other.communicate(timeout=60)
    # What earlier tests left there may go meanwhile.
    until("all is given back", lambda: own(there) == before[0] and here.status().sealed_bytes <= before[1])
    far.close()


FORWARDS = """
import sys, tensorlane
client = tensorlane.connect(sys.argv[1])
taken = client.connect_pipe(sys.argv[2], wait=60)
given = client.connect_pipe(sys.argv[3], wait=60)
received = taken.read(timeout=60)
given.write([received.tensors[0].numpy()], metadata=received.metadata, timeout=60)
print("forwarded", flush=True)
sys.stdin.read()
"""


def test_what_was_forwarded_stays_readable_when_the_process_between_is_killed(client, name):
    before = own(client)
    array = np.arange(100_000)
    with client.listen(f"{name}/in") as into, client.listen(f"{name}/out") as out:
        between = python(FORWARDS, client.directory, f"{name}/in", f"{name}/out")
        near, far = into.accept(timeout=60), out.accept(timeout=60)
        near.write([array], metadata="on", timeout=60)
        received = far.read(timeout=60)
        assert between.stdout.readline() == "forwarded\n"
        between.send_signal(signal.SIGKILL)
        between.communicate(timeout=60)
        with pytest.raises(tensorlane.Error) as lost:
            far.read(timeout=60)
        assert lost.value.reason == "PIPE_LOST"
        assert received.metadata == b"on"
        np.testing.assert_array_equal(received.tensors[0].numpy(), array)
        received.release()
    until("all bytes are freed", lambda: own(client) == before)


def is_refused(client, name):
    """Returns whether there is no listener of that name."""
    try:
        client.connect_pipe(name).close()
    except tensorlane.NotFound:
        return True
    return False


def test_the_connection_of_a_client_ends_with_its_last_end_and_leaves_no_descriptor_and_no_thread(sidecar, alone, name):
    """ContextIsNotJoined: whoever has an end has what it needs, and nothing is left when the last one is closed."""
    client = alone
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(5):
        mine = tensorlane.connect(sidecar.directory)
        listener = mine.listen(name)
        near = client.connect_pipe(name)
        far = listener.accept(timeout=60)
        mine.close()
        writing = near.begin([np.arange(3)], metadata="after the client", timeout=60)
        assert far.read(timeout=60).tensors[0].numpy().tolist() == [0, 1, 2]
        writing.wait()
        with pytest.raises(tensorlane.Error):
            mine.listen(f"{name}/other")
        far.close()
        listener.close()
        with pytest.raises(tensorlane.Error) as closed:
            near.read(timeout=60)
        assert closed.value.reason == "PIPE_CLOSED"
        # Its close is told by another session: a connect may come before it.
        until("the listener is gone", lambda: is_refused(client, name))
        near.close()
    gc.collect()
    until("the sessions are gone", lambda: client.status().sessions == 1)
    until("their descriptors are closed", lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
    until("their threads have ended", lambda: len(os.listdir("/proc/self/task")) <= threads)


def test_bytes_of_a_message_come_within_the_time_that_its_read_says(ends):
    near, far = ends
    writing = near.begin([np.arange(5)], payloads=[b"x"], timeout=60)
    descriptor = far.read_descriptor(timeout=60)
    with pytest.raises(tensorlane.Invalid, match="nan"):
        descriptor.read(timeout=float("nan"))
    with descriptor.read(timeout=60) as received:
        assert received.tensors[0].numpy().tolist() == [0, 1, 2, 3, 4] and received.payloads == [b"x"]
    writing.wait()
