"""Pipes from Python: messages between processes, read in three steps, and what is known of them when something fails."""

from __future__ import annotations

import math
import os
import pickle
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


@pytest.fixture
def ends(client, name):
    """Both ends of a pipe: the one that connected, and the one that was accepted."""
    with client.listen(name) as listener:
        near = client.connect_pipe(name)
        far = listener.accept()
    yield near, far
    near.close()
    far.close()


def begun(near, *given, **options):
    """A write that another thread waits for; the message is there when this returns."""
    return near.begin(*given, timeout=60, **options)


def test_a_message_is_described_then_read_as_it_was_written(ends):
    near, far = ends
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    half = torch.arange(6, dtype=torch.bfloat16)
    large = os.urandom(100_000)
    writing = begun(near, [array, half, array.T, np.zeros((0, 5))], metadata="step 7", payloads=[b"a", large, b""], about=["x", b"y", b"", "z"])
    descriptor = far.read_descriptor()
    assert (descriptor.sequence, descriptor.metadata, descriptor.payloads) == (1, b"step 7", [1, 100_000, 0])
    assert [(t.dtype, t.shape, t.nbytes, t.about) for t in descriptor.tensors] == [
        ("f32", (3, 4), 48, b"x"),
        ("bf16", (6,), 12, b"y"),
        ("f32", (4, 3), 48, b""),
        ("f64", (0, 5), 0, b"z"),
    ]
    with descriptor.read() as received:
        assert received.metadata == b"step 7" and received.payloads == [b"a", large, b""]
        first, second, third, fourth = received.tensors
        np.testing.assert_array_equal(first.numpy(), array)
        assert not first.numpy().flags.writeable and first.route == "local"
        assert torch.equal(second.torch(), half)
        np.testing.assert_array_equal(third.numpy(), array.T)
        assert fourth.numpy().shape == (0, 5)
    writing.wait()
    assert far.client == f"python[{os.getpid()}]" and far.route == "local" and near.peer == far.peer


def test_the_reader_chooses_where_each_tensor_goes(ends):
    near, far = ends
    arrays = [np.full(5, number, np.int64) for number in range(4)]
    writing = begun(near, arrays)
    batch, row = np.zeros((2, 5), np.int64), torch.zeros(5, dtype=torch.int64)
    received = far.read_descriptor().read([None, batch[1], tensorlane.SKIP, row])
    mapped, copied, skipped, torched = received.tensors
    assert mapped.numpy().tolist() == [0] * 5 and copied.base is batch and skipped is None and torched is row
    assert batch.tolist() == [[0] * 5, [1] * 5] and row.tolist() == [3] * 5
    writing.wait()


def test_an_allocation_that_does_not_fit_reads_nothing_and_may_be_tried_again(ends):
    near, far = ends
    writing = begun(near, [np.arange(5)])
    descriptor = far.read_descriptor()
    fixed = np.zeros(5, np.int64)
    fixed.flags.writeable = False
    with pytest.raises(tensorlane.Invalid) as number:
        descriptor.read([None, None])
    assert number.value.reason == "LAYOUT_MISMATCH"
    for wrong in (np.zeros(4, np.int64), np.zeros(5, np.int32), torch.zeros(6), b"bytes", fixed):
        with pytest.raises(tensorlane.Unsupported):
            descriptor.read([wrong])
    out = np.zeros(5, np.int64)
    descriptor.read([out])
    assert out.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(tensorlane.Invalid, match="ask for the next one"):
        descriptor.read()
    writing.wait()


def test_a_message_is_read_into_parameters_and_what_was_made_in_inference_mode(ends):
    near, far = ends
    writing = begun(near, [np.ones(2, np.float32)] * 3)
    weights = torch.nn.Parameter(torch.zeros(2))
    with torch.inference_mode():
        inferred = torch.zeros(2)
    grown = torch.zeros(2, requires_grad=True)
    far.read_descriptor().read([weights, inferred, grown])
    writing.wait()
    assert [one.tolist() for one in (weights, inferred, grown)] == [[1, 1]] * 3
    assert weights.requires_grad and weights.is_leaf and weights.grad_fn is None


def test_a_place_without_memory_of_its_own_is_refused_before_anything_is_read(ends):
    near, far = ends
    done = threading.Event()
    thread = threading.Thread(target=lambda: (near.write([np.ones((2, 3), np.float32)] * 2, timeout=60), done.set()))
    thread.start()
    descriptor = far.read_descriptor()
    shared = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (2, 3), (0, 4))
    sparse = torch.zeros(2, 3).to_sparse()
    row = torch.zeros(2, 3)
    for wrong in (torch.empty(2, 3, device="meta"), torch.zeros(1, 3).expand(2, 3), shared, sparse):
        with pytest.raises(tensorlane.Unsupported):
            descriptor.read([row, wrong])
    assert not done.wait(0.1) and row.sum() == 0, "the writer waits yet"
    descriptor.read([row, None])
    thread.join(60)
    assert done.is_set() and row.sum() == 6


def test_a_read_whose_copy_fails_after_all_is_tried_again(ends):
    near, far = ends

    class Odd(torch.Tensor):
        def copy_(self, *_):
            raise RuntimeError("this one takes nothing")

    writing = begun(near, [np.full(2, 7.0), np.zeros(3), np.full(2, 8.0)], payloads=[b"all"])
    descriptor = far.read_descriptor()
    first, odd = np.zeros(2), torch.zeros(2, dtype=torch.float64).as_subclass(Odd)
    with pytest.raises(RuntimeError, match="takes nothing"):
        descriptor.read([first, tensorlane.SKIP, odd])
    with pytest.raises(tensorlane.Invalid, match="left a tensor"):
        descriptor.read()
    received = descriptor.read([first, tensorlane.SKIP, None])
    assert (received.payloads, first.tolist(), received.tensors[2].numpy().tolist()) == ([b"all"], [7, 7], [8, 8])
    writing.wait()
    with pytest.raises(tensorlane.Invalid, match="ask for the next one"):
        descriptor.read()


def test_a_message_whose_read_failed_comes_again_while_the_exception_lives(ends, monkeypatch):
    near, far = ends
    writes = [begun(near, metadata=word) for word in ("first", "second")]

    def fail(self, places=None):
        raise tensorlane.Exhausted("no room", "ARENA_FULL")

    with monkeypatch.context() as patch:
        patch.setattr(tensorlane.Descriptor, "read", fail)
        try:
            far.read()
        except tensorlane.Exhausted:
            patch.undo()
            assert [far.read().metadata for _ in range(2)] == [b"first", b"second"]
    for writing in writes:
        writing.wait()


def test_a_write_is_done_when_the_other_end_has_read_it_and_not_before(ends):
    near, far = ends
    done = threading.Event()
    thread = threading.Thread(target=lambda: (near.write([np.arange(3)], timeout=60), done.set()))
    thread.start()
    descriptor = far.read_descriptor()
    assert not done.wait(0.1)
    descriptor.read()
    thread.join(60)
    assert done.is_set()


def test_messages_are_read_in_the_order_of_writes_and_a_descriptor_given_up_comes_again(ends):
    near, far = ends
    writes = [begun(near, metadata=str(number)) for number in range(10)]
    with far.read_descriptor() as first:
        assert first.metadata == b"0"
    ahead = [far.read_descriptor() for _ in range(3)]
    assert [descriptor.metadata for descriptor in ahead] == [b"0", b"1", b"2"]
    for descriptor in reversed(ahead):
        descriptor.read()
    assert [far.read().metadata for _ in range(7)] == [str(number).encode() for number in range(3, 10)]
    for writing in writes:
        writing.wait()


def test_nothing_is_copied_of_a_reservation_a_stored_tensor_and_a_reference(client, ends):
    near, far = ends
    room = client.empty((1 << 16,), np.uint8)
    room.array[...] = 7
    kept = client.put(np.arange(1 << 16, dtype=np.uint8), metadata={"by": "test"})
    before = client.status().sealed_bytes
    writing = begun(near, [room, kept, kept.reference])
    assert client.status().sealed_bytes == before + (1 << 16)
    with far.read() as received:
        assert [int(tensor.numpy()[9]) for tensor in received.tensors] == [7, 9, 9]
    writing.wait()
    assert kept.held
    until("the reservation is freed", lambda: client.status().sealed_bytes == before)


def test_a_write_that_nobody_reads_says_who_and_leaves_nothing(client, ends):
    near, far = ends
    before = client.status().sealed_bytes

    def late():
        with pytest.raises(tensorlane.Timeout) as late:
            near.write([np.zeros(1 << 16)], timeout=0.3)
        return late.value.delivered == "no" and f"python[{os.getpid()}]" in str(late.value)

    # Where the word of the sidecar comes too late for the client, it is not known.
    until("it is said in time who did not see it", late)
    begun(near, [np.zeros(1 << 16)], metadata="taken back").withdraw()
    until("what was written is freed", lambda: client.status().sealed_bytes == before)
    writing = begun(near, metadata="next")
    descriptor = far.read_descriptor()
    assert descriptor.metadata == b"next"
    descriptor.read()
    writing.wait()
    with pytest.raises(tensorlane.Invalid, match="was waited for"):
        writing.wait()


def test_a_message_that_cannot_be_stores_nothing(client, ends):
    near, far = ends
    before = client.status().tensors
    reserved = client.empty(3)
    reserved.seal()
    for wrong in ([np.zeros(3), object()], "text", np.zeros(3), [np.zeros(3), reserved]):
        with pytest.raises((tensorlane.Unsupported, tensorlane.Invalid)):
            near.write(wrong, timeout=60)
    for options in ({"about": ["one", "two"]}, {"payloads": b"bytes"}, {"payloads": [7]}, {"metadata": 7}):
        with pytest.raises((tensorlane.Unsupported, tensorlane.Invalid)):
            near.write([np.zeros(3)], timeout=60, **options)
    for options in ({"metadata": bytes(65 << 10)}, {"about": [bytes(5 << 10)]}, {"payloads": [b""] * 1025}):
        with pytest.raises(tensorlane.Error) as large:
            near.write([np.zeros(3)], timeout=60, **options)
        assert large.value.reason == "TOO_LARGE" and large.value.delivered == "no"
    until("nothing is left", lambda: client.status().tensors == before)
    for held in (near, far, far.read_descriptor):
        with pytest.raises(TypeError):
            pickle.dumps(held)


def test_an_end_that_finished_ends_the_other_one_and_one_that_failed_does_not(client, name):
    with client.listen(name) as listener:
        with client.connect_pipe(name) as near:
            far = listener.accept()
            writing = begun(near, metadata="last")
            reader = threading.Thread(target=lambda: far.read())
            reader.start()
            writing.wait()
            reader.join(60)
        assert far.read() is None and list(far) == []
        with pytest.raises(tensorlane.Error) as closed:
            far.write(metadata="to nobody")
        assert (closed.value.reason, closed.value.delivered) == ("PIPE_CLOSED", "no")
        with pytest.raises(RuntimeError), client.connect_pipe(name):
            other = listener.accept()
            raise RuntimeError
        with pytest.raises(tensorlane.Error) as broken:
            other.read()
        assert broken.value.reason == "PIPE_CLOSED"


def test_an_end_that_is_left_waits_for_writes_of_other_threads(ends):
    near, far = ends
    failed = []

    def write():
        try:
            near.write([np.arange(3)], metadata="last", timeout=60)
        except tensorlane.Error as error:
            failed.append(error)

    def leave():
        with near:
            pass

    writing, leaving = threading.Thread(target=write), threading.Thread(target=leave)
    writing.start()
    descriptor = far.read_descriptor(timeout=60)
    leaving.start()
    leaving.join(0.2)
    writing.join(0.2)
    assert descriptor.read().tensors[0].numpy().tolist() == [0, 1, 2]
    assert far.read(timeout=60) is None
    for thread in (writing, leaving):
        thread.join(60)
    assert not failed


def test_an_end_that_is_left_waits_for_its_writes_no_longer_than_the_deadline(sidecar, name):
    with tensorlane.connect(sidecar.directory) as client, client.listen(name) as listener:
        failed = []
        # That of an end that is left; the other calls have their time.
        client._deadline = 0.5

        def write():
            try:
                near.write(metadata="unread", timeout=math.inf)
            except tensorlane.Error as error:
                failed.append(error)

        with client.connect_pipe(name) as near, listener.accept() as far:
            writing = threading.Thread(target=write)
            writing.start()
            assert far.read_descriptor(timeout=60) is not None
        writing.join(60)
        assert len(failed) == 1


@pytest.mark.parametrize("way", ["write", "begin", "refused"])
def test_a_reservation_whose_write_failed_can_be_written_again(ends, client, way):
    near, far = ends
    room = client.empty((3,), "float32")
    room.array[...] = 7
    tensors = [np.arange(2), room]

    def failed():
        with pytest.raises(tensorlane.Error) as error:
            if way == "write":
                near.write(tensors, timeout=1)
            elif way == "begin":
                near.begin(tensors, timeout=1).wait()
            else:
                near.write(tensors, payloads=b"no list")
        return error.value if error.value.stored else None

    # Where the array before it was not put in time, it is as it was.
    error = until("the reservation is sealed", failed)
    assert pickle.loads(pickle.dumps(error)).stored == ()
    (stored,) = error.stored
    writing = begun(near, [stored])
    assert far.read().tensors[0].numpy().tolist() == [7, 7, 7]
    writing.wait()


def test_a_reservation_whose_write_was_refused_for_unread_messages_can_be_written_again(ends, client):
    near, far = ends
    unread = [begun(near, metadata="unread") for _ in range(64)]
    room = client.empty((3,), "float32")
    room.array[...] = 7
    sent = [room]

    def is_refused():
        with pytest.raises(tensorlane.Error) as full:
            near.write(sent, timeout=1)
        sent[:] = full.value.stored or sent
        return full.value.delivered == "no" and isinstance(sent[0], tensorlane.Stored)

    until("it is refused in time, and sealed", is_refused)
    for writing in unread:
        assert far.read().metadata == b"unread"
        writing.wait()
    writing = begun(near, sent)
    assert far.read().tensors[0].numpy().tolist() == [7, 7, 7]
    writing.wait()


def test_close_withdraws_what_waits_in_another_thread(client, name):
    def ended_by(close, call):
        raised, begins = [], threading.Event()

        def wait():
            begins.set()
            try:
                call(timeout=math.inf)
            except tensorlane.Error as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        # The call has begun or is about to: either way it ends.
        begins.wait(60)
        close()
        thread.join(60)
        assert isinstance(raised[0], tensorlane.Withdrawn) or raised[0].reason == "PIPE_CLOSED"
        with pytest.raises(tensorlane.Error) as again:
            call(timeout=0)
        assert again.value.reason == "PIPE_CLOSED"
        close()

    for _ in range(10):
        listener = client.listen(name)
        near = client.connect_pipe(name)
        far = listener.accept()
        ended_by(far.close, far.read)
        ended_by(listener.close, listener.accept)
        with pytest.raises(tensorlane.Error) as closed:
            near.read(timeout=60)
        assert closed.value.reason == "PIPE_CLOSED"
        near.close()


def test_names_are_taken_found_and_waited_for(client, name):
    with pytest.raises(tensorlane.NotFound):
        client.connect_pipe(name)
    with client.listen(name):
        with pytest.raises(tensorlane.NameTaken):
            client.listen(name)
    with pytest.raises((tensorlane.NotFound, tensorlane.Timeout)):
        client.connect_pipe(name, wait=0.05)
    with client.listen(name) as listener:
        with pytest.raises(tensorlane.Timeout):
            listener.accept(timeout=0)


SERVER = """
import sys, numpy, tensorlane
with tensorlane.connect(sys.argv[1]) as client, client.listen(sys.argv[2]) as listener:
    total = numpy.zeros(1000)
    print("listens", flush=True)
    with listener.accept(timeout=60) as pipe:
        for message in pipe:
            total += message.tensors[0].numpy()
            pipe.write([total], metadata=message.metadata)
    print(int(total.sum()))
"""


def test_another_process_answers_each_message_as_a_parameter_server_does(client, name):
    server = python(SERVER, client.directory, name)
    with client.connect_pipe(name, wait=60) as pipe:
        assert pipe.client != f"python[{os.getpid()}]"
        for step in range(50):
            pipe.write([np.ones(1000)], metadata=str(step), timeout=60)
            with pipe.read(timeout=60) as answer:
                assert answer.metadata == str(step).encode()
                assert answer.tensors[0].numpy()[0] == step + 1
    assert said(server).split() == ["listens", "50000"]


def test_a_process_that_is_killed_is_told_to_reader_and_writer_and_leaves_nothing(client, alone, name):
    before = client.status().sealed_bytes
    script = """
import sys, time, numpy, tensorlane
client = tensorlane.connect(sys.argv[1])
pipe = client.connect_pipe(sys.argv[2], wait=60)
pipe.begin([numpy.ones(1000)], metadata="unread", timeout=600)
taken = pipe.read_descriptor(timeout=60)
print("taken", flush=True)
time.sleep(600)
"""
    with client.listen(name) as listener:
        other = python(script, client.directory, name)
        far = listener.accept(timeout=60)
        seen, unseen = begun(far, metadata="seen"), begun(far, metadata="unseen")
        assert other.stdout.readline() == "taken\n"
        os.kill(other.pid, signal.SIGKILL)
        other.communicate(timeout=60)
        for writing, delivered in ((seen, "unknown"), (unseen, "no")):
            with pytest.raises(tensorlane.Error) as lost:
                writing.wait()
            assert (lost.value.reason, lost.value.delivered) == ("PIPE_LOST", delivered)
        with pytest.raises(tensorlane.Error) as gone:
            far.read(timeout=60)
        assert gone.value.reason == "PIPE_LOST"
    until("all bytes are freed", lambda: client.status().sealed_bytes == before)


def test_a_forked_child_uses_no_end_of_its_parent(ends):
    near, far = ends
    child = os.fork()
    if child == 0:
        try:
            near.write(metadata="from the child", timeout=1)
        except tensorlane.Error:
            near.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    writing = begun(near, metadata="from the parent")
    assert far.read().metadata == b"from the parent"
    writing.wait()


def test_a_pipe_to_another_node_carries_messages_both_ways(clients, name):
    there, here = clients
    array = np.arange(300_000, dtype=np.float32)
    with there.listen(name) as listener:
        with pytest.raises(tensorlane.NotFound):
            here.connect_pipe(name)
        near = here.connect_pipe(f"node-0/{name}", wait=20)
        far = listener.accept(timeout=60)
        assert (near.peer, near.route, far.peer, far.route) == ("node-0", "tcp", "node-1", "tcp")
        writing = begun(near, [array, array[:5], array[5:9]], metadata="there", payloads=[bytes(100_000)])
        row = np.zeros(5, np.float32)
        received = far.read_descriptor(timeout=60).read([None, row, tensorlane.SKIP])
        np.testing.assert_array_equal(received.tensors[0].numpy(), array)
        assert received.tensors[0].route.startswith("tcp") and received.tensors[2] is None
        assert row.tolist() == [0, 1, 2, 3, 4] and len(received.payloads[0]) == 100_000
        writing.wait()
        back = begun(far, [array * 2], metadata="back")
        np.testing.assert_array_equal(near.read(timeout=60).tensors[0].numpy(), array * 2)
        back.wait()
        unread = begun(near, metadata="unread")
        far.close()
        with pytest.raises(tensorlane.Error) as closed:
            unread.wait()
        assert (closed.value.reason, closed.value.delivered) == ("PIPE_CLOSED", "no")
        near.close()
