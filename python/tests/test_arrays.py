"""Arrays that are put and got come back as they were."""

from __future__ import annotations

import array
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorlane

NUMPY = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
TORCH = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)
PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bits(x) -> bytes:
    return np.ascontiguousarray(x).tobytes()


@PROPERTY
@given(x=st.sampled_from(NUMPY).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)))
def test_an_array_of_numpy_comes_back_with_its_bits_shape_and_type(client, x):
    with client.put(x) as stored, client.get(stored.reference) as got:
        back = got.numpy()
        assert (back.dtype, back.shape, bits(back)) == (x.dtype, x.shape, bits(x))
        assert got.nbytes == x.nbytes


@PROPERTY
@given(dtype=st.sampled_from(TORCH), shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_a_tensor_of_torch_comes_back_with_its_bits_shape_and_type(client, dtype, shape, seed):
    size = torch.empty((), dtype=dtype).element_size()
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, (*shape, size), np.uint8)
    x = torch.from_numpy(raw.reshape(-1)).view(dtype).reshape(shape) if raw.size else torch.empty(shape, dtype=dtype)
    with client.put(x) as stored, client.get(stored) as got:
        back = got.torch()
        assert (back.dtype, back.shape) == (x.dtype, x.shape)
        assert torch.equal(back.reshape(-1).view(torch.uint8), x.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("shape, strides", [((1,), (0,)), ((1,), (5,)), ((1, 1), (0, 7)), ((2, 1), (1, 0))])
def test_a_dimension_of_one_element_may_have_any_stride(client, shape, strides):
    x = torch.arange(9).bfloat16().as_strided(shape, strides)
    with client.put(x) as stored, client.get(stored) as got:
        assert torch.equal(got.torch(), x)


@PROPERTY
@given(
    x=hnp.arrays("f4", hnp.array_shapes(min_dims=1, max_dims=4, max_side=9)),
    steps=st.lists(st.sampled_from([-2, -1, 1, 2]), min_size=4, max_size=4),
    columns_first=st.booleans(),
)
def test_a_view_of_any_order_comes_back_as_what_it_shows(client, x, steps, columns_first):
    view = (x.T if columns_first else x)[tuple(slice(None, None, step) for step in steps[: x.ndim])]
    with client.put(view) as stored, client.get(stored) as got:
        assert got.nbytes == view.nbytes, "the view's bytes alone are stored"
        assert bits(got.numpy()) == bits(view)


@pytest.mark.parametrize("side", [64, 1024], ids=["small", "large"])
def test_transposed_expanded_and_conjugated_tensors_come_back_as_what_they_show(client, side):
    big = torch.arange(side * side, dtype=torch.float32)
    square = big.view(side, side)
    views = [square.T, square[::2, 1:], big[:7].expand(side, 7), torch.view_as_complex(big.view(-1, 2)).conj(), square.fliplr()]
    for view in views:
        with client.put(view) as stored, client.get(stored) as got:
            assert torch.equal(got.torch(), view)


@pytest.mark.parametrize("side", [16, 700], ids=["small", "large"])
def test_columns_first_and_reversed_arrays_come_back_as_what_they_show(client, side):
    square = np.arange(side * side, dtype="i4").reshape(side, side)
    for view in (np.asfortranarray(square), square[::-1], square[:, ::-1], square[1::3, 2::5], square.astype(">i4")):
        with client.put(view) as stored, client.get(stored) as got:
            np.testing.assert_array_equal(got.numpy(), view)


def test_a_put_takes_what_has_a_buffer_an_array_interface_or_dlpack(client):
    class Interface:
        def __init__(self, x):
            self.x, self.__array_interface__ = x, x.__array_interface__

    class Dlpack:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = np.arange(6, dtype="f4").reshape(2, 3)
    for given in (Interface(x), Dlpack(x), Dlpack(torch.from_numpy(x)), memoryview(x)):
        with client.put(given) as stored:
            np.testing.assert_array_equal(client.get(stored).numpy(), x)
    with client.put(Dlpack(torch.ones(3, dtype=torch.bfloat16))) as stored:
        assert client.get(stored).dtype == "bf16"
    with client.put(array.array("d", [1, 2])) as stored, client.put(b"abc") as letters, client.put(np.float32(3)) as scalar:
        assert client.get(stored).numpy().tolist() == [1, 2]
        assert client.get(letters).tobytes() == b"abc"
        assert client.get(scalar).shape == ()


def test_a_tensor_that_requires_gradients_is_stored_without_them(client):
    weights = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    for given in (weights, weights * 2, weights.T, weights.sum()):
        with client.put(given) as stored:
            got = client.get(stored).torch()
            assert torch.equal(got, given.detach()) and not got.requires_grad
    assert weights.requires_grad


def test_what_was_got_can_be_put(client):
    with client.put(np.arange(3)) as stored, client.put(client.get(stored)) as again:
        assert again.reference != stored.reference
        assert client.get(again).numpy().tolist() == [0, 1, 2]


def test_what_changes_after_a_put_is_not_changed_in_the_exchange(client):
    x = torch.ones(4)
    first, second = client.put(x), client.put(x)
    x.zero_()
    assert first.reference != second.reference
    assert client.get(first).torch().tolist() == client.get(second).torch().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("x", [np.array(["a"]), np.array([object()]), np.zeros(2, "i4,f4"), np.zeros(1, "M8[s]"), {"a": 1}, "text"])
def test_what_cannot_be_stored_is_a_type_error_that_says_what_helps(client, x):
    with pytest.raises(TypeError) as caught:
        client.put(x)
    assert isinstance(caught.value, tensorlane.Unsupported) and caught.value.remedy


def test_a_tensor_without_host_memory_is_refused_with_what_to_do(client):
    with pytest.raises(tensorlane.Unsupported, match="meta") as caught:
        client.put(torch.empty(3, device="meta"))
    assert "to_empty" in caught.value.remedy


def test_bfloat16_is_never_numbers_of_another_kind_in_numpy(client, monkeypatch):
    with client.put(torch.ones(3, dtype=torch.bfloat16)) as stored:
        got = client.get(stored)
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        for make in (got.numpy, lambda: np.asarray(got), lambda: memoryview(got)):
            with pytest.raises((tensorlane.Unsupported, BufferError)) as caught:
                make()
            assert "ml_dtypes" in str(caught.value) or ".torch()" in str(caught.value)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e3m4"])
def test_types_of_ml_dtypes_come_back_where_it_is_installed(client, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(5).astype(getattr(ml_dtypes, name))
    with client.put(x) as stored:
        back = client.get(stored).numpy()
        assert back.dtype == x.dtype and bits(back) == bits(x)


def test_out_receives_the_elements_and_refuses_another_shape_or_type(client):
    x = np.arange(200_000, dtype="f4").reshape(400, 500)
    with client.put(x) as stored:
        for out in (np.empty_like(x), np.empty((400, 500), "f4", order="F"), torch.empty(400, 500), torch.empty(500, 400).T):
            assert client.get(stored, out=out) is out
            np.testing.assert_array_equal(np.asarray(out), x)
        for out in (np.empty((2, 3), "f4"), np.empty((400, 500)), torch.empty(400, 500).double(), [0]):
            with pytest.raises(tensorlane.Unsupported):
                client.get(stored, out=out)


def test_metadata_and_checksums_travel_with_a_tensor(client):
    with client.put(np.arange(9), metadata={"step": "7"}, checksum=True) as stored:
        assert client.get(stored).metadata == {"step": "7"}
        known = client.describe(stored)
        assert (known.dtype, known.shape, known.metadata) == ("i64", (9,), {"step": "7"})


def test_many_are_put_and_got_in_order(client):
    stored = client.put_many(np.full(3, number) for number in range(200))
    got = client.get_many(stored)
    assert [tensor.numpy()[0] for tensor in got] == list(range(200))


def test_many_of_a_mapping_have_its_keys_as_names(client):
    arrays = {"many/small": np.arange(3), "many/large": np.arange(300_000), "many/strided": np.arange(200_000)[::2], "many/none": np.empty(0)}
    stored = client.put_many(arrays)
    assert client.names("many/") == {name: one.reference for name, one in zip(arrays, stored)}
    for name, array_ in arrays.items():
        np.testing.assert_array_equal(client.get(name).numpy(), array_)
    client.unname(*arrays)


def test_many_of_which_one_fails_are_given_up(alone):
    with alone.put(np.ones(1), "many/taken"):
        before = alone.status().leases
        with pytest.raises(tensorlane.NameTaken):
            alone.put_many({"many/free": np.ones(1), "many/taken": np.ones(1)})
        assert set(alone.names("many/")) == {"many/taken"}, "all names are given in one step, or none"
        alone.unname("many/taken")
        assert alone.status().leases == before


def test_many_of_a_mapping_are_left_to_their_names_alone(alone):
    before = alone.status().leases
    stored = alone.put_many({"many/a": np.ones(1), "many/b": np.ones(100_000)}, keep=False)
    assert alone.status().leases == before and not any(one.held for one in stored)
    assert alone.get("many/b").shape == (100_000,)
    alone.unname("many/a", "many/b")


def test_a_put_that_is_refused_keeps_no_room_while_its_exception_is_handled():
    with tensorlane.local(arena="64Mi") as client, client.put(np.ones(1), "taken"):
        large = np.zeros((1000, 2000))[:, ::2]
        held = []
        for _ in range(20):
            with pytest.raises(tensorlane.NameTaken) as caught:
                client.put(large, "taken", deadline=20)
            held.append(caught)
        assert client.status().leases == 1


def test_shapes_are_whole_numbers_of_any_kind(client):
    for shape in (np.int64(3), [np.int64(3)], np.array(3), (np.uint8(3),), torch.Size([3])):
        assert client.empty(shape).shape == (3,)
    for shape, said in (((-1, 2), "-1"), (2.5, "2.5"), ((2.5,), "2.5"), ("ab", "ab"), (1 << 70, "the shape"), (None, "None")):
        with pytest.raises((tensorlane.Invalid, tensorlane.Unsupported), match=said):
            client.empty(shape)


def test_counts_are_whole_numbers_that_fit(client):
    for call, said in (
        (lambda: client.put(np.ones(1), ticket=1, uses=-1), "uses is -1"),
        (lambda: client.publish({}, "counts", keep=-1), "keep is -1"),
        (lambda: client.publish({}, "counts", expects=-1), "expects is -1"),
        (lambda: client.create_set("counts", -1, {"a": ("f4", ())}), "rows is -1"),
        (lambda: client.create_set("counts", 1, {"a": ("f4", -2)}), "a has the row shape -2"),
        (lambda: client.channel_writer("counts", slots=1 << 40), "slots is 1099511627776"),
        (lambda: client.channel_writer("counts", slot_bytes=-1), "slot_bytes is -1"),
        (lambda: client.channel_reader("counts", hold=1.5), "hold is 1.5"),
    ):
        with pytest.raises((tensorlane.Invalid, tensorlane.Unsupported), match=said):
            call()


def test_names_with_half_of_a_surrogate_pair_are_refused_with_the_name(client):
    name = "half/\ud800"
    for call in (
        lambda: client.put(np.ones(1), name),
        lambda: client.put_many({name: np.ones(1)}),
        lambda: client.empty(1).seal(name),
        lambda: client.get(name),
        lambda: client.get("half", peer=name),
        lambda: client.redeem(name),
        lambda: client.describe(name),
        lambda: client.publish({"a": np.ones(1)}, name),
        lambda: client.publish({name: np.ones(1)}, "half"),
        lambda: client.publish({"a": name}, "half"),
        lambda: client.publish({"a": [{name: 1}]}, "half"),
        lambda: client.get_set(name),
        lambda: client.create_set(name, 1, {"a": ("f4", ())}),
        lambda: client.create_set("half", 1, {name: ("f4", ())}),
        lambda: client.create_set("half", 1, {"a": ("f4", ())}, writers=[name]),
        lambda: client.open_set(name),
        lambda: client.channel_writer(name),
        lambda: client.channel_reader(name),
        lambda: client.listen(name),
        lambda: client.connect_pipe(name),
        lambda: client.names(name),
        lambda: client.watch(name),
        lambda: client.unname(name),
        lambda: client.put(np.ones(1), metadata={"a": name}),
    ):
        with pytest.raises(tensorlane.Invalid, match=r"half/\\ud800.*surrogate"):
            call()


def test_a_scalar_is_no_iterable_and_an_array_has_elements(client):
    with client.put(np.float32(3)) as scalar, client.put(np.arange(6).reshape(2, 3)) as table:
        for use in (iter, list, len):
            with pytest.raises(TypeError, match="scalar"):
                use(client.get(scalar))
        got = client.get(table)
        assert len(got) == 2 and [row.tolist() for row in got] == [[0, 1, 2], [3, 4, 5]] and 5 in got and 6 not in got


def test_out_may_be_a_parameter_and_must_have_memory_of_its_own(client):
    weights = torch.nn.Parameter(torch.zeros(2, 3))
    with client.put(np.ones((2, 3), "f4")) as stored:
        assert client.get(stored, out=weights) is weights and weights.sum() == 6 and weights.requires_grad
        shared = np.lib.stride_tricks.as_strided(np.zeros(3, "f4"), (2, 3), (0, 4))
        for out in (torch.empty(2, 3, device="meta"), torch.zeros(1, 3).expand(2, 3), shared):
            with pytest.raises(tensorlane.Unsupported):
                client.get(stored, out=out)


ML = ["bfloat16", "float8_e4m3fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"]


@pytest.mark.parametrize("with_torch", [True, False], ids=["beside torch", "without torch"])
@pytest.mark.parametrize("name", ML)
def test_what_was_got_of_types_of_ml_dtypes_can_be_put_published_and_written(client, monkeypatch, request, name, with_torch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(5).astype(getattr(ml_dtypes, name))
    if not with_torch:
        monkeypatch.delitem(sys.modules, "torch")
    own = request.node.name
    with client.put(x) as stored, client.put(client.get(stored)) as again:
        assert bits(client.get(again).numpy()) == bits(x)
    client.publish({"w": x}, own)
    client.publish(client.get_set(own), own)
    assert bits(client.get_set(own)["w"].numpy()) == bits(x)
    client.unname(*client.names(own))
    rows = client.create_set(own, 5, {"w": x})
    rows["w"] = x
    rows[[0]] = rows[[2]]
    assert float(rows["w"][0].numpy()) == 2
    client.drop_set(own)


class Bits:
    """An array whose elements DLPack does not have."""

    def __init__(self, x, refusal: Exception):
        self.shape, self._x, self._refusal = x.shape, x, refusal

    def __dlpack__(self, **options):
        raise self._refusal

    def __dlpack_device__(self):
        return (1, 0)


class Shown(Bits):
    """An array as those of jax are, which numpy itself reads."""

    def __array__(self, dtype=None, copy=None):
        return self._x


@pytest.mark.parametrize("with_torch", [True, False], ids=["beside torch", "without torch"])
def test_arrays_that_dlpack_refuses_are_read_by_numpy_or_refused_with_what_helps(client, monkeypatch, request, with_torch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.ones(3, ml_dtypes.bfloat16)
    if not with_torch:
        monkeypatch.delitem(sys.modules, "torch")
    rows = client.create_set(request.node.name, 2, {"w": ("bf16", (3,))})
    try:
        for refusal in (BufferError("no such type"), RuntimeError("no"), AttributeError("no")):
            with client.put(Shown(x, refusal)) as stored:
                assert bits(client.get(stored).numpy()) == bits(x)
            rows[0] = {"w": Shown(x, refusal)}
            rows[:] = {"w": [Shown(x, refusal), Shown(x, refusal)]}
            for call in (lambda: client.put(Bits(x, refusal)), lambda: rows.write(0, {"w": Bits(x, refusal)})):
                with pytest.raises(tensorlane.Unsupported, match="cannot take the Bits: no") as caught:
                    call()
                assert caught.value.remedy
        assert rows["w"][1].numpy().tolist() == [1, 1, 1]
    finally:
        client.drop_set(request.node.name)


def test_a_default_device_of_torch_leaves_values_on_the_host(client, request, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    rows = client.create_set(request.node.name, 4, {"w": ("bf16", ()), "f": ("f32", (2,))})
    with torch.device("meta"):
        rows[:2] = {"w": [1, 2.5]}
        rows[2:] = {"w": [torch.ones((), dtype=torch.bfloat16, device="cpu"), 3], "f": 1}
        rows[0] = {"f": [torch.ones((), device="cpu"), 2]}
        assert client.empty((0, 4), "f32").torch().device.type == "cpu"
        with client.put(torch.ones(3, dtype=torch.bfloat16, device="cpu")[::2]) as stored:
            assert client.get(stored).torch().tolist() == [1, 1]
        client.publish({"w": np.ones(2, "f4")}, request.node.name)
        into = {"w": torch.zeros(2, dtype=torch.float64, device="cpu")}
        client.load_into(into, request.node.name, convert=True)
    assert into["w"].tolist() == [1, 1]
    assert rows["w"][:].torch().tolist() == [1, 2.5, 1, 3] and rows["f"][0].numpy().tolist() == [1, 2]
    client.unname(*client.names(request.node.name))
    client.drop_set(request.node.name)
