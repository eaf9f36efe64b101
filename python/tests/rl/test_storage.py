"""The storage of TorchRL over a set, with its real buffers: scenarios of TorchRL's own tests of storages, one by one.

They run beside TorchRL, which wants an older tensordict than the other tests: CONTRIBUTING.md says with which command.
"""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import cloudpickle
import numpy as np
import pytest
import torch
from conftest import python, said
from storages import default, node, root, rows  # noqa: F401
from tensordict import LazyStackedTensorDict, TensorDict, is_tensor_collection, tensorclass
from torchrl.data import (
    ConsumingSampler,
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSliceSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)

import tensorlane
import tensorlane.rl
from tensorlane.rl import SetStorage, SetWriter


@pytest.fixture(params=["memory", "files"])
def made(request, default):
    """Makes storages in memory, and on files."""
    count = 0

    def make(max_size: int, leaves, **options) -> SetStorage:
        nonlocal count
        count += 1
        name = f"{request.node.name.split('[')[0][:100]}-{count}"
        return SetStorage.create(name, max_size, leaves, **({"directory": name} if request.param == "files" else {}), **options)

    return make


def test_a_buffer_extends_and_samples_rows_that_know_their_index(made):
    storage = made(10, rows(1))
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), batch_size=5)
    with pytest.raises(RuntimeError, match="empty storage"):
        buffer.sample()
    assert buffer.extend(rows(6)).tolist() == [0, 1, 2, 3, 4, 5] and len(buffer) == len(storage) == 6
    assert buffer.add(rows(1, 6)[0]) == 6 and len(buffer) == 7 and not storage._is_full
    for _ in range(20):
        sample = buffer.sample()
        assert type(sample) is TensorDict and sample.batch_size == (5,) and bool((sample["a"] == sample["index"]).all())
        assert torch.equal(sample["b", "c"], sample["a"][:, None].expand(5, 3).float())
    assert buffer.extend(rows(5, 7)).tolist() == [7, 8, 9, 0, 1] and len(buffer) == 10 and storage._is_full
    assert buffer[:]["a"].tolist() == [10, 11, 2, 3, 4, 5, 6, 7, 8, 9] and buffer.write_count == 12
    assert buffer["a"].tolist()[:2] == [10, 11]


def test_rows_are_set_and_got_by_each_kind_of_index(made):
    """TestStorages.test_get_set, TestLazyStorages.test_set"""
    storage = made(12, rows(1))
    storage.set(range(10), rows(10))
    plain = TensorStorage(rows(10))
    lists = (range(3), [0, 9, 9], torch.tensor([1, -1]), torch.arange(10) % 3 == 0, (torch.tensor([2]),))
    for index in (3, -1, torch.tensor(4), slice(2, 5), slice(None, None, -2), *lists):
        got, expected = storage.get(index), plain.get(list(range(10))[index] if isinstance(index, slice) else index)
        assert got.batch_size == expected.batch_size and bool((got == expected).all()), index
    grid = torch.tensor([[1, 2], [3, 4], [5, 6]])
    assert torch.equal(storage.get(grid)["b", "c"], plain.get(grid)["b", "c"]) and storage.get(grid).batch_size == (3, 2)
    assert storage.get([]).batch_size == (0,) and [int(row["a"]) for row in storage] == list(range(10))
    storage.set(range(10), torch.zeros_like(rows(10)))
    assert bool((storage.get(range(10)) == 0).all())


def test_rows_counted_from_the_end_may_have_few_bits(made):
    storage = made(300, rows(1))
    storage.set(range(200), rows(200))
    for few in (np.int8, np.int16):
        assert storage.get(np.array([-1, -128, 5], few))["a"].tolist() == [199, 72, 5]
    with pytest.raises(tensorlane.Unsupported, match="bounds of slice"):
        storage.get(slice(0.5, 3))


@pytest.fixture
def reads(monkeypatch):
    """Keys of each read of rows; None for all."""
    told = []
    read = tensorlane.MutableSet.read

    def noted(self, rows=slice(None), keys=None, **options):
        told.append(keys)
        return read(self, rows, keys, **options)

    monkeypatch.setattr(tensorlane.MutableSet, "read", noted)
    return told


def test_all_rows_are_read_leaf_by_leaf_as_they_are_asked_for_or_at_once(default, reads):
    storage = SetStorage.create("lazy", 12, {"obs": ("int64", (2,)), "next": {"done": ("bool", ())}})
    storage.append(TensorDict({"obs": torch.arange(16).reshape(8, 2), "next": {"done": torch.arange(8) % 4 == 3}}, [8]))
    reads.clear()
    rows = storage[:]
    assert is_tensor_collection(rows) and isinstance(rows, TensorDict) and rows.batch_size == (8,) and rows.device.type == "cpu"
    assert reads == [["_written"]], "only the length was asked for"
    assert rows["obs"].shape == (8, 2) and rows.get(("next", "done")).sum() == 2 and rows.get("none") is None and rows.get("no", 3) == 3
    with pytest.raises(KeyError, match="no leaf 'none'"):
        rows["none"]
    assert reads[1:] == [["obs"], ["next/done"]]
    assert rows[2:4]["obs"].tolist() == [[4, 5], [6, 7]] and type(rows) is TensorDict
    assert rows["next"]["done"].sum() == 2 and sorted(rows.keys(True, True), key=str) == sorted(["obs", ("next", "done")], key=str)
    assert reads[3:] == [None], "all leaves came by one read, and stay"
    eager = storage.get(slice(None))
    for lazily in (lambda: storage[:].clone(), lambda: storage[...].to_tensordict(), lambda: pickle.loads(pickle.dumps(storage[:])), lambda: copy.copy(storage[:])):
        other = lazily()
        assert type(other) is TensorDict and bool((other == eager).all())
    assert len(storage[:]) == 8 and bool((storage[:] == eager).all()) and torch.stack([storage[:], eager]).shape == (2, 8)
    assert "obs" in repr(storage[:]) and storage[:]["next"]["done"].sum() == 2


def test_slices_of_a_storage_of_more_than_half_of_the_arena_are_sampled():
    with tensorlane.Sidecar(arena="64Mi") as small, tensorlane.connect(small.directory) as client:
        layout = {"obs": ("uint8", (1 << 18,)), "episode": ("int64", ()), "next": {"done": ("bool", ())}, "priority": ("float32", ())}
        storage = SetStorage.create("slices", 160, layout, client=client)
        for episode in range(16):
            done = torch.arange(10) == 9
            batch = {"obs": torch.zeros(10, 1 << 18, dtype=torch.uint8), "episode": torch.full((10,), episode)}
            batch["obs"][:, 0] = episode
            storage.append(TensorDict({**batch, "next": {"done": done}, "priority": torch.ones(10)}, [10]))
        with pytest.raises(tensorlane.Error) as refused:
            storage.get(slice(None))
        assert refused.value.reason == "TOO_LARGE"
        for sampler in (
            SliceSampler(slice_len=5, traj_key="episode"),
            SliceSampler(slice_len=5, end_key=("next", "done")),
            SliceSampler(slice_len=5, traj_key="none", end_key=("next", "done")),
            SliceSamplerWithoutReplacement(slice_len=5, traj_key="episode"),
            PrioritizedSliceSampler(160, 0.9, 0.9, slice_len=5, traj_key="episode"),
        ):
            buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), sampler=sampler, batch_size=20)
            sample = buffer.sample()
            episodes = sample["episode"].reshape(4, 5)
            assert bool((episodes == episodes[:, :1]).all()) and torch.equal(sample["obs"][:, 0].long(), sample["episode"])


def test_an_almost_empty_storage_that_fills_the_arena_is_emptied_and_loaded(tmp_path):
    with tensorlane.Sidecar(arena="64Mi") as small, tensorlane.connect(small.directory) as client:
        # Two of them promise more than there is.
        one, other = (SetStorage.create(f"wide-{at}", 50, {"obs": ("uint8", (1 << 20,))}, client=client) for at in range(2))
        filled = ReplayBuffer(storage=one, writer=SetWriter())
        filled.extend(TensorDict({"obs": torch.ones(3, 1 << 20, dtype=torch.uint8)}, [3]))
        state = filled.state_dict()
        filled.dumps(tmp_path / "wide")
        held = one.mutable_set.status().held_bytes
        filled.empty()
        assert len(filled) == 0 and one.mutable_set.status().held_bytes == held < 5 << 20
        buffer = ReplayBuffer(storage=other, writer=SetWriter())
        for load in (lambda: buffer.load_state_dict(state), lambda: buffer.loads(tmp_path / "wide")):
            load()
            assert len(buffer) == 3 and bool(buffer[:]["obs"].all()) and other.mutable_set.status().held_bytes == held
        assert other.append(TensorDict({"obs": torch.zeros(1, 1 << 20, dtype=torch.uint8)}, [1])).tolist() == [3]


def test_one_leaf_is_read_alone_by_its_key(made):
    """TestSharedStorageInit.test_sequence_boundary_cache_invalidated_across_processes"""
    storage = made(12, {"obs": ("int64", ()), "next": {"done": ("bool", ())}})
    done = torch.arange(8) % 4 == 3
    storage.append(TensorDict({"obs": torch.arange(8), "next": {"done": done}}, [8]))
    assert torch.equal(storage.get(("next", "done")), done) and storage["obs"].tolist() == list(range(8))
    with pytest.raises(tensorlane.Invalid, match="no leaf 'none'"):
        storage.get("none")
    windows = Sequence(length=4)
    assert windows.expand(torch.tensor([0]), {}, storage)[0].tolist() == [0, 1, 2, 3]
    pickle.loads(pickle.dumps(storage))[1] = {"next": {"done": True}}
    after, info = windows.expand(torch.tensor([0]), {}, storage)
    assert after.tolist() == [0, 1, 1, 1] and info["validity_mask"].tolist() == [True, True, False, False]


def test_what_is_not_there_is_an_index_error(made):
    storage = made(12, rows(1))
    storage.set([0, 1, 2], rows(3))
    for wrong in (3, [0, 5], torch.tensor([2, 3]), 12, -13):
        with pytest.raises(IndexError):
            storage.get(wrong)
    with pytest.raises(tensorlane.Unsupported):
        storage.get((slice(None), 1))
    with pytest.raises(tensorlane.OutOfRange, match="a mask"):
        storage.get(torch.ones(5, dtype=torch.bool))
    assert [storage.contains(at) for at in (0, 2, 3, -3, -4)] == [True, True, False, True, False]
    assert storage.contains(torch.tensor([0, 2, 3])).tolist() == [True, True, False] and 2 in storage


def test_rows_are_written_in_place_without_a_move_of_cursor_or_length(made):
    """TestStorages.test_storage_inplace_writing"""
    buffer = ReplayBuffer(storage=made(102, rows(1)), writer=SetWriter())
    buffer.extend(rows(100))
    for index, count in ((slice(3, 4), 1), (slice(10, 20), 10), (torch.arange(30, 40), 10)):
        buffer[index] = torch.zeros_like(rows(count))
        assert bool((buffer[index] == 0).all()) and len(buffer) == 100
    assert buffer.storage.mutable_set.status().cursor == 100
    buffer[50] = {"a": 7}
    assert buffer[50]["a"] == 7 and buffer[50]["b", "c"].tolist() == [50] * 3, "other keys stay"


def test_transforms_are_applied_on_both_ways(made):
    """TestStorages.test_storage_inplace_writing_transform"""
    buffer = ReplayBuffer(storage=made(102, rows(1)), writer=SetWriter())
    buffer.append_transform(lambda x: x + 1, invert=True)
    buffer.append_transform(lambda x: x + 1)
    buffer.extend(rows(100))
    buffer[3:4] = torch.zeros_like(rows(1))
    assert bool((buffer[3:4] == 2).all()) and buffer[5]["a"] == 7


def test_a_change_of_a_copy_is_refused_and_not_lost_in_silence(default):
    buffer = ReplayBuffer(storage=SetStorage.create("copies", 4, rows(1)), writer=SetWriter())
    buffer.extend(rows(4))
    for change in (
        lambda: buffer.set_at_("a", torch.tensor(9), 1),
        lambda: buffer.set_("a", torch.zeros(4)),
        lambda: buffer.update_({"a": torch.zeros(4)}),
    ):
        with pytest.raises(tensorlane.Unsupported, match="a copy") as refused:
            change()
        assert "buffer[rows] = " in refused.value.remedy
    assert buffer[:]["a"].tolist() == [0, 1, 2, 3]


def test_rows_that_do_not_fit_are_refused_and_leave_nothing(default):
    storage = SetStorage.create("refused", 4, rows(1))
    version = storage.mutable_set.version
    for wrong in (
        {"a": torch.zeros(2, dtype=torch.int64)},
        {**rows(2).flatten_keys("/"), "d": torch.ones(2)},
        TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2, 3)}}, [2]),
        TensorDict({"a": torch.zeros(2, 5, dtype=torch.int64), "b": {"c": torch.zeros(2, 3)}}, [2]),
    ):
        for write in (storage.append, lambda data: storage.set([0, 1], data)):
            with pytest.raises(tensorlane.Invalid) as refused:
                write(wrong)
            assert refused.value.reason == "SET_MISMATCH"
    for wrong in ({"text": "a"}, {}):
        with pytest.raises(tensorlane.Error):
            storage[0] = wrong
    with pytest.raises(tensorlane.Unsupported, match="gradients") as refused:
        storage.append(TensorDict({"a": rows(1)["a"], "b": {"c": torch.ones(1, 3, requires_grad=True)}}, [1]))
    assert "detach" in refused.value.remedy
    with pytest.raises(tensorlane.Invalid, match="own key"):
        SetStorage.create("other", 4, {"_written": ("bool", ())})
    assert storage.mutable_set.version == version and len(storage) == 0 and not default.mutable_sets("other")


def test_plain_tensors_tensorclasses_lists_and_lazy_stacks_are_items(made):
    """TestStorages.test_get_set, test_add_list_of_tds, test_extend_lazystack_direct_write; TestLazyStorages.test_set_tensorclass"""
    tensors = ReplayBuffer(storage=made(4, torch.zeros(1, 2)), writer=SetWriter(), batch_size=2)
    tensors.extend(torch.arange(6.0).reshape(3, 2))
    assert type(tensors.sample()) is torch.Tensor and tensors[:].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert tensors.add(torch.tensor([6.0, 7])) == 3 and tensors[3].tolist() == [6, 7]

    @tensorclass
    class Step:
        obs: torch.Tensor
        next: TensorDict

    steps = Step(obs=torch.arange(3.0), next=TensorDict({"done": torch.ones(3, 1, dtype=torch.bool)}, [3]), batch_size=[3])
    classes = ReplayBuffer(storage=made(4, steps), writer=SetWriter())
    classes.extend(steps)
    assert classes[:]["obs"].tolist() == [0, 1, 2] and classes[1]["next", "done"].all()
    listed = ReplayBuffer(storage=made(100, TensorDict({"a": torch.zeros(1, 2, 3)}, [1])), writer=SetWriter())
    items = [TensorDict({"a": torch.randn(2, 3)}, []) for _ in range(10)]
    listed.extend(items)
    listed.extend(LazyStackedTensorDict.lazy_stack(items, 0))
    assert len(listed) == 20 and torch.equal(listed[:]["a"], torch.stack([item["a"] for item in items] * 2))


def test_a_state_has_the_rows_and_goes_into_another_storage(made):
    """TestStorages.test_state_dict, test_load_state_dict_decouples_from_source, test_storage_state_dict"""
    for count in (6, 13):
        first, second = (ReplayBuffer(storage=made(10, rows(1)), writer=SetWriter()) for _ in range(2))
        for start in range(count):
            first.extend(rows(1, start))
        second.extend(rows(9, 100))
        state = first.state_dict()
        second.load_state_dict(state)
        assert len(second) == min(count, 10) and bool((second[:] == first[:]).all()) and second.write_count == first.write_count
        for tensor in state["_storage"]["_storage"].values():
            tensor.zero_()
        assert bool((second[:] == first[:]).all()), "it is decoupled from the state"
        assert second.extend(rows(1, 50)).tolist() == first.extend(rows(1, 50)).tolist() == [count % 10]
    ours, theirs = made(10, rows(1)), LazyTensorStorage(10)
    theirs.set(range(4), rows(4))
    ours.load_state_dict(theirs.state_dict())
    assert len(ours) == 4 and bool((ours[:] == theirs[:]).all())
    with pytest.raises(tensorlane.Invalid, match="4 rows for a storage of 2"):
        made(2, rows(1)).load_state_dict(theirs.state_dict())


def test_a_buffer_is_dumped_into_tensordicts_directory_and_loaded(made, tmp_path):
    """TestStorages.test_storage_dumps_loads"""
    for count in (3, 10, 12):
        first = ReplayBuffer(storage=made(10, rows(1)), writer=SetWriter())
        for start in range(0, count, 3):
            first.extend(rows(min(3, count - start), start))
        path = tmp_path / str(count)
        first.dumps(path)
        first.dumps(path)
        assert bool((TensorDict.load_memmap(path / "storage") == first[:]).all())
        second = ReplayBuffer(storage=made(10, rows(1)), writer=SetWriter())
        second.extend(rows(5, 100))
        second.loads(path)
        assert len(second) == len(first) and bool((second[:] == first[:]).all()) and second.write_count == count
        assert second.extend(rows(1)).tolist() == [count % 10]
    tensors = made(4, torch.zeros(1, 2))
    tensors.set([0, 1], torch.ones(2, 2))
    tensors.dumps(tmp_path / "tensors")
    again = made(4, torch.zeros(1, 2))
    again.loads(tmp_path / "tensors")
    assert torch.equal(again[:], tensors[:])


def test_a_dump_warns_where_rows_were_written_meanwhile(default, tmp_path, monkeypatch):
    storage = SetStorage.create("dumped", 10, rows(1))
    storage.append(rows(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.dumps(tmp_path / "quiet")
    parts = SetStorage._parts

    def written(self, length):
        for part in parts(self, length):
            yield part
            SetStorage(storage.mutable_set.reference).append(rows(1))

    monkeypatch.setattr(SetStorage, "_parts", written)
    with pytest.warns(UserWarning, match="any version from 1 to 2"):
        storage.dumps(tmp_path / "written")


def test_what_torchrls_memory_mapped_storage_dumped_is_loaded_and_the_reverse(default, tmp_path):
    """S3.20"""
    theirs = ReplayBuffer(storage=LazyMemmapStorage(10), writer=RoundRobinWriter())
    theirs.extend(rows(4))
    theirs.dumps(tmp_path / "theirs")
    ours = ReplayBuffer(storage=SetStorage.create("from-theirs", 10, rows(1)), writer=SetWriter())
    ours.storage.loads(tmp_path / "theirs" / "storage")
    assert len(ours) == 4 and bool((ours[:] == theirs[:]).all())
    ours.extend(rows(6, 4))
    ours.dumps(tmp_path / "ours")
    again = LazyMemmapStorage(10)
    again.loads(tmp_path / "ours" / "storage")
    assert len(again) == 10 and bool((again[:] == ours[:]).all())


def test_a_save_hook_is_told_of_shift_and_fullness(default, tmp_path):
    """test_storage_save_hook"""

    class Hook:
        shift = is_full = None

        def __call__(self, data, path=None):
            self.seen = len(data)
            return data

    hook = Hook()
    buffer = ReplayBuffer(storage=SetStorage.create("hooked", 10, rows(1)), writer=SetWriter())
    buffer.register_save_hook(hook)
    buffer.extend(rows(5))
    buffer.dumps(tmp_path / "hooked")
    assert (hook.shift, hook.is_full, hook.seen) == (5, False, 5)


def test_a_directory_that_is_there_is_refused_unless_it_is_to_be_opened(default, root):
    """TestStorages.test_existsok_lazymemmap"""
    first = SetStorage.create("there", 10, rows(1), directory="there")
    first.append(rows(3))
    assert TensorDict.load_memmap(root / "there")["a"][:4].tolist() == [0, 1, 2, 0], "the real tensordict opens it"
    default.drop_set("there")
    with pytest.raises(tensorlane.NameTaken):
        SetStorage.create("there", 10, rows(1), directory="there")
    again = SetStorage.create("there", 10, rows(1), directory="there", open=True)
    assert len(again) == 3 and again[:]["a"].tolist() == [0, 1, 2]


def test_a_directory_that_tensordict_saved_is_a_storage_that_is_full(default, root):
    """S3.9: a data set that is there is sampled without a copy of it."""
    rows(20).memmap(root / "dataset")
    storage = SetStorage(default.create_set("dataset", directory="dataset", open=True))
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), sampler=SamplerWithoutReplacement(), batch_size=20)
    assert len(buffer) == 20 and sorted(buffer.sample()["a"].tolist()) == list(range(20))
    with pytest.raises(tensorlane.Unsupported, match="always full"):
        buffer.empty()


def test_an_empty_storage_begins_at_its_first_row_also_for_other_processes(made):
    storage = made(10, rows(1))
    buffer, other = ReplayBuffer(storage=storage, writer=SetWriter()), pickle.loads(pickle.dumps(storage))
    for count in (4, 10, 13):
        for start in range(count):
            buffer.extend(rows(1, start))
        assert len(other) == min(count, 10)
        buffer.empty()
        assert len(buffer) == 0 and buffer.write_count == 0
        with pytest.raises(IndexError, match="is empty"):
            other.get([0])
        assert len(other) == 0
        assert buffer.extend(rows(2, 50)).tolist() == [0, 1] and len(other) == 2
        buffer.empty()


def test_the_length_of_many_rows_is_found_from_whatever_was_known(default, monkeypatch):
    monkeypatch.setattr(tensorlane.rl, "_WINDOW", 4)
    storage = SetStorage.create("many", 5000, {"a": ("uint8", ())})
    other = pickle.loads(pickle.dumps(storage))
    for length in (1, 4, 5, 36, 37, 3000, 4999, 5000):
        storage._len = length
        assert len(storage) == length == len(other) == len(pickle.loads(pickle.dumps(storage)))
    storage._len = 7
    assert len(storage) == 7


def test_the_revision_and_the_last_row_are_those_of_whoever_writes(default):
    """TestSharedStorageInit.test_mutation_revision_shared_across_processes"""
    storage = SetStorage.create("revised", 8, rows(1))
    other = pickle.loads(pickle.dumps(storage))
    before = storage._mutation_revision
    assert storage._last_cursor_index is None
    other.append(rows(3))
    assert storage._mutation_revision == before + 1 and storage._last_cursor_index == 2


def test_other_samplers_sample(default):
    storage = SetStorage.create("sampled", 12, {"episode": ("int64", ()), "step": ("int64", ())})
    storage.append(TensorDict({"episode": torch.arange(12) // 4, "step": torch.arange(12) % 4}, [12]))
    options = {"storage": storage, "writer": SetWriter()}
    slices = TensorDictReplayBuffer(sampler=SliceSampler(slice_len=2, traj_key="episode"), batch_size=6, **options)
    sample = slices.sample().reshape(3, 2)
    assert torch.equal(sample["episode"][:, 0], sample["episode"][:, 1])
    assert torch.equal(sample["step"][:, 1], sample["step"][:, 0] + 1)
    once = TensorDictReplayBuffer(sampler=SamplerWithoutReplacement(), batch_size=12, **options)
    assert sorted(once.sample()["index"].tolist()) == list(range(12))
    consumed = ReplayBuffer(storage=storage, writer=RoundRobinWriter(), sampler=ConsumingSampler(), batch_size=5)
    consumed.sample()
    assert len(consumed) == 7


def test_a_sampler_hears_of_rows_before_it_samples_though_another_one_has_just_heard(default, monkeypatch):
    monkeypatch.setattr(tensorlane.rl, "_GLANCE", math.inf)
    storage = SetStorage.create("heard", 12, {"step": ("int64", ())})
    storage.append(TensorDict({"step": torch.arange(12)}, [12]))
    buffers = []
    for _ in range(2):
        buffers.append(ReplayBuffer(storage=storage, writer=RoundRobinWriter(), sampler=ConsumingSampler(), batch_size=5))
        buffers[-1].sample()
    monkeypatch.setattr(tensorlane.rl, "_GLANCE", 0)
    assert [len(buffer) for buffer in buffers] == [7, 7]


def test_samples_land_on_the_device_of_the_storage(default):
    """TestStorages.test_storage_device; S3.10"""
    storage = SetStorage.create("device", 4, rows(1), device="meta")
    storage.append(rows(2))
    assert storage.get([0]).device.type == "meta" and pickle.loads(pickle.dumps(storage)).get(0)["a"].device.type == "meta"


def test_a_storage_travels_as_a_reference(default):
    """S3.12, S3.15, S3.16"""
    storage = SetStorage.create("travelling", 1000, {"frames": ("uint8", (640, 640, 3))})
    assert len(pickle.dumps(storage)) <= 600
    script = """
import pickle, sys
fill, storage = pickle.loads(bytes.fromhex(sys.stdin.read()))
pickle.loads(fill)(storage)
"""

    def fill(storage):
        import torch

        storage.append({"frames": torch.ones(2, 640, 640, 3, dtype=torch.uint8)})

    given = pickle.dumps((cloudpickle.dumps(fill), storage)).hex()
    said(python(script, TENSORLANE_SOCKETS=default.directory), given)
    assert len(storage) == 2 and storage.get([1])["frames"].all()
    assert storage.mutable_set.status().held_bytes < 10_000_000
