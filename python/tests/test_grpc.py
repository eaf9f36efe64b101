"""The messages of gRPC that the wheel brings, with the real grpcio."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import tensorlane
from conftest import PATIENCE

grpc = pytest.importorskip("grpc")

DOCUMENTS = Path(__file__).parents[2] / "docs"


def program(word: str, document: str) -> str:
    """The program of the document that has that word."""
    text = (DOCUMENTS / document).read_text()
    (found,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import grpc" in code and word in code)
    return found


def printed(word: str, sidecar: tensorlane.Sidecar, directory: Path, document: str = "python.md") -> list[str]:
    """Runs the program of the document that has that word, beside a sidecar; its lines."""
    file = directory / "program.py"
    file.write_text(program(word, document))
    ran = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=PATIENCE, env={"TENSORLANE_SOCKETS": sidecar.directory}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_first_program_puts_a_tensor_and_gets_it_by_its_name_and_by_its_reference(sidecar, client, tmp_path):
    reference, *got = printed("PutChunk", sidecar, tmp_path)
    assert tensorlane.Reference(reference).shape == (2, 3)
    assert got == ["[2, 3] (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)"] * 2
    assert "python/x" not in client.names("python/")


def test_the_program_of_a_channel_writes_and_reads_and_ends(sidecar, client, tmp_path):
    assert printed("ChannelWrite", sidecar, tmp_path) == ["0 [6]", f"1 [{3 << 20}]"]


def test_the_program_of_a_set_writes_and_reads_rows(sidecar, client, tmp_path):
    assert printed("SetCommit", sidecar, tmp_path, "sets.md") == ["ts1", "1", "0", "2 [3] (2.0, 3.0, 0.0)"]


def test_streams_read_and_write_rows_of_a_set_of_the_package(sidecar, client):
    from tensorlane.v1 import set_pb2 as sets, workload_pb2_grpc

    replay = client.create_set("grpc/rows", 100, {"obs": ("float32", (300, 100)), "done": ("bool", ())})
    array = numpy.arange(2 * 30_000, dtype=numpy.float32).reshape(2, 300, 100)
    replay[[3, 98]] = {"obs": array, "done": numpy.array([True, False])}
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{sidecar.directory}/grpc.sock", options) as channel:
        stub = workload_pb2_grpc.TensorlaneStub(channel)
        request = sets.SetReadRequest(set=replay.reference, keys=["obs"])
        request.rows.rows.indices.extend([98, 3])
        answers = stub.SetRead(request, timeout=PATIENCE)
        head = next(answers).head
        assert (head.version, list(head.leaves[0].descriptor.shape)) == (1, [2, 300, 100])
        assert b"".join(answer.bytes.data for answer in answers) == array[::-1].tobytes()
        place = sets.SetCommitHead(set="grpc/rows", keys=["done"], expects_version=1)
        place.rows.ranges.dimensions.add(start=10, stop=20, step=3)
        chunks = [sets.SetCommitChunk(head=place), sets.SetCommitChunk(bytes=sets.SetBytes(data=b"\1" * 4))]
        assert stub.SetCommit(iter(chunks), timeout=PATIENCE).version == 2
    assert numpy.flatnonzero(replay["done"][0:30].numpy()).tolist() == [3, 10, 13, 16, 19]
    client.drop_set("grpc/rows")


def test_a_stream_reads_what_the_package_writes(sidecar, client):
    from tensorlane.v1 import channel_pb2, workload_pb2_grpc

    array = numpy.arange(300_000, dtype=numpy.float32)
    with client.channel_writer("grpc/native", slot_bytes=2 << 20) as writer:
        with grpc.insecure_channel(f"unix://{sidecar.directory}/grpc.sock", [("grpc.default_authority", "localhost")]) as channel:
            stub = workload_pb2_grpc.TensorlaneStub(channel)
            answers = stub.ChannelRead(channel_pb2.ChannelReadRequest(name="grpc/native"), timeout=PATIENCE)
            assert next(answers).attached.route == "local"
            writer.write(array)
            message = next(answers).message
            (part,) = message.parts
            data = bytearray(part.data)
            while len(data) < part.bytes:
                data += next(answers).chunk.data
            assert (message.sequence, list(part.descriptor.shape), bytes(data)) == (0, [300_000], array.tobytes())
            answers.cancel()


def test_a_stream_is_an_end_of_a_pipe_whose_other_end_the_package_has(sidecar, client):
    from tensorlane.v1 import pipe_pb2 as pipes, workload_pb2_grpc

    array, steps = numpy.arange(300_000, dtype=numpy.float32), queue.SimpleQueue()
    options = [("grpc.default_authority", "localhost")]
    with client.listen("grpc/inbox") as listener, grpc.insecure_channel(f"unix://{sidecar.directory}/grpc.sock", options) as channel:
        stub = workload_pb2_grpc.TensorlaneStub(channel)
        answers = stub.Pipe(iter(steps.get, None), timeout=PATIENCE)
        steps.put(pipes.PipeRequest(connect=pipes.PipeConnect(name="grpc/inbox", client="a stream")))
        pipe = listener.accept(timeout=PATIENCE)
        assert next(answers).opened.route == "local"
        message = pipes.PipeStreamMessage(metadata=b"there", parts=[pipes.PipeStreamPart(bytes=5, data=b"plain")])
        steps.put(pipes.PipeRequest(message=message))
        with pipe.read(timeout=PATIENCE) as received:
            assert received.metadata == b"there"
        written = next(answers).written
        assert (written.message, written.delivered) == (1, pipes.PIPE_DELIVERED_YES)
        writing = pipe.begin([array], metadata="back", timeout=PATIENCE)
        received = next(answers).received
        data = bytearray(received.parts[0].data)
        while len(data) < received.parts[0].bytes:
            data += next(answers).chunk.data
        assert (received.metadata, list(received.parts[0].descriptor.shape), bytes(data)) == (b"back", [300_000], array.tobytes())
        steps.put(pipes.PipeRequest(taken=pipes.PipeTaken(message=received.message)))
        writing.wait()
        steps.put(pipes.PipeRequest(finish=pipes.PipeFinish()))
        assert pipe.read(timeout=PATIENCE) is None
        pipe.finish()
        assert next(answers).HasField("end")
        assert list(answers) == []
        steps.put(None)


def test_the_program_of_the_document_runs_with_the_messages_of_the_wheel(sidecar, client, tmp_path):
    reference, *values = printed("lane.Put", sidecar, tmp_path)
    assert tensorlane.Reference(reference).nbytes == 24
    assert values == ["[2, 3] (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)"] * 2
    assert not client.names("python/x")


def test_calls_of_grpc_and_of_the_package_share_a_program_and_its_tensors(sidecar, client):
    from tensorlane.v1 import workload_pb2, workload_pb2_grpc

    array = numpy.arange(6, dtype=numpy.float32)
    stored = client.put(array, name="grpc/shared")
    with grpc.insecure_channel(f"unix://{sidecar.directory}/grpc.sock", [("grpc.default_authority", "localhost")]) as channel:
        stub = workload_pb2_grpc.TensorlaneStub(channel)
        item = workload_pb2.GetItem(target=workload_pb2.Target(name="grpc/shared"))
        got = b"".join(chunk.data for chunk in stub.Get(workload_pb2.GetRequest(items=[item]), timeout=PATIENCE))
    assert got == array.tobytes()
    client.unname("grpc/shared")
    stored.release()


def test_messages_are_of_the_same_version_as_the_package():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", tensorlane.__version__)
    from tensorlane.v1 import workload_pb2

    assert workload_pb2.DESCRIPTOR.package == "tensorlane.v1"
