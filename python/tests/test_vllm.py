"""The queue with the interface of vLLM's: order, large objects, other nodes, and ends that die. vLLM is not installed here."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import multiprocessing
import os
import pickle
import threading
import time

import numpy as np
import pytest
import torch

import tensorlane
import tensorlane.vllm
from conftest import PATIENCE, in_time, python, said, until
from tensorlane.vllm import MessageQueue

READS = """
import os, pickle, sys, numpy, tensorlane
from tensorlane.vllm import MessageQueue
queue = MessageQueue.create_from_handle(pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2]))
queue.wait_until_ready()
"""


@pytest.fixture(autouse=True)
def here(sidecar, monkeypatch):
    """The sidecar of the tests, where readers and writers look for theirs."""
    monkeypatch.setenv("TENSORLANE_SOCKETS", sidecar.directory)
    # Their clients end with the test.
    monkeypatch.setattr(tensorlane.client, "_defaults", {})


def reader(queue: MessageQueue, script: str, rank: int = 0, **variables: str):
    """A process with a reader of a queue, which is ready when this end is."""
    return python(READS + script, pickle.dumps(queue.export_handle()).hex(), str(rank), **variables)


def pair(**options) -> tuple[MessageQueue, MessageQueue]:
    """A queue whose two ends are here, and ready."""
    writer = MessageQueue(1, 1, **{"max_chunk_bytes": 1 << 20, "max_chunks": 4, **options})
    read = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=read.wait_until_ready)
    ready.start()
    writer.wait_until_ready(PATIENCE)
    ready.join()
    return writer, read


def work(directory: str, handle: tensorlane.vllm.Handle, rank: int, results) -> None:
    """A worker that takes objects until None comes."""
    os.environ["TENSORLANE_SOCKETS"] = directory
    queue = MessageQueue.create_from_handle(handle, rank)
    queue.wait_until_ready()
    seen = []
    while (got := queue.dequeue(timeout=60)) is not None:
        seen.append((got["step"], int(got["tokens"].sum())))
    results.put((rank, seen))


def all_read(writer: MessageQueue, reads: list[MessageQueue]) -> None:
    """Waits until all are ready, and has each of them read one object."""
    threads = [threading.Thread(target=read.wait_until_ready, args=[PATIENCE]) for read in reads]
    for thread in threads:
        thread.start()
    writer.wait_until_ready(PATIENCE)
    for thread in threads:
        thread.join()
    writer.enqueue("both")
    assert [read.dequeue(timeout=PATIENCE) for read in reads] == ["both"] * len(reads)


def test_four_processes_get_a_thousand_objects_in_order(sidecar):
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    queue = MessageQueue(4, 4, max_chunk_bytes=1 << 20, max_chunks=10)
    workers = [spawn.Process(target=work, args=(sidecar.directory, queue.export_handle(), rank, results)) for rank in range(4)]
    for worker in workers:
        worker.start()
    queue.wait_until_ready(timeout=120)
    for step in range(1000):
        queue.enqueue({"step": step, "tokens": np.full(50, step)}, timeout=60)
    queue.enqueue(None)
    got = dict(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert got == {rank: [(step, 50 * step) for step in range(1000)] for rank in range(4)}


def test_objects_larger_than_a_chunk_pass_and_leave_nothing(alone):
    stored = alone.status().tensors
    writer, read = pair(max_chunk_bytes=4096)
    for number in range(30):
        # In turn: inside of a slot, larger than it, larger with buffers of their own.
        array = np.full((10, 5_000, 1_000_000)[number % 3], number, np.uint8)
        writer.enqueue(("object", array), timeout=PATIENCE)
        word, got = read.dequeue(timeout=PATIENCE)
        assert word == "object" and np.array_equal(got, array)
        got[0] = 1
    kept = alone.status().tensors - stored
    assert kept <= 1 + 20, "objects before it were given up"
    del writer, read
    gc.collect()
    until("all of it is given back", lambda: alone.status().tensors == stored)


def test_large_objects_wait_for_room_until_readers_are_done_with_those_before(monkeypatch, caplog):
    monkeypatch.setattr(tensorlane.vllm, "_SAYS", 0.01)
    monkeypatch.setattr(tensorlane.vllm, "_CHECKS", 0.05)
    with tensorlane.local(arena="64Mi") as client:
        writer = MessageQueue(1, 1, max_chunk_bytes=4096, client=client)
        read = MessageQueue.create_from_handle(writer.export_handle(), 0, client=client)
        ready = threading.Thread(target=read.wait_until_ready)
        ready.start()
        writer.wait_until_ready(PATIENCE)
        ready.join()
        sums, sent = [], 0
        reads = threading.Thread(target=lambda: sums.extend(int(read.dequeue(timeout=60)[0]) for _ in range(12)))
        with pytest.raises(TimeoutError, match="not given back the . large objects"):
            while True:
                writer.enqueue(np.full(8 << 20, sent, np.uint8), timeout=3 if sent else PATIENCE)
                sent += 1
        assert 0 < sent < 8 and "for room" in caplog.text
        with pytest.raises(tensorlane.Exhausted, match="NEVER_FITS"):
            writer.enqueue(np.zeros(80 << 20, np.uint8))
        reads.start()
        for number in range(sent, 12):
            writer.enqueue(np.full(8 << 20, number, np.uint8), timeout=60)
        reads.join()
        assert sums == list(range(12))


def test_room_that_others_have_is_waited_for_as_long_as_was_said():
    # That is not the deadline of the client.
    with tensorlane.local(arena="64Mi") as own, tensorlane.connect(own.directory, deadline=3600) as client:
        writer = MessageQueue(1, 1, max_chunk_bytes=4096, client=client)
        read = MessageQueue.create_from_handle(writer.export_handle(), 0, client=client)
        ready = threading.Thread(target=read.wait_until_ready)
        ready.start()
        writer.wait_until_ready(PATIENCE)
        ready.join()
        kept = client.put(np.zeros(40 << 20, np.uint8))
        in_time(tensorlane.Exhausted, lambda: writer.enqueue(np.zeros(30 << 20, np.uint8), timeout=1))
        kept.release()
        writer.enqueue(np.zeros(30 << 20, np.uint8), timeout=PATIENCE)
        assert len(read.dequeue(timeout=PATIENCE)) == 30 << 20


def test_a_shutdown_wakes_an_enqueue_that_waits_for_room(monkeypatch):
    monkeypatch.setattr(tensorlane.vllm, "_ENDS", 2)
    with tensorlane.local(arena="64Mi") as client:
        writer = MessageQueue(1, 1, max_chunk_bytes=4096, client=client)
        read = MessageQueue.create_from_handle(writer.export_handle(), 0, client=client)
        ready = threading.Thread(target=read.wait_until_ready)
        ready.start()
        writer.wait_until_ready(PATIENCE)
        ready.join()
        told = []

        def fill():
            told.append(refused(lambda: [writer.enqueue(np.zeros(30 << 20, np.uint8)) for _ in range(3)]))

        filling = threading.Thread(target=fill)
        filling.start()
        until("one is there", lambda: len(writer._end._leases) == 1)
        for _ in range(2):
            writer.shutdown()
        filling.join(PATIENCE)
        assert told and told[0].startswith("CHANNEL_ENDED") and not writer._end._leases


def test_a_queue_without_readers_takes_everything_at_once():
    with tensorlane.local(arena="64Mi") as client:
        queue = MessageQueue(0, 0, max_chunk_bytes=4096, client=client)
        for _ in range(12):
            queue.enqueue(np.zeros(8 << 20, np.uint8), timeout=0)
        queue.wait_until_ready(timeout=0)
        queue.shutdown()


def late(queue: MessageQueue) -> str:
    """Error of a start that has little time."""
    with pytest.raises(TimeoutError) as over:
        queue.wait_until_ready(timeout=0.1)
    return str(over.value)


def test_a_start_that_timed_out_goes_on_with_the_next_call():
    writer = MessageQueue(2, 2, max_chunk_bytes=4096)
    reads = [MessageQueue.create_from_handle(writer.export_handle(), rank) for rank in range(2)]
    until("one of the two is known", lambda: late(reads[0]) and "1 of 2 readers" in late(writer))
    assert late(reads[0]) and "1 of 2 readers" in late(writer)
    all_read(writer, reads)


def test_strangers_that_connect_first_take_no_place_of_a_reader(client):
    writer = MessageQueue(2, 2, max_chunk_bytes=4096)
    at = f"{writer.export_handle().channel}/ready"
    silent, guesses = client.connect_pipe(at), client.connect_pipe(at)
    guess = guesses.begin(metadata="0", timeout=math.inf)
    with pytest.raises(TimeoutError, match="0 of 2 readers"):
        writer.wait_until_ready(timeout=0.3)
    reads = [MessageQueue.create_from_handle(writer.export_handle(), rank) for rank in range(2)]
    all_read(writer, reads)
    for call in (guess.wait, lambda: silent.read(timeout=PATIENCE)):
        with pytest.raises(tensorlane.Error) as closed:
            call()
        assert closed.value.reason == "PIPE_CLOSED"
    assert writer.export_handle().token not in repr(writer.export_handle())


def start(queue):
    """Waits for readers in a thread; what it raises for those that are gone comes into the list."""
    raised = []

    def wait():
        try:
            queue.wait_until_ready()
        except tensorlane.Unavailable as error:
            raised.append(str(error))

    waits = threading.Thread(target=wait)
    waits.start()
    return waits, raised


def test_a_killed_reader_of_another_node_ends_the_start_and_may_be_replaced(two_nodes, monkeypatch):
    monkeypatch.setenv("TENSORLANE_SOCKETS", two_nodes[0].directory)
    queue = MessageQueue(3, 1, max_chunk_bytes=4096)
    readers = {rank: reader(queue, "print(queue.dequeue())", rank, TENSORLANE_SOCKETS=two_nodes[1].directory) for rank in (1, 2)}
    waits, raised = start(queue)
    until("both are known", lambda: {one.rank for one in queue._end._joined} == {"1", "2"})
    readers[1].kill()
    readers[1].communicate()
    waits.join(PATIENCE)
    assert raised and "of rank 1 are gone" in raised[0]
    readers[1] = reader(queue, "print(queue.dequeue())", 1, TENSORLANE_SOCKETS=two_nodes[1].directory)
    last = reader(queue, "print(queue.dequeue())", 0)
    queue.wait_until_ready(60)
    queue.enqueue("all")
    assert [said(one) for one in (*readers.values(), last)] == ["all\n"] * 3


def test_a_shutdown_wakes_a_start_that_waits():
    writer = MessageQueue(2, 2, max_chunk_bytes=4096)
    read = MessageQueue.create_from_handle(writer.export_handle(), 0)
    for end, other in ((read, None), (writer, None), (writer, "reader")):
        if other:
            writer = end = MessageQueue(2, 2, max_chunk_bytes=4096)
            read = MessageQueue.create_from_handle(writer.export_handle(), 0)
        raised = []

        def wait(one):
            try:
                one.wait_until_ready()
            except tensorlane.Error as error:
                raised.append(error.reason)

        waits = [threading.Thread(target=wait, args=[one]) for one in ((writer, read) if other else (end,))]
        for one in waits:
            one.start()
        if other:
            until("the reader is known", lambda: any(one.rank for one in writer._end._joined))
        elif end is read:
            until("it waits", lambda: read._end._said is not None)
        end.shutdown()
        for one in waits:
            one.join(PATIENCE)
        assert raised == ["CHANNEL_ENDED"] * len(waits)


@pytest.mark.parametrize("place", [0, 1])
def test_a_large_object_survives_the_shutdown_of_its_writer(two_nodes, clients, place):
    script = """
import pickle, sys, numpy, tensorlane.vllm
from tensorlane.vllm import MessageQueue
tensorlane.vllm._ENDS = 60.0
queue = MessageQueue(1, 1, max_chunk_bytes=4096)
print(pickle.dumps(queue.export_handle()).hex(), flush=True)
queue.enqueue(numpy.full(100 << 20, 7, "u1"))
print("wrote", flush=True)
queue.shutdown()
"""
    process = python(script, TENSORLANE_SOCKETS=two_nodes[0].directory)
    handle = pickle.loads(bytes.fromhex(process.stdout.readline()))
    read = MessageQueue.create_from_handle(handle, 0, client=clients[place])
    read.wait_until_ready(PATIENCE)
    assert process.stdout.readline() == "wrote\n"
    ended = ("CHANNEL_ENDED", "NOT_FOUND")
    until("it was shut down", lambda: refused(lambda: clients[0].channel_reader(handle.channel).close()).startswith(ended))
    got = read.dequeue(timeout=60)
    assert len(got) == 100 << 20 and set(got[:: 1 << 20]) == {7}
    assert "CHANNEL_ENDED" in refused(lambda: read.dequeue(timeout=60))
    said(process)


def refused(call) -> str:
    try:
        call()
    except tensorlane.Error as error:
        return str(error)
    return ""


def test_a_large_object_that_went_with_its_writer_is_told_so(monkeypatch):
    monkeypatch.setattr(tensorlane.vllm, "_ENDS", 0)
    writer, read = pair(max_chunk_bytes=4096)
    writer.enqueue(np.zeros(1 << 20, np.uint8))
    writer.shutdown()
    assert "went with its writer" in (told := refused(read.dequeue)) and told.startswith("CHANNEL_ENDED")
    assert refused(read.dequeue).startswith("CHANNEL_ENDED")


def test_a_large_object_that_does_not_come_in_time_comes_to_a_later_call(monkeypatch):
    writer, read = pair(max_chunk_bytes=4096)
    client, get_many, asked = read._end._client, read._end._client.get_many, []

    def late(references, *, deadline, cancel):
        """An owner that does not answer."""
        asked.append(deadline)
        over = time.monotonic() + deadline
        while not cancel.cancelled:
            if time.monotonic() > over:
                raise tensorlane.Timeout("late", "DEADLINE_EXCEEDED")
            time.sleep(0.001)
        raise tensorlane.Withdrawn("withdrawn")

    monkeypatch.setattr(client, "get_many", late)
    for number in range(2):
        writer.enqueue(np.full(10_000, number, np.uint8))
    with pytest.raises(TimeoutError, match="late"):
        read.dequeue(timeout=0.05)
    assert asked[0] <= 0.05
    raised, cancel = [], threading.Event()

    def take():
        try:
            read.dequeue(cancel=cancel)
        except (RuntimeError, tensorlane.Error) as error:
            raised.append(str(error))

    taking = threading.Thread(target=take)
    taking.start()
    until("it is asked for", lambda: len(asked) == 2)
    cancel.set()
    taking.join(PATIENCE)
    assert raised == ["cancelled"]
    monkeypatch.setattr(client, "get_many", get_many)
    assert [int(read.dequeue(timeout=PATIENCE, cancel=threading.Event())[0]) for _ in range(2)] == [0, 1]
    monkeypatch.setattr(client, "get_many", late)
    writer.enqueue(np.full(10_000, 2, np.uint8))
    cancel.clear()
    taking = threading.Thread(target=take)
    taking.start()
    until("it is asked for", lambda: len(asked) == 3)
    read.shutdown()
    taking.join(PATIENCE)
    assert raised[1].startswith("CHANNEL_ENDED")


def test_readers_of_another_node_get_the_same_objects(two_nodes, monkeypatch):
    monkeypatch.setenv("TENSORLANE_SOCKETS", two_nodes[0].directory)
    queue = MessageQueue(3, 1, max_chunk_bytes=65536, max_chunks=4)
    script = """
total = []
while (got := queue.dequeue(timeout=60)) is not None:
    total.append(int(got.sum()))
print(total, queue._end._reader.route)
"""
    places = [two_nodes[0], two_nodes[1], two_nodes[1]]
    readers = [reader(queue, script, rank, TENSORLANE_SOCKETS=place.directory) for rank, place in enumerate(places)]
    queue.wait_until_ready(60)
    for number in range(40):
        # Every tenth one is larger than a chunk.
        queue.enqueue(np.full(100_000 if number % 10 == 0 else 100, number), timeout=60)
    queue.enqueue(None)
    sums = [(100_000 if number % 10 == 0 else 100) * number for number in range(40)]
    assert [said(one) for one in readers] == [f"{sums} {route}\n" for route in ("local", "tcp", "tcp")]


def test_waits_end_in_time_by_a_timeout_error_that_names_who_is_behind():
    writer, read = pair(max_chunks=2)
    for timeout in (0, 0.05):
        with pytest.raises(TimeoutError):
            read.dequeue(timeout=timeout)
    writer.enqueue(1)
    writer.enqueue(2)
    for timeout in (0, 0.05):
        with pytest.raises(TimeoutError, match=rf"BLOCKED_BY.*python\[{os.getpid()}\]"):
            writer.enqueue(3, timeout=timeout)
    assert [read.dequeue(timeout=0), read.dequeue(timeout=0)] == [1, 2]
    with pytest.raises(TimeoutError, match="0 of 1 readers of the queue are ready"):
        MessageQueue(1, 1, max_chunk_bytes=4096).wait_until_ready(timeout=0.05)


def test_a_dequeue_is_cancelled_by_its_event_and_loses_nothing():
    writer, read = pair()
    cancel, raised = threading.Event(), []

    def take():
        try:
            read.dequeue(cancel=cancel)
        except RuntimeError as error:
            raised.append(str(error))

    taking = threading.Thread(target=take)
    taking.start()
    cancel.set()
    taking.join(PATIENCE)
    assert raised == ["cancelled"]
    writer.enqueue("next")
    assert read.dequeue(timeout=PATIENCE, cancel=threading.Event()) == "next"


def test_a_reader_that_is_shut_down_while_it_waits_comes_back():
    writer, read = pair()
    raised = []

    def take():
        try:
            read.dequeue()
        except tensorlane.Error as error:
            raised.append(error.reason)

    taking = threading.Thread(target=take)
    taking.start()
    until("it waits", lambda: any(one["waits"] for one in read._end._client.channels(writer.export_handle().channel)[0]["readers"]))
    read.shutdown()
    taking.join(PATIENCE)
    assert raised == ["CHANNEL_ENDED"]
    with pytest.raises(tensorlane.Unavailable, match="rank 0"):
        while True:
            writer.enqueue("more", timeout=PATIENCE)


def test_a_long_wait_says_for_whom_it_waits(monkeypatch, caplog):
    monkeypatch.setattr(tensorlane.vllm, "_SAYS", 0.01)
    writer, read = pair(max_chunks=2)
    with caplog.at_level(logging.WARNING, "tensorlane.vllm"):
        with pytest.raises(TimeoutError):
            read.dequeue(timeout=0.1, indefinite=True)
        assert not caplog.records

        def is_said() -> bool:
            with pytest.raises(TimeoutError):
                read.dequeue(timeout=0.1)
            return "whose writer" in caplog.text

        until("it is said", is_said)


def test_a_killed_reader_blocks_the_writer_for_no_time_and_is_named():
    queue = MessageQueue(2, 2, max_chunk_bytes=4096, max_chunks=2)
    script = """
print(queue.dequeue(timeout=60), flush=True)
sys.stdin.read() if sys.argv[2] == "7" else print(queue.dequeue(timeout=60), flush=True)
"""
    stays, dies = reader(queue, script, 3), reader(queue, script, 7)
    queue.wait_until_ready(60)
    queue.enqueue("first")
    assert stays.stdout.readline() == dies.stdout.readline() == "first\n"
    queue.enqueue("second")
    assert said(stays) == "second\n"
    dies.kill()
    dies.communicate()
    with pytest.raises(tensorlane.Unavailable, match="readers of rank .*7.* are gone"):
        while True:
            queue.enqueue("more", timeout=60)


def test_a_writer_that_dies_or_shuts_down_ends_the_readers():
    script = """
import pickle, sys
from tensorlane.vllm import MessageQueue
queue = MessageQueue(1, 1, max_chunk_bytes=4096)
print(pickle.dumps(queue.export_handle()).hex(), flush=True)
queue.wait_until_ready()
queue.enqueue("last")
print("wrote", flush=True)
sys.stdin.readline()
"""
    process = python(script)
    read = MessageQueue.create_from_handle(pickle.loads(bytes.fromhex(process.stdout.readline())), 0)
    read.wait_until_ready(PATIENCE)
    assert process.stdout.readline() == "wrote\n"
    process.kill()
    process.communicate()
    assert read.dequeue(timeout=PATIENCE) == "last"
    with pytest.raises(tensorlane.Error) as lost:
        read.dequeue()
    assert lost.value.reason == "CHANNEL_ENDED"
    writer, read = pair()
    writer.enqueue("last")
    writer.shutdown()
    assert read.dequeue(timeout=PATIENCE) == "last"
    with pytest.raises(tensorlane.Error) as ended:
        read.dequeue()
    assert ended.value.reason == "CHANNEL_ENDED"


def test_a_reader_that_dies_before_it_is_ready_is_no_hang():
    queue = MessageQueue(2, 2, max_chunk_bytes=4096)
    script = READS.replace("queue.wait_until_ready()", "print('attached', flush=True); sys.stdin.read()")
    process = python(script, pickle.dumps(queue.export_handle()).hex(), "0")
    assert process.stdout.readline() == "attached\n"
    waits, raised = start(queue)
    until("the reader is counted by the thread that waits", lambda: queue._end._attached == 1)
    process.kill()
    process.communicate()
    waits.join(PATIENCE)
    assert raised and "are gone" in raised[0]


def test_what_cannot_be_is_refused():
    writer, read = pair()
    with pytest.raises(tensorlane.Invalid, match="call enqueue"):
        writer.dequeue()
    with pytest.raises(RuntimeError, match="call enqueue"):
        writer.dequeue()
    with pytest.raises(tensorlane.Invalid, match="call dequeue"):
        read.enqueue(1)
    with pytest.raises(tensorlane.Invalid):
        MessageQueue(1, 2)
    with pytest.raises(tensorlane.Invalid):
        MessageQueue(2, 1, [0, 1])
    with pytest.raises(TypeError):
        pickle.dumps(writer)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        writer.enqueue(lambda: 0)
    writer.enqueue("well")
    assert read.dequeue(timeout=PATIENCE) == "well" and writer._is_writer and not read._is_writer


def test_the_arguments_are_those_of_vllm():
    def names(function) -> list[str]:
        return list(inspect.signature(function).parameters)

    made = ["self", "n_reader", "n_local_reader", "local_reader_ranks", "max_chunk_bytes", "max_chunks", "connect_ip"]
    assert names(MessageQueue.__init__)[:7] == made
    assert names(MessageQueue.create_from_handle)[:2] == ["handle", "rank"]
    assert names(MessageQueue.create_from_process_group)[:4] == ["pg", "max_chunk_bytes", "max_chunks", "writer_rank"]
    # There is an argument before it at vLLM that is not here.
    assert inspect.signature(MessageQueue.create_from_process_group).parameters["blocking"].kind is inspect.Parameter.KEYWORD_ONLY
    assert names(MessageQueue.enqueue) == ["self", "obj", "timeout"]
    assert names(MessageQueue.dequeue) == ["self", "timeout", "cancel", "indefinite"]
    assert names(MessageQueue.broadcast_object) == ["self", "obj"]


BROADCAST = """
import sys, numpy, torch.distributed as dist
from tensorlane.vllm import MessageQueue
rank, count = int(sys.argv[1]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=4)
queue = MessageQueue.create_from_process_group(dist.group.WORLD, 40 * 1024, 2, 2)
random = numpy.random.default_rng(7)
# Half of them are larger than a chunk.
for array in (random.integers(1, 100, random.integers(1, 10_000)) for _ in range(count)):
    got = queue.broadcast_object(array if rank == 2 else None)
    assert numpy.array_equal(got, array)
dist.barrier()
dist.destroy_process_group()
print(count)
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_a_group_of_torch_shares_a_queue_and_broadcasts_arrays(tmp_path):
    count = os.environ.get("TENSORLANE_TEST_OBJECTS", "500")
    ranks = [python(BROADCAST, str(rank), str(tmp_path / "store"), count, GLOO_SOCKET_IFNAME="lo") for rank in range(4)]
    assert [said(one) for one in ranks] == [f"{count}\n"] * 4


def test_a_time_that_is_no_number_is_refused():
    writer, read = pair()
    for call in (read.dequeue, lambda timeout: writer.enqueue(1, timeout)):
        with pytest.raises(tensorlane.Invalid, match="timeout is nan"):
            call(timeout=float("nan"))
    with pytest.raises(TimeoutError):
        read.dequeue(timeout=-0.5)
    writer.enqueue(1, np.float16(60))
    assert read.dequeue(np.float16(60)) == 1
    writer.shutdown()
    read.shutdown()
