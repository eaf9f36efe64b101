"""Parts of tensors, by the indices of numpy."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorlane
from tensorlane import parts

ARRAY = np.arange(12 * 10 * 8, dtype=np.int32).reshape(12, 10, 8)


@pytest.fixture
def reference(client):
    with client.put(ARRAY) as stored:
        yield stored.reference


@pytest.mark.parametrize(
    "index",
    [
        np.s_[3:10, ::2],
        np.s_[3],
        np.s_[-1],
        np.s_[3, 4, 5],
        np.s_[:, 2],
        np.s_[..., 1:3],
        np.s_[1, ..., 7],
        np.s_[...],
        np.s_[-4:-1, 100:, :3],
        np.s_[9:2],
        [1, 5, 11, 1, -12],
        [],
        np.array([7, 0]),
    ],
    ids=str,
)
def test_a_part_is_what_numpy_makes_of_the_index(client, reference, index):
    expected = ARRAY[np.asarray(index, dtype=int)] if isinstance(index, list) else ARRAY[index]
    got = client.get(reference[index])
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)
    assert torch.equal(got.torch(), torch.from_numpy(np.array(expected)))


def slices(size: int):
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(1, 4)) | st.integers(-size, size - 1)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.tuples(slices(12), slices(10), slices(8)), length=st.integers(0, 3))
def test_every_index_of_numbers_and_slices_is_that_of_numpy(client, reference, index, length):
    np.testing.assert_array_equal(client.get(reference[index[:length]]).numpy(), ARRAY[index[:length]])


def test_a_part_of_a_name_is_got(client):
    with client.put(ARRAY, "parts/of/a/name"):
        np.testing.assert_array_equal(client.get("parts/of/a/name", part=np.s_[2:4, 1]).numpy(), ARRAY[2:4, 1])
        np.testing.assert_array_equal(client.get("parts/of/a/name", part=[3, 3]).numpy(), ARRAY[[3, 3]])
        with pytest.raises(tensorlane.Invalid, match="counts from the end"):
            client.get("parts/of/a/name", part=-1)
        client.unname("parts/of/a/name")


def test_a_part_is_copied_where_it_is_wanted(client, reference):
    out = np.zeros((2, 8), np.int32)
    client.get(reference[4:6, 9], out=out)
    np.testing.assert_array_equal(out, ARRAY[4:6, 9])


@pytest.mark.parametrize(
    ("index", "kind", "said"),
    [
        (12, tensorlane.Invalid, "index 12 of dimension 0 is outside a size of 12"),
        ((0, 0, 0, 0), tensorlane.Invalid, "4 indices for a tensor of shape"),
        ([12], tensorlane.Invalid, "index 12 of dimension 0"),
        (np.s_[::-1], tensorlane.Unsupported, "the step -1 of dimension 0"),
        (np.s_[0.5:2.9], tensorlane.Unsupported, "bounds of slice"),
        (np.s_[:, "a":], tensorlane.Unsupported, "bounds of slice"),
        (np.s_[:: np.float32(2)], tensorlane.Unsupported, "bounds of slice"),
        (None, tensorlane.Unsupported, "None is no index"),
        (True, tensorlane.Unsupported, "True is no index"),
        ([True, False], tensorlane.Unsupported, "is no list of rows"),
        ([[1]], tensorlane.Unsupported, "is no list of rows"),
        (np.s_[0, [1, 2]], tensorlane.Unsupported, "is no index of dimension 1"),
        ((..., ...), tensorlane.Invalid, "an ellipsis stands"),
        ("x", tensorlane.Unsupported, "'x' is no index"),
    ],
    ids=str,
)
def test_an_index_that_is_none_is_refused_where_it_is_written(reference, index, kind, said):
    with pytest.raises(kind, match=said):
        reference[index]


def test_a_reference_is_not_walked_through(reference):
    with pytest.raises(TypeError):
        iter(reference)


def test_a_part_is_pickled_with_its_reference(client, reference):
    part = pickle.loads(pickle.dumps(reference[3:5]))
    np.testing.assert_array_equal(client.get(part).numpy(), ARRAY[3:5])


def test_indices_of_an_unknown_shape_count_from_the_beginning():
    assert parts.selection(np.s_[1:, 2, ...], None) == ([(1, None, 1), (2, 3, 1)], None, [1])
    assert parts.selection([4, 0], None) == ([], [4, 0], [])
    assert parts.selection(np.s_[np.int8(1) : np.uint8(3)], None) == ([(1, 3, 1)], None, [])
    with pytest.raises(tensorlane.Unsupported, match="bounds of slice"):
        parts.selection(np.s_[0.5:], None)


def test_an_index_may_be_a_range_a_tensor_of_torch_or_a_scalar_array(client):
    """As numpy means them; rows outside are an error before anything is got."""
    array = np.arange(60).reshape(12, 5)
    reference = client.put(array, "parts/kinds", keep=False).reference
    asked = [
        (range(3), array[:3]),
        (range(9, 2, -3), array[[9, 6, 3]]),
        (range(0), array[:0]),
        (torch.tensor([1, 2]), array[[1, 2]]),
        (torch.tensor([]), array[:0]),
        (torch.tensor(4), array[4]),
        (np.array(3), array[3]),
        ((np.array(3), slice(1, 4)), array[3, 1:4]),
    ]
    for index, wanted in asked:
        got = client.get(reference[index]).numpy()
        assert got.shape == wanted.shape and (got == wanted).all(), index
    for index in (range(13), range(10**12), torch.tensor([12])):
        with pytest.raises(tensorlane.OutOfRange):
            reference[index]
    for index in (torch.tensor([1.0]), torch.tensor([1], dtype=torch.uint8), torch.tensor([True])):
        with pytest.raises(tensorlane.Unsupported):
            reference[index]
    client.unname("parts/kinds")


def test_an_index_of_an_index_and_a_peer_beside_a_reference_are_refused(client):
    """Neither is dropped silently."""
    with client.put(np.arange(9)) as stored:
        with pytest.raises(tensorlane.Invalid, match="a part already"):
            client.get(stored.reference[3:10], part=np.s_[0])
        with pytest.raises(tensorlane.Invalid, match="whose it is"):
            client.get(stored.reference, peer="elsewhere")


def test_the_truth_of_a_tensor_is_that_of_its_only_element(client):
    for array in (np.array(True), np.array([False]), np.array(0.0)):
        with client.put(array) as stored:
            assert bool(client.get(stored.reference)) == bool(array)
    with client.put(np.arange(2)) as stored, pytest.raises(ValueError):
        bool(client.get(stored.reference))
