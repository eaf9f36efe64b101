"""Writers of TorchRL over a set, in one process, in many, and on two nodes: scenarios of TorchRL's own tests of writers, one by one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal

import pytest
import torch
from conftest import until
from storages import default, node, root, rows  # noqa: F401
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

import tensorlane
from tensorlane.rl import SetStorage, SetWriter

WRITERS, BATCHES, BATCH = 4, 25, 8

fork = multiprocessing.get_context("fork")


def buffer_over(storage: SetStorage, **options) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage, writer=SetWriter(), sampler=RandomSampler(), **options)


def ended(processes) -> None:
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def extend(pickled: bytes, number: int) -> None:
    buffer = buffer_over(pickle.loads(pickled))
    for batch in range(BATCHES):
        start = (number * BATCHES + batch) * BATCH
        index = buffer.extend(rows(BATCH, start))
        assert index.tolist() == list(range(int(index[0]), int(index[0]) + BATCH))
    os._exit(0)


def test_four_processes_extend_one_buffer_and_a_trainer_samples_whole_rows_meanwhile(default):
    """S3.9, S3.19; TestSharedStorageInit.test_shared_storage_multiprocess"""
    total = WRITERS * BATCHES * BATCH
    storage = SetStorage.create("shared", total, rows(1))
    trainer = buffer_over(storage, batch_size=64)
    processes = [fork.Process(target=extend, args=(pickle.dumps(storage), number)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    try:
        until("there is a row", lambda: len(trainer))
        while len(trainer) < total:
            sample = trainer.sample()
            assert torch.equal(sample["b", "c"], sample["a"][:, None].expand(64, 3).float()), "a row is never mixed"
    finally:
        ended(processes)
    assert storage.mutable_set.version == WRITERS * BATCHES and storage.mutable_set.status().cursor == 0
    assert sorted(storage[:]["a"].tolist()) == list(range(total)), "each row is there, and once"


@pytest.mark.parametrize("theirs", [False, True])
def test_of_a_batch_with_more_rows_than_the_storage_the_last_ones_stay(default, theirs):
    """As TorchRL's own storages keep them: the same rows, each at the index that is told last for it."""
    if theirs:
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), writer=TensorDictRoundRobinWriter())
    else:
        buffer = buffer_over(SetStorage.create("more", 10, rows(1)))
    buffer.extend(rows(3))
    index = buffer.extend(rows(27, 100))
    assert len(index) == 27 and len(buffer) == 10
    everything = buffer[:]
    assert sorted(everything["a"].tolist()) == list(range(117, 127))
    assert everything["a"][index[-10:]].tolist() == list(range(117, 127))
    # What comes next takes the place of the oldest one.
    buffer.extend(rows(2, 200))
    assert sorted(buffer[:]["a"].tolist()) == [*range(119, 127), 200, 201]


def overwrite(pickled: bytes, number: int) -> None:
    storage = pickle.loads(pickled)
    for batch in range(BATCHES):
        storage.append(rows(BATCH, number * 1000 + batch))
    os._exit(0)


def test_writers_that_come_round_overwrite_the_oldest_rows(default):
    storage = SetStorage.create("round", 50, rows(1))
    processes = [fork.Process(target=overwrite, args=(pickle.dumps(storage), number)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    ended(processes)
    assert len(storage) == 50 and storage.mutable_set.status().cursor == WRITERS * BATCHES * BATCH % 50
    everything = storage[:]
    assert torch.equal(everything["b", "c"], everything["a"][:, None].expand(50, 3).float())


def answer(buffer, here) -> None:
    buffer.extend(TensorDict({"a": torch.ones(10), "next": {"reward": torch.ones(10)}}, [10]))
    here.send("extended")
    assert here.recv() == "extended" and len(buffer) == 21 and bool((buffer["a"][:9] == 2).all())
    here.send("finished")


def test_a_whole_buffer_travels_into_a_new_process(default):
    """TestMultiProc.test_multiproc_rb"""
    reward = {"next": {"reward": torch.ones(10)}}
    buffer = buffer_over(SetStorage.create("proc", 21, {"a": ("float32", ()), "next": {"reward": ("float32", ())}}))
    buffer.extend(TensorDict({"a": torch.zeros(10), **reward}, [10]))
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=answer, args=(buffer, there))
    process.start()
    assert here.poll(60) and here.recv() == "extended"
    assert len(buffer) == 20 and bool((buffer["a"][10:20] == 1).all())
    buffer.extend(TensorDict({"a": torch.zeros(10) + 2, **reward}, [10]))
    here.send("extended")
    assert here.poll(60) and here.recv() == "finished"
    ended([process])


def endless(pickled: bytes) -> None:
    storage = pickle.loads(pickled)
    while True:
        storage.append(rows(BATCH))


def test_a_writer_that_is_killed_leaves_whole_extensions(default):
    storage = SetStorage.create("killed", 100_000, rows(1))
    for turn in range(1, 6):
        process = fork.Process(target=endless, args=(pickle.dumps(storage),))
        process.start()
        before = len(storage)
        until("it has written", lambda before=before: len(storage) > before + 5 * turn * BATCH)
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
    assert len(storage) == storage.mutable_set.status().cursor and len(storage) % BATCH == 0
    everything = storage[:]
    assert torch.equal(everything["a"], torch.arange(BATCH).repeat(len(storage) // BATCH))


def test_an_emptied_storage_is_empty_also_where_others_write(default):
    storage = SetStorage.create("emptied", 64, rows(1))
    process = fork.Process(target=endless, args=(pickle.dumps(storage),))
    process.start()
    try:
        for _ in range(5):
            until("rows are there again", lambda: len(storage) > 0)
            storage._empty()
    finally:
        process.kill()
        process.join(60)
    storage._empty()
    assert len(storage) == 0 == storage.mutable_set.status().cursor
    assert storage.append(rows(3, 7)).tolist() == [0, 1, 2] and storage[:]["a"].tolist() == [7, 8, 9]


def test_a_full_storage_that_another_process_empties_and_fills_anew_has_its_length(default):
    for size in (1, 2, 10):
        ours = SetStorage.create(f"emptied-{size}", size, rows(1))
        theirs = pickle.loads(pickle.dumps(ours))
        ours.append(rows(size))
        assert len(ours) == len(theirs) == size
        theirs._empty()
        until("it is empty", lambda ours=ours: len(ours) == 0)
        for count in range(1, size + 1):
            theirs.append(rows(1))
            assert len(ours) == count


def test_nodes_without_shared_storage_have_one_buffer(clients):
    """S3.18"""
    ours, theirs = clients
    storage = SetStorage.create("far", 20_000, {"obs": ("float32", (64,))}, client=ours, writers=["node-1"])
    far = SetStorage(f"{ours.peer}/far", client=theirs)
    obs = torch.arange(4096 * 64.0).reshape(4096, 64)
    buffer_over(far).extend(TensorDict({"obs": obs}, [4096]))
    assert len(storage) == len(far) == 4096 and torch.equal(storage[:]["obs"], obs)
    trainer = buffer_over(far, batch_size=32)
    before = sum(peer.bytes_in for peer in theirs.peers())
    for _ in range(10):
        sample = trainer.sample()
        assert torch.equal(sample["obs"], obs[sample["index"]])
    moved = sum(peer.bytes_in for peer in theirs.peers()) - before
    assert 10 * 32 * 257 <= moved < 2 * 10 * 32 * 257, "rows that were sampled travelled, and no others"
    with pytest.raises(tensorlane.Error):
        SetStorage.create("ours-alone", 4, rows(1), client=ours).bind(theirs).append(rows(1))
    for name in ("far", "ours-alone"):
        ours.drop_set(name)


def test_torchrls_own_writers_write_from_one_process(default):
    for number, writer in enumerate((RoundRobinWriter(), TensorDictRoundRobinWriter())):
        storage = SetStorage.create(f"own-{number}", 10, rows(1))
        buffer = TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=4)
        for start in range(0, 15, 5):
            buffer.extend(rows(5, start))
        buffer.add(rows(1, 15)[0])
        assert len(buffer) == 10 and buffer[:]["a"].tolist() == [10, 11, 12, 13, 14, 15, 6, 7, 8, 9]
        assert storage._last_cursor_index == 5 and bool((buffer.sample()["index"] < 10).all())
        buffer.extend(rows(25, 100))
        assert sorted(buffer[:]["a"].tolist()) == list(range(115, 125)), "the last ones stay"
        buffer.empty()
        assert buffer.extend(rows(3)).tolist() == [0, 1, 2] and len(buffer) == 3
        state = buffer.state_dict()
        other = TensorDictReplayBuffer(storage=SetStorage.create(f"other-{number}", 10, rows(1)), writer=type(writer)(), batch_size=4)
        other.load_state_dict(state)
        assert other.extend(rows(1, 3)).tolist() == [3] and other[:]["a"].tolist() == [0, 1, 2, 3]


def test_the_best_rows_are_kept_by_their_value(default):
    """TestMaxValueWriter.test_max_value_writer"""
    for size, batch in ((20, 1), (25, 15)):
        storage = SetStorage.create(f"best-{size}", size, {"key": ("float32", ()), "obs": ("float32", ())})
        buffer = TensorDictReplayBuffer(
            storage=storage, sampler=SamplerWithoutReplacement(), batch_size=batch, writer=TensorDictMaxValueWriter(rank_key="key")
        )
        low = 0.0
        for high in (0.25, 0.5, 1.0):
            data = TensorDict({"key": torch.rand(size) * (high - low) + low, "obs": torch.rand(size)}, [size])
            if high == 1.0:
                for one in data:
                    buffer.add(one)
            else:
                buffer.extend(data)
            sample = buffer.sample()
            assert bool((low <= sample["key"]).all() and (sample["key"] <= high).all()) and len(sample["index"].unique()) == len(sample)
            low = high
        buffer.extend(TensorDict({"key": torch.zeros(size), "obs": torch.rand(size)}, [size]))
        assert bool((buffer[:]["key"] >= 0.5).all())


def test_a_prioritized_sampler_learns_of_rows_that_its_own_process_writes(default):
    storage = SetStorage.create("prioritized", 10, rows(1))
    sampler = PrioritizedSampler(10, alpha=1.0, beta=1.0)
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), sampler=sampler, batch_size=50)
    index = buffer.extend(rows(10))
    buffer.update_priority(index, torch.tensor([1.0] * 9 + [1e6]))
    assert (buffer.sample()["a"] == 9).sum() > 40


def priorities(sampler: PrioritizedSampler, count: int) -> list[float]:
    return [float(sampler._sum_tree[at]) for at in range(count)]


@pytest.mark.parametrize("before", [0, 4], ids=["of an empty storage", "of one with rows"])
def test_a_prioritized_sampler_learns_of_rows_that_others_write(default, before):
    storage = SetStorage.create("noticed", 10, rows(1))
    other = pickle.loads(pickle.dumps(storage))
    if before:
        other.append(rows(before))
    sampler = PrioritizedSampler(10, alpha=1.0, beta=1.0)
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), sampler=sampler, batch_size=50)
    other.append(rows(6 - before, before))
    assert set(buffer.sample()["a"].tolist()) <= set(range(6)) and min(priorities(sampler, 6)) > 0
    buffer.update_priority(torch.arange(6), torch.tensor([0.5] * 5 + [5.0]))
    index = buffer.extend(rows(2, 6))
    buffer.update_priority(index, torch.tensor([3.0, 4.0]))
    buffer.sample()
    assert priorities(sampler, 8) == pytest.approx([0.5] * 5 + [5.0, 3.0, 4.0], rel=1e-4), "its own priorities stay"
    # Round, by others and by this process in between; one of each is behind the end.
    other.append(rows(3, 8))
    mine = buffer.extend(rows(1, 11))
    other.append(rows(1, 12))
    assert mine.tolist() == [1]
    until("the rows of others are noticed", lambda: len(buffer) and priorities(sampler, 10)[2] > 1)
    assert priorities(sampler, 10) == pytest.approx([5.0] * 3 + [0.5] * 2 + [5.0, 3.0, 4.0] + [5.0] * 2, rel=1e-3)
    assert 12 in buffer[:]["a"].tolist()


def test_a_prioritized_sampler_learns_of_a_storage_that_others_fill_in_one_round(default):
    storage = SetStorage.create("filled", 10, rows(1))
    sampler = PrioritizedSampler(10, alpha=1.0, beta=1.0)
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), sampler=sampler, batch_size=50)
    assert len(buffer) == 0
    pickle.loads(pickle.dumps(storage)).append(rows(10))
    until("the rows are noticed", lambda: len(buffer) and min(priorities(sampler, 10)) > 0)


def test_a_prioritized_sampler_keeps_the_priorities_of_what_torchrls_writer_wrote(default):
    storage = SetStorage.create("kept", 10, rows(1))
    sampler = PrioritizedSampler(10, alpha=1.0, beta=1.0)
    buffer = TensorDictReplayBuffer(storage=storage, writer=TensorDictRoundRobinWriter(), sampler=sampler, batch_size=5)
    for start in range(0, 20, 5):
        index = buffer.extend(rows(5, start))
        buffer.update_priority(index, torch.full((5,), start + 2.0))
        buffer.sample()
    assert priorities(sampler, 10) == pytest.approx([12.0] * 5 + [17.0] * 5, rel=1e-4)


def test_buffers_without_priorities_are_told_of_nothing_and_ask_nothing(default, monkeypatch):
    storage = SetStorage.create("quiet", 10, rows(1))
    buffer = buffer_over(storage, batch_size=5)
    buffer.extend(rows(10))
    assert len(buffer) == 10
    monkeypatch.setattr(tensorlane.MutableSet, "status", lambda _: pytest.fail("a round trip"))
    for _ in range(3):
        buffer.sample()


def test_the_row_that_was_written_last_is_that_of_whoever_wrote_it(default):
    storage = SetStorage.create("latest", 10, rows(1))
    other = pickle.loads(pickle.dumps(storage))
    assert storage._last_cursor_index is None
    storage.set([0, 1, 2], rows(3))
    assert storage._last_cursor_index == 2
    storage.set([1], rows(1), set_cursor=False)
    assert storage._last_cursor_index == 2, "what is changed in its place is not new"
    other.append(rows(2))
    assert storage._last_cursor_index == other._last_cursor_index == 1
    storage.set(5, rows(1)[0])
    assert storage._last_cursor_index == 5
    other.append(rows(1))
    assert storage._last_cursor_index == 2


def test_a_writer_keeps_its_count_and_the_storage_the_cursor(default, tmp_path):
    """TestWriterStateDict"""
    buffer = ReplayBuffer(storage=SetStorage.create("counted", 10, torch.zeros(1, dtype=torch.int64)), writer=SetWriter())
    for start in range(0, 15, 5):
        buffer.extend(torch.arange(start, start + 5))
    assert buffer.write_count == 15
    other = ReplayBuffer(storage=SetStorage.create("counted-too", 10, torch.zeros(1, dtype=torch.int64)), writer=SetWriter())
    other.load_state_dict(buffer.state_dict())
    assert other.write_count == 15 and other.storage.mutable_set.status().cursor == 5
    buffer.writer.dumps(tmp_path / "writer")
    again = SetWriter()
    again.loads(tmp_path / "writer")
    assert again._write_count == 15


def test_a_writer_refuses_other_storages_and_empty_batches(default):
    with pytest.raises(tensorlane.Unsupported, match="gives out no rows"):
        ReplayBuffer(storage=LazyTensorStorage(10), writer=SetWriter())
    buffer = ReplayBuffer(storage=SetStorage.create("none", 10, rows(1)), writer=SetWriter())
    with pytest.raises(tensorlane.Invalid, match="no row"):
        buffer.extend(rows(0))


def test_a_storage_on_files_goes_on_where_it_was_when_its_sidecar_has_started_again(tmp_path):
    settings = {"TENSORLANE_SETS_ROOT": str(tmp_path)}
    with tensorlane.Sidecar(arena="64Mi", settings=settings) as first, tensorlane.connect(first.directory) as client:
        storage = SetStorage.create("lasting", 10, rows(1), client=client, directory="lasting")
        storage.append(rows(7))
        pickled = pickle.dumps(storage)
    with tensorlane.Sidecar(arena="64Mi", settings=settings) as second, tensorlane.connect(second.directory) as client:
        again = pickle.loads(pickled).bind(client)
        assert len(again) == 7 and again.append(rows(1, 7)).tolist() == [7]
        assert again[:]["a"].tolist() == list(range(8))
