"""Arrays that are no block of elements, and plain values of tensordict: kept as they are, or refused by their keys."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch._subclasses import FakeTensorMode
from torch.masked import MaskedTensor

import tensorlane
from tensorlane import opaque


@pytest.fixture
def name(request, client):
    """A name of this test's own, whose versions go with it."""
    yield request.node.name
    client.unname(*client.names(request.node.name))


def mesh() -> torch.Tensor:
    """A tensor of a mesh, of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(torch.zeros(2), init_device_mesh("cpu", (1,)), [Replicate()])


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(2)


class Arrow:
    """An array as those of pyarrow are, whose null numpy reads as not a number."""

    null_count = 1

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, np.nan])


class Polars(Arrow):
    """A column as those of polars are, which counts when it is called."""

    def null_count(self):
        return 1


MADE = {
    "masked array": (lambda: np.ma.masked_array([1.0, 2.0], [True, False]), "filled"),
    "mask alone": (lambda: np.ma.masked, "filled"),
    "mesh": (mesh, "full_tensor"),
    "fake": (fake, "FakeTensorMode"),
    "masked tensor": (lambda: MaskedTensor(torch.zeros(2), torch.tensor([True, False])), "get_mask"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "unbind"),
    "jagged": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), "unbind"),
    "lazy": (torch.nn.UninitializedParameter, "module"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "dequantize"),
    "sparse": (lambda: torch.zeros(2).to_sparse(), "to_dense"),
    "meta": (lambda: torch.zeros(2, device="meta"), "to_empty"),
    "nulls": (Arrow, "fill_null"),
    "nulls of a column": (Polars, "fill_null"),
}


@pytest.mark.parametrize("kind", MADE)
def test_what_is_no_block_of_elements_is_refused_by_its_key_with_what_helps(client, name, group, kind):
    make, helps = MADE[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = make()
    rows = client.create_set(name + "/rows", 2, {"x": ("f4", ())})
    calls = [
        lambda: client.publish({"a": {"x": x}}, name),
        lambda: client.put({"a": {"x": x}}),
        lambda: client.put_many({"a/x": x}),
        lambda: client.put_many([np.zeros(1), x]),
        lambda: rows.write(slice(None), {"x": x}),
        lambda: rows.write(slice(None), {"x": [x, np.float32(1)]}),
        lambda: rows.extend({"x": x}),
    ]
    for call, key in zip(calls, ["a/x: ", "a/x: ", "a/x: ", "[1]: ", "x: ", "x: ", "x: "]):
        with pytest.raises(tensorlane.Unsupported) as refused:
            call()
        assert refused.value.message.startswith(key) and helps in refused.value.remedy
    with pytest.raises(tensorlane.Unsupported) as refused:
        client.put(x)
    assert helps in refused.value.remedy
    with client.channel_writer(name) as writer, client.listen(name) as listener:
        with client.connect_pipe(name) as pipe:
            for value, path in (({"a": x}, "value['a']"), ([1, x], "value[1]"), ([x], "value[0]")):
                for write in (writer.write, pipe.write_value):
                    with pytest.raises(tensorlane.Unsupported) as refused:
                        write(value)
                    assert list(refused.value.details) == [path] and helps in str(refused.value)
            with pytest.raises(tensorlane.Unsupported, match=r"tensors\[1\]: "):
                pipe.write([np.zeros(1), x])
        listener.close()
    rows.drop()


def test_tensors_that_show_nothing_while_they_are_transformed_are_refused(client):
    with pytest.raises(tensorlane.Unsupported, match="torch does not show"):
        torch.vmap(lambda x: client.put(x) and x)(torch.ones(2, 3))


def test_an_array_that_counts_no_nulls_is_put(client):
    whole = Arrow()
    whole.null_count = 0
    with client.put(whole) as stored:
        assert client.get(stored).numpy()[0] == 1


def test_masks_are_no_indices(client, name):
    rows = client.create_set(name, 2, {"x": ("f4", ())})
    masked = np.ma.masked_array([0, 1], [True, False])
    with client.put(np.zeros(2)) as stored:
        for call in (lambda: rows.read(masked), lambda: client.get(stored.reference[masked])):
            with pytest.raises(tensorlane.Unsupported, match="mask"):
                call()
    rows.drop()


def stacked() -> TensorDict:
    """A batch with plain values, one for each row and one for all."""
    one = NonTensorData("q", batch_size=[2])
    return TensorDict({"a": torch.ones(2), "s": NonTensorStack("x", "y"), "d": one, "n": TensorDict({"s": NonTensorStack("u", "v")}, [2])}, [2])


def test_plain_values_of_tensordict_are_kept_where_plain_values_are(client, name):
    client.publish(stacked(), name)
    got = client.get_set(name)
    assert (got["s"], got["d"], dict(got["n"])) == (["x", "y"], "q", {"s": ["u", "v"]})
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader, client.listen(name) as listener:
        near, far = client.connect_pipe(name), listener.accept()
        for value in (stacked(), {"in": stacked()}, [stacked()], NonTensorStack("x", "y"), NonTensorData(1.5)):
            writer.write(value)
            sender = threading.Thread(target=near.write_value, args=(value,))
            sender.start()
            for read in (reader.read().value, far.read().value()):
                if opaque.is_plain(value):
                    assert read == opaque.plain_of(value)
                    continue
                tree = read if isinstance(value, TensorDict) else read["in"] if isinstance(read, dict) else read[0]
                assert tree.pop("a").numpy().tolist() == [1, 1]
                assert tree == {"s": ["x", "y"], "d": "q", "n": {"s": ["u", "v"]}}
            sender.join()
        near.close()
        far.close()


def test_plain_values_of_tensordict_are_refused_where_there_are_arrays_alone(client, name):
    for call in (lambda: client.put(stacked()), lambda: client.create_set(name, 2, stacked())):
        with pytest.raises(tensorlane.Unsupported, match="^s is a plain value"):
            call()
    rows = client.create_set(name, 2, {"s": ("f4", ())})
    with pytest.raises(tensorlane.Unsupported, match="s is a plain value"):
        rows.write(slice(None), {"s": NonTensorStack("x", "y")})
    rows.drop()


def test_a_tensordict_is_a_message_by_its_keys(client, name):
    with client.channel_writer(name) as writer, client.channel_reader(name) as reader:
        writer.write(TensorDict({"a": torch.ones(2), "b": torch.zeros(2)}, [2]))
        read = reader.read().value
        assert {key: tensor.numpy().tolist() for key, tensor in read.items()} == {"a": [1, 1], "b": [0, 0]}
