"""Mutable sets on files from Python, in the directories of the real tensordict: theirs are opened here, and ours there."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import MemoryMappedTensor, TensorDict

import tensorlane

from conftest import python, said

ROWS = 6


@pytest.fixture(scope="module")
def root():
    with tempfile.TemporaryDirectory(prefix="tensorlane-sets-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def files(root):
    with tensorlane.Sidecar(arena="256Mi", settings={"TENSORLANE_SETS_ROOT": str(root)}) as running:
        with tensorlane.connect(running.directory) as client:
            yield client


@pytest.fixture
def name(request, files):
    yield request.node.name[:150].translate({ord(letter): "-" for letter in "[]"})
    for left in files.mutable_sets():
        files.drop_set(left.reference)


LEAVES = {
    "obs": ("float32", (4, 3)),
    "next": {"reward": ("float32", ()), "done": ("bool", (1,)), "deep": {"a b": ("int64", (2,))}},
    "half": ("bf16", (5,)),
}


def batch(rows: int, value: int) -> TensorDict:
    return TensorDict(
        {
            "obs": torch.full((rows, 4, 3), float(value)),
            "next": {
                "reward": torch.arange(rows, dtype=torch.float32) + value,
                "done": torch.ones(rows, 1, dtype=torch.bool),
                "deep": {"a b": torch.full((rows, 2), value)},
            },
            "half": torch.full((rows, 5), float(value), dtype=torch.bfloat16),
        },
        batch_size=[rows],
    )


def test_the_real_tensordict_opens_a_set_and_sees_its_rows(files, root, name):
    """S3.20"""
    replay = files.create_set(name, ROWS, LEAVES, directory=name)
    loaded = TensorDict.load_memmap(root / name)
    assert loaded.batch_size == (ROWS,) and not loaded["obs"].any()
    assert isinstance(loaded["next", "deep", "a b"], MemoryMappedTensor)
    replay[[1, 4]] = batch(2, 7)
    # Maps that there are see it, and so does who loads anew.
    for seen in (loaded, TensorDict.load_memmap(root / name)):
        assert (seen[[1, 4]] == batch(2, 7)).all() and not seen[[0, 2, 3, 5]]["obs"].any()
        assert seen["half"].dtype == torch.bfloat16
    assert replay.status().directory == name and replay.status().durability == "process"
    assert replay.flush().version == 1


def test_commits_that_survive_a_loss_of_power_lie_where_tensordict_reads_them(files, root, name):
    replay = files.create_set(name, ROWS, LEAVES, directory=name, durability="disk")
    replay[[1, 4]] = batch(2, 7)
    assert replay.status().durability == "disk"
    assert (TensorDict.load_memmap(root / name)[[1, 4]] == batch(2, 7)).all()
    journal = root / name / ".tensorlane" / "journal"
    assert any(journal.read_bytes()[:8])
    replay.flush()
    assert not any(journal.read_bytes()[:8])


def test_a_directory_has_the_bytes_that_tensordict_writes(files, root, name):
    files.create_set(name, ROWS, LEAVES, directory=name)
    zeros = batch(ROWS, 0).zero_()
    with tempfile.TemporaryDirectory() as other:
        zeros.memmap(other)
        theirs = {path.relative_to(other): path.read_bytes() for path in Path(other).rglob("*") if path.is_file()}
        ours = {path.relative_to(root / name): path.read_bytes() for path in (root / name).rglob("*") if path.is_file()}
        ours = {path: found for path, found in ours.items() if path.parts[0] != ".tensorlane"}
        assert set(ours) == set(theirs)
        for path in theirs:
            if path.name != "meta.json":
                assert ours[path] == theirs[path], path
            else:
                assert json.loads(ours[path]) == json.loads(theirs[path]), path


def test_a_directory_that_tensordict_saved_is_a_set(files, root, name):
    saved = batch(ROWS, 3)
    saved["text"] = "a value that is no tensor"
    saved.memmap_(root / name)
    replay = files.create_set(name, directory=name, open=True)
    assert replay.rows == ROWS
    assert sorted(replay.keys()) == ["half", "next/deep/a b", "next/done", "next/reward", "obs"]
    np.testing.assert_array_equal(replay["next/reward"][:], saved["next", "reward"])
    replay[2] = batch(1, 9)[0]
    # The map of whoever saved it sees it, and what is no tensor stays.
    assert saved["obs"][2].eq(9).all() and saved["obs"][3].eq(3).all()
    loaded = TensorDict.load_memmap(root / name)
    assert loaded["next", "deep", "a b"][2].eq(9).all() and loaded["text"] == "a value that is no tensor"
    # Another process of tensordict writes a row, and it is read here.
    script = "import sys, tensordict; tensordict.TensorDict.load_memmap(sys.argv[1])['obs'][5] = 11"
    said(python(script, str(root / name)))
    assert (replay["obs"][5].numpy() == 11).all()


def test_a_dropped_set_is_a_directory_of_tensordict_alone(files, root, name):
    replay = files.create_set(name, ROWS, LEAVES, directory=name)
    replay.extend(batch(2, 5))
    replay.drop()
    assert not (root / name / ".tensorlane").exists()
    assert TensorDict.load_memmap(root / name)["obs"][1].eq(5).all()
    again = files.create_set(name, ROWS, LEAVES, directory=name, open=True)
    assert again.version == 0 and (again["obs"][1].numpy() == 5).all()


def test_a_set_that_is_opened_keeps_its_durability_and_writers_and_others_are_refused(files, root, name):
    made = files.create_set(name, ROWS, LEAVES, directory=name, durability="disk", writers=["rollout-*"])
    opened = files.create_set(name, directory=name, open=True)
    assert opened == made and opened.status().durability == "disk" and opened.status().writers == ("rollout-*",)
    for other, told in (({"durability": "process"}, ("disk", "process")), ({"writers": ["a"]}, ("rollout-*", '"a"'))):
        with pytest.raises(tensorlane.Error) as refused:
            files.create_set(name, directory=name, open=True, **other)
        assert refused.value.reason == "SET_MISMATCH" and all(word in str(refused.value) for word in told)


def test_types_that_tensordict_has_no_name_for_are_bytes_to_it(files, root, name):
    replay = files.create_set(name, ROWS, {"weights": ("f8_e4m3", (4,))}, directory=name)
    loaded = TensorDict.load_memmap(root / name)
    assert loaded["weights"].dtype == torch.uint8 and loaded["weights"].shape == (ROWS, 4)
    replay.drop()
    assert files.create_set(name, directory=name, open=True).leaves["weights"].dtype == "f8_e4m3"


def test_a_set_is_there_again_by_its_reference_when_its_sidecar_has_started_again():
    with tempfile.TemporaryDirectory() as root:
        settings = {"TENSORLANE_SETS_ROOT": root}
        with tensorlane.Sidecar(arena="64Mi", settings=settings) as first, tensorlane.connect(first.directory) as client:
            replay = client.create_set("replay", 140_625, {"frames": ("uint8", (640, 640, 3))}, directory="replay")
            assert replay.status().nbytes == 172_800_000_000
            replay[[4, 998]] = {"frames": 1}
            pickled = pickle.dumps(replay)
            assert len(pickled) <= 400
        with tensorlane.Sidecar(arena="64Mi", settings=settings) as second, tensorlane.connect(second.directory) as client:
            again = pickle.loads(pickled).bind(client)
            assert again == client.open_set("replay") and again.version == 1
            assert [int(row.numpy().sum()) for row in (again["frames"][4], again["frames"][5])] == [640 * 640 * 3, 0]
            blocks = sum(path.stat().st_blocks * 512 for path in Path(root).rglob("*"))
            assert blocks < 8 << 20


def test_what_is_refused_says_what_helps(client, files, root, name):
    with pytest.raises(tensorlane.Error) as refused:
        client.create_set(name, ROWS, LEAVES, directory=name)
    assert refused.value.reason == "NO_STORAGE" and "sets.root" in str(refused.value)
    files.create_set(name, ROWS, LEAVES, directory=name)
    (root / "outside").mkdir(exist_ok=True)
    wrong = [
        ("NAME_TAKEN", dict(directory=name)),
        ("INVALID_ARGUMENT", dict(directory="../x")),
        (None, dict(directory="other", durability="some")),
        ("UNSUPPORTED_FORMAT", dict(directory="outside", open=True)),
    ]
    for reason, options in wrong:
        with pytest.raises(tensorlane.Error) as refused:
            files.create_set("other", ROWS, LEAVES, **options)
        assert refused.value.reason == reason, options
    with pytest.raises(tensorlane.Error):
        files.create_set("other")
    assert {path.name for path in root.iterdir() if path.name.startswith((".", "other"))} == set()


def test_rows_of_files_are_read_once_and_shown_to_other_processes_by_a_ticket(files, name):
    replay = files.create_set(name, ROWS, LEAVES, directory=name)
    replay[:] = batch(ROWS, 7)
    script = """if True:
        import sys, tensorlane
        with tensorlane.connect(sys.argv[1]) as client, client.redeem(sys.argv[2]) as rows:
            print(rows.route, rows.numpy().sum())
    """
    with replay.map(keys=["obs"]) as view:
        assert (view.mapped, view.route) == (False, "copy by local")
        ticket = files.ticket(view["obs"], uses=2)
        replay[:] = batch(ROWS, 9)
    assert [said(python(script, files.directory, ticket)) for _ in range(2)] == ["local 504.0\n"] * 2


def test_a_file_that_is_cut_ends_who_maps_it_and_nobody_who_has_its_rows(files, root, name):
    replay = files.create_set(name, ROWS, LEAVES, directory=name)
    replay[:] = batch(ROWS, 7)
    leaf = root / name / "obs.memmap"
    rows = """if True:
        import sys, tensorlane
        with tensorlane.connect(sys.argv[1]) as client, client.open_set(sys.argv[2]).map(keys=["obs"]) as view:
            print("mapped", flush=True)
            sys.stdin.read()
            print(view["obs"].numpy().sum())
    """
    file = """if True:
        import sys, numpy
        view = numpy.memmap(sys.argv[1], "float32", "r", shape=(6, 4, 3))
        print("mapped", flush=True)
        sys.stdin.read()
        print(view.sum())
    """
    processes = has_rows, maps_file = python(rows, files.directory, name), python(file, str(leaf))
    try:
        assert [process.stdout.readline() for process in processes] == ["mapped\n"] * 2
        os.truncate(leaf, 0)
        assert said(has_rows) == "504.0\n"
        maps_file.communicate(timeout=60.0)
        assert maps_file.returncode == -signal.SIGBUS
    finally:
        for process in processes:
            process.kill()
    with pytest.raises(tensorlane.Error) as refused:
        replay.map(keys=["obs"])
    assert refused.value.reason == "STORAGE_FAILED"
