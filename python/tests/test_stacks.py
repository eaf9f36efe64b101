"""Lazy stacks and tensorclasses of tensordict: published by parts and by fields, sent in messages, and written as rows."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack, tensorclass

import tensorlane
from tensorlane.tensordict import MemoryMappedTensorDict, to_tensordict

from conftest import python, said


@pytest.fixture
def name(request):
    return request.node.name


@tensorclass
class Step:
    obs: torch.Tensor
    next: Any
    label: str
    note: str | None = None


def episodes() -> LazyStackedTensorDict:
    """Episodes of several lengths, of which one has a key that the others have not."""
    return lazy_stack(
        [TensorDict({"obs": torch.arange(length * 2.0).reshape(length, 2), "next": {"done": torch.ones(length, 1).bool()}}, [length]) for length in (3, 5)]
        + [TensorDict({"obs": torch.zeros(1, 2), "next": {"done": torch.ones(1, 1).bool()}, "extra": torch.ones(1)}, [1])]
    )


def step() -> Step:
    return Step(obs=torch.arange(6.0).reshape(3, 2), next=TensorDict({"reward": torch.ones(3)}, [3]), label="a", batch_size=[3])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, LazyStackedTensorDict):
        return one.stack_dim == other.stack_dim and all(map(same, one.tensordicts, other.tensordicts))
    return one.batch_size == other.batch_size and sorted(one.keys()) == sorted(other.keys()) and bool((one == other).all())


def test_a_lazy_stack_is_published_by_its_parts_and_comes_back_as_one(client, name):
    for stack in (episodes(), lazy_stack([TensorDict({"a": torch.full((2,), float(at))}, [2]) for at in range(3)], 1)):
        client.publish(stack, name)
        with client.get_set(name) as got:
            assert list(got) == ["stack_dim", "0", "1", "2"] and got["stack_dim"] == stack.stack_dim
            assert got["1"].batch == list(stack.tensordicts[1].batch_size)
            back = to_tensordict(got)
            assert type(back) is LazyStackedTensorDict and same(back, stack) and back.batch_size == stack.batch_size
            del back
    inside = TensorDict({"weights": torch.ones(2), "episodes": lazy_stack([episodes()[0], episodes()[1]])}, [2])
    client.publish({"in": inside, "label": "x"}, name)
    back = to_tensordict(client.get_set(name))
    assert back["label"] == "x" and same(back["in"].get("episodes"), inside.get("episodes")) and back["in", "weights"].tolist() == [1, 1]


def test_a_tensor_of_a_lazy_stack_is_stored_once_however_often_it_stands_there(alone, name):
    part, before = TensorDict({"a": torch.ones(1000)}, []), alone.status().tensors
    alone.publish(lazy_stack([part, part]), name)
    assert alone.status().tensors == before + 2, "the array, and the manifest"


def test_a_tensorclass_is_published_by_its_fields(client, name):
    client.publish(step(), name)
    with client.get_set(name) as got:
        assert list(got) == ["obs", "next", "label", "note"] and got.batch == [3] and got["next"].batch == [3]
        assert got["label"] == "a" and got["note"] is None
        back = to_tensordict(got)
        assert type(back) is Step and back.batch_size == (3,) and back.label == "a" and back.note is None
        assert torch.equal(back.obs, step().obs) and torch.equal(back.next["reward"], torch.ones(3))
        del back
    other = step()
    other.label = "b"
    client.publish({"steps": step(), "stack": lazy_stack([step(), other])}, name)
    got = client.get_set(name)
    assert [part.label for part in to_tensordict(got).get("stack")] == ["a", "b"]
    assert got["steps", "label"] == "a" and got["stack", "stack_dim"] == 0 and got["stack", "1", "obs"].shape == (3, 2)


def test_directories_of_stacks_and_classes_are_published_by_what_tensordict_loads(client, name, tmp_path):
    for at, given in enumerate((episodes(), step())):
        given.memmap(tmp_path / str(at))
        client.publish(TensorDict.load_memmap(tmp_path / str(at)), name)
        back = to_tensordict(client.get_set(name))
        assert same(back, episodes()) if at == 0 else back.label == "a" and torch.equal(back.obs, step().obs)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_directories_of_stacks_and_classes_come_back_byte_for_byte(client, name, tmp_path):
    inside = TensorDict({"steps": step(), "episodes": lazy_stack([episodes()[0], episodes()[1]])}, [])
    for at, given in enumerate((episodes(), step(), inside)):
        saved, got = tmp_path / f"saved-{at}", tmp_path / f"got-{at}"
        given.memmap(saved)
        client.publish_file(saved, name)
        client.save_set(name, got)
        assert files(got) == files(saved)
        back = to_tensordict(client.get_set(name))
        assert type(back) is type(given)
        back = back if at < 2 else back["steps"]
        assert same(back, episodes()) if at == 0 else type(back) is Step and back.label == "a" and torch.equal(back.obs, step().obs)


def test_stacks_and_classes_that_were_published_are_opened_by_tensordict(client, name, tmp_path):
    client.publish({"steps": step(), "episodes": episodes()}, name)
    client.save_set(name, tmp_path / "got")
    loaded = TensorDict.load_memmap(tmp_path / "got")
    assert same(loaded.get("episodes"), episodes())
    steps = loaded.get("steps")
    assert type(steps) is Step and (steps.label, steps.note) == ("a", None) and torch.equal(steps.next["reward"], torch.ones(3))
    assert json.loads((tmp_path / "got" / "steps" / "meta.json").read_text())["label"] == "a"
    assert json.loads((tmp_path / "got" / "meta.json").read_text())["steps"] == {"type": "Step"}


def test_fields_that_are_pickled_in_a_directory_are_refused_by_the_path_of_the_file(client, name, tmp_path):
    step().memmap(tmp_path / "saved")
    # As tensordict writes them, of what JSON cannot say.
    (tmp_path / "saved" / "other.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(tensorlane.Error, match="other.pickle: fields of the class are pickled"):
        client.publish_file(tmp_path / "saved", name)
    assert name not in client.names()


def test_a_class_that_the_reader_did_not_import_comes_as_a_tensordict_and_is_named(client, name):
    client.publish({"steps": step()}, name)
    script = """
import sys, warnings
import tensorlane
from tensorlane.tensordict import to_tensordict

with tensorlane.connect(sys.argv[1]) as client, warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    back = to_tensordict(client.get_set(sys.argv[2]))["steps"]
    named = [str(one.message) for one in told if "test_stacks.Step" in str(one.message)]
    print(type(back).__name__, back["label"], back["obs"].shape[0], len(named), "test_stacks" in sys.modules)
"""
    assert said(python(script, client.directory, name)).split() == ["TensorDict", "a", "3", "1", "False"]


def test_a_class_that_nobody_finds_by_its_name_or_has_other_fields_is_named(client, name, monkeypatch):
    @tensorclass
    class Hidden:
        obs: torch.Tensor

    client.publish(Hidden(obs=torch.ones(2), batch_size=[2]), name)
    with pytest.warns(UserWarning, match="<locals>.Hidden'> comes as a TensorDict: no module"):
        back = to_tensordict(client.get_set(name))
    assert type(back) is TensorDict and back["obs"].tolist() == [1, 1]
    client.publish(step(), name)
    monkeypatch.setitem(globals(), "Step", Hidden)
    with pytest.warns(UserWarning, match="Step'> comes as a TensorDict: the class here takes none of these fields"):
        back = to_tensordict(client.get_set(name))
    assert type(back) is TensorDict and back["label"] == "a"


def test_a_part_of_a_stack_or_of_a_class_is_a_tensordict(client, name):
    client.publish({"steps": step(), "episodes": episodes()}, name)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        back = to_tensordict(client.get_set(name, keys=["steps/obs", "steps/label", "episodes/1"]))
    assert not [one for one in told if "comes as" in str(one.message)]
    assert type(back["steps"]) is TensorDict and sorted(back["steps"].keys()) == ["label", "obs"]
    assert type(back.get("episodes")) is TensorDict and list(back.get("episodes").keys()) == ["1"]


def test_a_field_that_json_cannot_say_is_named(client, name):
    wrong = step()
    wrong.note = object()
    with pytest.raises(tensorlane.Unsupported, match="steps/note"):
        client.publish({"steps": wrong}, name)
    assert name not in client.names()


def test_a_plain_mapping_that_looks_like_a_stack_stays_a_mapping(client, name):
    for part in (torch.ones(1), {"a": torch.ones(1)}):
        client.publish({"stack_dim": 0, "0": part}, name)
        back = to_tensordict(client.get_set(name))
        assert type(back) is TensorDict and back["stack_dim"] == 0
        assert (back["0"] if isinstance(part, torch.Tensor) else back["0", "a"]).tolist() == [1]
    client.publish(TensorDict({"a": torch.ones(2), "s": NonTensorData("kept", batch_size=[2])}, [2]), name)
    back = to_tensordict(client.get_set(name))
    assert back.batch_size == (2,) and back["s"] == "kept"


def test_stacks_and_classes_are_messages_by_parts_and_by_fields(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        for value in (episodes(), {"in": episodes()}, [episodes()]):
            writer.write(value)
            read = reader.read().value
            read = read if isinstance(value, LazyStackedTensorDict) else read["in"] if isinstance(read, dict) else read[0]
            assert list(read) == ["stack_dim", "0", "1", "2"] and read["stack_dim"] == 0
            assert [read[str(at)]["obs"].shape for at in range(3)] == [(3, 2), (5, 2), (1, 2)] and "extra" in read["2"]
            del read
        for value in (step(), [step()]):
            writer.write(value)
            read = reader.read().value
            read = read[0] if isinstance(read, list) else read
            assert (read["label"], read["note"], read["obs"].shape) == ("a", None, (3, 2)) and read["next"]["reward"].shape == (3,)
            del read
    with client.channel_writer(name, pickle=True) as writer, client.channel_reader(name, pickle=True) as reader:
        writer.write({"steps": step()})
        back = reader.read().value["steps"]
        assert type(back) is Step and torch.equal(back.obs, step().obs)


def test_rows_are_those_of_a_stack_whose_parts_fit_together_and_of_a_class(client, name):
    rows = lazy_stack([TensorDict({"a": torch.full((2,), float(at)), "b": {"c": torch.tensor(at)}}, []) for at in range(4)])
    whole = client.create_set(name, 8, rows)
    whole[:4] = rows
    assert whole["a"][:4].numpy().tolist() == [[at, at] for at in range(4)] and whole["b", "c"][3].numpy() == 3
    with pytest.raises(tensorlane.Unsupported, match="do not fit together") as refused:
        whole[:3] = lazy_stack([TensorDict({"a": torch.ones(size)}, []) for size in (2, 2, 3)])
    assert "a set keeps its parts apart" in refused.value.remedy
    extra = [TensorDict({"a": torch.ones(2), "b": {"c": torch.tensor(9)}} | more, []) for more in ({}, {"extra": torch.ones(1)})]
    nested = [TensorDict({"a": torch.ones(2), "b": {"c": torch.tensor(9)} | more}, []) for more in ({}, {"d": torch.ones(1)})]
    for parts, key in ((extra, "extra"), (nested, "d")):
        with pytest.raises(tensorlane.Unsupported, match=f"do not fit together: not all of them have {key}"):
            whole[:2] = lazy_stack(parts)
    assert whole["b", "c"][:2].numpy().tolist() == [0, 1], "nothing was written"
    whole.drop()


def test_rows_of_a_tensorclass_are_those_of_its_fields(client):
    @tensorclass
    class Row:
        obs: torch.Tensor
        next: TensorDict

    rows = Row(obs=torch.arange(8.0).reshape(4, 2), next=TensorDict({"done": torch.arange(4) > 2}, [4]), batch_size=[4])
    for data in (MemoryMappedTensorDict(rows, client=client), MemoryMappedTensorDict({"in": rows}, [4], client=client)["in"]):
        assert data.batch_size == (4,) and data["next", "done"][:].tolist() == [False, False, False, True]
        data[:2] = rows[2:]
        assert data["obs"][:].tolist() == [[4, 5], [6, 7], [4, 5], [6, 7]]
        read = Row.from_tensordict(data[[0, 3]])
        assert read.obs.tolist() == [[4, 5], [6, 7]]
    for left in client.mutable_sets("tensordict/"):
        client.drop_set(left.reference)
    with pytest.raises(tensorlane.Unsupported, match="label"):
        MemoryMappedTensorDict(step(), client=client)
