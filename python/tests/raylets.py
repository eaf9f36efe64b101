"""Ray on two nodes: a raylet beside the sidecar of each, and a driver in a process of its own on the first one.

The body of a test with `in_driver` runs there, and is given a `Cluster`.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

import nodes
import tensorlane
from conftest import until

_GCS_PORT = 6379
_BODY_PATIENCE = 300.0
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node whose raylet was killed is given up soon.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}

_bodies: dict[str, Callable[[Cluster], None]] = {}
_cluster: Cluster | None = None


@dataclass
class Cluster:
    """Two nodes as the driver sees them."""

    directories: list[str]
    """Directories with the sockets of their sidecars."""
    sidecars: list[int]
    """Process ids of the sidecars."""
    raylets: list[int]
    """Process ids of the raylets."""
    address: str

    def __post_init__(self) -> None:
        self.lanes: list[tensorlane.Client] = []

    def connect(self) -> None:
        """Makes the process that calls a driver of the cluster."""
        import ray

        import tensorlane.ray as transport

        hook = {"worker_process_setup_hook": "tensorlane.ray.register_two_sided"}
        host = self.address.split(":")[0]
        ray.init(address=self.address, _node_ip_address=host, log_to_driver=False, runtime_env=hook)
        transport.register(two_sided=True)
        self.lanes = [tensorlane.connect(directory) for directory in self.directories]

    def used(self) -> list[tuple[int, ...]]:
        """Tensors, copies of those of the other node, leases, tickets and bytes of each sidecar."""
        every = [lane.status() for lane in self.lanes]
        return [(one.tensors, one.copies, one.leases, one.tickets, one.sealed_bytes, one.retired_bytes) for one in every]

    def empty(self) -> None:
        """Waits until nothing is held anywhere."""
        try:
            until("everything is freed on both nodes", lambda: not any(map(any, self.used())))
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.used()}") from None


def in_driver(body: Callable[[Cluster], None]) -> Callable[[ProcessPoolExecutor], None]:
    """The test whose body runs in the driver's process."""
    _bodies[f"{body.__module__}.{body.__qualname__}"] = body

    def test(driver: ProcessPoolExecutor) -> None:
        ran = driver.submit(_run, body.__module__, body.__qualname__)
        try:
            ran.result(_BODY_PATIENCE)
        except NotYet:
            # The tests behind it are told at once, and the process is ended with its node.
            driver.shutdown(wait=False, cancel_futures=True)
            raise AssertionError(f"the driver was not through in {_BODY_PATIENCE:.0f} s") from None

    test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
    return test


def cluster() -> Cluster:
    """The cluster of the calling process, which is a driver."""
    assert _cluster is not None, "the process is no driver"
    return _cluster


@contextmanager
def driving(directory: Path, store: int = 200_000_000, arena: str = "2Gi", **settings: str) -> Iterator[ProcessPoolExecutor]:
    """A process that drives Ray on two nodes, whose object stores have so many bytes; `settings` are those of the sidecars."""
    with ExitStack() as stack:
        # Ray's files, the address of this cluster among them, are not for others; the path is short for the sake of its sockets.
        os.environ["RAY_TMPDIR"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        stack.callback(os.environ.pop, "RAY_TMPDIR", None)
        two = stack.enter_context(nodes.with_sidecars(directory, arena, **settings))
        for node in two:
            stack.enter_context(_raylet(node, two[0].address, directory, store))
        raylets = [until(f"node {node.number} has a raylet", lambda: _named(node, "raylet"), patience=300)[0] for node in two]
        sidecars = [_named(node, "tensorlane-side")[0] for node in two]
        told = Cluster([node.sidecar.directory for node in two], sidecars, raylets, f"{two[0].address}:{_GCS_PORT}")
        with two[0].inside():
            driver = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (told, _surroundings(two[0])))
            stack.callback(driver.shutdown, wait=False, cancel_futures=True)
            driver.submit(_ready).result(300)
        yield driver
        try:
            ended = driver.submit(_end)
        except RuntimeError:
            # A body was not through, or the driver has gone: it ends with its node.
            return
        ended.result(120)


@contextmanager
def _raylet(node: nodes.Node, head: str, directory: Path, store: int) -> Iterator[None]:
    where = ["--head", f"--port={_GCS_PORT}", "--include-dashboard=false"] if node.address == head else [f"--address={head}:{_GCS_PORT}"]
    options = [
        f"--node-ip-address={node.address}",
        "--num-cpus=1",
        f"--resources={json.dumps({f'node-{node.number}': 100})}",
        f"--object-store-memory={store}",
        "--disable-usage-stats",
    ]
    program = str(Path(sys.executable).with_name("ray"))
    with open(directory / f"raylet-{node.number}.log", "w") as log, node.inside():
        process = subprocess.Popen(
            [program, "start", "--block", *where, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **_surroundings(node)},
            preexec_fn=nodes.end_with_parent,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _surroundings(node: nodes.Node) -> dict[str, str]:
    # Actors find the classes of the tests.
    return {**_ENVIRONMENT, "TENSORLANE_SOCKETS": node.sidecar.directory, "PYTHONPATH": os.path.dirname(__file__)}


def _named(node: nodes.Node, name: str) -> list[int]:
    return [pid for pid in node.processes() if _name(pid) == name]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# In the driver's process.


def _begin(told: Cluster, surroundings: dict[str, str]) -> None:
    global _cluster
    nodes.end_with_parent()
    os.environ.update(surroundings)
    told.connect()
    _cluster = told


def _ready() -> None:
    import ray

    until("both nodes are there", lambda: sum(node["Alive"] for node in ray.nodes()) == 2)


def _run(module: str, name: str) -> None:
    importlib.import_module(module)
    _bodies[f"{module}.{name}"](cluster())


def _end() -> None:
    import ray

    ray.shutdown()
