"""Ray's tensor transport with tensors of torch on a real GPU. Run as test_torch_cuda.py, with Ray installed."""

from __future__ import annotations

import os

import pytest
import torch

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

ray = pytest.importorskip("ray")
transport = pytest.importorskip("tensorlane.ray")


@pytest.fixture(scope="module")
def actors(client):
    os.environ["TENSORLANE_SOCKETS"] = client.directory
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, runtime_env={"worker_process_setup_hook": "tensorlane.ray.register"})
    transport.register()

    @ray.remote(num_cpus=0.25, num_gpus=0.25)
    class Actor:
        @ray.method(tensor_transport="tensorlane")
        def make(self, count, device="cuda"):
            return {"x": torch.arange(count, dtype=torch.float32, device=device), "host": torch.ones(3)}

        def look(self, given):
            x = given["x"]
            return x.device.type, given["host"].device.type, x.sum().item()

        def total(self, reference):
            return transport.client().get(reference).torch().sum().item()

    made = [Actor.remote() for _ in range(2)]
    yield made
    for actor in made:
        ray.kill(actor)
    ray.shutdown()
    transport._client = None


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_tensor_arrives_on_the_kind_of_device_from_which_it_was_sent(actors, device):
    maker, taker = actors
    assert ray.get(taker.look.remote(maker.make.remote(1000, device))) == (device, "cpu", 499500.0)


def test_a_tensor_on_a_gpu_is_mapped_by_its_reference(actors, client):
    maker, taker = actors
    made = maker.make.remote(1000)
    reference, _ = transport.references(made)
    assert client.get(reference).route == "cuda_ipc"
    assert ray.get(taker.total.remote(reference)) == 499500.0


def test_the_driver_gets_it_on_its_gpu(actors):
    got = ray.get(actors[0].make.remote(1 << 20))["x"]
    assert got.is_cuda and torch.equal(got, torch.arange(1 << 20, dtype=torch.float32, device="cuda"))
