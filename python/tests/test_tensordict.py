"""Tensordict over the exchange: the seed's script, in a pod and between two nodes, and the real TensorDict on both sides."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import pytest
import torch
from tensordict import TensorDict

import tensorlane
import tensorlane.tensordict
from tensorlane.tensordict import MemoryMappedTensor, MemoryMappedTensorDict, load

from conftest import python, said

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensordict_rpc.py"
IDX = [4, 5, 6, 7, 998]


@pytest.fixture
def default(sidecar, client, monkeypatch):
    """The client of sets that name none, in this process and in those that it starts."""
    monkeypatch.setenv("TENSORLANE_SOCKETS", sidecar.directory)
    monkeypatch.setitem(tensorlane.client._defaults, sidecar.directory, client)
    yield client
    for left in client.mutable_sets("tensordict/"):
        client.drop_set(left.reference)


# The other process has no code of these tests: the function comes to it.
WORKER = """
import pickle, sys
function, tensordict, idx = pickle.loads(bytes.fromhex(sys.stdin.read()))
sys.stdout.write(pickle.dumps(pickle.loads(function)(pickle.loads(tensordict), idx)).hex())
"""


def test_five_rows_are_written_by_another_process_that_got_a_reference_alone(default):
    """S3.8, S3.9, S3.12, S3.13, S3.14, S3.15, S3.16"""

    def fill_tensordict(tensordict, idx):
        from tensordict import TensorDict

        tensordict[idx] = TensorDict({"memmap": torch.ones(5, 640, 640, 3, dtype=torch.uint8)}, [5])
        return tensordict

    tensordict = MemoryMappedTensorDict({"memmap": MemoryMappedTensor.empty(1000, 640, 640, 3, dtype=torch.uint8)}, [1000])
    assert tensordict.set.status().held_bytes == 0 and tensordict.set.status().nbytes == 1_228_800_000
    sent = pickle.dumps(tensordict)
    assert len(sent) <= 400
    everything = pickle.dumps((cloudpickle.dumps(fill_tensordict), sent, IDX))
    back = bytes.fromhex(said(python(WORKER, TENSORLANE_SOCKETS=default.directory), everything.hex()))
    assert back == sent
    out = pickle.loads(back)
    assert out["memmap"][IDX, :1, :1, :1].clone().flatten().tolist() == [1] * 5
    for start in range(0, 1000, 50):
        rows = tensordict["memmap"][start : start + 50].reshape(50, -1)
        ones = [row - start for row in IDX if start <= row < start + 50]
        assert rows[ones].all() and not rows[[row for row in range(50) if row not in ones]].any()
    assert tensordict.set.status().held_bytes < 10_000_000, "reading makes nothing"


def ran(rank: int, port: int, node: tensorlane.Sidecar) -> subprocess.Popen:
    variables = {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TENSORLANE_SOCKETS": node.directory}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )


def test_the_script_of_the_seed_runs_between_two_nodes_without_shared_storage(two_nodes, clients):
    """S3.12, S3.13, S3.14, S3.16, S3.18"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    before = sum(peer.bytes_in for peer in clients[0].peers())
    processes = [ran(rank, port, node) for rank, node in enumerate(two_nodes)]
    try:
        assert [said(process) for process in processes] == ["check all ones [1, 1, 1, 1, 1]\ncheck the others 0\n", ""]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    moved = sum(peer.bytes_in for peer in clients[0].peers()) - before
    assert 5 * 640 * 640 * 3 <= moved < 7 * 640 * 640 * 3, "the five rows travelled"
    assert not clients[0].mutable_sets(), "the set of a process that ended is dropped"


def test_a_reference_that_was_passed_before_serves_any_number_of_calls(default):
    """S3.17"""
    tensordict = MemoryMappedTensorDict({"x": MemoryMappedTensor.empty(100, 10)}, [100])
    held = pickle.loads(pickle.dumps(tensordict))
    for step in range(1, 20):
        held[step] = {"x": float(step)}
        assert tensordict["x"][step].tolist() == [step] * 10
    assert tensordict.set.version == 19


def test_a_tensor_is_made_empty_by_its_shape_and_its_rows_are_assigned(default):
    """S3.4, S3.5, S3.6"""
    tensor = MemoryMappedTensor.empty(3, 4, 5)
    assert not default.mutable_sets("tensordict/"), "it is made when it is used"
    values = torch.randn(2, 4, 5)
    tensor[:2] = values
    assert torch.equal(tensor.clone(), torch.cat([values, torch.zeros(1, 4, 5)]))
    assert (tensor.dtype, tensor.shape, len(tensor), tensor.ndim, tensor.numel()) == (torch.float32, torch.Size([3, 4, 5]), 3, 3, 60)
    for like in (MemoryMappedTensor.empty((3, 4)), MemoryMappedTensor.empty(torch.Size([3, 4])), MemoryMappedTensor.zeros(shape=[3, 4])):
        assert like.shape == (3, 4)
    for given in (torch.randn(3), torch.arange(60).reshape(3, 20).T, torch.randn(4, 4).bfloat16(), torch.zeros(0, 3)):
        assert torch.equal(MemoryMappedTensor.from_tensor(given).clone(), given) if len(given) else True
    back = pickle.loads(pickle.dumps(tensor))
    assert torch.equal(back[1, 2:], values[1, 2:]) and back.dtype == tensor.dtype
    with pytest.raises(tensorlane.Invalid):
        MemoryMappedTensor.empty()


def test_a_forked_child_shares_the_tensor_that_was_used_before_and_makes_none_of_its_own(default):
    used, unused = MemoryMappedTensor.zeros(4, 2), MemoryMappedTensor.zeros(4, 2)
    used[0] = 1
    child = os.fork()
    if child == 0:
        used[1] = 2
        try:
            unused[1] = 2
        except tensorlane.Invalid:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert used[:, 0].tolist() == [1, 2, 0, 0] and len(default.mutable_sets("tensordict/")) == 1


def test_threads_that_use_a_tensor_first_make_one_set(default):
    threads = 8
    for count in range(1, 6):
        tensor, together, views = MemoryMappedTensor.zeros(4, 2), threading.Barrier(threads), []

        def use(tensor=tensor, together=together, views=views):
            together.wait(60)
            views.append(tensor.view)

        using = [threading.Thread(target=use) for _ in range(threads)]
        for thread in using:
            thread.start()
        for thread in using:
            thread.join()
        assert len(views) == threads and len({view.set.reference for view in views}) == 1
        assert len(default.mutable_sets("tensordict/")) == count


def test_a_child_that_was_forked_while_a_set_was_made_makes_its_own(default):
    with tensorlane.tensordict._making:
        child = os.fork()
        if child == 0:
            # A child that waits for a lock is ended, not interrupted.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            try:
                MemoryMappedTensor.zeros(4, 2)[0] = 1
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(default.mutable_sets("tensordict/")) == 1


def made_in_a_child(answers) -> None:
    data = MemoryMappedTensorDict({"x": torch.ones(4, 2)}, [4])
    answers.send(data.set.name)
    answers.recv()


def test_a_child_of_multiprocessing_drops_its_unnamed_sets_when_it_ends(default):
    ours = MemoryMappedTensor.zeros(4, 2)
    ours[0] = 1
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=made_in_a_child, args=(there,))
    child.start()
    assert here.poll(20)
    theirs = here.recv()
    assert {one.name for one in default.mutable_sets("tensordict/")} == {theirs, ours.view.set.name}
    here.send(None)
    child.join(60)
    assert child.exitcode == 0
    assert [one.name for one in default.mutable_sets("tensordict/")] == [ours.view.set.name], "that of the parent stays"


def test_a_set_whose_drop_failed_is_dropped_at_the_end_and_hides_no_other_error(default, monkeypatch):
    def refuses(self):
        raise tensorlane.Unavailable("no sidecar answers")

    def full(self, *_, **__):
        raise tensorlane.Exhausted("the arena is full")

    with monkeypatch.context() as patched:
        patched.setattr(tensorlane.MutableSet, "drop", refuses)
        made = MemoryMappedTensorDict(nested())
        with pytest.raises(tensorlane.Unavailable):
            made.drop()
        patched.setattr(tensorlane.MutableSet, "write", full)
        with pytest.raises(tensorlane.Exhausted) as failed:
            MemoryMappedTensorDict(nested())
        assert "no sidecar answers" in failed.value.__notes__[0]
    assert len(default.mutable_sets("tensordict/")) == 2
    tensorlane.tensordict._drop_unnamed()
    assert not default.mutable_sets("tensordict/")


def test_tensors_of_many_rows_or_of_more_bytes_than_the_arena_has_twice_are_copied(default):
    many = torch.zeros(2_000_000)
    many[[0, 1 << 20, -1]] = torch.tensor([1.0, 2, 3])
    tensor = MemoryMappedTensor.from_tensor(many)
    assert tensor[[0, 1, (1 << 20) - 1, 1 << 20, 1_999_999]].tolist() == [1, 0, 0, 2, 3]
    with tensorlane.local(arena="64Mi") as small:
        large = torch.arange(40 << 20, dtype=torch.int32).to(torch.uint8).reshape(40, 1 << 20)
        tensor = MemoryMappedTensor.from_tensor(large, client=small)
        assert all(torch.equal(tensor[row], large[row]) for row in range(40))


def nested() -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(60.0).reshape(10, 6),
            "next": {"reward": torch.arange(10).bfloat16(), "deep": {"done": torch.arange(10) % 3 == 0}},
        },
        [10],
    )


def test_a_tensordict_is_made_memory_mapped_and_its_rows_are_real_tensordicts(default):
    """S3.2, S3.3"""
    plain = nested()
    data = MemoryMappedTensorDict(plain)
    assert data.is_memmap() and data["obs"].is_memmap() and not plain.is_memmap()
    assert (data.batch_size, len(data), data.keys(), data["next"].keys()) == (plain.batch_size, 10, ["obs", "next"], ["reward", "deep"])
    for index in (slice(None), 3, -1, [1, 1, 9], slice(2, 8, 3), torch.tensor([5, 0]), torch.arange(10) > 6):
        read = data[index]
        assert type(read) is TensorDict and read.batch_size == plain[index].batch_size
        assert (read == plain[index]).all() and read["next", "deep", "done"].dtype == torch.bool
    assert bool((data["next"][2:4] == plain["next"][2:4]).all())
    assert data["next", "deep"].batch_size == (10,)
    assert torch.equal(data["next", "deep", "done"][:], plain["next", "deep", "done"])
    assert (data.clone() == plain).all() and ("next", "reward") in data and "none" not in data and data.get("none") is None
    assert [key for key, _ in data.items()] == ["obs", "next"] and "obs: MemoryMappedTensor" in repr(data)
    with pytest.raises(tensorlane.Invalid):
        data["none"]


def test_rows_are_assigned_by_tensordicts_mappings_and_numbers(default):
    data, plain = MemoryMappedTensorDict(nested()), nested()
    for index, value in (([1, 2], nested()[[7, 8]]), (5, nested()[0]), (slice(8, None), {"obs": torch.full((6,), -1.0)})):
        version = data.set.version
        data[index] = value
        assert data.set.version == version + 1, "one step for all leaves"
        for key, one in TensorDict(value).flatten_keys("/").items():
            plain[tuple(key.split("/"))][index] = one
    data["next"][3] = {"reward": 7}
    plain["next", "reward"][3] = 7
    data["obs"] = data["obs"][:] * 2
    plain["obs"] *= 2
    data["next", "deep"][:2] = True
    plain["next", "deep", "done"][:2] = True
    assert (data[:] == plain).all()
    for wrong in ({"none": 1}, {"obs": torch.zeros(3)}, {"obs": torch.zeros(6, dtype=torch.int64)}):
        with pytest.raises(tensorlane.Invalid) as refused:
            data[1] = wrong
        assert refused.value.reason == "SET_MISMATCH"
    version = data.set.version
    for index, value in (((1, slice(2)), 0), ((slice(4, 8), [0, 3]), torch.arange(4.0)[:, None]), (([9, 0], -1), 3.5)):
        data["obs"][index] = value
        plain["obs"][index] = value
    assert (data[:] == plain).all() and data.set.version == version + 3


def test_further_indices_of_an_assignment_mean_what_they_mean_to_torch(default):
    tensor, plain = MemoryMappedTensor.empty(4, 3, 3, dtype=torch.int64), torch.zeros(4, 3, 3, dtype=torch.int64)
    square = torch.arange(9).reshape(3, 3)
    # For numpy the number is a list of one, and its dimension goes first.
    for index, value in (((2, slice(None), [2, 0, 1]), square), ((-1, [0, 1], [1, 1]), torch.tensor([5, 6])), ((slice(2), ..., 0), square[:2])):
        tensor[index] = value
        plain[index] = value
    assert torch.equal(tensor[:], plain)
    with pytest.raises(IndexError):
        tensor[0, 3] = 1
    assert torch.equal(tensor[:], plain)


def test_options_of_a_tensor_that_a_dict_would_lose_are_refused(default):
    for options in ({"writers": ["rollout-*"]}, {"writers": ()}, {"name": "apart"}, {"client": default}):
        with pytest.raises(tensorlane.Invalid, match="of its own") as refused:
            MemoryMappedTensorDict({"a": {"x": MemoryMappedTensor.empty(4, 2, **options)}}, [4])
        assert refused.value.remedy.startswith("give them to the dict")
    assert not default.mutable_sets()
    used = MemoryMappedTensor.empty(4, 2, writers=["rollout-*"], client=default)
    used[1] = 5
    data = MemoryMappedTensorDict({"used": used, "unused": MemoryMappedTensor.empty(4, writers=["*"])}, [4], writers=["node-1"])
    assert data["used"][:, 0].tolist() == [0, 5, 0, 0] and data.set.status().writers == ("node-1",)


def test_a_leaf_that_is_given_twice_is_refused(default):
    twice = {"a/b": torch.zeros(4), "a": {"b": torch.ones(4)}}
    with pytest.raises(tensorlane.Invalid, match="a/b is given twice"):
        MemoryMappedTensorDict(twice, [4])
    data = MemoryMappedTensorDict({"a": {"b": torch.ones(4)}}, [4])
    with pytest.raises(tensorlane.Invalid, match="a/b is given twice"):
        data[:] = twice
    assert data["a", "b"][:].tolist() == [1] * 4


def test_a_real_tensordict_takes_no_memory_mapped_tensor_in_silence(default):
    tensor = MemoryMappedTensor.empty(10, 3)
    for shared in (tensor, MemoryMappedTensorDict({"x": torch.zeros(10)}, [10])):
        with pytest.raises(tensorlane.Unsupported, match="no value of a real TensorDict") as refused:
            TensorDict({"memmap": shared}, [10])
        assert "MemoryMappedTensorDict" in refused.value.remedy


def test_a_batch_of_more_dimensions_is_indexed_behind_its_rows(default):
    plain = TensorDict({"x": torch.arange(24).reshape(4, 3, 2)}, [4, 3])
    data = MemoryMappedTensorDict(plain)
    for index in (1, [0, 2], (slice(1, 3), 2), (0, slice(1, 3)), ([3, 1], slice(0, 2)), (..., 1)):
        assert data[index].batch_size == plain[index].batch_size and (data[index] == plain[index]).all(), index
    assert pickle.loads(pickle.dumps(data)).batch_size == plain.batch_size
    with pytest.raises(tensorlane.Invalid, match="begin it so"):
        MemoryMappedTensorDict({"x": torch.zeros(4, 2)}, [4, 3])
    with pytest.raises(tensorlane.Invalid, match="no dimension"):
        MemoryMappedTensorDict({"x": torch.zeros(4, 2)}, [])
    with pytest.raises(tensorlane.Unsupported, match="plain value"):
        MemoryMappedTensorDict(TensorDict({"x": torch.zeros(4), "label": "a"}, [4]))


def test_rows_land_on_the_device_that_was_declared(default):
    """S3.10"""
    data = MemoryMappedTensorDict({"x": MemoryMappedTensor.empty(4, 2), "y": {"z": torch.ones(4)}}, [4], device="meta")
    read = data[[1, 2]]
    assert read.device.type == "meta" and read["x"].device.type == "meta" and data["y", "z"][0].device.type == "meta"
    assert data.to("cpu")[1]["y", "z"] == 1
    assert pickle.loads(pickle.dumps(data))["x"][:2].device.type == "meta"
    assert MemoryMappedTensor.from_tensor(torch.ones(2), device="meta")[0].device.type == "meta"


def test_gradients_are_refused_with_what_helps(default):
    """S3.11"""
    parameter = torch.nn.Parameter(torch.ones(4, 2))
    data = MemoryMappedTensorDict({"x": torch.zeros(4, 2)}, [4])

    def assign():
        data[[0, 1]] = {"x": parameter[:2]}

    for wrong in (
        assign,
        lambda: MemoryMappedTensor.from_tensor(parameter),
        lambda: MemoryMappedTensorDict({"x": parameter}, [4]),
        lambda: data.requires_grad_(),
        lambda: data["x"].requires_grad_(),
    ):
        with pytest.raises(tensorlane.Unsupported, match="gradients") as refused:
            wrong()
        assert "detach" in refused.value.remedy or "comes back" in refused.value.remedy
    data[[0, 1]] = {"x": parameter[:2].detach()}
    assert not data.requires_grad and not data["x"].requires_grad and not data["x"][0].requires_grad
    assert data[0]["x"].requires_grad_().requires_grad, "what was read is the reader's own"
    assert len(default.mutable_sets("tensordict/")) == 1, "what was refused leaves no set"


def test_a_named_set_is_loaded_by_its_name_and_stays_until_it_is_dropped(default, request):
    name = request.node.name
    script = "import sys, torch\nfrom tensorlane.tensordict import MemoryMappedTensor, MemoryMappedTensorDict\n"
    script += "import tensorlane\nwith tensorlane.connect() as client:\n    for name in (sys.argv[1], None):\n"
    script += "        MemoryMappedTensorDict({'x': torch.ones(3)}, [3], name=name, client=client)\n"
    said(python(script, name, TENSORLANE_SOCKETS=default.directory))
    assert [one.name for one in default.mutable_sets()] == [name], "the one without a name went with its process"
    for target in (name, default.open_set(name).reference):
        assert load(target, client=default)[:]["x"].tolist() == [1, 1, 1]
    load(name).drop()
    assert not default.mutable_sets()


def test_without_tensordict_or_torch_the_error_says_what_to_install(default):
    script = """
import sys
sys.modules[sys.argv[1]] = None
import tensorlane
from tensorlane.tensordict import load
with tensorlane.connect() as client:
    client.create_set(sys.argv[1], 3, {"x": ("float32", ())})
    try:
        load(sys.argv[1])[[1, 2]]
    except tensorlane.Unsupported as error:
        print(error.remedy)
    client.drop_set(sys.argv[1])
"""
    for missing in ("tensordict", "torch"):
        assert f"pip install {missing}" in said(python(script, missing, TENSORLANE_SOCKETS=default.directory))
