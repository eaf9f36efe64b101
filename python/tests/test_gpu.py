"""Tensors in the memory of a GPU, over the stand-in for the driver (`tests/fake-gpu`), whose memory is the host's.

It proves logic, and nothing of speed. What runs on a GPU is in `python/tests/gpu`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import until

import tensorlane

SOURCE = Path(__file__).parents[2] / "tests/fake-gpu/libcuda.c"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler of C, which makes the stand-in for the driver")

BEGIN = """
import os, sys
sys.path.insert(0, os.getcwd())
import numpy as np, tensorlane
import fake_cuda
from fake_cuda import *
client = tensorlane.connect()
"""

VALUES = "np.arange(60, dtype=np.float32).reshape(12, 5)"


class Failed(AssertionError):
    """Exception that a process raised when it did what it was told: the name of its class, its reason, text and details."""

    def __init__(self, kind: str, reason: str | None, text: str, details: dict[str, str]):
        self.kind, self.reason, self.text, self.details = kind, reason, text, details
        super().__init__(f"{kind} {reason}: {text}")


class Worker:
    """Another Python, which runs what it is told."""

    def __init__(self, sidecar: tensorlane.Sidecar, **variables: str):
        variables = {**os.environ, "TENSORLANE_SOCKETS": sidecar.directory, **variables}
        script = f"{BEGIN}\nprint('ready', flush=True)\nfake_cuda.obey(globals())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            cwd=os.path.dirname(__file__),
        )
        assert self.process.stdout.readline() == "ready\n"

    def __call__(self, code: str):
        self.process.stdin.write(json.dumps(code.strip()) + "\n")
        self.process.stdin.flush()
        what, answer = json.loads(self.process.stdout.readline())
        if what == "failed":
            raise Failed(*answer)
        return answer

    def open_as(self, part: str) -> tuple[int, int]:
        """Maps and descriptors of the process on files whose name holds `part`."""
        pid = self.process.pid
        maps = sum(part in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if os.path.islink(entry.path)]
        return maps, sum(part in link for link in links)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The folder of the stand-in, compiled."""
    folder = tmp_path_factory.mktemp("fake-gpu")
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-o", folder / "libcuda.so.1"]
    subprocess.run(["cc", *flags, SOURCE], check=True)
    return str(folder)


@pytest.fixture(scope="module")
def node():
    """A sidecar whose metrics are read."""
    listen = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.21:9442"
    with tensorlane.Sidecar(arena="64Mi", settings={"TENSORLANE_ADMIN_LISTEN": listen}) as sidecar:
        sidecar.listen = listen
        yield sidecar


@pytest.fixture
def workers(node, driver):
    """Starts Pythons over the stand-in; at the end the sidecar holds nothing of them."""
    with ExitStack() as stack:
        yield lambda **variables: stack.enter_context(Worker(node, **{"LD_LIBRARY_PATH": driver, **variables}))
    with tensorlane.connect(node.directory) as client:
        client.unname(*client.names())
    until("the sidecar holds no memory of a GPU", lambda: metric(node, "tensorlane_gpu_held_tensors") == 0)


@pytest.fixture
def pair(workers):
    """A process that puts and one that gets."""
    producer, reader = workers(), workers()
    producer("driver = Driver()")
    return producer, reader


def metric(node, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.listen}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def test_an_array_that_speaks_dlpack_is_put_and_mapped_by_another_process_without_a_copy(pair, node):
    producer, reader = pair
    producer(f"x = Array(driver, {VALUES}); stored = client.put(x, 'a', metadata={{'k': 'v'}})")
    assert producer("[x.asked, x.deleted, len(x.given)]") == [[[1, [1, 1]]], 0, 1], "on the default stream, and not taken"
    assert metric(node, "tensorlane_gpu_held_tensors") == 1
    reader("t = client.get('a')")
    told = "[type(t).__name__, t.device, t.route, t.dtype, list(t.shape), t.nbytes, t.metadata, list(t.__dlpack_device__())]"
    assert reader(told) == ["DeviceTensor", "cuda:0", "cuda_ipc", "f32", [12, 5], 240, {"k": "v"}, [2, 0]]
    reader("v = Taken(t.__dlpack__(stream=7, max_version=(1, 0))); u = Taken(t.__dlpack__())")
    assert reader("[v.versioned, v.flags, u.versioned, v.shape, v.strides, list(v.device)]") == [True, 1, False, [12, 5], [5, 1], [2, 0]]
    assert reader(f"v.bytes(240) == {VALUES}.tobytes() == t.tobytes() and u.pointer == v.pointer") is True
    assert reader.open_as("memfd:fake-gpu")[0] == 1, "it is mapped once"
    with pytest.raises(Failed, match="taken before"):
        reader("c = t.__dlpack__(); Taken(c).delete(); Taken(c)")


def test_the_lease_ends_with_the_last_view_and_then_the_memory_goes(pair, node):
    producer, reader = pair
    producer(f"stored = client.put(Array(driver, {VALUES}), 'a')")
    reader("t = client.get('a'); v = Taken(t.__dlpack__(max_version=(1, 1))); u = Taken(t.__dlpack__())")
    reader("t.release()")
    producer("client.unname('a'); stored.release(); client.flush()")
    for view in ("v", "u"):
        assert metric(node, "tensorlane_gpu_held_tensors") == 1
        assert reader(f"{view}.bytes(240) == {VALUES}.tobytes()") is True
        reader(f"{view}.delete(); client.flush()")
    until("the memory is gone", lambda: metric(node, "tensorlane_gpu_held_tensors") == 0)
    assert reader.open_as("memfd:fake-gpu") == (0, 0)
    # One of its own arrays is left in the producer.
    until("the producer gave it back", lambda: producer("client.release_idle()") >= 0 and producer.open_as("memfd:fake-gpu")[0] == 1)
    with pytest.raises(Failed, match="released"):
        reader("t.__dlpack__()")


def test_the_array_interface_of_cuda_is_read_and_given_and_keeps_the_lease(pair, node):
    producer, reader = pair
    producer(f"a = Array(driver, {VALUES}); stored = client.put(Interface(a, 'f4', stream=2), 'a')")
    producer("old = client.put(Interface(a, 'f4', version=2), 'old')")
    reader("t = client.get('a'); i = t.__cuda_array_interface__")
    told = "[list(i['shape']), i['typestr'], i['data'][1], i['strides'], i['stream'], i['version']]"
    assert reader(told) == [[12, 5], "<f4", True, None, None, 3]
    assert reader(f"ctypes.string_at(i['data'][0], 240) == {VALUES}.tobytes()") is True
    reader("t.release()")
    assert reader(f"ctypes.string_at(i['data'][0], 240) == {VALUES}.tobytes()") is True, "its user holds the object alone"
    assert reader("client.get('old').tobytes() == client.get('a').tobytes()") is True
    for wrong in ("stream=0", "mask=1", "version=1", "typestr='>f4'", "strides=(21, 4)"):
        with pytest.raises(Failed) as failed:
            producer(f"client.put(Interface(a, 'f4', {wrong}))")
        assert failed.value.kind in ("Invalid", "Unsupported") and "hint:" in failed.value.text, wrong


def test_elements_that_numpy_lacks_come_as_they_are(pair):
    producer, reader = pair
    producer("bits = np.arange(64, dtype=np.uint16); stored = client.put(Array(driver, bits, 'bfloat16'), 'bf16')")
    producer("eight = client.put(Array(driver, bits.astype(np.uint8), 'float8_e4m3fn'), 'f8')")
    reader("b, e = client.get_many(['bf16', 'f8'])")
    assert reader("[b.dtype, e.dtype, list(Taken(b.__dlpack__()).kind), list(Taken(e.__dlpack__()).kind)]") == [
        "bf16",
        "f8_e4m3",
        [4, 16, 1],
        [10, 8, 1],
    ]
    assert reader("b.numpy(copy=True).view(np.uint16).tolist()") == list(range(64))
    assert reader("e.numpy(copy=True).dtype.name") == "float8_e4m3fn"
    assert reader("hasattr(b, '__cuda_array_interface__')") is False
    with pytest.raises(Failed) as failed:
        producer("client.put(Array(driver, bits, 'odd'))")
    assert failed.value.kind == "Unsupported" and "24 bits" in failed.value.text


def test_parts_are_views_and_rows_come_on_the_host_and_gaps_are_refused_with_a_remedy(pair):
    producer, reader = pair
    producer(f"stored = client.put(Array(driver, {VALUES}), 'a')")
    reader("ref = client.names()['a']; t = client.get(ref[3:10, ::2]); v = Taken(t.__dlpack__())")
    assert reader("[v.shape, v.strides, t._on_device().is_dense]") == [[7, 3], [5, 2], False]
    assert reader(f"np.array_equal(t.numpy(copy=True), {VALUES}[3:10, ::2])") is True
    assert reader("list(t.__cuda_array_interface__['strides'])") == [20, 8]
    assert reader(f"np.array_equal(client.get(ref[4]).numpy(copy=True), {VALUES}[4])") is True
    reader("rows = client.get(ref[[1, 3]])")
    assert reader(f"np.array_equal(rows.numpy(), {VALUES}[[1, 3]])") is True
    assert reader("rows.device") == "cpu" and "staged" in reader("rows.route")
    with pytest.raises(Failed) as failed:
        producer(f"client.put(Array(driver, {VALUES}, strides=(1, 12)))")
    assert failed.value.kind == "Unsupported" and "torch.from_dlpack" in failed.value.text
    producer(f"client.put(Array(driver, {VALUES}, strides=(5, 1)), 'same')")


def test_an_array_without_bytes_is_stored_and_lies_nowhere(pair):
    producer, reader = pair
    producer("stored = client.put(Array(driver, np.empty((0, 3), np.float32)), 'a')")
    assert reader("[client.get('a').device, list(client.get('a').shape), client.get('a').numpy().size]") == ["cpu", [0, 3], 0]
    with pytest.raises(Failed, match="leave device out"):
        producer("client.empty((0, 3), device='cuda:0')")


def test_memory_that_is_not_the_gpus_is_refused_and_leaves_nothing(pair, node):
    producer, _ = pair
    producer(f"x = Array(driver, {VALUES}); host = np.zeros(60, np.float32); x.pointer = host.ctypes.data")
    for wrong in ("x", "Interface(x, 'f4')"):
        with pytest.raises(Failed) as failed:
            producer(f"client.put({wrong})")
        assert (failed.value.kind, failed.value.details["refusal"]) == ("GpuError", "not_device_memory")
    producer(f"y = Array(driver, {VALUES}); y.shape = (1 << 20, 5)")
    with pytest.raises(Failed) as failed:
        producer("client.put(y)")
    assert failed.value.details["refusal"] == "not_device_memory", "longer than what is there"
    producer("y.shape, y.device = (12, 5), (2, 3)")
    with pytest.raises(Failed) as failed:
        producer("client.put(y)")
    assert failed.value.details["refusal"] == "no_such_index"
    until("the sidecar holds nothing of what was refused", lambda: metric(node, "tensorlane_gpu_held_tensors") == 0)
    until("its own two arrays are left", lambda: producer("client.release_idle()") >= 0 and producer.open_as("memfd:fake-gpu") == (2, 2))


def test_capsules_that_were_taken_or_are_broken_are_refused(pair):
    producer, _ = pair
    producer(f"x = Array(driver, {VALUES}); c = x.capsule(True); Taken(c); x.__dlpack__ = None")
    producer("class Once:\n    __dlpack_device__ = lambda self: (2, 0)\n    __dlpack__ = lambda self, **_: c")
    with pytest.raises(Failed, match="taken before"):
        producer("client.put(Once())")
    producer("c = x.capsule(True); x._alive[-1][2].major = 2")
    with pytest.raises(Failed, match="version 2"):
        producer("client.put(Once())")
    producer("c = x.capsule(False); x._alive[-1][2].tensor.ndim = 1000")
    with pytest.raises(Failed, match="1000 dimensions"):
        producer("client.put(Once())")
    producer("c = x.capsule(False); x._alive[-1][2].tensor.kind = 1")
    with pytest.raises(Failed, match="kind 1"):
        producer("client.put(Once())")
    producer("Once.__dlpack_device__ = lambda self: (13, 0)")
    with pytest.raises(Failed, match="managed memory"):
        producer("client.put(Once())")


def test_the_host_reads_by_a_copy_that_is_asked_for(pair):
    producer, reader = pair
    producer(f"stored = client.put(Array(driver, {VALUES}), 'a')")
    reader("t = client.get('a')")
    for refused in ("t.numpy()", "np.asarray(t)", "memoryview(t)", "t.__dlpack__(copy=True)", "t.__dlpack__(dl_device=(2, 1))"):
        with pytest.raises(Failed):
            reader(refused)
    assert reader(f"np.array_equal(t.numpy(copy=True), {VALUES}) and t.numpy(copy=True).flags.writeable") is True
    assert reader(f"np.array_equal(np.array(t), {VALUES})") is True
    assert reader("np.array(t, dtype=np.float64, copy=True).dtype.name") == "float64"
    assert reader(f"np.array_equal(np.from_dlpack(t, device='cpu'), {VALUES})") is True
    assert reader("len(t)") == 12


def test_out_is_filled_on_the_gpu_or_on_the_host(pair):
    producer, reader = pair
    producer(f"stored = client.put(Array(driver, {VALUES}), 'a')")
    reader("driver = Driver(); out = Array(driver, np.zeros((12, 5), np.float32)); client.get('a', out=out)")
    assert reader(f"ctypes.string_at(out.pointer, 240) == {VALUES}.tobytes()") is True
    assert reader(f"np.array_equal(client.get('a', out=np.zeros((12, 5), np.float32)), {VALUES})") is True
    reader("import torch")
    assert reader(f"np.array_equal(client.get('a', out=torch.zeros(12, 5)).numpy(), {VALUES})") is True
    for wrong, word in (
        ("Array(driver, np.zeros((5, 12), np.float32))", "same type and shape"),
        ("Array(driver, np.zeros((12, 5), np.float32), strides=(1, 12))", "dense"),
        ("client.get('a')", "cannot be written"),
        ("[]", "array of numpy"),
    ):
        with pytest.raises(Failed, match=word):
            reader(f"client.get('a', out={wrong})")
    reader("h = client.put(np.ones((12, 5), np.float32))")
    with pytest.raises(Failed, match="memory of the host"):
        reader("client.get(h, out=out)")


def test_room_on_the_gpu_is_written_in_place_and_sealed_once_no_view_is_left(pair, node):
    producer, reader = pair
    producer("r = client.empty((12, 5), 'float32', device='cuda:0'); v = Taken(r.__dlpack__(max_version=(1, 0)))")
    assert producer("[r.device, list(r.__dlpack_device__()), v.flags, v.shape]") == ["cuda:0", [2, 0], 0, [12, 5]]
    producer(f"v.write({VALUES}.tobytes())")
    with pytest.raises(Failed, match="1 arrays still write this block"):
        producer("r.seal('a')")
    producer("pointer = v.pointer; v.delete(); stored = r.seal('a')")
    assert reader(f"np.array_equal(client.get('a').numpy(copy=True), {VALUES})") is True
    for again in ("r.seal('b')", "r.__dlpack__()", "r.torch()"):
        with pytest.raises(Failed, match="sealed or given up"):
            producer(again)
    with pytest.raises(Failed, match="numpy does not write"):
        producer("client.empty(3, device='cuda:0').array")
    with pytest.raises(Failed) as failed:
        producer("client.empty(3, device='cuda:0').seal('a')")
    assert failed.value.kind == "NameTaken"
    producer("with client.empty(3, device=0) as given_up: pass")
    for wrong, word in (("'tpu'", "is none"), ("'cuda:x'", "is none")):
        with pytest.raises(Failed, match=word):
            producer(f"client.empty(3, device={wrong})")
    with pytest.raises(Failed) as failed:
        producer("client.empty(3, device='cuda:5')")
    assert failed.value.details["refusal"] == "no_such_index"
    until("the sidecar holds what was sealed alone", lambda: metric(node, "tensorlane_gpu_held_tensors") == 1)


def test_many_nested_and_published_tensors_may_be_of_both_memories(pair):
    producer, reader = pair
    producer(f"x = Array(driver, {VALUES}); h = np.arange(3)")
    producer("kept = client.put_many({'a': x, 'h': h, 'b': x})")
    assert reader("[t.device for t in client.get_many(['a', 'h', 'b'])]") == ["cuda:0", "cpu", "cuda:0"]
    producer("tree = client.put({'w': [x, h]}); refs = [str(tree['w'][0]), str(tree['w'][1])]")
    reader(f"got = client.get({{'w': {producer('refs')}}})")
    assert reader("[t.device for t in got['w']]") == ["cuda:0", "cpu"]
    assert producer("client.publish({'w': x, 'below': {'h': h, 'n': 5}}, 'policy').version") == 1
    reader("s = client.get_set('policy'); w = s['w']")
    assert reader("[w.device, s['below']['h'].device, s['below']['n']]") == ["cuda:0", "cpu", 5]
    reader("into = {'w': np.zeros((12, 5), np.float32), 'below': {'h': np.zeros(3, np.int64)}}")
    assert reader("client.load_into(into, 'policy')") == 1
    assert reader(f"np.array_equal(into['w'], {VALUES}) and into['below']['h'].tolist() == [0, 1, 2]") is True
    reader("wide = {'w': np.zeros((12, 5)), 'below': {'h': np.zeros(3)}}; client.load_into(wide, 'policy', convert=True)")
    assert reader(f"np.array_equal(wide['w'], {VALUES})") is True
    with pytest.raises(Failed, match="numpy"):
        reader("s.numpy()")
    with pytest.raises(Failed) as failed:
        producer("x.pointer = h.ctypes.data; client.put_many({'c': h, 'd': x})")
    assert failed.value.details["refusal"] == "not_device_memory"


def test_calls_that_take_arrays_of_the_host_say_so(pair):
    producer, _ = pair
    producer(f"x = Array(driver, {VALUES}); w = client.channel_writer('c'); m = client.create_set('m', 12, {{'x': ('float32', (5,))}})")
    for call in ("w.write(x)", "m.write(slice(0, 12), {'x': x})", "client.put(x, checksum=True)"):
        with pytest.raises(Failed) as failed:
            producer(call)
        assert failed.value.kind in ("Unsupported", "Invalid"), (call, failed.value)
    # What was put is named in a message, and comes to its reader on the host.
    producer("stored = client.put(x); listener = client.listen('p'); near = client.connect_pipe('p'); far = listener.accept(timeout=60)")
    with pytest.raises(Failed, match="on cuda:0"):
        producer("near.begin([x])")
    for sent in ("stored", "client.empty(3, device=0)"):
        producer(f"w = near.begin([{sent}]); got = far.read(timeout=60)")
        assert producer("got.tensors[0].device") == "cpu" and "staged" in producer("got.tensors[0].route")
        producer("got.release(); w.wait()")
    producer("near.close(); far.close(); listener.close()")


def test_awaited_calls_are_the_same(pair):
    producer, reader = pair
    producer(f"x = Array(driver, {VALUES})")
    producer(
        """
import asyncio, tensorlane.aio
async def put():
    async with await tensorlane.aio.connect() as awaited:
        room = await awaited.empty((12, 5), device='cuda:0')
        room.release()
        stored = await awaited.put(x, 'a', keep=False)
        return (await awaited.get('a')).device
place = asyncio.run(put())
"""
    )
    assert producer("place") == "cuda:0"
    assert reader(f"np.array_equal(client.get('a').numpy(copy=True), {VALUES})") is True


def test_a_process_that_gets_tensors_of_the_host_alone_has_no_driver(pair):
    producer, reader = pair
    producer(f"h = client.put(np.arange(3), 'h'); x = client.put(Array(driver, {VALUES}), 'x')")
    reader("client.get('h').numpy(); client.put(np.arange(5)); client.get_many(['h', 'h']); client.describe('x')")
    assert reader.open_as("libcuda")[0] == 0
    reader("client.get('x')")
    assert reader.open_as("libcuda")[0] > 0


def test_a_process_without_the_gpu_gets_it_on_the_host_or_hears_why(workers, tmp_path):
    producer = workers()
    producer(f"driver = Driver(); client.put(Array(driver, {VALUES}), 'x', keep=False); client.put(Array(driver, {VALUES}), 'y', keep=False)")
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).write_text("no library")
    blind, other = workers(LD_LIBRARY_PATH=str(tmp_path)), workers(FAKE_CUDA_FIRST="4")
    for worker in (blind, other):
        worker("t = client.get('x')")
        assert worker("t.device") == "cpu" and "staged, not cuda_ipc" in worker("t.route")
        assert worker(f"np.array_equal(t.numpy(), {VALUES})") is True
    producer.process.kill()
    producer.process.wait()
    for worker, word in ((blind, "no driver library"), (other, "does not reach the GPU")):
        with pytest.raises(Failed) as failed:
            worker("client.get('y')")
        assert failed.value.reason == "NO_GPU_PROCESS" and word in failed.value.text and "hint:" in failed.value.text
    with pytest.raises(Failed) as failed:
        blind("client.empty(3, device='cuda:0')")
    assert (failed.value.kind, failed.value.details["refusal"]) == ("GpuError", "no_library")
    full = workers(FAKE_CUDA_MEMORY=str(2 << 20))
    with pytest.raises(Failed) as failed:
        full("client.empty(1 << 20, device='cuda:0')")
    assert failed.value.details["refusal"] == "out_of_memory"


def test_a_forked_child_has_no_gpu_and_gets_tensors_on_the_host(pair):
    producer, _ = pair
    producer(f"x = Array(driver, {VALUES}); stored = client.put(x, 'x'); t = client.get('x')")
    producer(
        """
def child():
    def told(call):
        try:
            return call()
        except tensorlane.Error as error:
            return getattr(error, 'reason', None) or error.details.get('refusal')
    return [told(lambda: client.get('x').device), told(lambda: client.empty(3, device=0)), told(lambda: t.tobytes())]
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.write(write, json.dumps(child()).encode())
    os._exit(0)
os.waitpid(pid, 0)
heard = json.loads(os.read(read, 4096))
"""
    )
    assert producer("heard") == ["cpu", "forked", "forked"]
    assert producer(f"t.tobytes() == {VALUES}.tobytes()") is True, "the parent's is untouched"


@pytest.mark.parametrize("killed", [False, True])
def test_a_named_tensor_outlives_the_process_that_put_it(workers, killed):
    producer, reader = workers(), workers()
    producer(f"driver = Driver(); client.put(Array(driver, {VALUES}), 'x', keep=False)")
    if killed:
        producer.process.kill()
    else:
        producer.process.stdin.close()
    producer.process.wait()
    assert reader(f"np.array_equal(client.get('x').numpy(copy=True), {VALUES})") is True


def test_rounds_leave_nothing(pair, node):
    producer, reader = pair
    producer(f"x = Array(driver, {VALUES})")
    for _ in range(3):
        producer("for _ in range(100): client.get(client.put(x)).tobytes()")
    producer("client.flush()")
    until("the sidecar holds nothing", lambda: metric(node, "tensorlane_gpu_held_tensors") == 0)
    until("nor does the process", lambda: producer("client.release_idle()") >= 0 and producer.open_as("memfd:fake-gpu") == (1, 1))


def test_the_doctor_tells_of_gpus(workers):
    told = workers()("tensorlane.doctor(quiet=True)['gpus']")
    ((index, name, _, size, refusal),) = told["devices"]
    assert (index, size, refusal) == (0, 8 << 30, None) and "fake GPU" in name
    worker = workers(FAKE_CUDA_NO_VMM="1")
    worker("from tensorlane.doctor import _lines; found = tensorlane.doctor(quiet=True)")
    assert "shares no memory" in worker("found['missing'][0]")
    assert worker("len(_lines(found)) <= 20") is True


def test_rays_transport_puts_what_is_on_a_gpu_there_and_frees_it(node, workers):
    pytest.importorskip("ray")
    with workers(TENSORLANE_RAY_DEADLINE="20") as maker, workers() as reader:
        maker(
            """
import types, tensorlane.ray
class Tensor:
    # What Ray's transport asks of a tensor of torch, which here has no GPU.
    dtype, device = "float32", types.SimpleNamespace(type="cuda")
    def __init__(self, array): self.array, self.shape = array, array.shape
    def __dlpack_device__(self): return self.array.__dlpack_device__()
    def __dlpack__(self, **how): return self.array.__dlpack__(**how)
driver = Driver()
manager = tensorlane.ray.Transport()
meta = manager.extract_tensor_transport_metadata("a", [Tensor(Array(driver, VALUES))])
""".replace("VALUES", VALUES)
        )
        assert maker("[meta.tensor_device, list(meta.devices)]") == ["cuda", ["cuda"]]
        reference = maker("meta.references[0]")
        reader(f"t = client.get({reference!r})")
        assert reader("[t.device, t.route]") == ["cuda:0", "cuda_ipc"]
        assert reader(f"bool((t.numpy(copy=True) == {VALUES}).all())") is True
        reader("del t")
        maker("out = np.zeros((12, 5), np.float32); manager.recv_multiple_tensors('a', meta, manager.get_communicator_metadata(None, None), [out])")
        assert maker(f"bool((out == {VALUES}).all())") is True
        maker("manager.garbage_collect('a', meta, []); client.flush()")
        with tensorlane.connect(node.directory) as client:
            until("it is freed", lambda: client.status().tensors == 0)
