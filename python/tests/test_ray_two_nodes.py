"""Ray's tensor transport between two nodes: two network namespaces, a raylet and a sidecar in each. Needs root."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import nodes
from conftest import until
from raylets import Cluster, driving, in_driver

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")

if reason := nodes.missing():
    pytest.skip(reason, allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with driving(tmp_path_factory.mktemp("ray")) as process:
        yield process


@cache
def actor_class():
    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self):
            self.called, self.kept = [], []

        @ray.method(tensor_transport="tensorlane")
        def make(self, count, value=1.0):
            return torch.full((count,), value, dtype=torch.float32)

        @ray.method(tensor_transport="tensorlane")
        def give(self, given):
            return given

        @ray.method(tensor_transport="tensorlane_two_sided")
        def hold(self, nbytes, seed):
            return pattern(nbytes, seed)

        @ray.method(tensor_transport="tensorlane")
        def patterned(self, nbytes, seed):
            return pattern(nbytes, seed)

        def patterned_by_ray(self, nbytes, seed):
            return pattern(nbytes, seed).numpy()

        def same(self, given, seed):
            return torch.equal(given, pattern(given.nbytes, seed))

        def total(self, *given):
            return [x.sum().item() for x in given]

        def total_of_list(self, refs):
            return [x.sum().item() for x in ray.get(refs)]

        def nested(self, given):
            assert torch.equal(given["layers"][1][0], torch.arange(5))
            return {**given, "layers": [x.tolist() for pair in given["layers"] for x in pair]}

        def keep(self, given):
            self.kept.append(given)
            return given.sum().item()

        def forget(self):
            self.kept.clear()

        def where(self):
            return os.getpid(), os.environ["TENSORLANE_SOCKETS"]

        def record(self):
            from ray.experimental.rdt.util import get_tensor_transport_manager

            manager, called = get_tensor_transport_manager("TENSORLANE"), self.called

            def recorded(name, method):
                def call(*arguments, **options):
                    called.append(name)
                    return method(*arguments, **options)

                return call

            for name in ("extract_tensor_transport_metadata", "garbage_collect", "abort_transport"):
                setattr(manager, name, recorded(name, getattr(manager, name)))

        def calls(self, name):
            return self.called.count(name)

    return Actor


def pattern(nbytes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8))


def on(number: int):
    """A new actor on a node."""
    made = actor_class().options(resources={f"node-{number}": 1}).remote()
    ray.get(made.record.remote(), timeout=60)
    return made


@cache
def lasting(number: int):
    """The actor of a node that outlives the tests but the last."""
    return on(number)


def both():
    return lasting(0), lasting(1)


def lives(actor) -> bool:
    return ray.get(actor.where.remote(), timeout=60)[0] > 0


def in_object_store(raylet: int, wanted: bytes) -> bool:
    """True when bytes are in the memory of a node's object store, which its raylet has mapped."""
    stores = [f"/proc/{raylet}/fd/{name}" for name in os.listdir(f"/proc/{raylet}/fd")]
    stores = [path for path in stores if "plasma" in os.readlink(path) and os.stat(path).st_size > MIB]
    assert stores, "the raylet has an object store"
    return any(_holds(path, wanted) for path in stores)


def _holds(path: str, wanted: bytes) -> bool:
    with open(path, "rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return False
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            with mmap.mmap(file.fileno(), at - start, offset=start, prot=mmap.PROT_READ) as data:
                if data.find(wanted) >= 0:
                    return True
    return False


@in_driver
def test_a_tensor_crosses_from_node_to_node_by_tensorlane(cluster: Cluster):
    first, second = both()
    sockets = [directory for _, directory in ray.get([first.where.remote(), second.where.remote()])]
    assert sockets == cluster.directories, "each actor is beside the sidecar of its node"

    def other():
        return next(peer for peer in cluster.lanes[1].peers() if peer.name == "node-0")

    before = other().bytes_in
    ref = first.patterned.remote(8 * MIB, 1)
    assert ray.get(second.same.remote(ref, 1), timeout=60)
    assert other().route.startswith("tcp"), other().route
    assert other().bytes_in - before >= 8 * MIB
    del ref
    cluster.empty()


@in_driver
def test_bytes_of_a_tensor_are_in_no_object_store_of_ray(cluster: Cluster):
    first, second = both()
    ref = first.patterned.remote(8 * MIB, 2)
    assert ray.get(second.same.remote(ref, 2), timeout=60)
    some = pattern(8 * MIB, 2).numpy().tobytes()[4 * MIB : 4 * MIB + 64]
    assert [in_object_store(raylet, some) for raylet in cluster.raylets] == [False, False]
    # Bytes that Ray moves by itself are found there, and so the looking is right.
    plain = first.patterned_by_ray.remote(8 * MIB, 3)
    assert ray.get(second.total.remote(plain), timeout=60)
    some = pattern(8 * MIB, 3).numpy().tobytes()[4 * MIB : 4 * MIB + 64]
    assert [in_object_store(raylet, some) for raylet in cluster.raylets] == [True, True]
    del ref, plain
    cluster.empty()


@in_driver
def test_a_tensor_crosses_by_two_sides_and_is_put_for_that_alone(cluster: Cluster):
    """S0.9, between nodes."""
    first, second = both()
    refs = [first.hold.remote(MIB, seed) for seed in (4, 5)] + [second.hold.remote(MIB, 6)]
    ray.wait(refs, num_returns=3, fetch_local=False, timeout=60)
    assert not any(map(any, cluster.used()))
    taken = [second.same.remote(refs[0], 4), second.same.remote(refs[1], 5), second.same.remote(refs[0], 4), first.same.remote(refs[2], 6)]
    assert all(ray.get(taken, timeout=60))
    # The sources still have the objects.
    cluster.empty()


@in_driver
def test_puts_and_collections_are_equal_after_any_order_of_dropping(cluster: Cluster):
    first, second = both()

    def counted():
        return [ray.get(first.calls.remote(name)) for name in ("extract_tensor_transport_metadata", "garbage_collect")]

    for seed in range(6):
        order = random.Random(seed)
        refs = [first.make.remote(1000, float(number)) for number in range(12)]
        # Some are held by the other node, some were only read there, and some were never taken.
        held = [second.keep.remote(ref) for ref in refs[:4]]
        assert ray.get(held, timeout=60) == [1000.0 * number for number in range(4)]
        ray.get(second.total.remote(*refs[4:8]), timeout=60)
        drops = [lambda number=number: refs.__setitem__(number, None) for number in range(12)]
        drops.append(lambda: ray.get(second.forget.remote()))
        order.shuffle(drops)
        for drop in drops:
            drop()
        cluster.empty()
    until("puts and collections are equal", lambda: len(set(counted())) == 1)
    assert counted()[0] >= 72


@in_driver
def test_a_hundred_tasks_of_an_async_actor_cross(cluster: Cluster):
    """S0.22, between nodes."""

    @ray.remote(num_cpus=0, resources={"node-0": 1})
    class Async:
        @ray.method(tensor_transport="tensorlane")
        async def make(self, number):
            return torch.full((10,), float(number))

    maker, (_, second) = Async.remote(), both()
    refs = [maker.make.remote(number) for number in range(100)]
    got = ray.get([second.total.remote(ref) for ref in refs], timeout=90)
    assert got == [[10.0 * number] for number in range(100)]
    del refs
    cluster.empty()
    ray.kill(maker)


@in_driver
def test_a_list_of_references_crosses(cluster: Cluster):
    first, second = both()
    refs = [first.make.remote(10, float(number)) for number in range(5)]
    expected = [10.0 * number for number in range(5)]
    assert ray.get(second.total.remote(*refs), timeout=60) == expected
    assert [x.sum().item() for x in ray.get(refs, timeout=60)] == expected
    # As one argument, once their tasks are over: the other node gets them by itself.
    assert ray.get(second.total_of_list.remote(refs), timeout=60) == expected
    del refs
    cluster.empty()


@in_driver
def test_nested_values_of_tensors_and_plain_data_cross(cluster: Cluster):
    first, second = both()
    layers = [(torch.zeros(2), torch.ones(0)), (torch.arange(5), torch.full((2, 2), 7, dtype=torch.int8))]
    given = {"layers": layers, "step": 3, "words": ["a", None, 2.5]}
    ref = first.give.remote(ray.put(given, _tensor_transport="tensorlane"))
    got = ray.get(second.nested.remote(ref), timeout=60)
    assert got == {**given, "layers": [x.tolist() for pair in layers for x in pair]}
    del ref
    cluster.empty()


@in_driver
def test_one_reference_crosses_many_times_and_its_bytes_once_for_all_that_hold_it(cluster: Cluster):
    first, second = both()
    ref = first.make.remote(MIB)
    assert ray.get([second.keep.remote(ref) for _ in range(30)], timeout=60) == [float(MIB)] * 30
    assert cluster.lanes[1].status().copies == 1
    ray.get(second.forget.remote())
    assert ray.get(second.total.remote(*[ref] * 4), timeout=60) == [float(MIB)] * 4
    del ref
    cluster.empty()


@in_driver
def test_an_abort_in_the_middle_leaves_both_actors_alive(cluster: Cluster):
    from ray._private import ray_constants

    first, second = both()
    count, usual, before = 64 * MIB, ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS, ray.get(second.calls.remote("abort_transport"))
    ref = first.make.remote(count)
    ray.wait([ref], fetch_local=False, timeout=60)
    # Ray reads it when a transfer begins, so it is long enough for those that are faster than the stop.
    ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS = 10
    try:
        taken = _stopped_in_the_middle(cluster, lambda: second.total.remote(ref), 4 * count)
        with pytest.raises(RuntimeError, match="aborted"):
            ray.get(taken, timeout=60)
    finally:
        os.kill(cluster.sidecars[0], signal.SIGCONT)
        ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS = usual
    assert ray.get(second.calls.remote("abort_transport")) == before + 1
    assert lives(first) and lives(second)
    assert ray.get(second.total.remote(ref), timeout=60) == [float(count)], "it may be taken again"
    del ref, taken
    cluster.empty()


def _stopped_in_the_middle(cluster: Cluster, take, nbytes: int):
    """Takes a tensor and stops the sidecar that sends it while its bytes come; again, if it was faster than that."""
    for _ in range(5):
        began = _came(cluster)
        taken = take()
        until("its bytes come", lambda: _came(cluster) > began)
        os.kill(cluster.sidecars[0], signal.SIGSTOP)
        if _came(cluster) - began < nbytes:
            return taken
        os.kill(cluster.sidecars[0], signal.SIGCONT)
        ray.get(taken, timeout=60)
        until("the copy is gone", lambda: cluster.lanes[1].status().copies == 0)
    raise AssertionError("five times all bytes had come before the sender was stopped")


def _came(cluster: Cluster) -> int:
    return next(peer.bytes_in for peer in cluster.lanes[1].peers() if peer.name == "node-0")


@in_driver
def test_memory_comes_back_when_the_actor_that_made_it_is_killed(cluster: Cluster):
    maker, second = on(0), lasting(1)
    refs = [maker.make.remote(MIB) for _ in range(4)]
    ray.get([second.keep.remote(ref) for ref in refs[:2]], timeout=60)
    os.kill(ray.get(maker.where.remote())[0], signal.SIGKILL)
    until("what it made is freed", lambda: cluster.used()[0][0] == 0)
    # Copies that the other node holds stay whole there.
    assert cluster.lanes[1].status().copies == 2
    with pytest.raises(Exception) as caught:
        ray.get(second.total.remote(refs[3]), timeout=60)
    assert not isinstance(caught.value, ray.exceptions.GetTimeoutError)
    assert lives(second)
    ray.get(second.forget.remote())
    cluster.empty()


@in_driver
def test_memory_comes_back_when_the_actor_that_takes_it_is_killed(cluster: Cluster):
    first, taker = lasting(0), on(1)
    refs = [first.make.remote(MIB) for _ in range(4)]
    ray.get([taker.keep.remote(ref) for ref in refs], timeout=60)
    assert cluster.lanes[1].status().copies == 4
    os.kill(ray.get(taker.where.remote())[0], signal.SIGKILL)
    until("its copies are freed", lambda: not any(cluster.used()[1]))
    assert lives(first)
    assert [x.sum().item() for x in ray.get(refs, timeout=60)] == [float(MIB)] * 4
    del refs
    cluster.empty()


@in_driver
def test_the_example_with_ray_runs_on_the_two_nodes(cluster: Cluster):
    def moved():
        return sum(peer.bytes_in for lane in cluster.lanes for peer in lane.peers())

    before, example = moved(), Path(__file__).parents[2] / "examples/ray_weights.py"
    variables = {**os.environ, "RAY_ADDRESS": cluster.address}
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=100, env=variables)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"worker {number} has the weights of step 5" for number in range(2)]
    # Five times 70 KiB, to the worker that is not on the trainer's node.
    assert moved() - before > 5 * 70_000
    cluster.empty()


@in_driver
def test_memory_comes_back_when_the_raylet_of_a_node_is_killed(cluster: Cluster):
    """The last one: its node is gone afterwards."""
    first, second = both()
    taken, made = [first.make.remote(MIB) for _ in range(2)], [second.make.remote(MIB) for _ in range(2)]
    ray.get([second.keep.remote(ref) for ref in taken] + [first.total.remote(ref) for ref in made], timeout=60)
    status = cluster.lanes[1].status()
    assert (status.tensors, status.copies) == (4, 2), "two of its own, and two copies"
    os.kill(cluster.raylets[1], signal.SIGKILL)
    until("its actors' tensors and copies are freed", lambda: not any(cluster.used()[1]))
    assert lives(first)
    until("the other node keeps its own alone", lambda: cluster.used()[0][:2] == (2, 0))
    del taken, made
    cluster.empty()
