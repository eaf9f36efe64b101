"""Mutable sets from Python: rows as numpy means them, one version for every reader, and writers of other processes and nodes."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import tensorlane
import tensorlane.aio

from conftest import python, said, until

ROWS = 50


@pytest.fixture
def filled(client, name):
    """A set whose row n of `obs` has the number n in its first column, and the array that it is."""
    array = np.zeros((ROWS, 4, 3), np.int32)
    array[:, 0, 0] = np.arange(ROWS)
    replay = client.create_set(name, ROWS, {"obs": array, "next": {"reward": ("float32", ())}})
    replay["obs"] = array
    return replay, array


def test_a_set_is_waited_for_by_its_name(client, name):
    made = []

    def make():
        made.append(client.create_set(name, ROWS, {"label": ("uint8", ())}))

    with pytest.raises(tensorlane.NotFound) as absent:
        client.open_set(name, wait=0.05)
    assert absent.value.details["waited_ms"] == "50"
    maker = threading.Timer(0.1, make)
    maker.start()
    found = client.open_set(name, wait=60.0)
    maker.join()
    assert found.reference == made[0].reference


def test_the_deadline_of_a_commit_is_for_its_arrays_and_the_commit_together(client, filled, monkeypatch):
    replay, array = filled
    asked, now = [], [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    class Core:
        def __getattr__(self, word):
            return getattr(core, word)

        def commit_rows(self, *given):
            asked.append(given[-1])
            return core.commit_rows(*given)

    def slow(sources, **options):
        asked.append(options["within"])
        now[0] += 20
        return stage(sources, **options)

    core, stage = client._core, client._stage
    monkeypatch.setattr(tensorlane.mutable, "time", Clock)
    monkeypatch.setattr(client, "_core", Core())
    monkeypatch.setattr(client, "_stage", slow)
    replay.write(slice(None), {"obs": array}, deadline=60)
    replay.write(slice(None), {"obs": array})
    replay.write(slice(None), {"obs": array}, deadline=10)
    # What copies took is no reason to fail.
    assert asked == [60, 40, 30, 10, 10, 1]


def test_a_snapshot_is_a_sealed_set_that_later_commits_do_not_change(client, filled, name):
    replay, array = filled
    snapshot = replay.snapshot(keep=1)
    assert (snapshot.name, snapshot.version, snapshot.set_version) == (name, 1, 1)
    replay["obs"] = array + 1
    with client.get_set(snapshot.reference) as got:
        assert np.array_equal(got["obs"].numpy(), array) and got["next", "reward"].numpy().sum() == 0
    client.unname(name, f"{name}@1")


def test_a_set_goes_into_a_safetensors_file_and_comes_back_from_it(client, filled, name, tmp_path):
    replay, array = filled
    path = tmp_path / "rows.safetensors"
    with pytest.raises(tensorlane.Error, match="batch shape"):
        client.save_set(replay, path, strict=True)
    with pytest.warns(UserWarning, match=r"left out: \"\" \(the batch shape \[\d+\]\)") as warned:
        assert client.save_set(replay, path) == 1
    assert warned[0].filename == __file__
    published = client.publish_file(path, f"{name}-file", checksum=True)
    with client.get_set(published) as got:
        assert np.array_equal(got["obs"].numpy(), array) and got["next.reward"].numpy().shape == (ROWS,)
    assert client.save_set(published, tmp_path / "rows") == published.version
    assert np.array_equal(TensorDict.load_memmap(tmp_path / "rows")["obs"].numpy(), array)
    client.unname(f"{name}-file", f"{name}-file@1")


MASK = np.arange(ROWS) % 7 == 3

INDICES = {
    "all": slice(None),
    "ellipsis": ...,
    "a slice": slice(3, 9),
    "a slice with a step": slice(1, None, 7),
    "a slice backwards": slice(20, 3, -4),
    "a slice from the end": slice(-5, None),
    "a slice of nothing": slice(9, 3),
    "a number": 7,
    "a number from the end": -1,
    "a number of numpy": np.int16(-3),
    "a number of torch": torch.tensor(5),
    "a list": [1, 40, 17, 17, -2],
    "an empty list": [],
    "a range": range(4, 12, 3),
    "integers of numpy": np.array([3, -4], np.int8),
    "unsigned integers": np.array([3, 44], np.uint64),
    "few bits": np.array([-1, 5], np.int8),
    "integers of torch": torch.tensor([49, 0, -50]),
    "a mask of numpy": MASK,
    "a mask of torch": torch.from_numpy(MASK),
    "a list of truths": MASK.tolist(),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_rows_are_read_as_numpy_means_them(filled, index):
    """S3.8"""
    replay, array = filled
    wanted = array[index.numpy() if isinstance(index, torch.Tensor) else index]
    read = replay[index]
    assert list(read) == ["obs", "next/reward"] and read.version == 1
    np.testing.assert_array_equal(read["obs"].numpy(), wanted)
    assert read.numpy()["next/reward"].shape == wanted.shape[:-2]
    np.testing.assert_array_equal(replay["obs"][index], wanted)
    np.testing.assert_array_equal(read.torch()["obs"].numpy(), wanted)
    assert read["next", "reward"].dtype == "f32"


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_rows_are_written_as_numpy_means_them(filled, index):
    """S3.4"""
    replay, array = filled
    array[index.numpy() if isinstance(index, torch.Tensor) else index] = -7
    replay[index] = {"obs": -7}
    np.testing.assert_array_equal(replay["obs"][:], array)
    assert replay.version == 2


def test_all_rows_and_long_ranges_are_read_however_many_they_are(client, name):
    many = (1 << 20) + 1000
    replay = client.create_set(name, many, {"x": ("uint8", ()), "y": ("uint16", ())})
    replay[-1] = {"x": 7, "y": 9}
    for rows in (slice(None), slice(0, many), ..., slice(500, None)):
        read = replay.read(rows)
        count = many - 500 if rows == slice(500, None) else many
        assert read["x"].shape == (count,) and read["x"].numpy()[-1] == 7 and read["y"].numpy().sum() == 9
    assert len(replay.read(keys=["x"])["x"]) == len(replay["y"][:]) == many
    with pytest.raises(tensorlane.Error) as refused:
        replay.read(np.arange(many))
    assert refused.value.reason == "TOO_LARGE", "a list has its limit"


@pytest.fixture
def staged(monkeypatch):
    """Bytes of each array that was put to be written."""
    sizes = []
    stage = tensorlane.Client._stage

    def noted(self, sources, **options):
        sizes.extend(source.nbytes for source in sources)
        return stage(self, sources, **options)

    monkeypatch.setattr(tensorlane.Client, "_stage", noted)
    return sizes


def test_what_lies_in_the_arena_is_written_from_there(client, name, staged):
    replay = client.create_set(name, ROWS, {"obs": ("float32", (64, 128)), "reward": ("float32", ())})
    obs, reward = np.random.default_rng(1).random((4, 64, 128), np.float32), np.arange(4, dtype="f4")
    with client.put(obs, name) as stored, client.put(reward) as small:
        replay[:4] = {"obs": stored, "reward": small}
        assert replay.extend({"obs": stored.reference, "reward": small}) == tensorlane.Committed(0, 2)
        with client.get(name) as got, replay.read(slice(4), ["obs"]) as rows:
            replay[[10, 11, 12, 13]] = {"obs": got}
            replay[20:24] = rows
        assert staged == []
        replay[30:34] = {"obs": client.get(stored.reference[[0, 1, 2, 3]]), "reward": reward}
        assert staged == [16], "rows that were selected are a tensor of their own"
        for start in (0, 10, 20, 30):
            np.testing.assert_array_equal(replay["obs"][start : start + 4], obs)
        np.testing.assert_array_equal(replay["reward"][:4], reward)
    client.unname(name)


def test_parts_of_what_lies_in_the_arena_and_what_lies_elsewhere_are_put(clients, name, staged):
    there, here = clients
    replay = there.create_set(name, 8, {"x": ("int64", (10_000,))}, writers=["*"])
    try:
        data = np.arange(40_000).reshape(4, 10_000)
        with here.put(data) as ours, there.put(data) as theirs:
            far = here.open_set(replay.reference)
            far[:4] = ours
            assert staged == [], "its owner brings it from here"
            far[4:6] = here.get(ours.reference[2:4])
            far[6:8] = here.get(theirs)[:2]
            far[0:4] = here.get(theirs)
            assert staged == [160_000, 160_000, 320_000]
        np.testing.assert_array_equal(replay["x"][:], data[[0, 1, 2, 3, 2, 3, 0, 1]])
    finally:
        there.drop_set(name)


def test_what_was_put_is_written_as_it_is_or_not(client, name):
    replay = client.create_set(name, 8, {"x": ("int64", (2,))})
    with client.put(np.ones((2, 2), np.int64)) as stored, client.put(np.ones((2, 2), np.int32)) as other, client.put(np.int64(1)) as one:
        for rows, wrong in ((slice(4), stored), (slice(2), other), (slice(1), one), (0, stored)):
            with pytest.raises(tensorlane.Invalid) as refused:
                replay[rows] = wrong
            assert refused.value.reason == "SET_MISMATCH" and refused.value.details["key"] == "x"
        room = client.empty((2, 2), "int64")
        with pytest.raises(tensorlane.Unsupported, match="x: a reservation is no tensor yet"):
            replay[:2] = room
        room.array[...] = 5
        with room.seal() as sealed:
            replay[:2] = sealed
    with pytest.raises(tensorlane.Error) as gone:
        replay[:2] = stored
    assert gone.value.reason == "NOT_FOUND" and replay.version == 1 and replay["x"][:2].numpy().tolist() == [[5, 5], [5, 5]]


def test_further_indices_are_applied_to_the_rows_that_came(filled):
    replay, array = filled
    for index in (([4, 5], slice(1), slice(1)), (3, 0), (slice(2, 5), ..., 0), ([1, 2], None, 0), (..., 0), (-1, 0, 0)):
        np.testing.assert_array_equal(replay["obs"][index], array[index])
    with pytest.raises(tensorlane.Unsupported, match="further lists"):
        replay["obs"][[1, 2], [0, 1]]


def test_parts_of_rows_are_written_and_the_rest_of_them_stays(filled):
    replay, array = filled
    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    for index, given in (
        ((slice(3, 6), slice(None), slice(None, None, 2)), 7),
        ((1, slice(2)), value),
        ((-1, ..., 0), [1, 2, 3, 4]),
        (([4, 2], slice(1, 3)), value),
        ((slice(2, 4), slice(None), [0, 1]), value[:, None, :2]),
        ((3, slice(None), [0, 1]), torch.arange(8, dtype=torch.int32).reshape(2, 4)),
        ((slice(None, None, -2), 0, 0), -3),
        ((..., 1), np.int32(9)),
        ((slice(4, 6), None, 0), value[0]),
    ):
        array[index] = given
        replay["obs"][index] = given
        np.testing.assert_array_equal(replay["obs"][:], array, str(index))
    version = replay.version
    replay[3:6, "obs", :, ::2] = 5
    replay[[1, 2], ("next", "reward")] = 0.5
    array[3:6, :, ::2] = 5
    np.testing.assert_array_equal(replay["obs"][:], array)
    np.testing.assert_array_equal(replay[3:6, "obs", 1], array[3:6, 1])
    assert replay[[1, 2], "next/reward"].numpy().tolist() == [0.5, 0.5] and replay.version == version + 2
    replay["obs"][3:3, 0] = 1
    replay["obs"][3, 0:0] = 1
    assert replay.version == version + 2, "nothing was to be written"


def test_a_part_of_rows_of_another_shape_or_type_is_refused_and_nothing_is_written(client, filled):
    replay, array = filled
    for given in (np.ones(5, np.int32), np.ones(3, np.float32), 0.5, 1 << 40, torch.ones(3, dtype=torch.int64)):
        with pytest.raises(tensorlane.Invalid) as refused:
            replay["obs"][1, 0] = given
        assert refused.value.reason == "SET_MISMATCH" and refused.value.details["key"] == "obs", given
    for index in ((1, 4), (1, 0, 0, 0), (slice(2), 0, [0, 3])):
        with pytest.raises(IndexError, match="obs: rows of shape"):
            replay["obs"][index] = 0
    with client.put(np.ones(3, np.int32)) as stored, pytest.raises(tensorlane.Unsupported, match="whole rows"):
        replay["obs"][1, 0] = stored
    np.testing.assert_array_equal(replay["obs"][:], array)
    assert replay.version == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_parts_of_rows_of_any_type_are_written(client, name, dtype):
    rows = torch.ones(3, 4).to(dtype)
    replay = client.create_set(name, 3, {"x": rows})
    replay["x"] = rows
    replay["x"][1:, ::2] = torch.zeros(2, 2).to(dtype)
    want = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1]]).to(dtype)
    assert torch.equal(replay["x"][:].torch().view(torch.uint8), want.view(torch.uint8))


def test_writers_of_parts_of_the_same_rows_lose_nothing_of_one_another(client, name):
    replay = client.create_set(name, 4, {"x": ("int32", (4, 3)), "y": ("int32", ())})
    times = 20

    def write(column: int):
        for at in range(1, times + 1):
            replay["x"][1:3, column] = at
            replay["y"][column] = at

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    want = np.zeros((4, 4, 3), np.int32)
    want[1:3] = times
    np.testing.assert_array_equal(replay["x"][:], want)
    assert replay["y"][:].numpy().tolist() == [times] * 4 and replay.version == 2 * 4 * times


def test_a_part_whose_writer_is_always_outrun_is_told_so_and_is_not_written(client, name, monkeypatch):
    replay = client.create_set(name, 4, {"x": ("int32", (4,))})
    with tensorlane.connect(client.directory, deadline=0.5) as hasty:
        slow = hasty.open_set(replay.reference)
        read, outran = slow._read, []

        def outrun(*given):
            rows = read(*given)
            outran.append(replay.write(0, {"x": 3}))
            return rows

        monkeypatch.setattr(slow, "_read", outrun)

        def is_told():
            with pytest.raises(tensorlane.Error) as refused:
                slow["x"][1, 2] = 9
            # On a machine that stands still, no call has its time.
            return refused.value.reason == "VERSION_CHANGED"

        until("it is told", is_told)
    assert outran and replay["x"][:].numpy().tolist() == [[3] * 4, *[[0] * 4] * 3] and replay.version == len(outran)


def test_lists_behind_the_rows_give_the_dimensions_that_numpy_gives(filled):
    replay, array = filled
    for index in (
        (3, slice(None), [0, 1]),
        (-1, slice(1, 3), np.array([2, 0])),
        (np.int64(7), ..., [0, 1]),
        (torch.tensor(7), slice(None), [0, 1]),
        (3, [0, 1]),
        (3, [0, 1], slice(1)),
        (3, None, [0, 1]),
        (3, [0, 1], [2, 2]),
        (3, np.array([True, False, True, True])),
        (slice(2, 6), slice(None), [0, 1]),
        (slice(2, 6), [0, 1], [1, 2]),
        (3, 1, [0, 1]),
    ):
        part = replay["obs"][index]
        wanted = array[tuple(int(one) if isinstance(one, torch.Tensor) else one for one in index)]
        assert part.shape == wanted.shape, index
        np.testing.assert_array_equal(part, wanted)


def test_tensors_of_torch_that_are_no_whole_numbers_select_no_rows(filled):
    replay, array = filled
    for wrong in (2.7, [2.7], 1j, [[1, 2]]):
        for dtype in (torch.float32, torch.bfloat16) if isinstance(wrong, float) else (None,):
            with pytest.raises(tensorlane.Unsupported, match="selects no rows"):
                replay[torch.tensor(wrong, dtype=dtype)] = {"obs": 9}
            with pytest.raises(tensorlane.Unsupported, match="selects no rows"):
                replay["obs"][torch.tensor(wrong, dtype=dtype)]
    for unclear in ([1, 0, 1], 2, MASK.tolist()):
        with pytest.raises(tensorlane.Unsupported, match="a mask for torch") as refused:
            replay[torch.tensor(unclear, dtype=torch.uint8)] = {"obs": 9}
        assert refused.value.remedy == "convert to bool or int64"
    assert replay.version == 1
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64):
        np.testing.assert_array_equal(replay["obs"][torch.tensor(2).to(dtype)], array[2])
        np.testing.assert_array_equal(replay["obs"][torch.tensor([2, 1]).to(dtype)], array[[2, 1]])
    assert len(replay["obs"][torch.tensor([], dtype=torch.bfloat16)]) == 0


def test_lists_of_arrays_are_of_the_type_of_the_leaf_as_one_array_is(client, name):
    replay = client.create_set(name, 6, {"x": ("float32", (2,)), "y": (torch.bfloat16, (2,))})
    ones = np.ones(2, np.float32)
    replay[:2] = {"x": [ones, ones * 2], "y": [torch.ones(2).bfloat16(), torch.zeros(2).bfloat16()]}
    replay[2:4] = {"x": [torch.ones(2), 2 * ones], "y": [replay["y"][0], replay["y"][1]]}
    replay["x"][4:] = [[np.array(0.5, np.float32), 2], (3, 4)]
    assert replay["x"][:].numpy().tolist() == [[1, 1], [2, 2], [1, 1], [2, 2], [0.5, 2], [3, 4]]
    assert replay["y"][:4].torch().tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]
    held = replay.status()
    for wrong in (
        [ones, ones.astype(np.float64)],
        [ones.astype(np.int32), ones.astype(np.int32)],
        [torch.ones(2), torch.ones(2, dtype=torch.float64)],
        [torch.tensor([1, 2]), torch.tensor([3, 4])],
        [[np.array(0.5), 2], [3, 4]],
        [[1, 2], (np.float64([3, 4]))],
        [replay["y"][0], replay["y"][1]],
        [ones, np.ones(3, np.float32)],
        [torch.ones(2), np.ones(3, np.float32)],
    ):
        with pytest.raises(tensorlane.Invalid) as refused:
            replay.write(slice(2), {"x": wrong})
        assert refused.value.reason == "SET_MISMATCH", wrong
    with pytest.raises(tensorlane.Unsupported, match="gradients"):
        replay.write(slice(2), {"x": [torch.ones(2, requires_grad=True)] * 2})
    assert replay.status() == held
    assert replay.extend({"y": [torch.ones(2).bfloat16()] * 3}) == tensorlane.Committed(0, held.version + 1)
    assert replay["y"][:3].torch().tolist() == [[1, 1]] * 3


def test_what_is_assigned_is_repeated_as_numpy_repeats_it(filled):
    replay, array = filled
    row, column = np.arange(12, dtype=np.int32).reshape(4, 3), np.arange(4, dtype=np.int32)[:, None]
    two = np.stack([row, -row])
    for index, value in (([1, 2], row), (slice(3, 6), column), (7, row), (8, 5), ([9, 10], two), (slice(11, 13), [1, 2, 3])):
        array[index] = value
        replay["obs"][index] = value
    array[20:22] = row.T.reshape(4, 3)
    replay["obs"][20:22] = torch.from_numpy(row.T.copy()).reshape(4, 3)
    np.testing.assert_array_equal(replay["obs"][:], array)
    replay[:3] = {"next/reward": [0.5, 1, True]}
    assert replay["next/reward"][:4].numpy().tolist() == [0.5, 1, 1, 0]
    replay[4] = 3
    assert replay["next", "reward"][4].numpy() == 3 and (replay["obs"][4].numpy() == 3).all()


def test_rows_that_were_read_are_written_elsewhere(client, name):
    replay = client.create_set(name, 10, {"x": ("int64", ()), "y": (torch.bfloat16, (3,))})
    replay[:3] = {"x": [1, 2, 3], "y": 0.5}
    replay[[7, 8, 9]] = replay[[2, 0, 1]]
    replay["x"][:2] = replay["x"][2]
    assert replay["x"][:].numpy().tolist() == [3, 3, 3, 0, 0, 0, 0, 3, 1, 2]
    assert replay.extend(replay[8:]) == tensorlane.Committed(0, 4)
    assert replay["x"][:2].numpy().tolist() == [1, 2] and replay["y"][:].torch()[:, 0].tolist() == [0.5] * 3 + [0] * 4 + [0.5] * 3


def test_large_rows_that_are_no_dense_block_are_written_where_they_belong(client, name):
    replay = client.create_set(name, 8, {"x": ("float32", (300, 200)), "y": (torch.bfloat16, 40_000)})
    x, y = np.random.default_rng(0).random((200, 300), np.float32).T, torch.randn(2, 80_000).bfloat16()[:, ::2]
    replay[[6, 1]] = {"x": x, "y": y}
    np.testing.assert_array_equal(replay["x"][:], np.stack([x * (row in (1, 6)) for row in range(8)]))
    assert torch.equal(replay["y"][[6, 1]].torch(), y)


def test_what_does_not_fit_is_refused_and_changes_nothing(filled):
    replay, array = filled
    held = replay.status()
    for kind, reason, wrong in (
        (IndexError, "SELECTION_OUT_OF_RANGE", lambda: replay[ROWS]),
        (IndexError, "SELECTION_OUT_OF_RANGE", lambda: replay[[1, -ROWS - 1]]),
        (IndexError, "SELECTION_OUT_OF_RANGE", lambda: replay[np.array([2**63], np.uint64)]),
        (IndexError, "SELECTION_OUT_OF_RANGE", lambda: replay[[True, False]]),
        (IndexError, "SELECTION_OUT_OF_RANGE", lambda: replay.write(ROWS, 1)),
        (TypeError, None, lambda: replay[1.5]),
        (TypeError, None, lambda: replay[True]),
        (TypeError, None, lambda: replay[None]),
        (TypeError, None, lambda: replay[[[1, 2]]]),
        (TypeError, None, lambda: replay[1, 2]),
        (TypeError, None, lambda: replay[["obs"]]),
        (ValueError, "SET_MISMATCH", lambda: replay["none"]),
        (ValueError, "SET_MISMATCH", lambda: replay.read(1, ["none"])),
        (ValueError, "SET_MISMATCH", lambda: replay.write(1, {"none": 1})),
        (ValueError, "SET_MISMATCH", lambda: replay.write([1, 2], {"obs": np.zeros((3, 4, 3), np.int32)})),
        (ValueError, "SET_MISMATCH", lambda: replay.write([1, 2], {"obs": np.zeros((4, 3))})),
        (ValueError, "SET_MISMATCH", lambda: replay.write([1, 2], {"obs": torch.zeros(4, 3)})),
        (ValueError, "SET_MISMATCH", lambda: replay.write(1, {"obs": 1.5})),
        (ValueError, "SET_MISMATCH", lambda: replay.write(1, {"obs": 2**31})),
        (ValueError, "SET_MISMATCH", lambda: replay.write(1, {"obs": [[1], [2, 3]]})),
        (ValueError, "SET_MISMATCH", lambda: replay.write(1, {"next/reward": 1e39})),
        (ValueError, "SET_MISMATCH", lambda: replay.write(1, {"next/reward": 1j})),
        (ValueError, None, lambda: replay.write(1, {})),
        (TypeError, None, lambda: replay.write(1, {"obs": object()})),
        (TypeError, None, lambda: replay.write(1, np.zeros(3))),
        (TypeError, None, lambda: replay.write(1, {"next": {"reward": torch.zeros((), requires_grad=True)}})),
        (TypeError, None, lambda: iter(replay)),
    ):
        with pytest.raises(kind) as refused:
            wrong()
        assert getattr(refused.value, "reason", None) == reason, refused.value
    assert replay.status() == held
    np.testing.assert_array_equal(replay["obs"][:], array)


def test_a_data_set_of_several_types_is_made_without_writing_it(client, name):
    """S3.7"""
    leaves = {"images": ("float32", (8, 8, 3)), "masks": (bool, (8, 8, 3)), "labels": (torch.uint8, 1)}
    data = client.create_set(name, 50_000, leaves)
    assert len(data) == data.rows == 50_000 and data.status().held_bytes == 0 and data.name == name
    assert data.leaves["masks"] == tensorlane.Leaf("bool", (8, 8, 3)) and data["labels"].shape == (50_000, 1)
    idx = [1, 5020, 34572, 11200]
    data[idx] = {"images": 0.5, "masks": True, "labels": [[1], [2], [3], [4]]}
    batch = data[idx]
    assert batch["labels"].numpy().ravel().tolist() == [1, 2, 3, 4] and batch["masks"].numpy().all()
    assert batch["images"].numpy().sum() == 0.5 * 4 * 8 * 8 * 3 and not data["images"][5019:5021].numpy()[0].any()
    with pytest.raises(tensorlane.Error) as refused:
        client.create_set(f"{name} as the seed", 50_000, {"images": ("float32", (480, 480, 3))})
    assert refused.value.reason == "NEVER_FITS"


def test_a_layout_is_taken_from_arrays_of_rows_and_what_is_none_is_refused(client, name):
    batch = TensorDict({"obs": torch.zeros(4, 3), "next": {"done": torch.zeros(4, 1, dtype=torch.bool)}}, [4])
    replay = client.create_set(name, 10, batch)
    assert {key: (leaf.dtype, leaf.row_shape) for key, leaf in replay.leaves.items()} == {"obs": ("f32", (3,)), "next/done": ("bool", (1,))}
    replay[:4] = batch.apply(torch.ones_like)
    assert replay.read(slice(3, 5), ["next/done"])["next/done"].numpy().ravel().tolist() == [True, False]
    wrong = [{"x": "float32"}, {"x": ("u8", 3)}, {"x": ("no", 3)}, {"x": ("float32", -1)}, {"x": np.zeros(())}, {1: ("bool", ())}, {}, []]
    for leaves in wrong:
        with pytest.raises((tensorlane.Unsupported, tensorlane.Invalid)):
            client.create_set(f"{name} wrong", 10, leaves)
    with pytest.raises(tensorlane.NameTaken):
        client.create_set(name, 10, batch)


def test_a_set_is_listed_opened_by_its_name_and_gone_when_it_is_dropped(client, name):
    replay = client.create_set(name, 10, {"x": ("int64", ())}, writers=["rollout-*"])
    assert [one.name for one in client.mutable_sets(name)] == [name]
    replay[3] = 7
    found = client.open_set(name)
    assert found == replay and found.status().writers == ("rollout-*",) and client.open_set(replay.reference)["x"][3].numpy() == 7
    kept = replay[:]
    client.drop_set(name)
    assert not client.mutable_sets(name) and kept["x"][3] == 7
    with pytest.raises(tensorlane.NotFound):
        replay.read(3)
    with pytest.raises(tensorlane.NotFound):
        client.open_set(name)


def test_rows_that_were_read_stay_what_they_were_and_are_given_back(alone, name):
    leases = alone.status().leases
    replay = alone.create_set(name, 4, {"x": ("int64", (10_000,))})
    replay[:] = 1
    until("what was staged is gone", lambda: alone.status().leases == leases)
    with replay[:2] as read:
        array = read["x"].numpy()
        replay[:] = 2
        until("what was staged is gone again", lambda: alone.status().leases == leases + 1)
        assert (array == 1).all() and read.version == 1
    del read
    assert (array == 1).all() and alone.status().leases == leases + 1
    del array
    until("the lease is gone", lambda: alone.status().leases == leases)


WRITER = """
import sys, tensorlane
replay = tensorlane.connect(sys.argv[1]).open_set(sys.argv[2])
print("writes", flush=True)
for number in range(1, int(sys.argv[3]) + 1):
    replay[:] = {"a": number, "b": {"c": number}}
"""


@pytest.fixture(params=["of the pod", "of another node"])
def written(request, client, two_nodes, clients):
    """A set, with the client of its sidecar, and the directory of the sidecar of those who write it."""
    owner, directory = (client, client.directory) if request.param == "of the pod" else (clients[0], two_nodes[1].directory)
    replay = owner.create_set("written", 64, {"a": ("int32", (2_000,)), "b/c": ("int64", (500,))}, writers=["node-1"])
    yield replay, owner, directory
    owner.drop_set(replay)


def test_a_reader_beside_a_writer_has_all_of_one_commit(written):
    """S3.19"""
    replay, _, directory = written
    writer = python(WRITER, directory, replay.reference, "300")
    seen = 0
    while seen < 300:
        with replay[[0, 63, 31]] as read:
            values = {int(tensor.numpy().flat[at]) for tensor in read.values() for at in (0, -1)}
            assert values == {read.version} and read.version >= seen
            assert all((tensor.numpy() == read.version).all() for tensor in read.values())
            seen = read.version
    said(writer)


def test_a_killed_writer_leaves_the_set_whole_and_usable(written):
    """S3.19"""
    replay, owner, directory = written
    theirs = tensorlane.connect(directory)
    before, leases = theirs.status(), owner.status().leases
    for _ in range(5):
        start = replay.version
        writer = python(WRITER, directory, replay.reference, "1000000")
        until("it has written", lambda: replay.version > start + 3)
        writer.kill()
        writer.communicate()
        until("its session is gone", lambda: theirs.status().sessions == before.sessions)
        with replay[:] as read:
            (value,) = {int(number) for tensor in read.values() for number in np.unique(tensor.numpy())}
            assert 0 < value <= read.version
        del read
    until("what it staged is freed", lambda: theirs.status().leases == before.leases)
    until("no commit is under way", lambda: owner.status().leases == leases)
    assert replay.write(slice(None), {"a": 5, "b": {"c": 5}}).version == replay.version
    assert (replay["a"][:].numpy() == 5).all()
    theirs.close()


def test_times_of_reads_and_snapshots_are_numbers(client, name):
    rows = client.create_set(name, 2, {"a": ("f4", ())})
    for call in (rows.read, rows.map, rows.snapshot):
        with pytest.raises(tensorlane.Unsupported, match="deadline is '5'"):
            call(deadline="5")


def test_a_commit_that_is_repeated_by_its_retry_id_is_made_once(client, name):
    replay = client.create_set(name, 8, {"x": ("int64", ())})
    once = {"expects": 0, "retry_id": bytes(range(16))}
    first = replay.extend({"x": [1, 2]}, **once)
    assert replay.extend({"x": [1, 2]}, **once) == first == tensorlane.Committed(0, 1)
    assert replay.write(5, {"x": 3}, retry_id=bytes(16)) == replay.write(5, {"x": 3}, retry_id=bytes(16))
    assert (replay.version, replay.status().cursor) == (2, 2)
    with pytest.raises(tensorlane.Error) as refused:
        replay.write(5, {"x": 4}, retry_id=b"short")
    assert "16 bytes" in str(refused.value) and replay.version == 2


def test_of_writers_that_expect_one_version_one_writes(client, name):
    counter = client.create_set(name, 1, {"count": ("int64", ())})

    def count():
        done = 0
        while done < 20:
            read = counter[0]
            try:
                counter.write(0, {"count": int(read["count"].numpy()) + 1}, expects=read.version)
                done += 1
            except tensorlane.Error as error:
                assert error.reason == "VERSION_CHANGED"

    counting = [threading.Thread(target=count) for _ in range(4)]
    for thread in counting:
        thread.start()
    for thread in counting:
        thread.join()
    assert counter["count"][0].numpy() == counter.version == 80


EXTENDER = """
import sys, numpy, tensorlane
replay = tensorlane.connect(sys.argv[1]).open_set(sys.argv[2])
for number in range(25):
    print(replay.extend({"x": numpy.full(3, int(sys.argv[3]) * 100 + number)}).first)
"""


def test_extensions_of_several_processes_go_round_and_none_is_lost(client, name):
    replay = client.create_set(name, 300, {"x": ("int64", ()), "y": ("bool", ())})
    writers = [python(EXTENDER, client.directory, name, str(number)) for number in range(4)]
    first = [int(line) for writer in writers for line in said(writer).split()]
    assert sorted(first) == list(range(0, 300, 3)) and replay.version == 100
    values = replay["x"][:].numpy().reshape(100, 3)
    assert sorted(values[:, 0].tolist()) == sorted(100 * number + count for number in range(4) for count in range(25))
    assert (values == values[:, :1]).all()
    assert replay.extend({"x": [1, 2, 3, 4]}) == tensorlane.Committed(0, 101)
    assert replay.extend({"x": np.int64(9), "y": True}) == tensorlane.Committed(4, 102)
    assert replay["x"][3:6].numpy().tolist() == [4, 9, values.flat[5]] and replay.status().cursor == 5


USER = """
import pickle, sys
replay = pickle.loads(bytes.fromhex(sys.stdin.read()))
print(repr(replay).count("rows"), int(replay["x"][5, 0]), end=" ")
replay[6] = {"x": 6}
sys.stdout.write(pickle.dumps(replay).hex())
"""


def test_a_set_pickles_as_its_reference_and_connects_where_it_is_used(client, name):
    """S3.9, S3.12, S3.15"""
    replay = client.create_set(name, 1000, {"x": ("int64", (1000,))})
    replay[5] = 5
    pickled = pickle.dumps(replay)
    assert len(pickled) <= 400 and len(replay.reference) <= 300
    user = python(USER, TENSORLANE_SOCKETS=client.directory)
    unopened, value, back = said(user, pickled.hex()).split()
    assert (unopened, value) == ("0", "5") and bytes.fromhex(back) == pickled
    assert replay["x"][6, 0] == 6
    bound = pickle.loads(pickled).bind(client)
    assert bound == replay and hash(bound) == hash(replay) and (bound["x"][5:7].numpy()[:, 0] == [5, 6]).all()
    assert pickle.loads(pickle.dumps(bound["x"])).key == "x"
    with pytest.raises(TypeError, match="stay in their process"):
        pickle.dumps(replay[:1])


def test_a_set_without_a_client_says_that_there_is_no_sidecar(client, name, tmp_path, monkeypatch):
    alone = pickle.loads(pickle.dumps(client.create_set(name, 1, {"x": ("bool", ())})))
    monkeypatch.setenv("TENSORLANE_SOCKETS", str(tmp_path))
    assert name not in repr(alone) and alone.reference
    with pytest.raises(tensorlane.Unavailable):
        alone.read()
    assert alone.bind(client).rows == 1


def test_a_forked_child_uses_the_set_of_its_parent(client, name):
    replay = client.create_set(name, 4, {"x": ("int64", ())})
    child = os.fork()
    if child == 0:
        replay[1] = 11
        os._exit(0 if replay["x"][1].numpy() == 11 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert replay["x"][:].numpy().tolist() == [0, 11, 0, 0] and replay.version == 1


def test_reads_and_commits_are_awaited(client, name):
    async def main():
        async with await tensorlane.aio.connect(client.directory) as awaited:
            replay = await awaited.create_set(name, 10, {"x": ("int64", ())})
            commits = await asyncio.gather(*(replay.extend({"x": [number]}) for number in range(10)))
            assert sorted(commit.first for commit in commits) == list(range(10))
            await replay.write([2, 3], {"x": 7}, expects=10)
            found = await awaited.open_set(replay.reference)
            assert (await found.read([2, 3], ["x"]))["x"].numpy().tolist() == [7, 7]
            assert (await found.status()).version == 11 and found.set == replay.set
            assert [one.name for one in await awaited.mutable_sets(name)] == [name]
            await awaited.drop_set(replay.reference)

    asyncio.run(main())


def test_parts_of_rows_are_awaited_and_lose_nothing_of_one_another(client, name):
    async def main():
        async with await tensorlane.aio.connect(client.directory) as awaited:
            replay = await awaited.create_set(name, 4, {"x": ("int32", (4, 3))})
            await asyncio.gather(*(replay.assign(np.s_[1:3, "x", column, ::2], column + 1) for column in range(4)))
            want = np.zeros((4, 4, 3), np.int32)
            want[1:3, :, ::2] = np.arange(1, 5)[:, None]
            np.testing.assert_array_equal((await replay.read())["x"], want)
            assert (await replay.status()).version == 4
            with pytest.raises(tensorlane.OutOfRange, match="x: rows of shape"):
                await replay.assign(np.s_[1, "x", 4], 0)
            await awaited.drop_set(replay.reference)

    asyncio.run(main())


def test_a_set_of_another_peer_is_used_by_its_reference_and_only_rows_travel(clients, name):
    """S3.1, S3.9, S3.18"""
    there, here = clients
    replay = there.create_set(name, 1000, {"x": ("uint8", (100_000,))}, writers=["node-*"])
    try:
        replay[5] = 5

        def moved() -> int:
            return sum(peer.bytes_in + peer.bytes_out for peer in here.peers())

        before = moved()
        far = here.open_set(replay.reference)
        assert here.open_set(f"node-0/{name}") == far
        read = far[[4, 5]]
        assert read["x"].numpy()[:, 0].tolist() == [0, 5] and read["x"].route.startswith("tcp")
        assert far.write([6, 7], {"x": 6}, expects=1) == tensorlane.Committed(6, 2)
        assert far.extend({"x": np.full((1, 100_000), 9, np.uint8)}) == tensorlane.Committed(0, 3)
        assert replay["x"][[0, 6, 7, 8], 0].tolist() == [9, 6, 6, 0]
        until("what travelled is counted", lambda: moved() >= before + 500_000)
        assert moved() < before + 600_000, "five rows of 100 kB travelled, of a set of 100 MB"
        with pytest.raises(tensorlane.Error) as elsewhere:
            far.drop()
        assert elsewhere.value.reason == "NOT_OWNED"
    finally:
        there.drop_set(name)
    with pytest.raises(tensorlane.NotFound):
        far.read(1)


def test_workloads_of_other_peers_write_only_where_the_set_says_so(clients, name):
    there, here = clients
    for pattern, allowed in (((), False), (["node-0"], False), (["rollout-*", "node-1"], True), (["*"], True)):
        replay = there.create_set(name, 10, {"x": ("int64", ())}, writers=pattern)
        try:
            far = here.open_set(replay.reference)
            if allowed:
                far[1] = 1
            else:
                for write in (lambda: far.write(1, 1), lambda: far.extend(1)):
                    with pytest.raises(tensorlane.Refused) as refused:
                        write()
                    assert refused.value.reason == "PERMISSION_DENIED" and isinstance(refused.value, PermissionError)
            assert far[1].version == replay.version == int(allowed)
        finally:
            there.drop_set(name)


def test_numbers_are_made_what_a_leaf_has(client, name):
    kinds = {"bool": bool, "u8": "uint8", "f16": "float16", "bf16": torch.bfloat16, "c64": "complex64"}
    replay = client.create_set(name, 4, {key: (dtype, ()) for key, dtype in kinds.items()})
    replay[:] = 1
    replay[1:3] = {"bool": [0, True], "u8": np.uint8(255), "f16": -0.5, "bf16": [3, 0.25], "c64": 1j}
    assert [replay[key][:].torch().tolist() for key in kinds] == [
        [True, False, True, True],
        [1, 255, 255, 1],
        [1, -0.5, -0.5, 1],
        [1, 3, 0.25, 1],
        [1, 1j, 1j, 1],
    ]
    for key, wrong in (("bool", 2), ("u8", -1), ("u8", 256), ("u8", 0.5), ("f16", 1e6), ("bf16", 1j)):
        with pytest.raises(tensorlane.Error):
            replay[0] = {key: wrong}
    replay[0] = {"f16": float("inf")}
    assert replay["f16"][0].numpy() == np.inf


@pytest.mark.parametrize("of_torch", [False, True], ids=["with ml_dtypes", "without ml_dtypes"])
def test_numbers_that_a_leaf_does_not_have_are_refused(client, name, monkeypatch, of_torch):
    if of_torch:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    kinds = {"bf16": torch.bfloat16, "c32": torch.complex32, "f32": "float32", "f64": "float64", "c64": "complex64", "u64": "uint64"}
    replay = client.create_set(name, 2, {key: (dtype, ()) for key, dtype in kinds.items()})
    wrong = {
        "bf16": (257, [1, 257], 2**63 - 1, 1e39),
        "c32": (2049, 100_000, 1e6),
        "f32": (2**24 + 1, [1, 2**24 + 1], -(2**24) - 1),
        "f64": (2**53 + 1, 2**63 - 1, [2**64 - 1]),
        "c64": (2**24 + 1, np.int64(2**24 + 1)),
        "u64": (-1, [2**63, -1]),
    }
    for key, numbers in wrong.items():
        for number in numbers:
            with pytest.raises(tensorlane.Invalid) as refused:
                replay.write(slice(None), {key: number})
            assert refused.value.reason == "SET_MISMATCH", (key, number)
    assert replay.version == 0
    right = {"bf16": [256, -384], "c32": [2048, 0.1], "f32": [2**24, 16777217.0], "f64": [2**53, 2**63], "c64": [2**30, 1j]}
    replay[:] = {**right, "u64": [2**64 - 1] * 2, "bf16": [256, float("inf")]}
    assert replay["f32"][:].numpy().tolist() == [2**24, 2**24] and replay["u64"][0].numpy() == 2**64 - 1
    assert replay["bf16"][:].torch().tolist() == [256, float("inf")] and replay["c32"][0].torch() == 2048


def test_a_layout_is_taken_from_leaves_of_another_set(client, name):
    replay = client.create_set(name, 10, {"obs": ("uint8", (2,)), "w": ("float32", ())})
    again = client.create_set(f"{name} again", 5, {"obs": replay["obs"], "w": replay["w"]})
    assert again.leaves == replay.leaves


def test_infinity_is_refused_by_types_that_have_none(client, name):
    pytest.importorskip("ml_dtypes")
    replay = client.create_set(name, 2, {"w": ("f8_e4m3", ()), "v": ("f8_e5m2", ())})
    for wrong in (float("inf"), [float("-inf"), 1]):
        with pytest.raises(tensorlane.Invalid, match="cannot be said as f8_e4m3"):
            replay.write(slice(None), {"w": wrong})
    replay[:] = {"w": float("nan"), "v": float("inf")}
    assert np.isnan(replay["w"][0].numpy().astype("f4")) and np.isinf(replay["v"][0].numpy().astype("f4"))


def test_whole_numbers_beside_others_are_stored_exactly_or_refused(client, name):
    replay = client.create_set(name, 2, {"f32": ("float32", ()), "f64": ("float64", ()), "c64": ("complex64", ()), "bf16": ("bf16", ())})
    wrong = {"f32": [2**24 + 1, 0.5], "f64": [0.5, 2**53 + 1], "c64": [1j, 2**24 + 1], "bf16": (257, 0.5)}
    for key, numbers in wrong.items():
        with pytest.raises(tensorlane.Invalid, match=f"cannot be said as {key}"):
            replay[:] = {key: numbers}
    replay[:] = {"f32": [2**24, 0.1], "f64": [np.int64(2**53), 0.1], "c64": [1j, True], "bf16": [256, 0.1]}
    assert replay["f32"][0].numpy() == 2**24 and replay["c64"][:].numpy().tolist() == [1j, 1]


def test_scalars_of_ml_dtypes_are_numbers(client, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    replay = client.create_set(name, 2, {"w": ("bf16", ()), "f": ("float32", ())})
    replay["w"][0] = ml_dtypes.bfloat16(1.5)
    replay[1] = {"w": [ml_dtypes.bfloat16(2.5)], "f": [ml_dtypes.float8_e4m3fn(0.5)]}
    assert replay["w"][:].torch().tolist() == [1.5, 2.5] and replay["f"][1].numpy() == 0.5


def test_an_ellipsis_before_every_dimension_stands_for_none(client, name):
    obs, reward = np.arange(50, dtype="f4").reshape(10, 5), np.arange(10, dtype="f4")
    replay = client.create_set(name, 10, {"obs": obs, "reward": reward})
    replay[:] = {"obs": obs, "reward": reward}
    for index in (np.s_[..., 0], np.s_[..., -1], np.s_[..., 2:4], np.s_[...], (..., [1, 2])):
        np.testing.assert_array_equal(replay["reward"][index], reward[index])
    for index in (np.s_[..., 2:4, 0], np.s_[..., 3, 1], np.s_[..., 1:3, None, 0], np.s_[..., 0], np.s_[..., None], np.s_[..., ::2, 1:]):
        np.testing.assert_array_equal(replay["obs"][index], obs[index])


def test_rows_are_cut_by_whole_numbers_alone(filled):
    replay, _ = filled
    for index in (np.s_[0.5:2.9], np.s_["a":], np.s_[::0]):
        with pytest.raises(tensorlane.Unsupported):
            replay[index]
    assert len(replay["obs"][np.int8(2) : torch.tensor(4)].numpy()) == 2


def test_a_path_that_is_not_there_is_no_key_of_rows_or_sets(client, filled, name):
    rows = filled[0][:2]
    for path in (("obs", "x"), ("obs", 0), 3, (), ("next", "no")):
        assert path not in rows and rows.get(path) is None
    assert ("next", "reward") in rows
    client.publish({"w": np.ones(3), "n": {"lr": 0.1}, "l": [1]}, f"{name} sealed")
    got = client.get_set(f"{name} sealed")
    for path in (("w", "x"), ("w", 0), ("n", "lr", "x"), ("l", "x"), ("n", "no"), "no"):
        assert path not in got and got.get(path, 7) == 7
    assert ("n", "lr") in got
    client.unname(*client.names(f"{name} sealed"))
