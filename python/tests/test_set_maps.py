"""Maps of rows of mutable sets from Python: arrays that show rows where they lie, for which commits wait."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch

import tensorlane
import tensorlane.aio

from conftest import python, until

ROWS = 64
SHORT = 1.0


def refused(call) -> tensorlane.Timeout:
    """Refusal of a commit that waits for mapped rows until its deadline. A client that has no answer half a second later gives up
    itself, and cannot name the holder: then the call is made again."""

    def in_time():
        with pytest.raises(tensorlane.Timeout) as raised:
            call()
        return raised.value if "holder" in raised.value.details else None

    return until("the sidecar answers in time", in_time, 30.0)


@pytest.fixture
def filled(client, name):
    """A contiguous set whose row n is the number n everywhere."""
    replay = client.create_set(name, ROWS, {"obs": ("int32", (100, 30)), "next": {"reward": ("float32", ())}}, contiguous=True)
    numbers = np.arange(ROWS)
    obs = np.broadcast_to(numbers[:, None, None], (ROWS, 100, 30)).astype(np.int32)
    replay[:] = {"obs": obs, "next/reward": numbers.astype(np.float32)}
    return replay


def place(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_map_shows_rows_where_they_lie_to_numpy_and_torch(filled):
    assert filled.status().contiguous
    with filled.map(slice(3, 40)) as view, filled.map(slice(4, 50), keys=["obs"]) as other:
        assert (view.mapped, view.route, view.version, list(other)) == (True, "map", 1, ["obs"])
        obs = view["obs"].numpy()
        np.testing.assert_array_equal(obs[:, 7, 7], np.arange(3, 40))
        assert place(obs) + obs[0].nbytes == place(other["obs"].numpy()), "both are the memory of the set"
        assert not obs.flags.writeable
        tensors = view.torch()
        assert torch.equal(tensors["next/reward"], torch.arange(3, 40, dtype=torch.float32))
        tensors["obs"].zero_()
        assert obs[0, 0, 0] == 3 and filled[3]["obs"].numpy()[0, 0] == 3, "what torch writes is its own"
    with filled.map(-1) as last:
        assert last.mapped and last["obs"].shape == (100, 30) and last["next", "reward"].numpy() == ROWS - 1


def test_a_commit_to_rows_under_a_map_waits_and_says_who_holds_them(filled):
    with filled.map(slice(0, 10)) as view:
        told = refused(lambda: filled.write(slice(5, 20), {"obs": 7}, deadline=SHORT))
        assert "rows 0 to 9 have been mapped by session" in str(told)
        assert "process" in told.details["holder"] and int(told.details["held_ms"]) >= 0
        filled[10:20] = {"obs": 7}
        assert view["obs"].numpy()[5, 0, 0] == 5
    filled[0:10] = {"obs": 7}
    assert filled["obs"][5].numpy()[0, 0] == 7


def test_an_array_that_outlives_its_map_holds_its_rows_until_it_is_gone(filled):
    with filled.map(slice(0, 10), keys=["obs"]) as view:
        kept = view["obs"].numpy()[9]
    assert "have been mapped by" in str(refused(lambda: filled.write(9, {"obs": 7}, deadline=SHORT)))
    assert kept[0, 0] == 9
    del kept, view
    filled[9] = {"obs": 7}


def test_a_commit_goes_on_when_the_rows_are_released(filled):
    view = filled.map(slice(0, 10))
    made = []
    writer = threading.Thread(target=lambda: made.append(filled.write(4, {"obs": 7}, deadline=60.0)))
    writer.start()
    until("a commit waits", lambda: not filled.map(slice(4, 5)).mapped)
    assert made == [] and view["obs"].numpy()[4, 0, 0] == 4
    view.release()
    del view
    writer.join(60.0)
    assert made[0].version == 2


def test_a_commit_goes_on_when_the_process_that_maps_its_rows_is_killed(sidecar, filled):
    script = """if True:
        import sys, tensorlane
        with tensorlane.connect(sys.argv[1]) as client, client.open_set(sys.argv[2]).map(slice(0, 10)) as view:
            print(view.route, flush=True)
            sys.stdin.read()
    """
    holder = python(script, sidecar.directory, filled.name)
    try:
        assert holder.stdout.readline() == "map\n"
        assert f"process {holder.pid}) for" in str(refused(lambda: filled.write(4, {"obs": 7}, deadline=SHORT)))
        holder.kill()
        assert filled.write(4, {"obs": 7}, deadline=60.0).version == 2
    finally:
        holder.kill()
        holder.communicate(timeout=60.0)


def test_what_cannot_be_mapped_is_a_copy_and_says_so(client, filled, name):
    bands = client.create_set(f"{name}-bands", ROWS, {"obs": ("int32", (3,))})
    for replay, rows in [(filled, [4, 5]), (filled, slice(0, 9, 2)), (filled, slice(9, 9)), (bands, slice(0, 9))]:
        with replay.map(rows) as view:
            assert (view.mapped, view.route) == (False, "copy by local")
            replay[0:9] = {"obs": 0}
    with filled[0:4] as read:
        assert not read.mapped
    with pytest.raises(tensorlane.Unsupported, match="a read of no leaf"):
        filled.map(keys=[])
    with pytest.raises(tensorlane.Error, match="on files"):
        client.create_set("on-files", 4, {"obs": ("uint8", ())}, directory="on-files", contiguous=True)


def test_a_copy_is_passed_on_by_a_ticket_and_mapped_rows_are_not(sidecar, client, filled):
    with filled.map(slice(0, 40), keys=["obs"]) as view:
        with pytest.raises(tensorlane.Unsupported, match="put a copy"):
            client.ticket(view["obs"])
    with filled.map([4, 5], keys=["obs"]) as view:
        ticket = client.ticket(view["obs"])
        with tensorlane.connect(sidecar.directory) as other, pytest.raises(tensorlane.Invalid, match="another client"):
            other.ticket(view["obs"])
    with client.redeem(ticket) as rows:
        np.testing.assert_array_equal(rows.numpy()[:, 7, 7], [4, 5])


def test_another_node_gets_a_copy(clients):
    owner, other = clients
    made = owner.create_set("mapped-from-afar", 8, {"obs": ("uint8", (50,))}, contiguous=True, writers=["*"])
    there = other.open_set(made.reference)
    with there.map(slice(0, 4)) as view:
        assert not view.mapped and view.route.startswith("copy by tcp")
        there[0:4] = {"obs": 5}
        assert view["obs"].numpy().sum() == 0
    made.drop()


def test_maps_are_awaited(sidecar, filled):
    async def shown():
        async with await tensorlane.aio.connect(sidecar.directory) as client:
            replay = await client.open_set(filled.name)
            with await replay.map(slice(2, 4), ["obs"]) as view:
                return view.mapped, view["obs"].numpy()[:, 0, 0].tolist()

    assert asyncio.run(shown()) == (True, [2, 3])
