"""Views of mapped tensors: read-only or their own, and each holds the lease."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import warnings

import numpy as np
import pytest
import torch

import tensorlane
from conftest import until

LARGE = 1 << 20


@pytest.fixture
def own_client():
    with tensorlane.local(arena="256Mi") as connected:
        yield connected


def leases(client) -> int:
    return client.status().leases


def test_an_array_of_numpy_is_read_only_and_no_copy(client):
    with client.put(np.arange(LARGE)) as stored:
        got = client.get(stored)
        first, second = got.numpy(), client.get(stored).numpy()
        assert not first.flags.writeable and not first.flags.owndata
        assert first.ctypes.data == second.ctypes.data, "both show the same memory"
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 1
        with pytest.raises(ValueError):
            first.flags.writeable = True
        with pytest.raises(TypeError, match="read-only"):
            memoryview(got)[0] = 1


@pytest.mark.parametrize("count", [8, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("make", [lambda got: got.torch(), torch.from_dlpack, torch.utils.dlpack.from_dlpack])
def test_a_tensor_of_torch_may_be_written_and_nobody_else_sees_it(client, count, make):
    base = torch.arange(count, dtype=torch.float32)
    with client.put(base) as stored, warnings.catch_warnings():
        warnings.simplefilter("error")
        mine, other = make(client.get(stored)), make(client.get(stored))
        mine.add_(1)
        assert torch.equal(mine, base + 1)
        assert torch.equal(other, base) and torch.equal(make(client.get(stored)), base)


def test_a_large_tensor_of_torch_is_mapped_and_not_copied(client):
    base = torch.zeros(32 << 20, dtype=torch.uint8)
    with client.put(base) as stored:
        got = client.get(stored)
        before = _own_bytes()
        mapped = got.torch()
        assert int(mapped.sum()) == 0
        assert _own_bytes() - before < 4 << 20, "its pages are those of the sidecar"
        mapped[:4096] = 1
        assert int(client.get(stored).numpy()[:4096].sum()) == 0


def _own_bytes() -> int:
    """Bytes that this process alone has in memory."""
    with open("/proc/self/smaps_rollup") as rollup:
        lines = dict(line.split(":", 1) for line in rollup if ":" in line)
    return int(lines["Anonymous"].split()[0]) * 1024


def test_dlpack_says_read_only_where_it_can_and_refuses_to_share_where_it_cannot(client):
    with client.put(np.arange(6.0)) as stored:
        got = client.get(stored)
        assert not np.from_dlpack(got).flags.writeable
        assert np.from_dlpack(got, copy=True).flags.writeable
        assert "dltensor_versioned" in repr(got.__dlpack__(max_version=(1, 1)))
        assert '"dltensor"' in repr(got.__dlpack__())
        assert got.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError):
            got.__dlpack__(copy=False)
        with pytest.raises(BufferError):
            got.__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize("size", [3, LARGE])
def test_who_must_have_no_copy_has_a_map_of_its_own(own_client, size):
    """Torch writes what it was told to read only."""
    with own_client.put(np.arange(size)) as stored:
        written = torch.from_dlpack(own_client.get(stored), copy=False)
        written += 1
        assert (written.numpy() == np.arange(size) + 1).all()
        assert (own_client.get(stored).numpy() == np.arange(size)).all()


def test_a_capsule_that_nobody_takes_lets_go(own_client):
    stored = own_client.put(np.arange(LARGE))
    for version in (None, (1, 0)):
        capsules = [own_client.get(stored).__dlpack__(max_version=version) for _ in range(20)]
        assert leases(own_client) == 21
        del capsules
        assert leases(own_client) == 1


@pytest.mark.parametrize("view", [lambda t: t.numpy(), lambda t: t.torch(), np.from_dlpack, torch.from_dlpack, memoryview, lambda t: t[5:7]])
def test_a_view_outlives_tensor_and_client_and_its_end_ends_the_lease(own_client, view):
    other = tensorlane.connect(own_client.directory)
    stored = own_client.put(np.arange(LARGE, dtype="i4"), "kept")
    got = other.get("kept")
    shown = view(got)
    got.release()
    with pytest.raises(BufferError):
        got.numpy()
    del got
    other.close()
    del other
    gc.collect()
    assert leases(own_client) == 2, "the view holds it"
    assert int(np.asarray(shown)[1]) in (1, 6)
    del shown
    until("the lease is gone", lambda: leases(own_client) == 1)
    stored.release()


def test_a_cycle_that_holds_a_view_lets_go_when_it_is_collected(own_client):
    stored = own_client.put(np.arange(9))
    holder = {"view": own_client.get(stored).numpy()}
    holder["self"] = holder
    del holder
    gc.collect()
    assert leases(own_client) == 1


def test_an_array_keeps_its_bytes_after_the_sidecar_is_gone():
    with tensorlane.local() as client:
        shown = client.get(client.put(np.arange(LARGE))).numpy()
    assert shown[-1] == LARGE - 1


def test_ten_thousand_arrays_leave_no_descriptor_no_map_and_no_lease(own_client):
    """Rounds of 200 that live at once: puts of their own, and views of numpy and of torch, small and mapped, in turns."""
    kept = [own_client.put(np.arange(8)), own_client.put(torch.arange(LARGE, dtype=torch.uint8))]

    def touch(count: int) -> None:
        for _ in range(count // 200):
            stored = own_client.put_many(np.arange(8) for _ in range(100))
            got = own_client.get_many(stored[::2] + kept * 25)
            views = [one.torch() if number % 4 < 2 else one.numpy() for number, one in enumerate(got)]
            assert all(int(view[1]) == 1 for view in views)

    def counted() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum(1 for _ in maps)

    touch(400)
    descriptors, maps = counted()
    touch(10_000)
    after = counted()
    assert after[0] <= descriptors + 2 and after[1] <= maps + 8, (descriptors, maps, after)
    until("each lease is gone, and what it kept", lambda: (leases(own_client), own_client.status().tensors) == (2, 2))


def test_a_lease_is_told_by_status_and_ends_with_release(own_client):
    stored = own_client.put(np.arange(5))
    assert (own_client.status().tensors, leases(own_client), stored.held) == (1, 1, True)
    stored.release()
    assert not stored.held
    until("it is freed", lambda: own_client.status().tensors == 0)


def test_leases_tensors_and_clients_are_not_pickled(client):
    stored = client.put(np.arange(3))
    for held in (stored, client.get(stored), client):
        with pytest.raises(TypeError):
            pickle.dumps(held)


def asked(x, flags: int) -> None:
    """Asks for the buffer of `x` as extensions in C do."""
    view = ctypes.create_string_buffer(256)
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(x), view, flags)
    ctypes.pythonapi.PyBuffer_Release(view)


def test_memory_with_gaps_is_refused_where_dense_memory_is_asked_for(client):
    strides, by_rows, by_columns, either = 0x18, 0x38, 0x58, 0x98
    with client.put(np.arange(12).reshape(3, 4)) as stored:
        part = client.get(stored.reference[:, ::2])
        asked(part, strides)
        assert memoryview(part).strides != (16, 8), "the part lies where the whole does"
        for flags in (by_rows, by_columns, either):
            with pytest.raises(BufferError, match="order"):
                asked(part, flags)
        whole = client.get(stored)
        for flags in (strides, by_rows, either):
            asked(whole, flags)
