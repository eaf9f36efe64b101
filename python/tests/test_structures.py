"""Nested values, tensors that are computed in place, and safetensors files."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import tensorlane
from conftest import python, said, until
from tensorlane import structures
from tensorlane.programs import program

Pair = namedtuple("Pair", "one two")


def test_nested_values_come_back_in_the_same_form(client):
    value = {"a": [np.arange(3), torch.ones(2)], "b": (np.zeros((2, 2)), {}), "c": Pair(np.ones(1), [])}
    stored = client.put(value)
    assert list(stored) == ["a", "b", "c"] and isinstance(stored["b"], tuple) and stored["b"][1] == {} and stored["c"].two == []
    got = client.get(stored)
    assert got["a"][0].numpy().tolist() == [0, 1, 2] and got["a"][1].torch().tolist() == [1, 1]
    assert got["b"][0].shape == (2, 2) and got["c"].one.numpy().tolist() == [1]
    assert client.get({"again": [stored["a"][0].reference, stored["b"][0]]})["again"][1].shape == (2, 2)


def test_a_nested_value_is_put_as_a_whole_or_not_at_all(client):
    tensors = client.status().tensors
    with pytest.raises(tensorlane.Unsupported, match="str is no array"):
        client.put({"a": np.arange(3), "b": ["text"]})
    with pytest.raises(tensorlane.Invalid, match="no name"):
        client.put([np.arange(3)], "a/name")
    itself: list = []
    itself.append(itself)
    with pytest.raises(tensorlane.Invalid, match="holds itself"):
        client.put(itself)
    with pytest.raises(tensorlane.Unsupported):
        client.put([1, 2, 3])
    until("nothing is left", lambda: client.status().tensors <= tensors)


def test_a_nested_get_of_which_one_is_missing_keeps_none(client):
    with client.put(np.arange(3)) as stored:
        leases = client.status().leases
        with pytest.raises(tensorlane.NotFound):
            client.get({"there": stored, "not": "no/such/name"})
        until("none is kept", lambda: client.status().leases <= leases)
        with pytest.raises(tensorlane.Invalid, match="one tensor"):
            client.get([stored], out=np.zeros(3))


@pytest.mark.parametrize("dtype", ["float32", np.int16, np.dtype("c16"), torch.bfloat16, bool])
@pytest.mark.parametrize("shape", [(), 5, (3, 100_000), (0, 4)])
def test_what_is_computed_in_place_is_what_is_got(client, dtype, shape):
    reservation = client.empty(shape, dtype)
    if isinstance(dtype, torch.dtype):
        reservation.torch().fill_(1)
    else:
        reservation.array[...] = 1
    stored = reservation.seal()
    got = client.get(stored)
    assert got.shape == reservation.shape and got.dtype == reservation.dtype
    assert (got.torch() == 1).all()


def test_a_reservation_is_sealed_once_under_a_name_when_no_array_of_it_is_left(client):
    reservation = client.empty(1000, metadata={"made": "here"})
    array = reservation.array
    array[:] = np.arange(1000)
    row = array[3:]
    del array
    with pytest.raises(tensorlane.Invalid, match="1 arrays still write") as caught:
        reservation.seal("in/place")
    assert "del" in caught.value.remedy and client.names("in/") == {}
    row[:] = 7
    del row
    tensor = reservation.torch()[4:]
    with pytest.raises(tensorlane.Invalid, match="1 arrays still write"):
        reservation.seal("in/place")
    del tensor
    with reservation.seal("in/place"):
        got = client.get("in/place")
        assert got.numpy()[:5].tolist() == [0, 1, 2, 7, 7] and got.metadata == {"made": "here"}
        client.unname("in/place")
    for use in (reservation.seal, lambda: reservation.array):
        with pytest.raises(tensorlane.Invalid, match="sealed or given up"):
            use()


def test_a_reservation_that_is_dropped_or_whose_seal_is_refused_is_given_back():
    with tensorlane.local() as client:
        with client.empty(1 << 20) as reservation:
            reservation.array[:] = 1
            assert client.status().tensors == 1
        until("the room is free", lambda: client.status().tensors == 0)
        with client.put(np.ones(1), "taken"):
            refused = client.empty(1 << 20)
            with pytest.raises(tensorlane.NameTaken):
                refused.seal("taken")
            client.unname("taken")
        until("the room is free", lambda: client.status().tensors == 0)


def test_a_safetensors_file_is_put_named_and_written_again(client, tmp_path):
    file = {"a.w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.zeros(300_000, "i8")}
    save_file(file, tmp_path / "in.safetensors", metadata={"step": "7"})
    references = client.put_file(tmp_path / "in.safetensors", "files/x")
    assert {f"files/x/{key}": reference for key, reference in references.items()} == client.names("files/x/") and set(references) == {"a.w", "b"}
    got = client.get(references["a.w"])
    assert got.numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and got.metadata == {"step": "7"}
    assert set(client.get_file("files/x", tmp_path / "out.safetensors")) == {"a.w", "b"}
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "in.safetensors").read_bytes()
    with pytest.raises(tensorlane.NameTaken) as caught:
        client.put_file(tmp_path / "in.safetensors", "files/x")
    assert caught.value.reason == "NAME_TAKEN" and caught.value.details["name"].startswith("files/x/")
    client.put_file(tmp_path / "in.safetensors", "files/x", replace=True)
    client.unname("files/x/a.w", "files/x/b")


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (96 << 20, 96 << 20))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_file_is_put_and_written_by_a_command_that_has_no_memory_for_all_of_it(tmp_path):
    """Memory of its own, that is: what is shared does not count in this limit."""
    there, again = tmp_path / "there.safetensors", tmp_path / "again.safetensors"
    save_file({"w": np.arange(20 << 20, dtype="i8")}, there)
    with tensorlane.local(arena="512Mi") as client:
        command = [program("tensorlane")]
        said(python(LIMITED, *command, "put", "--sockets", client.directory, "--name", "large", "--", str(there)))
        said(python(LIMITED, *command, "get", "--sockets", client.directory, "--recursive", "--to", str(again), "--", "large"))
        assert int(client.get("large/w").numpy()[-1]) == (20 << 20) - 1
    assert again.stat().st_size == there.stat().st_size
    there.unlink(), again.unlink()


def test_metadata_that_a_file_cannot_keep_are_named_in_a_warning(client, tmp_path):
    save_file({"w": np.zeros(1)}, tmp_path / "f", metadata={"alpha": "8", "tags": "x" * 5_000})
    with pytest.raises(tensorlane.Error, match="tags"):
        client.put_file(tmp_path / "f", "files/m", strict=True)
    with pytest.warns(UserWarning, match='left out: "tags"') as warned:
        client.put_file(tmp_path / "f", "files/m")
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match='left out: "tags"'):
        client.get_file("files/m", tmp_path / "out")
    client.unname("files/m/w")


def test_names_of_an_earlier_file_are_warned_of_and_taken_away_where_that_is_asked(client, tmp_path):
    for name, keys in (("long", "ab"), ("short", "a")):
        save_file({key: np.zeros(1) for key in keys}, tmp_path / name)
    client.put_file(tmp_path / "long", "files/p")
    with pytest.warns(UserWarning, match="files/p/b below files/p stay"):
        client.put_file(tmp_path / "short", "files/p", replace=True)
    with pytest.raises(tensorlane.Invalid, match="prune"):
        client.put_file(tmp_path / "short", "files/p", prune=True)
    client.put_file(tmp_path / "short", "files/p", replace=True, prune=True)
    assert set(client.names("files/p/")) == {"files/p/a"}
    client.unname("files/p/a")


def test_types_of_torch_are_in_a_file_as_in_the_exchange(client, tmp_path):
    save_torch({"w": torch.full((3,), 1.5, dtype=torch.bfloat16)}, tmp_path / "--name")
    references = client.put_file(tmp_path / "--name", "files/t")
    assert client.get(references["w"]).torch().dtype == torch.bfloat16
    client.unname("files/t/w")


def test_a_file_that_is_none_is_refused_and_leaves_nothing(client, tmp_path):
    tensors = client.status().tensors
    for content, words in ((b"", "it is empty"), (b"\x08\0\0\0\0\0\0\0{}      rest", "not a safetensors file")):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(tensorlane.Error, match=words):
            client.put_file(tmp_path / "bad", "files/bad")
    with pytest.raises(tensorlane.Error, match="No such file"):
        client.put_file(tmp_path / "missing", "files/bad")
    with pytest.raises(tensorlane.Error, match="no name of this peer"):
        client.get_file("files/bad", tmp_path / "out")
    assert client.names("files/bad") == {} and not (tmp_path / "out").exists()
    until("nothing is left", lambda: client.status().tensors <= tensors)


def test_a_put_of_a_file_that_is_withdrawn_ends(client, tmp_path):
    save_file({"w": np.zeros(10)}, tmp_path / "f")
    cancel = tensorlane.Cancel()
    cancel.cancel()
    with pytest.raises(tensorlane.Withdrawn):
        client.put_file(tmp_path / "f", "files/w", cancel=cancel)
    assert client.names("files/w") == {}


def test_a_dtype_is_given_by_its_short_name_or_by_what_has_it(client, request):
    assert [client.empty(2, short).dtype for short in ("f32", "bf16", "f16", "i32", "bool")] == ["f32", "bf16", "f16", "i32", "bool"]
    rows = client.create_set(request.node.name, 3, {"obs": ("uint8", (2,)), "w": ("float32", ())})
    with client.put(np.ones(3, np.uint8)) as stored:
        got = client.get(stored)
        for given in (got, stored.reference, rows["obs"], client.empty(1, np.uint8)):
            assert client.empty(got.shape, given).dtype == "u8"
        for short, clear in (("u8", ("'uint8'", "'uint64'")), ("i8", ("'int8'", "'int64'"))):
            with pytest.raises(tensorlane.Invalid, match="64 bits for numpy and 8 here") as refused:
                client.empty(got.shape, short)
            assert all(word in refused.value.remedy for word in clear)
    client.drop_set(request.node.name)


def test_nested_values_are_as_deep_as_those_of_channels(client, request):
    def nested(containers: int, at_the_end, of_lists: bool = False):
        for _ in range(containers):
            at_the_end = [at_the_end] if of_lists else {"k": at_the_end}
        return at_the_end

    array, name = np.ones(1, np.float32), request.node.name
    deepest = client.get(client.put(nested(64, array)))
    assert structures.leaves(deepest)[0].numpy().tolist() == [1]
    client.publish(nested(64, array), name)
    with client.get_set(name) as got:
        assert got[("k",) * 64].numpy().tolist() == [1]
    client.load_into(nested(64, array), name)
    rows = client.create_set(name, 2, {"w": ("f32", ())})
    for depth in (65, 5_000):
        for call in (
            lambda: client.put(nested(depth, array)),
            lambda: client.get(nested(depth, "a", of_lists=True)),
            lambda: client.publish(nested(depth, array), name),
            lambda: client.load_into(nested(depth, array), name),
            lambda: client.create_set(f"{name} deep", 2, nested(depth, ("f32", ()))),
            lambda: rows.write(0, {"w": nested(depth, 1.0, of_lists=True)}),
            lambda: rows.extend({"w": nested(depth, 1.0, of_lists=True)}),
        ):
            with pytest.raises(tensorlane.Invalid, match="deeper than 64 containers") as refused:
                call()
            assert refused.value.remedy and len(str(refused.value)) < 500
    client.unname(*client.names(name))
    client.drop_set(name)
