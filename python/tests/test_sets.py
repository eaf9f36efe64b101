"""Sets: published by versions, read as one, and interchanged with the real tensordict."""

from __future__ import annotations

import json
import os
import subprocess
import threading

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

import tensorlane
from tensorlane import sets
from tensorlane.programs import program

from conftest import python, said, until


@pytest.fixture
def name(request, client):
    """A name of this test's own, whose versions go with it."""
    yield request.node.name
    client.unname(*client.names(request.node.name))


def command(client, *words: str) -> dict:
    """Output of the command, as JSON."""
    called = subprocess.run(
        [program("tensorlane"), "--sockets", client.directory, "-o", "json", *map(str, words)], capture_output=True, text=True
    )
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout)


class Model(torch.nn.Module):
    """Two layers, one of which shares its weights with the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 16)
        self.layer = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 64, bias=False)
        self.head.weight = self.embedding.weight


def test_a_state_dict_is_published_and_loaded_into_another_model(client, name):
    written, read = Model(), Model()
    assert client.publish(written.state_dict(), name) == tensorlane.Published(1, client.names(name)[name])
    assert client.load_into(read, name) == 1
    for key, weight in written.state_dict().items():
        assert torch.equal(read.state_dict()[key], weight), key
    assert read.head.weight is read.embedding.weight


def test_tied_weights_are_stored_once(alone, name):
    before = alone.status().tensors
    alone.publish(Model().state_dict(), name)
    assert alone.status().tensors == before + 4, "three tensors and the manifest"


def test_versions_are_numbered_and_the_oldest_go(alone, name):
    before = alone.status()
    for version in range(1, 6):
        assert alone.publish({"x": np.full(100_000, version)}, name, keep=2).version == version
    assert list(alone.names(name)) == [name, f"{name}@4", f"{name}@5"]
    assert alone.get_set(f"{name}@4")["x"][0] == 4
    assert alone.status().tensors == before.tensors + 4
    alone.unname(*alone.names(name))
    until("all versions are freed", lambda: alone.status().sealed_bytes == before.sealed_bytes)


def test_a_reader_keeps_its_version_alive(client, name):
    client.publish({"x": np.arange(70_000)}, name, keep=1)
    held = client.get_set(name)
    array = held["x"].numpy()
    client.publish({"x": np.zeros(3)}, name, keep=1)
    held.release()
    np.testing.assert_array_equal(array, np.arange(70_000))
    assert client.get_set(name).version == 2


def test_a_version_that_another_writer_took_is_refused(client, name):
    client.publish({"x": np.zeros(1)}, name, expects=0)
    with pytest.raises(tensorlane.Error) as refused:
        client.publish({"x": np.ones(1)}, name, expects=0)
    assert (refused.value.reason, refused.value.details["latest"]) == ("VERSION_CHANGED", "1")
    assert client.get_set(name)["x"][0] == 0
    assert client.publish({"x": np.ones(1)}, name, expects=1).version == 2


def test_writers_beside_one_another_publish_each_version_once(client, name):
    versions: list[int] = []

    def write(number: int):
        with tensorlane.connect(client.directory) as own:
            versions.extend(own.publish({"writer": np.array(number)}, name).version for _ in range(10))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(versions) == list(range(1, 41))


WRITER = """
import sys, numpy, tensorlane
with tensorlane.connect(sys.argv[1]) as client:
    for version in range(1, 301):
        arrays = {f"layer.{n}": numpy.full(n * 40_000 + 10, version) for n in range(4)}
        assert client.publish(arrays, sys.argv[2], keep=1).version == version
"""


def test_a_reader_beside_a_writer_gets_all_of_one_version(client, name):
    writer = python(WRITER, client.directory, name)
    seen = 0
    while seen < 300:
        got = client.get_set(name, wait=20)
        values = {int(tensor[at]) for tensor in got.values() for at in (0, -1)}
        assert values == {got.version} and got.version >= seen
        seen = got.version
        got.release()
    said(writer)


def test_a_set_has_values_and_mappings_in_order(client, name):
    tree = {
        "z": np.arange(4),
        "config": {"lr": 0.1, "layers": [1, 2], "name": "Größe", "none": None, "deep": {"x": torch.ones(2)}},
        "": np.float32(3),
        "a/b": np.zeros((2, 0)),
        "empty": {},
    }
    client.publish(tree, name)
    got = client.get_set(name)
    assert list(got) == list(tree) and list(got["config"]) == list(tree["config"])
    plain = got.numpy()
    assert plain["config"]["lr"] == 0.1 and plain["config"]["layers"] == [1, 2] and plain["config"]["none"] is None
    assert plain["config"]["name"] == "Größe" and dict(plain["empty"]) == {}
    assert got["config", "deep", "x"].torch().tolist() == [1, 1]
    assert plain[""] == 3 and plain["a/b"].shape == (2, 0)


def test_a_scalar_of_numpy_is_a_tensor_but_for_the_one_that_is_a_float_of_python(client, name):
    client.publish({"mean": np.float64(0.5), "loss": np.float32(0.5), "step": np.int64(7)}, name)
    got = client.get_set(name)
    assert type(got["mean"]) is float and got["mean"] == 0.5
    assert (got["loss"].dtype, got["loss"].shape, got["step"].numpy()[()]) == ("f32", (), 7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.bool, torch.complex64])
def test_types_of_torch_stay_what_they_are(client, name, dtype):
    written = torch.arange(12).reshape(3, 4).to(dtype)
    client.publish({"x": written}, name)
    into = {"x": torch.zeros(3, 4, dtype=dtype)}
    client.load_into(into, name)
    assert torch.equal(into["x"].view(torch.uint8), written.view(torch.uint8))


def test_loading_is_all_or_nothing(client, name):
    client.publish({"a": np.ones(3), "b": np.ones(4)}, name)
    into = {"a": np.zeros(3), "b": np.zeros(5)}
    with pytest.raises(tensorlane.Invalid, match=r"b has shape \[5\] and the set \[4\]"):
        client.load_into(into, name)
    assert not into["a"].any()
    for into, said in (
        ({"a": np.zeros(3)}, "unexpected: b"),
        ({"a": np.zeros(3), "b": np.zeros(4), "c": np.zeros(1)}, "missing: c"),
        ({"a": np.zeros(3, np.float32), "b": np.zeros(4)}, "a is f32 and the set f64"),
    ):
        with pytest.raises(tensorlane.Invalid, match=said):
            client.load_into(into, name)
        assert not into["a"].any()


def test_loading_converts_and_leaves_out_where_that_is_asked_for(client, name):
    client.publish({"a": np.full(3, 1.5), "b": torch.full((4,), 2.5)}, name)
    into = {"a": np.zeros(3, np.float32), "b": torch.zeros(4, dtype=torch.bfloat16)}
    client.load_into(into, name, convert=True)
    assert into["a"].tolist() == [1.5] * 3 and into["b"].tolist() == [2.5] * 4
    only = {"a": np.zeros(3)}
    client.load_into(only, name, strict=False)
    assert only["a"].tolist() == [1.5] * 3


def weights(bytes_each: int) -> dict:
    numbers = np.random.default_rng(3).integers(0, 255, (4, bytes_each), np.uint8)
    return {"encoder.0.w": numbers[0], "encoder.10.w": numbers[1], "head": {"w": numbers[2], "lr": 0.5}, "other": numbers[3]}


def test_of_some_keys_nothing_else_is_leased(alone, name):
    alone.publish(tree := weights(1000), name)
    before = alone.status().leases

    def check(got: tensorlane.Set) -> None:
        for path, leaf in got.leaves().items():
            wanted = tree[path[0]] if len(path) == 1 else tree[path[0]][path[1]]
            assert (leaf == wanted) if isinstance(leaf, float) else (leaf.numpy() == wanted).all()

    for keys, found, count in (
        (["other"], ["other"], 1),
        (["encoder.*"], ["encoder.0.w", "encoder.10.w"], 2),
        (["encoder.1*", ("head", "w")], ["encoder.10.w", "head"], 2),
        (("head",), ["head"], 1),
        (["head/lr"], ["head"], 0),
        ([], [], 0),
    ):
        with alone.get_set(name, keys=keys) as got:
            assert list(got) == found and alone.status().leases == before + count, keys
            check(got)
    for keys, reason in ((["encoder"], "SET_MISMATCH"), (["other", "none*"], "SET_MISMATCH")):
        with pytest.raises(tensorlane.Invalid, match="has no key") as refused:
            alone.get_set(name, keys=keys)
        assert refused.value.reason == reason and refused.value.details["key"] == keys[-1]
    for wrong in ("other", [1], [("head", 1)]):
        with pytest.raises(tensorlane.Unsupported, match="keys"):
            alone.get_set(name, keys=wrong)
    assert alone.status().leases == before


def test_of_some_keys_only_the_bytes_travel(clients, name):
    there, here = clients
    there.publish(tree := weights(1 << 20), name)

    def came() -> int:
        return sum(peer.bytes_in for peer in here.peers())

    def moved(call) -> int:
        before = came()
        call()
        until("what came is counted", lambda: came() >= before + (1 << 20))
        return came() - before

    try:
        into = {"other": np.zeros(1 << 20, np.uint8)}
        # Of four. Bytes of a lane that is cut where the machine stands still come twice.
        assert moved(lambda: here.load_into(into, name, strict=False)) < 3 * (1 << 20)
        np.testing.assert_array_equal(into["other"], tree["other"])
        whole = {"encoder": {"0": {"w": np.zeros(1 << 20, np.uint8)}}, "other": np.full(3, 7)}
        assert moved(lambda: here.load_into(whole, name, keys=["encoder.0.*"])) < 3 * (1 << 20)
        np.testing.assert_array_equal(whole["encoder"]["0"]["w"], tree["encoder.0.w"])
        assert whole["other"].tolist() == [7] * 3, "what was not asked for stays"
    finally:
        there.unname(*there.names(name))


def test_some_keys_of_a_model_are_loaded_and_the_rest_stays(client, name):
    written, read = Model(), Model()
    client.publish(written.state_dict(), name)
    before = {key: weight.clone() for key, weight in read.state_dict().items()}
    assert client.load_into(read, name, keys=["layer.*"]) == 1
    for key, weight in read.state_dict().items():
        assert torch.equal(weight, written.state_dict()[key] if key.startswith("layer.") else before[key]), key
    with pytest.raises(tensorlane.Invalid, match="unexpected: layer.bias"):
        client.load_into({"layer.weight": torch.zeros(16, 16)}, name, keys=["layer.*"])
    assert client.load_into({"layer.weight": torch.zeros(16, 16)}, name, keys=["layer.*"], strict=False) == 1


def test_some_keys_of_an_object_that_hands_out_copies_are_loaded(client, name):
    class Copies:
        def __init__(self, value):
            self.state = {"a": torch.full((3,), value), "b": torch.full((2,), value), "step": int(value)}

        def state_dict(self):
            return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in self.state.items()}

        def load_state_dict(self, state):
            self.state = dict(state)

    client.publish(Copies(1.0).state_dict(), name)
    into = Copies(5.0)
    client.load_into(into, name, keys=["b", "step"])
    assert into.state["a"].tolist() == [5.0] * 3 and into.state["b"].tolist() == [1.0] * 2 and into.state["step"] == 1


def test_what_cannot_be_published_is_named_by_its_keys(alone, name):
    before = alone.status().tensors
    looped: dict = {"x": {}}
    looped["x"]["y"] = looped
    for tree, kind, said in (
        ({"a": {"b": object()}}, tensorlane.Unsupported, "a/b: a object is no array"),
        ({"a": {1: np.zeros(1)}}, tensorlane.Unsupported, "the key 1 of a is no text"),
        ({"a": [np.zeros(1)]}, tensorlane.Unsupported, "a is no plain value"),
        ({"a": float("nan")}, tensorlane.Unsupported, "a is no plain value"),
        (looped, tensorlane.Invalid, "x/y is a mapping that holds itself"),
        ([np.zeros(1)], tensorlane.Unsupported, "a list is no mapping"),
    ):
        with pytest.raises(kind, match=said):
            alone.publish(tree, name)
    assert alone.status().tensors == before and not alone.names(name)


def deep(containers: int):
    value = 1
    for at in range(containers):
        value = [value] if at % 2 else {"k": value}
    return value


def test_plain_values_are_as_deep_as_readers_take(client, name):
    client.publish({"a": deep(64)}, name)
    with client.get_set(name) as got:
        assert got["a"] == deep(64)
    with pytest.raises(tensorlane.Invalid, match="b/a is deeper than 64 containers") as refused:
        client.publish({"b": {"a": [deep(64)]}}, name)
    assert refused.value.details == {"key": "b/a", "most": "64"}
    looped: list = []
    looped.append(looped)
    with pytest.raises(tensorlane.Invalid, match="a is a list that holds itself"):
        client.publish({"a": looped}, name)
    assert client.get_set(name).version == 1


def test_keys_of_plain_values_are_text_at_any_depth(client, name):
    for value in ([{1: "a"}], [[{"x": ({None: 1},)}]], [{True: 1}]):
        with pytest.raises(tensorlane.Unsupported, match=r"^d is no plain value: the key \w+ is no text"):
            client.publish({"d": value}, name)


def test_plain_values_are_passed_and_shown_as_exact_text():
    for value in (31.245270191439438, 338362349285073402871628416374, -(2**127), 2**64, 5e-324, -0.0, 1e308, [1, 1.0]):
        (_, (_, text)) = sets.flatten({"v": value}).nodes
        shown = sets.Set(1, [([], []), (["v"], text)])["v"]
        assert repr(shown) == repr(value)


def test_a_publication_that_is_refused_keeps_nothing_while_its_exception_is_handled(alone, name):
    alone.publish({"a": np.zeros(1)}, name)
    before = alone.status()
    with pytest.raises(tensorlane.Error, match="VERSION_CHANGED") as caught:
        alone.publish({"a": np.zeros(1 << 20)}, name, expects=77)
    now = alone.status()
    assert (now.leases, now.sealed_bytes, now.tensors) == (before.leases, before.sealed_bytes, before.tensors), caught.value


def test_a_tensor_is_no_set_and_keeps_its_name(client, name):
    with client.put(np.arange(3), name) as stored:
        with pytest.raises(tensorlane.Error) as refused:
            client.get_set(stored)
        assert refused.value.reason == "NOT_A_SET"
        with pytest.raises(tensorlane.NameTaken):
            client.publish({"x": np.zeros(1)}, name)
        np.testing.assert_array_equal(client.get(name).numpy(), np.arange(3))


def test_a_set_is_no_tensor_and_says_what_gets_it(client, name):
    published = client.publish({"x": np.zeros(1)}, name)
    for get in (client.get, lambda target: client.get_many([target]), lambda target: client.get({"policy": target})):
        for target in (name, published.reference):
            with pytest.raises(tensorlane.Unsupported, match=f"{target} is a set") as refused:
                get(target)
            assert "client.get_set" in refused.value.remedy
    assert client.get_set(name)["x"].numpy()[0] == 0


def test_a_set_that_is_not_there_yet_is_waited_for(client, name):
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(client.get_set(name, wait=20).version))
    reader.start()
    client.publish({"x": np.zeros(1)}, name)
    reader.join()
    assert got == [1]


def tensordict() -> TensorDict:
    fields = {
        "obs": torch.arange(24, dtype=torch.float32).reshape(4, 6),
        "a b/ö": torch.ones(4, 2, dtype=torch.bfloat16),
        "done": torch.tensor([True, False, True, False]),
        "next": {"reward": torch.zeros(4, 1, dtype=torch.float64), "none": torch.zeros(4, 0)},
        "label": "hello",
        "about": NonTensorData([1, {"x": None}], batch_size=[4]),
    }
    return TensorDict(fields, batch_size=[4], names=["time"])


def files(folder) -> dict[str, bytes]:
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                found[os.path.relpath(os.path.join(at, name), folder)] = file.read()
    return found


def test_a_directory_of_tensordict_comes_back_byte_for_byte(client, name, tmp_path):
    """S3.20"""
    saved = tensordict()
    saved.memmap(str(tmp_path / "saved"))
    assert command(client, "set", "put", tmp_path / "saved", "--name", name)["version"] == 1
    got = client.get_set(name).numpy()
    np.testing.assert_array_equal(got["obs"], saved["obs"].numpy())
    assert got["label"] == "hello" and got["next"]["none"].shape == (4, 0)
    command(client, "set", "get", name, "--to", tmp_path / "got")
    assert files(tmp_path / "got") == files(tmp_path / "saved")
    loaded = TensorDict.load_memmap(str(tmp_path / "got"))
    assert (loaded == saved).all() and loaded.names == ["time"] and loaded["about"] == [1, {"x": None}]


def test_a_published_set_is_opened_by_tensordict(client, name, tmp_path):
    """S3.20"""
    state = {"weight": torch.randn(8, 4), "scale": torch.ones(8, dtype=torch.float8_e4m3fn), "config": {"lr": 0.5}}
    client.publish(state, name)
    written = command(client, "set", "get", name, "--to", tmp_path / "got")
    assert written["as_bytes"] == ["scale"]
    loaded = TensorDict.load_memmap(str(tmp_path / "got"))
    assert torch.equal(loaded["weight"], state["weight"]) and loaded["config", "lr"] == 0.5
    assert torch.equal(loaded["scale"], state["scale"].view(torch.uint8))
    command(client, "set", "put", tmp_path / "got", "--name", name)
    back = client.get_set(name)
    assert back.version == 2 and back["scale"].dtype == "f8_e4m3"


def test_a_process_that_has_a_directory_mapped_keeps_its_version_when_another_one_takes_its_place(client, name, tmp_path):
    script = """
import sys
from tensordict import TensorDict
mapped = TensorDict.load_memmap(sys.argv[1])
print("mapped", flush=True)
sys.stdin.readline()
for found in (mapped, TensorDict.load_memmap(sys.argv[1])):
    print(found["x"].min().item(), found["x"].max().item())
"""
    client.publish({"x": torch.full((1024, 64), 1.0)}, name)
    command(client, "set", "get", name, "--to", tmp_path / "got")
    with python(script, str(tmp_path / "got")) as process:
        assert process.stdout.readline() == "mapped\n"
        client.publish({"x": torch.full((1024, 64), 2.0)}, name)
        command(client, "set", "get", name, "--to", tmp_path / "got", "--replace")
        assert said(process, "on\n") == "1.0 1.0\n2.0 2.0\n"


def test_a_directory_whose_names_are_the_keys_as_they_are_is_published_with_its_trees(client, name, tmp_path):
    saved = TensorDict({"a b": {"x?y": torch.arange(4)}, "c?": torch.ones(4), "label ?": "hello"}, batch_size=[4])
    saved.memmap(str(tmp_path / "saved"), robust_key=False)
    assert sorted(files(tmp_path / "saved")) == ["a b/meta.json", "a b/x?y.memmap", "c?.memmap", "label ?/meta.json", "meta.json"]
    command(client, "set", "put", tmp_path / "saved", "--name", name)
    got = client.get_set(name).numpy()
    np.testing.assert_array_equal(got["a b"]["x?y"], np.arange(4))
    assert got["label ?"] == "hello"
    command(client, "set", "get", name, "--to", tmp_path / "got")
    saved.memmap(str(tmp_path / "escaped"))
    assert files(tmp_path / "got") == files(tmp_path / "escaped")


def test_two_keys_of_one_file_are_refused_where_tensordict_reads_one_as_the_other(client, name, tmp_path):
    saved = TensorDict({"a b": torch.zeros(4), "a%20b": torch.ones(4)}, batch_size=[4])
    saved.memmap(str(tmp_path), robust_key=False)
    assert torch.equal(TensorDict.load_memmap(str(tmp_path))["a b"], torch.ones(4))
    with pytest.raises(AssertionError, match="a%20b.memmap is that of the key"):
        command(client, "set", "put", tmp_path, "--name", name)
    assert name not in client.names()


def test_a_tensordict_is_published_with_its_batch(client, name, tmp_path):
    written = tensordict()
    client.publish(written, name)
    got = client.get_set(name)
    assert got.batch == [4] and got["next"].batch == [4] and got["label"] == "hello" and got["about"] == [1, {"x": None}]
    tensors = {key: value for key, value in got.torch().items() if key not in ("label", "about")}
    read = TensorDict(tensors, batch_size=got.batch)
    assert torch.equal(read["next", "reward"], written["next", "reward"])
    command(client, "set", "get", name, "--to", tmp_path / "got")
    loaded = TensorDict.load_memmap(str(tmp_path / "got"))
    assert loaded.batch_size == written.batch_size and torch.equal(loaded["obs"], written["obs"])
