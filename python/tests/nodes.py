"""Nodes of their own on one machine: network namespaces that a cable joins, with a sidecar in each. Needs root.

The namespaces have no names: the kernel takes each away, and the cable with it, when the last process that is in it, or holds
it, is gone.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator

import tensorlane
from conftest import join, printed, until

PORT = 9431

_CLONE_NEWNET = 0x4000_0000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """Names a need of nodes that is not met here."""
    if os.geteuid() != 0:
        return "network namespaces are made by root alone"
    return None if shutil.which("ip") else "ip is missing: install iproute2"


class Node:
    """A network namespace with one address, and what was started in it."""

    def __init__(self, number: int):
        self.number, self.address = number, f"198.18.25.{1 + number}"
        with _returning():
            _checked(_libc.unshare(_CLONE_NEWNET))
            self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.path = f"/proc/{os.getpid()}/fd/{self._namespace}"
        self._identity = os.fstat(self._namespace).st_ino
        self.sidecar: tensorlane.Sidecar | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread is in the namespace, and so are processes that it starts."""
        with _returning():
            _checked(_libc.setns(self._namespace, _CLONE_NEWNET))
            yield

    def processes(self) -> list[int]:
        """Ids of the processes that are in the namespace."""
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _namespace_of(entry) == self._identity]

    def close(self) -> None:
        """Ends what is left in the namespace, and leaves it to the kernel."""
        for pid in self.processes():
            _kill(pid)
        until("the node is empty", lambda: not self.processes())
        os.close(self._namespace)


def end_with_parent() -> None:
    """Has the calling process terminated when the thread that started it ends, however it goes."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))


@contextmanager
def joined() -> Iterator[list[Node]]:
    """Two nodes with a cable between them."""
    with ExitStack() as stack:
        nodes = [Node(number) for number in range(2)]
        for node in nodes:
            stack.callback(node.close)
        with nodes[0].inside():
            _ip(f"link add e0 type veth peer name e0 netns {nodes[1].path}")
        for node in nodes:
            with node.inside():
                _ip(f"addr add {node.address}/24 dev e0")
                _ip("link set lo up")
                _ip("link set e0 up")
        yield nodes


@contextmanager
def with_sidecars(directory: Path, arena: str = "2Gi", **more: str) -> Iterator[list[Node]]:
    """Two nodes with a sidecar each, `node-0` and `node-1`, which are connected over the cable; `more` are settings of both."""
    with ExitStack() as stack:
        nodes = stack.enter_context(joined())
        file, lines = directory / "peers.yaml", []
        for node in nodes:
            settings = {
                "TENSORLANE_PEER": f"node-{node.number}",
                "TENSORLANE_PEERS_LISTEN": f"{node.address}:{PORT}",
                "TENSORLANE_PEERS_FILE": str(file),
                "TENSORLANE_TRANSPORTS": "tcp",
                # Copies of what the other node has go when nobody holds them, so that tests can count.
                "TENSORLANE_GC_COPY_IDLE": "100ms",
                **more,
            }
            with node.inside():
                node.sidecar = stack.enter_context(tensorlane.Sidecar(arena=arena, settings=settings))
                lines.append(printed(node.sidecar, settings))
        join(file, [node.sidecar for node in nodes], lines)
        yield nodes


@contextmanager
def _returning() -> Iterator[None]:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _checked(_libc.setns(home, _CLONE_NEWNET))
        os.close(home)


def _checked(code: int) -> None:
    if code != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _namespace_of(process: Path) -> int | None:
    try:
        return (process / "ns/net").stat().st_ino
    except OSError:
        return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
