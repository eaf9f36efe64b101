"""TensorDicts over sets: scenarios of tensordict's own tests of memory maps, one by one, and what of them is refused.

A `MemoryMappedTensor` here is rows of a set. What is indexed is a plain tensor of one version, where tensordict's is a view of a file.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import cloudpickle
import pytest
import tensordict
import torch
import torch.multiprocessing
from tensordict import TensorDict

import tensorlane
import tensorlane.tensordict
from tensorlane.tensordict import MemoryMappedTensor, MemoryMappedTensorDict, load

from conftest import python, said


@pytest.fixture
def default(sidecar, client, monkeypatch):
    """The client of sets that name none, in this process and in those that it starts."""
    monkeypatch.setenv("TENSORLANE_SOCKETS", sidecar.directory)
    monkeypatch.setitem(tensorlane.client._defaults, sidecar.directory, client)
    yield client
    for left in client.mutable_sets():
        client.drop_set(left.reference)


DTYPES = [torch.half, torch.bfloat16, torch.float, torch.double, torch.int, torch.uint8, torch.long, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[2], [1, 2]])
def test_a_tensor_keeps_dtype_shape_and_values(default, dtype, shape):
    """test_memmap_data_type; S3.5"""
    tensor = torch.tensor([1, 0], dtype=dtype).reshape(shape)
    mapped = MemoryMappedTensor.from_tensor(tensor)
    assert (mapped.dtype, mapped.shape) == (tensor.dtype, tensor.shape)
    for read in (mapped[:], mapped.clone()):
        assert type(read) is torch.Tensor and read.dtype == dtype and torch.equal(read, tensor)


@pytest.mark.parametrize("shape", [(3, 4), (5,), (0, 3)])
@pytest.mark.parametrize("dtype", [None, torch.float, torch.double, torch.int])
def test_a_tensor_is_made_of_zeros_by_shape_and_dtype(default, shape, dtype):
    """TestConstructors.test_zeros, test_empty; S3.4"""
    for mapped in (MemoryMappedTensor.zeros(shape, dtype=dtype), MemoryMappedTensor.empty(*shape, dtype=dtype)):
        assert mapped.shape == shape and mapped.dtype == (dtype or torch.get_default_dtype())
        if len(mapped):
            assert torch.equal(mapped[:], torch.zeros(shape, dtype=dtype))


def test_a_tensor_of_a_mapped_one_is_a_copy_with_rows_of_its_own(default):
    """test_memmap_new, test_memmap_from_memmap"""
    first = MemoryMappedTensor.from_tensor(torch.arange(4.0))
    second = MemoryMappedTensor.from_tensor(first)
    second[0] = 9
    assert first[0] == 0 and second[0] == 9


def test_the_device_is_that_of_the_rows_that_are_read(default):
    """test_memmap_same_device_as_tensor, test_memmap_create_on_same_device; S3.10"""
    assert MemoryMappedTensor.from_tensor(torch.tensor([1])).device == torch.device("cpu")
    assert MemoryMappedTensor.empty(3, device="meta")[:2].device.type == "meta"


def test_an_index_gives_rows_and_leaves_the_tensor_as_it_is(default):
    """TestIndexing.test_simple_index, test_range_index, test_double_index, test_iteration; S3.1, S3.8"""
    plain = torch.rand(10, 5)
    mapped = MemoryMappedTensor.from_tensor(plain)
    for index in (0, -1, slice(2), slice(3, 9, 2), [1, 5, 2], torch.tensor([1, 2]), (slice(2), 3), (4, ...), plain[:, 0] > 0.5):
        assert torch.equal(mapped[index], plain[index])
    assert torch.equal(mapped[:2][:1], plain[:1]) and mapped.shape == plain.shape
    assert all(torch.equal(mapped[row], plain[row]) for row in range(len(mapped)))
    with pytest.raises(TypeError):
        iter(mapped)  # It would ask for the rows one by one.


def test_big_tensors_are_read_by_rows_alone(two_nodes, clients):
    """S3.1: 3 rows of 1,000 travel."""
    with tensorlane.connect(two_nodes[0].directory) as ours:
        whole = ours.create_set("big", 1000, {"x": ("float32", (100, 100))})
        theirs = load("node-0/big", client=clients[1])
        before = sum(peer.bytes_in for peer in clients[1].peers())
        assert theirs[[1, 500, 998]]["x"].shape == (3, 100, 100)
        moved = sum(peer.bytes_in for peer in clients[1].peers()) - before
        assert moved < 2 * 3 * 40_000 < whole.status().nbytes // 100
        whole.drop()


def changed(queue_in, queue_out) -> None:
    mapped = queue_in.get(timeout=60)
    assert bool((mapped[:] == 0).all())
    queue_out.put("seen")
    assert queue_in.get(timeout=60) == "modified" and bool((mapped[:] == 1).all())
    mapped[3] = 7
    queue_out.put("done")


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_tensor_travels_by_torchs_own_queues(default, start):
    """TestIndexing.test_send_across_procs; S3.9"""
    context = torch.multiprocessing.get_context(start)
    there, here = context.Queue(1), context.Queue(1)
    mapped = MemoryMappedTensor.zeros(10)
    process = context.Process(target=changed, args=(there, here))
    process.start()
    try:
        there.put(mapped)
        assert here.get(timeout=60) == "seen"
        mapped.fill_(1.0)
        there.put("modified")
        assert here.get(timeout=60) == "done" and mapped[3] == 7
    finally:
        process.join(60)
    assert process.exitcode == 0


def test_rows_of_one_tensor_are_copied_into_another_and_the_reverse(default):
    """TestIndexing.test_copy_onto, test_memmap_cast, TestOps.test_fill_, test_copy_"""
    x, y = torch.zeros(3, 4, 5), MemoryMappedTensor.from_tensor(torch.ones(3, 4, 5))
    x[:2] = y[:2]
    assert bool((x[:2] == 1).all())
    y[2:] = x[2:]
    assert bool((y[2:] == 0).all())
    version = y.view.set.version
    assert y.fill_(2) is y and bool((y[:] == 2).all())
    assert bool((y.copy_(torch.ones(3, 4, 5))[:] == 1).all()) and not y.zero_()[:].any()
    assert y.view.set.version == version + 3, "one step each"
    assert not torch.ones(3, 4, 5).copy_(y[:]).any()


def dataset() -> MemoryMappedTensorDict:
    numbers = torch.arange(20)
    return MemoryMappedTensorDict(
        {
            "images": numbers[:, None, None].expand(20, 2, 2).float(),
            "masks": numbers % 2 == 0,
            "labels": {"class": numbers.to(torch.uint8)[:, None]},
        },
        [20],
    )


def test_rows_of_a_key_are_read_and_written_in_place(default):
    """S3.7, S3.13, S3.14"""
    data = dataset()
    version = data.set.version
    assert data.get_at("images", [3, 5])[:, 0, 0].tolist() == [3, 5] and data.get_at(("labels", "class"), 4).tolist() == [4]
    assert data.set_at_("images", torch.full((2, 2, 2), 50.0), [3, 5]) is data
    data.set_at_(("labels", "class"), 9, slice(0, 2))
    data.set_at_("labels", TensorDict({"class": torch.full((1, 1), 8, dtype=torch.uint8)}, [1]), [19])
    zeros = torch.zeros(2, 1, dtype=torch.uint8)
    data.update_at_(TensorDict({"masks": torch.ones(2, dtype=torch.bool), "labels": {"class": zeros}}, [2]), [7, 9])
    assert data.set.version == version + 4, "one step each"
    assert data[[3, 5, 6]]["images"][:, 0, 0].tolist() == [50, 50, 6]
    assert data["labels", "class"][[0, 1, 2, 19, 7, 9]].flatten().tolist() == [9, 9, 2, 8, 0, 0]
    assert data["masks"][[7, 9, 11]].tolist() == [True, True, False]
    data.set_("masks", torch.zeros(20, dtype=torch.bool)).fill_("images", 3)
    assert not data["masks"][:].any() and bool((data["images"][:] == 3).all())
    data.update_({"images": torch.ones(20, 2, 2)})
    assert bool((data.to_tensordict()["images"] == 1).all()) and type(data.to_tensordict()) is TensorDict
    assert not data.zero_()[:]["labels", "class"].any()


def test_writes_of_a_key_that_do_not_fit_change_nothing(default):
    data = dataset()
    version = data.set.version
    for wrong in (
        lambda: data.set_at_("none", 1, 0),
        lambda: data.set_at_("images", torch.ones(1, 3, 3), [0]),
        lambda: data.set_at_("images", torch.ones(2, 2, dtype=torch.double), 0),
        lambda: data.set_at_("images", torch.ones(2, 2), 20),
        lambda: data.set_at_("images", torch.ones(2, 2, requires_grad=True), 0),
        lambda: data.update_at_({"images": torch.ones(2, 2), "none": 1}, 0),
        lambda: data.set_at_(("images", 3), 1, 0),
        lambda: data.update_at_({}, 0),
    ):
        with pytest.raises(tensorlane.Error):
            wrong()
    assert data.set.version == version


def test_a_reference_is_small_whoever_pickles_it_and_opens_elsewhere(default):
    """S3.12, S3.15, S3.16"""
    data = load(dataset().set.reference)
    script = """
import pickle, sys
function, data = pickle.loads(bytes.fromhex(sys.stdin.read()))
pickle.loads(function)(data)
"""

    def fill(tensordict):
        tensordict.set_at_("images", 77, [4, 19])

    for pickled in (pickle.dumps(data), cloudpickle.dumps(data)):
        assert len(pickled) <= 400
        given = pickle.dumps((cloudpickle.dumps(fill), pickle.loads(pickled)))
        said(python(script, TENSORLANE_SOCKETS=default.directory), given.hex())
        assert bool((data[[4, 19]]["images"] == 77).all())
        data.set_at_("images", 0, [4, 19])


def test_the_dataset_of_the_seed_is_made_at_once_and_a_batch_of_it_is_cloned():
    """S3.4, S3.7, S3.8: 173 GB of rows, of which four are read and two written."""
    with tempfile.TemporaryDirectory() as root, tensorlane.local(arena="256Mi", settings={"TENSORLANE_SETS_ROOT": root}) as client:
        leaves = {"images": ("float32", (480, 480, 3)), "masks": ("bool", (480, 480, 3)), "labels": ("uint8", (1,))}
        whole = client.create_set("dataset", 50_000, leaves, directory="dataset")
        assert whole.status().nbytes == 50_000 * (480 * 480 * 3 * 5 + 1)
        dataset = load(whole, device="cpu")
        dataset.update_at_({"images": 0.5, "masks": True, "labels": 3}, [5020, 11200])
        idx = [1, 5020, 34572, 11200]
        batch = dataset[idx].clone()
        assert type(batch) is TensorDict and batch.batch_size == (4,) and batch.device == torch.device("cpu")
        told = {key: (tuple(leaf.shape), leaf.dtype) for key, leaf in batch.items()}
        shape = (4, 480, 480, 3)
        assert told == {"images": (shape, torch.float32), "masks": (shape, torch.bool), "labels": ((4, 1), torch.uint8)}
        assert batch["images"].flatten(1).mean(1).tolist() == [0, 0.5, 0, 0.5] and batch["labels"].flatten().tolist() == [0, 3, 0, 3]
        assert batch["masks"].flatten(1).all(1).tolist() == [False, True, False, True]
        taken = sum(path.stat().st_blocks * 512 for path in Path(root).rglob("*"))
        assert taken < 32 << 20, "rows that were not written take no room"


def test_a_published_set_is_no_set_whose_rows_change(default):
    default.publish({"a": torch.ones(3)}, "sealed")
    with pytest.raises(tensorlane.NotFound) as refused:
        load("sealed")
    assert "client.get_set" in refused.value.remedy
    default.unname(*default.names("sealed"))


def test_a_directory_of_tensordict_is_loaded_where_it_lies_and_tensordict_sees_what_is_written():
    """S3.2, S3.3, S3.6, S3.20; test_existing, test_filename, TestReadWrite"""
    with tempfile.TemporaryDirectory() as root:
        plain = TensorDict({"a": torch.arange(6.0).reshape(6, 1), "b": {"c": torch.arange(6)}}, [6])
        saved = plain.memmap(Path(root) / "saved")
        assert saved.is_memmap()
        with tensorlane.local(arena="64Mi", settings={"TENSORLANE_SETS_ROOT": root}) as client:
            client.create_set("saved", directory="saved", open=True)
            data = load("saved", client=client)
            assert data.is_memmap() and bool((data[:] == plain).all()) and data.keys() == plain.sorted_keys
            data.set_at_(("b", "c"), 100, [1, 3])
            data[5] = plain[0]
            assert saved["b", "c"].tolist() == [0, 100, 2, 100, 4, 0], "maps that there are see it"
            again = TensorDict.load_memmap(Path(root) / "saved")
            assert again["a"].flatten().tolist() == [0, 1, 2, 3, 4, 0] and isinstance(again["a"], tensordict.MemoryMappedTensor)
            with pytest.raises(tensorlane.NameTaken):
                client.create_set("other", 6, {"a": ("float32", (1,))}, directory="saved")
