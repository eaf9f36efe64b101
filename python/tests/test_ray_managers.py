"""Ray's tensor transport, asked as Ray asks it: what Ray cannot be made to do at will. With a real Ray: test_ray.py."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tensorlane
from conftest import python, until
from tensorlane import transfers

pytest.importorskip("ray")
import tensorlane.ray as transport  # noqa: E402


@pytest.fixture(scope="module")
def lane():
    with tensorlane.local(export=True) as client:
        yield client
        transport._client = None


def empty(lane) -> None:
    until("everything is freed", lambda: lane.status().tensors == 0)


@pytest.fixture(autouse=True)
def nothing_before(lane):
    """Nothing is left of earlier tests, for those that count."""
    gc.collect()
    empty(lane)


@pytest.fixture
def manager(lane):
    return transport.Transport()


def test_what_was_sent_from_a_gpu_comes_to_one_where_there_is_one(lane, manager, monkeypatch):
    """Over pretended GPUs: what is asked of torch. With real ones: python/tests/gpu."""

    class OnGpu:
        """A tensor that came by the host, and the copy that was made of it."""

        is_cuda, released = False, 0

        def torch(self):
            return self

        def cuda(self):
            return "on the GPU"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.released += 1

    came = OnGpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert transport._as_sent(came, torch.float32, "cuda") == "on the GPU" and came.released == 1
    assert transport._as_sent(came, torch.float32, "cpu") is came and came.released == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert transport._as_sent(came, torch.float32, "cuda") is came and came.released == 1, "its arrays hold it"


def test_tensors_of_an_object_say_each_where_they_are(lane, manager):
    class Cuda(torch.Tensor):
        device = torch.device("cuda:1")

    mixed = [torch.ones(2), torch.ones(3).as_subclass(Cuda)]
    described = transport._described(mixed)
    assert (described["tensor_device"], described["devices"]) == ("cuda", ("cpu", "cuda"))
    assert transport._described([])["tensor_device"] == "cpu"
    meta = manager.extract_tensor_transport_metadata("old", [torch.arange(3)])
    # As one of a release before has it.
    meta.devices = ()
    (got,) = manager.recv_multiple_tensors("old", meta, manager.get_communicator_metadata(None, None))
    assert got.tolist() == [0, 1, 2]
    manager.garbage_collect("old", meta, [])


def test_a_retry_of_a_task_stores_nothing_again(lane, manager):
    """S0.5: idempotent for an object, from several threads at once."""
    got = []
    extract = lambda: got.append(manager.extract_tensor_transport_metadata("once", [torch.ones(3), torch.ones(2)]))  # noqa: E731
    threads = [threading.Thread(target=extract) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len({meta.references for meta in got}) == 1 and lane.status().tensors == 2
    for _ in range(2):
        manager.garbage_collect("once", got[0], [])
    empty(lane)


def test_an_object_that_cannot_be_stored_leaves_nothing_and_may_be_tried_again(lane, manager):
    with pytest.raises(tensorlane.Unsupported):
        manager.extract_tensor_transport_metadata("half", [torch.ones(3), torch.ones(3, device="meta")])
    empty(lane)
    meta = manager.extract_tensor_transport_metadata("half", [torch.ones(3)])
    manager.garbage_collect("half", meta, [])


@pytest.fixture
def slow(lane, monkeypatch):
    """Transfers that last until they are withdrawn."""

    class Slow:
        def get_many(self, targets, deadline, cancel):
            return lane.get_many(["never/comes"], wait=60, cancel=cancel)

    monkeypatch.setattr(transport, "client", Slow)


def test_a_transfer_that_hangs_is_aborted_from_another_thread(manager, slow):
    meta, told = transport.TransportMetadata([], references=()), []
    comm, other = (manager.get_communicator_metadata(None, None) for _ in range(2))

    def receive() -> None:
        with pytest.raises(RuntimeError, match="aborted"):
            manager.recv_multiple_tensors("hangs", meta, comm)
        told.append(True)

    receiver = threading.Thread(target=receive)
    receiver.start()
    until("it is under way", lambda: manager._receiving)
    manager.abort_transport("hangs", other)
    assert not told, "another transfer of the object was aborted"
    manager.abort_transport("hangs", comm)
    receiver.join(60)
    assert told and not manager._receiving


def test_a_transfer_that_was_aborted_before_it_began_is_refused(manager, slow):
    meta, comm = transport.TransportMetadata([], references=()), manager.get_communicator_metadata(None, None)
    manager.abort_transport("early", comm)
    with pytest.raises(RuntimeError, match="aborted"):
        manager.recv_multiple_tensors("early", meta, comm)


def test_names_of_transfers_are_kept_for_a_time_and_up_to_a_number(monkeypatch):
    names = transfers.Names()
    for number in range(transfers.NAMES_MAX + 10):
        names.add(str(number))
    assert "9" not in names and "10" in names and len(names) == transfers.NAMES_MAX
    monkeypatch.setattr(transfers, "NAMES_KEPT", -1.0)
    names.add("11")
    assert "11" not in names and "12" in names


def test_a_fetch_is_polled_waited_for_and_withdrawn_when_it_is_dropped(manager, slow):
    fetch = manager.fetch_multiple_tensors("hangs", transport.TransportMetadata([]), transport.TransportCommunicator())
    for timeout in (0, 0.05):
        with pytest.raises(TimeoutError):
            manager.wait_fetch_complete(fetch, timeout)
    until("it is under way", lambda: manager._receiving)
    del fetch
    until("it is withdrawn", lambda: not manager._receiving)


def test_a_fetch_brings_what_was_stored(lane, manager):
    meta = manager.extract_tensor_transport_metadata("fetched", [torch.arange(3)])
    fetch = manager.fetch_multiple_tensors("fetched", meta, transport.TransportCommunicator())
    assert manager.wait_fetch_complete(fetch)[0].tolist() == [0, 1, 2]
    manager.garbage_collect("fetched", meta, [])


def test_a_send_is_refused_because_the_transport_is_one_sided(manager):
    """S0.10"""
    with pytest.raises(NotImplementedError):
        manager.send_multiple_tensors([], None, None)


def test_metadata_of_another_version_are_refused(manager):
    meta = transport.TransportMetadata([], version=2)
    with pytest.raises(tensorlane.Unsupported, match="version 2"):
        manager.recv_multiple_tensors("newer", meta, transport.TransportCommunicator())


def test_a_driver_without_torch_is_warned_and_still_has_numpy(monkeypatch):
    registered = []
    monkeypatch.setattr(transport, "_register", lambda name, *_: registered.append(name))
    monkeypatch.setattr(transport.importlib.util, "find_spec", lambda _: None)
    with pytest.warns(RuntimeWarning, match="torch is not installed"):
        transport.register()
    assert registered == ["tensorlane_numpy"]


def test_an_environment_that_is_no_number_is_refused(manager, monkeypatch):
    monkeypatch.setenv(transport.KEEP, "soon")
    with pytest.raises(ValueError, match="TENSORLANE_RAY_KEEP"):
        manager.extract_tensor_transport_metadata("soon", [torch.ones(1)])
    monkeypatch.delenv(transport.KEEP)
    for seconds in ("inf", "nan", "-1", "0"):
        monkeypatch.setenv(transport.DEADLINE, seconds)
        with pytest.raises(ValueError, match=f"TENSORLANE_RAY_DEADLINE is '{seconds}'"):
            manager.extract_tensor_transport_metadata("soon", [torch.ones(1)])


@pytest.fixture
def sides(lane):
    """A source and a receiver that hand tensors over as Ray has them do it."""
    source, receiver = transport.TwoSidedTransport(), transport.TwoSidedTransport()
    yield source, receiver
    source.withdraw_all()
    empty(lane)


def test_a_receiver_may_come_before_the_send_and_after_it(lane, sides):
    source, receiver = sides
    tensors = [torch.arange(5), torch.zeros(2, 0), torch.ones(3)] + [torch.tensor(number) for number in range(600)]
    meta = source.extract_tensor_transport_metadata("both", tensors)
    comms = [source.get_communicator_metadata(None, None) for _ in range(2)]
    source.send_multiple_tensors(tensors, meta, comms[0])
    assert lane.status().tensors == len(tensors)
    early = threading.Thread(target=lambda: got.append(receiver.recv_multiple_tensors("both", meta, comms[1])))
    got = [receiver.recv_multiple_tensors("both", meta, comms[0])]
    early.start()
    until("it waits", lambda: receiver._receiving)
    source.send_multiple_tensors(tensors, meta, comms[1])
    early.join(60)
    assert all(torch.equal(a, b) for one in got for a, b in zip(one, tensors, strict=True)) and len(got) == 2
    buffers = [torch.empty_like(tensor) for tensor in tensors]
    source.send_multiple_tensors(tensors, meta, third := source.get_communicator_metadata(None, None))
    assert receiver.recv_multiple_tensors("both", meta, third, buffers)[0] is buffers[0] and torch.equal(buffers[0], tensors[0])


def made(source, obj_id="made"):
    """Tensors, their metadata, and the communicator metadata of one transfer of them."""
    tensors = [torch.ones(3)]
    return tensors, source.extract_tensor_transport_metadata(obj_id, tensors), source.get_communicator_metadata(None, None)


def test_a_send_and_a_receive_that_were_aborted_before_they_began_are_refused_and_other_transfers_are_not(lane, sides):
    source, receiver = sides
    tensors, meta, comm = made(source)
    for side in sides:
        side.abort_transport("made", comm)
    with pytest.raises(RuntimeError, match="aborted"):
        source.send_multiple_tensors(tensors, meta, comm)
    with pytest.raises(RuntimeError, match="aborted"):
        receiver.recv_multiple_tensors("made", meta, comm)
    empty(lane)
    again = source.get_communicator_metadata(None, None)
    source.send_multiple_tensors(tensors, meta, again)
    assert torch.equal(receiver.recv_multiple_tensors("made", meta, again)[0], tensors[0])


@pytest.mark.parametrize("end", ["garbage_collect", "abort_transport"])
def test_a_send_that_is_ended_while_it_puts_is_released(lane, sides, monkeypatch, end):
    source, _ = sides
    tensors, meta, comm = made(source)

    class Ended:
        """A client in whose put the transfer is ended."""

        listen = lane.listen

        def put_many(self, *arguments, **options):
            stored = lane.put_many(*arguments, **options)
            source.garbage_collect("made", meta, []) if end == "garbage_collect" else source.abort_transport("made", comm)
            return stored

        def flush(self):
            lane.flush()

    monkeypatch.setattr(transport, "client", Ended)
    with pytest.raises(RuntimeError, match="aborted"):
        source.send_multiple_tensors(tensors, meta, comm)
    empty(lane)
    assert not source._sending


def test_a_late_abort_of_one_receive_leaves_another_of_the_same_object_alone(lane, sides):
    source, receiver = sides
    tensors, meta, first = made(source)
    source.send_multiple_tensors(tensors, meta, first)
    assert receiver.recv_multiple_tensors("made", meta, first)
    second, got = source.get_communicator_metadata(None, None), []
    waiting = threading.Thread(target=lambda: got.append(receiver.recv_multiple_tensors("made", meta, second)))
    waiting.start()
    until("it waits", lambda: receiver._receiving)
    receiver.abort_transport("made", first)
    source.send_multiple_tensors(tensors, meta, second)
    waiting.join(60)
    assert got and torch.equal(got[0][0], tensors[0])


def test_a_pipe_of_a_connector_that_has_gone_does_not_end_the_send(lane, sides, monkeypatch):
    monkeypatch.setenv(transport.DEADLINE, "20")
    source, receiver = sides
    tensors, meta, comm = made(source)
    source.send_multiple_tensors(tensors, meta, comm)
    for _ in range(2):
        lane.connect_pipe(f"{meta.peer}/{comm.transfer}").close()
    assert torch.equal(receiver.recv_multiple_tensors("made", meta, comm)[0], tensors[0])


@pytest.mark.parametrize("waits", [False, True])
def test_a_pipe_of_another_peer_whose_connector_has_gone_does_not_end_the_send(clients, waits):
    sending, name = transfers.Sending("crosses", f"ray/crosses-{waits}", 20.0), f"{clients[0].peer}/ray/crosses-{waits}"
    sending.put(clients[0], [torch.ones(3)])
    handing_over = threading.Thread(target=sending.hand_over)
    if waits:
        handing_over.start()
    for _ in range(3):
        clients[1].connect_pipe(name, wait=20).close()
    if not waits:
        handing_over.start()
    with clients[1].connect_pipe(name, wait=20) as pipe:
        with clients[1].get(tensorlane.Reference(pipe.read(timeout=60).metadata.decode())) as got:
            assert got.numpy().tolist() == [1, 1, 1]
        assert pipe.read(timeout=60) is None
    handing_over.join(60)
    assert not handing_over.is_alive()
    sending.release()


def test_a_send_that_waits_in_line_ends_at_its_own_deadline(lane, sides, monkeypatch):
    source, _ = sides
    source._handing_over = ThreadPoolExecutor(1)
    tensors, meta, first = made(source)
    source.send_multiple_tensors(tensors, meta, first)
    monkeypatch.setenv(transport.DEADLINE, "2")
    source.send_multiple_tensors(tensors, meta, second := source.get_communicator_metadata(None, None))
    over = time.monotonic() + 2
    monkeypatch.delenv(transport.DEADLINE)
    until("the deadline of the second is over", lambda: time.monotonic() > over)
    source.abort_transport("made", first)
    empty(lane)
    until("both are forgotten", lambda: not source._sending)
    source.send_multiple_tensors(tensors, meta, second)
    assert lane.status().tensors == 0, "it was asked for again, and is over"


def test_a_send_that_is_aborted_while_it_waits_in_line_is_released_before_its_turn(lane, sides):
    source, _ = sides
    source._handing_over = ThreadPoolExecutor(1)
    tensors, meta, first = made(source)
    second = source.get_communicator_metadata(None, None)
    for comm in (first, second):
        source.send_multiple_tensors(tensors, meta, comm)
    assert lane.status().tensors == 2
    source.abort_transport("made", second)
    until("the second is released", lambda: lane.status().tensors == 1)
    assert len(source._sending) == 2, "its turn has not come"


def test_a_send_that_ray_asks_for_again_is_the_same(lane, sides):
    source, receiver = sides
    tensors, meta, comm = made(source)
    for _ in range(3):
        source.send_multiple_tensors(tensors, meta, comm)
    assert lane.status().tensors == 1
    assert torch.equal(receiver.recv_multiple_tensors("made", meta, comm)[0], tensors[0])
    until("it is handed over", lambda: not source._sending)
    source.send_multiple_tensors(tensors, meta, comm)
    assert not source._sending
    empty(lane)


def test_a_send_whose_receiver_never_comes_is_released_at_its_deadline(lane, sides, monkeypatch):
    monkeypatch.setenv(transport.DEADLINE, "2")
    source, _ = sides
    source.send_multiple_tensors(*made(source))
    empty(lane)
    until("it is forgotten", lambda: not source._sending)


def test_a_send_that_no_thread_takes_is_released(lane, sides):
    source, _ = sides
    source._handing_over.shutdown()
    with pytest.raises(RuntimeError):
        source.send_multiple_tensors(*made(source))
    empty(lane)
    assert not source._sending


def test_nothing_begins_once_the_interpreter_ends(lane, sides):
    source, receiver = sides
    tensors, meta, comm = made(source)
    for side in sides:
        side.end()
    with pytest.raises(RuntimeError, match="ends"):
        source.send_multiple_tensors(tensors, meta, comm)
    with pytest.raises(RuntimeError, match="ends"):
        receiver.recv_multiple_tensors("made", meta, comm)
    empty(lane)


ENDING = """
import sys, torch, tensorlane
import tensorlane.ray as transport

lane = transport.client()
source = transport.TwoSidedTransport()
for number in range(3):
    tensors = [torch.ones(3)]
    meta = source.extract_tensor_transport_metadata(str(number), tensors)
    source.send_multiple_tensors(tensors, meta, source.get_communicator_metadata(None, None))

class Slow:
    def get_many(self, targets, deadline, cancel):
        return lane.get_many(["never/comes"], wait=300, cancel=cancel)

transport.client = Slow
manager = transport.Transport()
meta = transport.TransportMetadata([], references=())
fetches = [manager.fetch_multiple_tensors(str(number), meta, manager.get_communicator_metadata(None, None)) for number in range(6)]
while len(manager._receiving) < 4:
    pass
print("made", flush=True)
"""


def test_a_program_ends_soon_though_receivers_have_not_come_and_fetches_wait(lane):
    program = python(ENDING, TENSORLANE_SOCKETS=lane.directory)
    try:
        assert program.stdout.readline() == "made\n"
        program.wait(100)
        assert program.returncode == 0, program.stderr.read()
    finally:
        program.kill()
        program.communicate()
    empty(lane)


@pytest.mark.parametrize("end", ["garbage_collect", "abort_transport"])
def test_a_send_whose_receiver_does_not_come_is_released(lane, sides, end):
    source, _ = sides
    meta, comm = source.extract_tensor_transport_metadata("alone", [torch.ones(3)]), source.get_communicator_metadata(None, None)
    source.send_multiple_tensors([torch.ones(3)], meta, comm)
    assert lane.status().tensors == 1
    source.garbage_collect("alone", meta, []) if end == "garbage_collect" else source.abort_transport("alone", comm)
    empty(lane)
    until("it is forgotten", lambda: not source._sending)


def test_a_receiver_that_nobody_sends_to_is_aborted_or_told_at_its_deadline(sides, monkeypatch):
    source, receiver = sides
    meta, comm = source.extract_tensor_transport_metadata("none", [torch.ones(3)]), source.get_communicator_metadata(None, None)
    told = []

    def receive() -> None:
        with pytest.raises(RuntimeError, match="aborted"):
            receiver.recv_multiple_tensors("none", meta, comm)
        told.append(True)

    waiting = threading.Thread(target=receive)
    waiting.start()
    until("it waits", lambda: receiver._receiving)
    receiver.abort_transport("none", comm)
    waiting.join(60)
    assert told
    monkeypatch.setenv(transport.DEADLINE, "0.3")
    with pytest.raises(tensorlane.Timeout, match=f"object none .* peer {meta.peer} .* 0.3 s"):
        receiver.recv_multiple_tensors("none", meta, source.get_communicator_metadata(None, None))
    assert not receiver._receiving


STORES = """
import sys, torch, tensorlane.ray
meta = tensorlane.ray.Transport().extract_tensor_transport_metadata("kept", [torch.arange(4)])
print("stored", *meta.references, flush=True)
sys.stdin.read()
"""


def test_what_a_dead_process_stored_stays_until_its_ticket_is_over():
    with tensorlane.local(arena="64Mi") as client:

        def left_by_one_that_was_killed(keep: str) -> tensorlane.Reference:
            process = python(STORES, TENSORLANE_SOCKETS=client.directory, TENSORLANE_RAY_KEEP=keep)
            line = next(line for line in process.stdout if line.startswith("stored "))
            process.kill()
            process.communicate()
            return tensorlane.Reference(line.split()[1])

        kept = left_by_one_that_was_killed("3600")
        until("its lease is gone", lambda: client.describe(kept).leases == 0)
        assert client.get(kept).numpy().tolist() == [0, 1, 2, 3]
        left_by_one_that_was_killed("1")
        until("the other one is freed", lambda: client.status().tensors == 1)


def test_an_object_that_is_kept_outlives_what_made_it(lane, manager, monkeypatch):
    """The last one: what it keeps would be waited for in vain."""
    monkeypatch.setenv(transport.KEEP, "30")
    meta = manager.extract_tensor_transport_metadata("kept", [torch.ones(1)])
    manager.garbage_collect("kept", meta, [])
    (got,) = manager.recv_multiple_tensors("kept", meta, transport.TransportCommunicator())
    assert got.tolist() == [1] and lane.status().tickets >= 1
