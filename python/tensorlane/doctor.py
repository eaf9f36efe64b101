"""A look at what `tensorlane` finds: the environment, the sidecar, the routes, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from dataclasses import asdict
from typing import Any

import numpy as np

from ._tensorlane import probe_gpus
from .client import Client
from .errors import Error
from .local import SOCKETS
from .programs import program

_DEFAULT = "/run/tensorlane"
_PACKAGES = ("numpy", "torch", "ray", "ml_dtypes", "tensordict", "safetensors")
_PROGRAMS = ("tensorlane", "tensorlane-sidecar")
_PROBE_BYTES = 1 << 20


def doctor(directory: str | os.PathLike[str] | None = None, *, quiet: bool = False) -> dict[str, Any]:
    """Tells what is found and what is missing: prints it, unless `quiet`, and returns it.

    It needs no sidecar. Where there is one, 1 MiB is put, got and given up again. On each GPU 2 MiB are shared with this process
    itself, and given up again. `missing` is a list of sentences; nothing
    is wrong when it is empty.
    """
    missing: list[str] = []
    found: dict[str, Any] = {
        "tensorlane": _version("tensorlane"),
        "python": f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}",
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith("TENSORLANE_")},
        "packages": {name: _version(name) for name in _PACKAGES},
        "programs": {name: _program(name, missing) for name in _PROGRAMS},
        "shared_memory": _memory(missing),
        "gpus": _gpus(missing),
        "socket": _socket(directory, missing),
        "sidecar": None,
        "peers": [],
        "put_and_get": None,
    }
    if found["socket"]["there"]:
        _ask(found, missing)
    found["missing"] = missing
    if not quiet:
        print("\n".join(_lines(found)))
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _program(name: str, missing: list[str]) -> str | None:
    try:
        return program(name)
    except Error as error:
        missing.append(f"{error.message}: {error.remedy}")
        return None


def _memory(missing: list[str]) -> dict[str, Any]:
    """Checks for memory that processes share by descriptors, and for the limit of descriptors."""
    try:
        os.close(os.memfd_create("tensorlane-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        works = True
    except OSError as error:
        works = False
        missing.append(f"no shared memory, which comes from memfd_create: {error}; Linux 5.14 or later has it")
    return {"works": works, "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}


def _gpus(missing: list[str]) -> dict[str, Any]:
    """Tries each GPU of this process. None at all is nothing that is missing."""
    probed = probe_gpus()
    for index, name, _, _, refusal in probed.get("devices", []):
        if refusal is not None:
            missing.append(f"cuda:{index}, {name}, shares no memory: {refusal}")
    return probed


def _gpu_words(probed: dict[str, Any]) -> str:
    if "refusal" in probed:
        return f"none: {probed['refusal'][1]}"
    every = [
        f"cuda:{index} {name}, {size >> 30} GiB, {'shares no memory' if refusal else 'shares memory'}"
        for index, name, _, size, refusal in probed["devices"]
    ]
    return "; ".join(every)


def _socket(directory: str | os.PathLike[str] | None, missing: list[str]) -> dict[str, Any]:
    if directory is not None:
        place, why = os.fspath(directory), "the argument"
    elif os.environ.get(SOCKETS):
        place, why = os.environ[SOCKETS], SOCKETS
    else:
        place, why = _DEFAULT, "the default"
    path = os.path.join(place, "session.sock")
    there = os.path.exists(path)
    if not there:
        missing.append(
            f"no sidecar: there is no {path} (by {why}); in a pod, annotate it with tensorlane.dev/inject: enabled;"
            f" elsewhere set {SOCKETS}, or use tensorlane.local()"
        )
    return {"directory": place, "by": why, "path": path, "there": there}


def _ask(found: dict[str, Any], missing: list[str]) -> None:
    """Asks the sidecar for itself and its peers, and tries it with a tensor."""
    try:
        with Client(found["socket"]["directory"], name=f"doctor[{os.getpid()}]", deadline=10) as client:
            found["sidecar"] = asdict(client.status())
            found["peers"] = [asdict(peer) for peer in client.peers()]
            probe = np.arange(_PROBE_BYTES, dtype=np.uint8)
            with client.put(probe) as stored, client.get(stored) as got:
                equal = bool(np.array_equal(got.numpy(), probe))
                found["put_and_get"] = got.route if equal else "other bytes came back"
    except Error as error:
        missing.append(f"the sidecar at {found['socket']['path']} failed: {error.message}")
        return
    if not equal:
        missing.append("the bytes that came back are not those that were put: report this with the sidecar's log")
    ours, sidecar = found["tensorlane"], found["sidecar"]["version"]
    if ours is not None and ours != sidecar:
        missing.append(f"the package is {ours} and the sidecar {sidecar}: install the same version of both")
    for peer in found["peers"]:
        if peer["state"] == "unreachable":
            missing.append(f"peer {peer['name']} is unreachable: {peer['last_error'] or 'no reason is known'}")


def _lines(found: dict[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version or '-'}" for name, version in found["packages"].items())
    memory, socket, sidecar = found["shared_memory"], found["socket"], found["sidecar"]
    rows = [
        ("tensorlane", found["tensorlane"] or "not installed as a package"),
        ("python", found["python"]),
        ("packages", packages),
        *[(key, value) for key, value in found["environment"].items()],
        *[(name, path or "missing") for name, path in found["programs"].items()],
        ("shared memory", f"{'works' if memory['works'] else 'missing'}, {memory['descriptors']} descriptors at most"),
        ("GPUs", _gpu_words(found["gpus"])),
        ("socket", f"{socket['path']} (by {socket['by']}){'' if socket['there'] else ': not there'}"),
    ]
    if sidecar is not None:
        free, arena = sidecar["free_bytes"] >> 20, sidecar["arena_bytes"] >> 20
        rows += [
            ("sidecar", f"{sidecar['version']}, peer {sidecar['peer']} of exchange {sidecar['exchange']}, {free} of {arena} MiB free"),
            *[("peer", f"{peer['name']}: {peer['state']}, {peer['route'] or 'this one'}") for peer in found["peers"]],
            ("put and get", found["put_and_get"] or "failed"),
        ]
    width = max(len(key) for key, _ in rows)
    return [f"{key:<{width}}  {value}" for key, value in rows] + [f"missing: {what}" for what in found["missing"] or ["nothing"]]
