"""Tensors of torch in the memory of a GPU, put by one process and got by another: on a real GPU, with the real driver.

Run it where there is one, in an environment with the wheel, torch for CUDA and pytest: `pytest python/tests/gpu`. Tests of cupy and
jax are skipped where they are not installed.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing

import numpy as np
import pytest
import torch
from workers import Failed, until

import tensorlane

GPU = "cuda:0"
PATTERN = "torch.arange(1 << 20, dtype=torch.float32, device='cuda:0').reshape(1024, 1024)"
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn"]


# Sums of floating-point numbers depend on who adds them; those of their bytes do not.
BITS = "[p.detach().cpu().contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64).item() for p in m.state_dict().values()]"


def pattern() -> torch.Tensor:
    return torch.arange(1 << 20, dtype=torch.float32, device=GPU).reshape(1024, 1024)


def test_a_tensor_is_put_and_mapped_by_another_process_without_a_copy(client, reader):
    x = pattern()
    stored = client.put(x, "a", metadata={"layer": "1"})
    reader("t = client.get('a'); x = t.torch(); again = client.get('a')")
    assert reader("[t.device, t.route, t.dtype, list(t.shape), t.metadata, str(x.device)]") == [
        GPU,
        "cuda_ipc",
        "f32",
        [1024, 1024],
        {"layer": "1"},
        GPU,
    ]
    assert reader(f"torch.equal(x, {PATTERN})") is True
    assert reader("x.data_ptr() == again.torch().data_ptr() == t._on_device().pointer"), "mapped once"
    assert reader("torch.from_dlpack(t).data_ptr() == x.data_ptr()"), "marked read-only for whoever asks by version 1"
    # The first kernel of a process loads code to the device, here too.
    expected = pattern().sum().item()
    assert reader("client.get('a').torch().sum().item()") == expected
    before = torch.cuda.mem_get_info()[0]
    assert reader("[client.get('a').torch().sum().item() for _ in range(10)]") == [expected] * 10
    assert abs(torch.cuda.mem_get_info()[0] - before) < 64 << 20, "readers have no memory of their own"
    x.zero_()
    torch.cuda.synchronize()
    assert reader(f"torch.equal(x, {PATTERN})") is True, "the put was a copy"
    stored.release()


def _puts(directory: str, heard) -> None:
    with tensorlane.connect(directory) as client:
        client.put(pattern(), "spawned", keep=False)
        heard.send("put")


def test_a_spawned_child_puts_and_its_parent_reads_after_it_ended(client):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_puts, args=(client.directory, theirs))
    child.start()
    assert ours.poll(120) and ours.recv() == "put"
    child.join(60)
    assert child.exitcode == 0
    assert torch.equal(client.get("spawned").torch(), pattern())


@pytest.mark.parametrize("killed", [False, True])
def test_it_outlives_the_process_that_put_it(client, worker, killed):
    producer = worker()
    producer(f"client.put({PATTERN}, 'a', keep=False)")
    mapped = client.get("a")
    producer.close() if killed else producer.finish()
    assert torch.equal(mapped.torch(), pattern()), "mapped before"
    assert torch.equal(client.get("a").torch(), pattern()), "mapped after"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_with_its_bits(client, reader, dtype):
    bits = torch.randint(0, 2 if dtype == "bool" else 100, (64, 32), dtype=torch.uint8, device=GPU)
    x = bits.bool() if dtype == "bool" else bits.view(getattr(torch, dtype))
    stored = client.put(x, "a")
    assert stored.reference.nbytes == 2048
    reader("t = client.get('a'); x = t.torch()")
    assert reader("str(x.dtype)") == f"torch.{dtype}"
    assert reader("x.view(torch.uint8).sum(dtype=torch.int64).item()") == bits.sum(dtype=torch.int64).item()
    got = client.get("a").torch()
    assert torch.equal(got.view(torch.uint8), x.view(torch.uint8))
    if dtype not in ("bfloat16", "float8_e4m3fn"):
        assert np.array_equal(client.get("a").numpy(copy=True), x.cpu().numpy(), equal_nan=dtype != "bool")


def test_parts_are_views_and_rows_come_on_the_host(client, reader):
    stored = client.put(pattern(), "a")
    reader(f"ref = client.names()['a']; x = {PATTERN}")
    assert reader("torch.equal(client.get(ref[3:10, ::2]).torch(), x[3:10, ::2])") is True
    assert reader("torch.equal(client.get(ref[7]).torch(), x[7])") is True
    assert reader("torch.equal(client.get('a')[5:7], x[5:7])") is True
    assert reader("(client.get(ref[3:10]).torch().cpu().numpy() == client.get(ref[3:10]).numpy(copy=True)).all().item()") is True
    assert reader("torch.equal(client.get(ref[[1, 5]]).torch(), x[[1, 5]].cpu())") is True
    stored.release()


def test_what_does_not_lie_densely_is_made_so_on_the_gpu(client):
    x = pattern()
    for made in (x.t(), x[::2, 1:7], x.conj(), torch.view_as_complex(x.reshape(-1, 2)).conj(), x[:0], x[3, 4]):
        stored = client.put(made)
        got = client.get(stored).torch()
        assert torch.equal(got.to(GPU), made.resolve_conj()) and tuple(got.shape) == tuple(made.shape)
    grads = torch.ones(3, device=GPU, requires_grad=True)
    assert torch.equal(client.get(client.put(grads)).torch(), grads.detach())
    with pytest.raises(tensorlane.Unsupported):
        client.put(torch.ones(3, 3, device=GPU).to_sparse())


def test_segments_of_torch_that_grow_are_put_too(worker):
    producer, reader = worker(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"), worker()
    # A tensor that crosses the 20 MiB granules of such a segment.
    producer("a = torch.ones(1 << 20, device='cuda'); x = torch.arange(48 << 20, dtype=torch.int32, device='cuda'); y = x[12345:]")
    producer("stored = client.put(x, 'x'); other = client.put(y, 'y')")
    assert reader("torch.equal(client.get('x').torch(), torch.arange(48 << 20, dtype=torch.int32, device='cuda'))") is True
    assert reader("client.get('y').torch()[:2].tolist()") == [12345, 12346]


def test_a_put_waits_for_what_is_on_the_callers_stream(client):
    stream = torch.cuda.Stream()
    a = torch.ones(4096, 4096, device=GPU)
    x = torch.zeros(1 << 22, device=GPU)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        for _ in range(4):
            a = a @ a * 1e-4
        x.fill_(7)
        stored = client.put(x)
        # The stream was waited for, as the put is done.
        assert stream.query()
    assert bool((client.get(stored).torch() == 7).all())


def test_tensors_are_read_by_cupy(client):
    cupy = pytest.importorskip("cupy")
    tensor = client.get(client.put(pattern()))
    for array in (cupy.from_dlpack(tensor), cupy.asarray(tensor)):
        assert array.data.ptr == tensor._on_device().pointer
        assert np.array_equal(cupy.asnumpy(array), pattern().cpu().numpy())


def test_tensors_are_read_by_jax(client):
    jax = pytest.importorskip("jax")
    if jax.default_backend() == "cpu":
        pytest.skip("jax has no GPU here")
    tensor = client.get(client.put(pattern()))
    array = importlib.import_module("jax.dlpack").from_dlpack(tensor)
    assert np.array_equal(np.asarray(array), pattern().cpu().numpy())
    assert float((array[1] - array[0]).sum()) == 1024.0**2


def test_arrays_of_cupy_are_put(client):
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(60, dtype=cupy.float32).reshape(12, 5)
    for made in (x, x[::2], x.T, x.astype(cupy.complex64), x[4:4]):
        got = client.get(client.put(made))
        assert np.array_equal(got.numpy(copy=True), cupy.asnumpy(made))
    with cupy.cuda.Stream(non_blocking=True):
        x += 1
        stored = client.put(x)
    assert np.array_equal(client.get(stored).numpy(copy=True), np.arange(1, 61, dtype=np.float32).reshape(12, 5))
    out = cupy.zeros((12, 5), cupy.float32)
    client.get(stored, out=out)
    assert np.array_equal(cupy.asnumpy(out), cupy.asnumpy(x))
    with client.empty((12, 5), device=GPU) as room:
        array = cupy.from_dlpack(room)
        array[...] = x * 2
        del array
        gc.collect()
        doubled = room.seal()
    assert np.array_equal(client.get(doubled).numpy(copy=True), cupy.asnumpy(x) * 2)


def test_arrays_of_jax_are_put(worker, client):
    pytest.importorskip("jax")
    producer = worker(XLA_PYTHON_CLIENT_PREALLOCATE="false")
    producer("import jax, jax.dlpack, jax.numpy as jnp; x = jnp.arange(60, dtype=jnp.float32).reshape(12, 5) * 2")
    if producer("x.devices().pop().platform") not in ("gpu", "cuda"):
        pytest.skip("jax has no GPU here")
    producer("stored = client.put(x, 'a'); half = client.put(x.astype(jnp.bfloat16), 'b')")
    assert torch.equal(client.get("a").torch(), torch.arange(60, dtype=torch.float32, device=GPU).reshape(12, 5) * 2)
    assert client.get("b").torch().dtype is torch.bfloat16
    assert torch.equal(client.get("b").torch().float(), client.get("a").torch())
    assert producer("jnp.array_equal(jax.dlpack.from_dlpack(client.get('a')), x).item()") is True


def test_a_write_into_what_was_got_fails_in_that_process_alone(client, worker):
    stored, victim, bystander = client.put(pattern(), "a"), worker(), worker()
    bystander("x = client.get('a').torch()")
    with pytest.raises(Failed):
        victim("y = client.get('a').torch(); y.fill_(1); torch.cuda.synchronize()")
    assert bystander(f"torch.equal(x, {PATTERN})") is True
    assert torch.equal(client.get(stored).torch(), pattern())


def test_out_is_filled_where_it_is(client):
    x = pattern()
    stored = client.put(x)
    wide = torch.zeros(1024, 2048, device=GPU)
    for out in (torch.zeros(1024, 1024, device=GPU), wide[:, ::2], torch.zeros(1024, 1024), np.zeros((1024, 1024), np.float32)):
        assert client.get(stored, out=out) is out
        assert np.array_equal(out if isinstance(out, np.ndarray) else out.cpu().numpy(), x.cpu().numpy())
    assert torch.equal(client.get(stored.reference[3:9, ::2], out=torch.zeros(6, 512, device=GPU)), x[3:9, ::2])
    host = client.put(x.cpu().numpy())
    assert torch.equal(client.get(host, out=torch.zeros(1024, 1024, device=GPU)), x)
    with pytest.raises(tensorlane.Unsupported):
        client.get(stored, out=torch.zeros(4, device=GPU))


def test_a_state_dict_on_the_gpu_is_published_and_loaded(client, reader, count):
    torch.manual_seed(7)
    m = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)).to(GPU)
    tied = m.state_dict()
    tied["again"] = tied["0.weight"]
    assert client.publish(tied, "policy").version == 1
    assert count() == 7, "tied weights are stored once, and the manifest beside them"
    full = eval(BITS, {"m": m, "torch": torch})
    half = eval(BITS, {"m": m.half(), "torch": torch})
    reader("m = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8))")
    for device in ("cpu", "cuda"):
        reader(f"m = m.to('{device}'); [p.data.zero_() for p in m.parameters()]; client.load_into(m, 'policy', strict=False)")
        assert reader(BITS) == full
    reader("m = m.half(); [p.data.zero_() for p in m.parameters()]; client.load_into(m, 'policy', strict=False, convert=True)")
    assert reader(BITS) == half
    assert reader("sorted({str(t.device) for t in client.get_set('policy').torch().values()})") == [GPU]


def test_room_is_filled_in_place_by_torch(client, reader):
    with client.empty((1024, 1024), torch.float32, device=GPU) as room:
        x = room.torch()
        before = x.data_ptr()
        torch.cuda._sleep(200_000_000)
        torch.arange(1 << 20, dtype=torch.float32, device=GPU, out=x.view(-1))
        with pytest.raises(tensorlane.Invalid, match="arrays still write"):
            room.seal("a")
        del x
        stored = room.seal("a")
    assert reader(f"torch.equal(client.get('a').torch(), {PATTERN})") is True
    assert before % 256 == 0
    half = client.empty(16, torch.bfloat16, device=torch.device("cuda"))
    half.torch().fill_(3)
    assert bool((client.get(half.seal()).torch() == 3).all())
    stored.release()


def test_many_and_nested_tensors_of_both_memories(client, reader):
    x = pattern()
    stored = client.put_many({"a": x, "h": x.cpu(), "b": x[0]})
    assert reader("[str(t.torch().device) for t in client.get_many(['a', 'h', 'b'])]") == [GPU, "cpu", GPU]
    tree = client.put({"kv": [x, x.cpu()], "n": (x[0],)})
    got = client.get(tree)
    assert torch.equal(got["kv"][0].torch(), x) and torch.equal(got["n"][0].torch(), x[0]) and torch.equal(got["kv"][1].torch(), x.cpu())
    del stored, tree, got


def test_a_view_of_torch_keeps_the_tensor_and_its_end_frees_it(client, count):
    stored = client.put(pattern())
    with client.get(stored) as tensor:
        view = tensor.torch()[100:200].t()
    del tensor
    stored.release()
    assert count() == 1
    assert torch.equal(view, pattern()[100:200].t())
    del view
    gc.collect()
    until("the tensor is gone", lambda: count() == 0)


def test_a_kernel_that_was_begun_reads_a_tensor_whole_that_was_dropped_meanwhile(client, count):
    expected = pattern().double().sum().item()
    for _ in range(20):
        stored = client.put(pattern())
        view = client.get(stored).torch()
        torch.cuda._sleep(20_000_000)
        total = view.double().sum()
        del view
        stored.release()
        del stored
        client.flush()
        # Memory for another tensor, at the same addresses if the driver takes them.
        other = client.put(torch.zeros(1024, 1024, device=GPU))
        assert total.item() == expected
        del other
    until("every tensor is gone", lambda: count() == 0)


def test_a_thousand_rounds_leave_the_memory_as_it_was(client, count):
    x = torch.arange(1 << 20, dtype=torch.float32, device=GPU)
    # The first has the costs of all.
    client.get(client.put(x)).torch().sum().item()
    gc.collect()
    until("the first is gone", lambda: count() == 0)
    torch.cuda.synchronize()
    client.release_idle()
    before = torch.cuda.mem_get_info()[0]
    for round_ in range(1000):
        stored = client.put(x)
        got = client.get(stored).torch()
        if round_ % 100 == 0:
            assert torch.equal(got, x)
        del got, stored
    until("every tensor is gone", lambda: count() == 0)
    # Torch itself may take a segment meanwhile, of 20 MiB.
    until("the memory is back", lambda: client.release_idle() >= 0 and before - torch.cuda.mem_get_info()[0] <= 24 << 20)


def test_the_doctor_tells_of_the_gpu(client, capsys):
    found = tensorlane.doctor(client.directory)
    assert found["gpus"]["devices"][0][4] is None and found["missing"] == []
    assert "shares memory" in capsys.readouterr().out
