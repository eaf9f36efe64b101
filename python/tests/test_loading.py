"""Loading of sets: all of a version is in the target, or an error says why and nothing was written."""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictParams

import tensorlane


@pytest.fixture
def name(request, client):
    """A name of this test's own, whose versions go with it."""
    yield request.node.name
    client.unname(*client.names(request.node.name))


class Extra(torch.nn.Module):
    """A module with extra state, which is no parameter."""

    def __init__(self, given):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.given = given

    def get_extra_state(self):
        return copy.deepcopy(self.given)

    def set_extra_state(self, state):
        self.given = state


def cloning() -> torch.nn.Module:
    """A module whose state dict has copies."""
    module = torch.nn.Linear(2, 3)
    hook = lambda module, state, prefix, metadata: state.update({key: value.clone() for key, value in state.items()})  # noqa: E731
    module._register_state_dict_hook(hook)
    return module


def test_a_module_that_hands_out_copies_has_what_was_loaded(client, name):
    client.publish({"weight": torch.full((3, 2), 9.0), "bias": np.full(3, 9.0)}, name)
    module = cloning()
    with pytest.raises(tensorlane.Invalid, match="bias is f32 and the set f64"):
        client.load_into(module, name)
    assert not (module.weight == 9).any()
    assert client.load_into(module, name, convert=True) == 1
    assert (module.weight == 9).all() and (module.bias == 9).all() and module.bias.dtype == torch.float32


def test_a_module_of_fsdp_has_what_was_loaded_or_is_refused(client, name, group):
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    client.publish({"weight": torch.full((3, 2), 9.0), "bias": torch.full((3,), 9.0)}, name)
    module = fsdp.FullyShardedDataParallel(torch.nn.Linear(2, 3), device_id=torch.device("cpu"))
    with fsdp.FullyShardedDataParallel.state_dict_type(
        module, fsdp.StateDictType.FULL_STATE_DICT, fsdp.FullStateDictConfig(offload_to_cpu=True)
    ):
        client.load_into(module, name)
        assert all((tensor == 9).all() for tensor in module.state_dict().values())
    sharded = torch.nn.Linear(2, 3)
    fsdp.fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(tensorlane.Unsupported, match="weight: a DTensor") as refused:
        client.load_into(sharded, name)
    assert "set_model_state_dict" in refused.value.remedy
    assert not (sharded.weight.full_tensor() == 9).any()


@pytest.mark.parametrize("state", [torch.tensor([5.0]), np.array([5.0]), 5.0, {"k": torch.tensor(5.0), "why": ["x", None]}])
def test_extra_state_of_a_module_is_loaded_too(client, name, state):
    zero = {"k": torch.tensor(0.0), "why": 1} if isinstance(state, dict) else state * 0
    written, read = Extra(state), Extra(zero)
    torch.nn.init.ones_(written.weight)
    client.publish(written.state_dict(), name)
    assert client.load_into(read, name) == 1
    assert (read.weight == 1).all() and type(read.given) in (type(state), OrderedDict)
    assert read.given == state


def test_a_module_whose_plain_state_is_not_in_the_set_is_left_as_it_was(client, name):
    client.publish({"weight": torch.ones(2)}, name)
    read = Extra(3)
    with pytest.raises(tensorlane.Invalid, match="missing: _extra_state"):
        client.load_into(read, name)
    assert not read.weight.any()


def test_a_module_that_refuses_what_it_hands_out_is_an_error(client, name):
    module = Extra(torch.zeros(1))
    module.set_extra_state = lambda state: 1 / 0
    client.publish({"weight": torch.ones(2), "_extra_state": torch.ones(1)}, name)
    with pytest.raises(tensorlane.Error, match="load_state_dict refuses version 1"):
        client.load_into(module, name)


def test_mappings_of_copies_are_refused_by_their_keys(client, name):
    client.publish({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, name)
    stack = LazyStackedTensorDict(*[TensorDict({"a": torch.zeros(()), ("b", "c"): torch.zeros(())}, []) for _ in range(2)])
    with pytest.raises(tensorlane.Unsupported, match="a of the LazyStackedTensorDict is a copy"):
        client.load_into(stack, name)
    for into in (TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}, "s": NonTensorData("kept", batch_size=[2])}, [2]), stack.to_tensordict()):
        client.load_into(into, name)
        assert into["a"].tolist() == into["b", "c"].tolist() == [1, 1]
    parameters = TensorDictParams(TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}}, []))
    client.load_into(parameters, name)
    assert parameters["a"].tolist() == parameters["b", "c"].tolist() == [1, 1]


def test_targets_on_meta_are_refused(client, name):
    client.publish({"a": torch.ones(2), "weight": torch.ones(2, 2), "bias": torch.ones(2)}, name)
    first = torch.zeros(2)
    for into in (torch.nn.Linear(2, 2, device="meta"), {"a": first, "weight": torch.zeros(2, 2, device="meta")}):
        with pytest.raises(tensorlane.Unsupported, match="weight: the tensor is on meta") as refused:
            client.load_into(into, name, strict=False)
        assert "to_empty" in refused.value.remedy
    assert not first.any()
    with client.put(torch.ones(2)) as stored, pytest.raises(tensorlane.Unsupported, match="out: the tensor is on meta"):
        client.get(stored, out=torch.empty(2, device="meta"))
    with client.listen(name) as listener:
        near, far = client.connect_pipe(name), listener.accept()
        with near.begin([np.ones(2, "f4")], timeout=60) as writing:
            descriptor = far.read_descriptor()
            # What cannot take the bytes leaves the message unread.
            for place in (torch.empty(2, device="meta"), torch.zeros(1).expand(2)):
                with pytest.raises(tensorlane.Unsupported):
                    descriptor.read([place])
            parameter = torch.nn.Parameter(torch.zeros(2))
            assert descriptor.read([parameter]).tensors == [parameter] and (parameter == 1).all()
            writing.wait()
        near.close()
        far.close()


def test_keys_that_a_module_would_take_for_one_are_refused(client, name):
    both = {"a.b": np.ones(2), "a": {"b": np.full(2, 2.0)}}
    client.publish(both, name)
    into = {"a.b": np.zeros(2), "a": {"b": np.zeros(2)}}
    for target in (into, {"a.b": into["a.b"]}):
        with pytest.raises(tensorlane.Invalid, match="are the same key for a module, a.b"):
            client.load_into(target, name)
    client.publish({"a": {"b": np.ones(2)}}, name)
    with pytest.raises(tensorlane.Invalid, match="a.b and a/b of the target"):
        client.load_into(into, name)
    assert not into["a.b"].any() and not into["a"]["b"].any()
    client.load_into({"a.b": into["a.b"]}, name)
    assert into["a.b"].tolist() == [1, 1], "a module has the keys of a nested set joined by dots"
    with pytest.raises(tensorlane.Unsupported, match="the key 0 of a is no text"):
        client.load_into({"a": {0: np.zeros(2)}}, name)


def unwritable() -> list:
    """Targets of two elements that cannot be written, with a word of the error."""
    read_only = np.zeros(2, "f4")
    read_only.setflags(write=False)
    strided = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (2,), (0,), writeable=True)
    return [
        (torch.zeros(1).expand(2), "one place for several"),
        (strided, "one place for several"),
        (read_only, "cannot be written"),
        (torch.zeros(2).to_sparse(), "layout"),
        (np.ma.zeros(2, "f4"), "mask"),
        ([0.0, 0.0], "unexpected: z"),
        (np.zeros(2, "M8[s]"), "cannot be stored"),
    ]


@pytest.mark.parametrize("target, word", unwritable(), ids=lambda one: one if isinstance(one, str) else "")
def test_what_cannot_be_written_is_found_before_the_first_byte(client, name, target, word):
    client.publish({"a": torch.ones(2), "z": torch.ones(2)}, name)
    for kind in (lambda n: np.zeros(n, "f4"), torch.zeros):
        into = {"a": kind(2), "z": target}
        with pytest.raises(tensorlane.Error, match=word):
            client.load_into(into, name)
        assert not into["a"].any()


def test_what_was_made_in_inference_mode_is_loaded(client, name):
    client.publish({"a": torch.ones(2)}, name)
    with torch.inference_mode():
        into = {"a": torch.zeros(2)}
    client.load_into(into, name)
    assert into["a"].tolist() == [1, 1]


def test_types_that_cannot_be_converted_are_found_before_the_first_byte(client, name):
    client.publish({"a": np.ones(2, "f4"), "z": torch.ones(2, dtype=torch.complex32)}, name)
    into = {"a": np.zeros(2, "f4"), "z": np.zeros(2, "c8")}
    with pytest.raises(tensorlane.Unsupported, match="z: numpy has no elements of c32"):
        client.load_into(into, name, convert=True)
    assert not into["a"].any()
