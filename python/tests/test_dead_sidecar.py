"""A sidecar that is killed: each call says so and what helps, what was got stays readable, and the client finds the next one."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy

import tensorlane
from conftest import PATIENCE, pid_of, until

SMALL = np.arange(3)
LARGE = np.arange(1 << 18)


def full(directory: str | Path) -> SimpleNamespace:
    """A client with one of everything, named as the calls below have it."""
    # A call has a short deadline: until it is over, it tries to connect.
    client = tensorlane.connect(directory, deadline=0.05, patience=PATIENCE)
    generous = tensorlane.connect(directory)
    had = SimpleNamespace(client=client, array=SMALL.copy(), path=Path(directory).parent / "x.safetensors")
    safetensors.numpy.save_file({"w": SMALL}, had.path)
    had.stored = generous.put(SMALL, "x")
    had.got, had.view = generous.get(had.stored), generous.get(generous.put(LARGE)).numpy()
    had.ticket = generous.ticket(had.stored)
    generous.publish({"a": SMALL}, "set")
    had.replay = generous.create_set("replay", 8, {"x": ("int64", (2,))}, contiguous=True).bind(client)
    had.generous = generous
    return had


def with_ends(had: SimpleNamespace) -> SimpleNamespace:
    """The same with a channel, a pipe, a watch and a reservation of a client of their own."""
    client = had.generous
    had.reservation = client.empty(4)
    had.reservation.array[...] = 1
    had.writer, had.reader = client.channel_writer("channel"), client.channel_reader("channel")
    had.listener = client.listen("listener")
    had.pipe = client.connect_pipe("listener")
    had.other = had.listener.accept(timeout=60)
    had.watch = client.watch("none")
    assert had.watch.next().kind == "synced"
    return had


CALLS = {
    "put": lambda had: had.client.put(SMALL),
    "put of much": lambda had: had.client.put(LARGE),
    "put of rows with gaps": lambda had: had.client.put(LARGE.reshape(512, -1)[:, ::2]),
    "put_many": lambda had: had.client.put_many({"u": SMALL, "v": LARGE}),
    "put of nested values": lambda had: had.client.put({"a": [SMALL]}),
    "empty": lambda had: had.client.empty(4),
    "get": lambda had: had.client.get(had.stored),
    "get of a part": lambda had: had.client.get(had.stored.reference[1:]),
    "get by name": lambda had: had.client.get("x"),
    "get_many": lambda had: had.client.get_many([had.stored]),
    "ticket": lambda had: had.client.ticket(had.stored),
    "redeem": lambda had: had.client.redeem(had.ticket),
    "describe": lambda had: had.client.describe(had.stored),
    "names": lambda had: had.client.names(),
    "unname": lambda had: had.client.unname("x"),
    "watch": lambda had: had.client.watch("x").next(),
    "status": lambda had: had.client.status(),
    "peers": lambda had: had.client.peers(),
    "publish": lambda had: had.client.publish({"a": SMALL}, "set"),
    "get_set": lambda had: had.client.get_set("set"),
    "load_into": lambda had: had.client.load_into({"a": had.array}, "set"),
    "put_file": lambda had: had.client.put_file(had.path, "file"),
    "get_file": lambda had: had.client.get_file("file", f"{had.path}.got"),
    "publish_file": lambda had: had.client.publish_file(had.path, "file"),
    "save_set": lambda had: had.client.save_set("set", f"{had.path}.safetensors"),
    "create_set": lambda had: had.client.create_set("new", 8, {"x": ("int64", (2,))}),
    "open_set": lambda had: had.client.open_set("replay"),
    "mutable_sets": lambda had: had.client.mutable_sets(),
    "drop_set": lambda had: had.client.drop_set("replay"),
    "read of rows": lambda had: had.replay.read([1]),
    "map of rows": lambda had: had.replay.map(slice(0, 2)),
    "write of rows": lambda had: had.replay.write([1], {"x": 1}),
    "extend": lambda had: had.replay.extend({"x": np.zeros((1, 2), "i8")}),
    "status of a set": lambda had: had.replay.status(),
    "flush of a set": lambda had: had.replay.flush(),
    "snapshot": lambda had: had.replay.snapshot(),
    "channels": lambda had: had.client.channels(),
    "channel_writer": lambda had: had.client.channel_writer("new"),
    "channel_reader": lambda had: had.client.channel_reader("new"),
    "listen": lambda had: had.client.listen("new"),
    "connect_pipe": lambda had: had.client.connect_pipe("listener"),
    "connect": lambda had: tensorlane.connect(had.client.directory),
}

ENDS = {
    "seal": lambda had: had.reservation.seal(),
    "write to a channel": lambda had: had.writer.write(SMALL, timeout=math.inf),
    "read of a channel": lambda had: had.reader.read(timeout=math.inf),
    "accept": lambda had: had.listener.accept(timeout=math.inf),
    "write to a pipe": lambda had: had.pipe.write([SMALL], timeout=60),
    "read of a pipe": lambda had: had.other.read(timeout=math.inf),
    "next of a watch": lambda had: had.watch.next(timeout=60),
}


def lost(call, had: SimpleNamespace) -> tensorlane.Error:
    """The error of a call, which says that the sidecar is gone, and what helps."""
    with pytest.raises(tensorlane.Unavailable) as caught:
        call(had)
    error = caught.value
    assert error.remedy and any(word in error.message for word in ("session was lost", "cannot be reached")), str(error)
    return error


def test_every_call_without_its_sidecar_says_so_and_works_on_the_next_one(unkept):
    had = full(unkept.directory)
    unkept.kill()
    # Told once, by whichever call is the first.
    assert isinstance(lost(CALLS["status"], had), tensorlane.SessionLost)
    for what, call in CALLS.items():
        error = lost(call, had)
        assert type(error) is tensorlane.Unavailable and "tensorlane.local()" in error.remedy, what
        assert str(unkept.directory) in error.message, what
    assert had.view[-1] == LARGE[-1] and had.got.numpy().tolist() == SMALL.tolist() and not had.stored.held

    # Those that follow need an answer, and so another deadline.
    client, replay = had.generous, had.replay.bind(had.generous)
    assert isinstance(lost(lambda had: had.generous.status(), had), tensorlane.SessionLost)
    unkept.start()
    with pytest.raises(tensorlane.Unavailable) as gone:
        client.get(had.stored)
    assert gone.value.reason == "OWNER_LOST" and "put the tensor again" in gone.value.remedy
    with pytest.raises(tensorlane.Unavailable) as gone:
        replay.read([1])
    assert gone.value.reason == "OWNER_LOST" and "make the set again" in gone.value.remedy
    with client.put(SMALL, "x") as stored:
        assert client.get("x").numpy().tolist() == client.get(stored).numpy().tolist() == SMALL.tolist()
        client.unname("x")
    assert client.publish({"a": SMALL}, "set").version == 1
    with client.channel_writer("channel") as writer, client.channel_reader("channel") as reader:
        assert writer.write(SMALL) == reader.read().sequence == 0
    assert had.view[-1] == LARGE[-1], "memory of the one before is other memory"


def test_every_end_without_its_sidecar_says_so(unkept):
    had = with_ends(full(unkept.directory))
    unkept.kill()
    for what, call in ENDS.items():
        error = lost(call, had)
        # A write puts its arrays first, and a watch has no session of its own.
        assert isinstance(error, tensorlane.SessionLost) or what in ("write to a pipe", "next of a watch"), what
    had.writer.close(), had.reader.close(), had.pipe.close(), had.listener.close()

    unkept.start()
    with pytest.raises(tensorlane.WatchCut):
        had.watch.next()
    assert had.watch.next().kind == "synced"
    with had.generous.listen("listener") as listener, had.generous.connect_pipe("listener") as pipe:
        with listener.accept(timeout=60) as other, pipe.begin([SMALL]) as writing:
            assert other.read(timeout=60).tensors[0].numpy().tolist() == SMALL.tolist()
            writing.wait()
    assert not had.stored.held and had.view[-1] == LARGE[-1]


WAITS = {
    "get": lambda had: had.generous.get("never", wait=600),
    "get_set": lambda had: had.generous.get_set("never", wait=600),
    "put": lambda had: had.generous.put(np.zeros(40 << 20, "u1"), deadline=600),
    "open_set": lambda had: had.generous.open_set("never", wait=600),
    "connect_pipe": lambda had: had.generous.connect_pipe("never", wait=600),
    "channel_reader": lambda had: had.generous.channel_reader("never", wait=600),
    **{what: ENDS[what] for what in ("read of a channel", "accept", "read of a pipe", "next of a watch")},
}


def test_every_call_that_waits_when_its_sidecar_dies_ends(unkept):
    had = with_ends(full(unkept.directory))
    had.large = had.generous.put(np.zeros(24 << 20, "u1"))
    with ThreadPoolExecutor(len(WAITS)) as pool:
        began: list[int] = []
        waiting: dict[str, Future] = {}
        for what, call in WAITS.items():
            waiting[what] = pool.submit(lambda call=call: (began.append(threading.get_ident()), call(had)))

        def wait() -> bool:
            """Every thread is inside of the package."""
            frames, package = sys._current_frames(), os.path.dirname(tensorlane.__file__)
            return len(began) == len(WAITS) and all(frames[one].f_code.co_filename.startswith(package) for one in began)

        until("all wait", wait)
        unkept.kill()
        for what, one in waiting.items():
            error = one.exception(60)
            assert isinstance(error, tensorlane.Unavailable) and error.remedy, (what, error)


def test_a_local_sidecar_that_was_killed_is_told_and_its_context_ends_quietly():
    sidecar = tensorlane.Sidecar(arena="64Mi")
    with sidecar, tensorlane.connect(sidecar.directory) as client:
        shown = client.get(client.put(LARGE)).numpy()
        os.kill(pid_of(sidecar), signal.SIGKILL)
        until("its directory is removed", lambda: not os.path.exists(sidecar.directory))
        with pytest.raises(tensorlane.SessionLost):
            client.status()
        with pytest.raises(tensorlane.Unavailable) as caught:
            client.put(SMALL)
        assert "tensorlane.local()" in caught.value.remedy and sidecar.directory in caught.value.message
        assert shown[-1] == LARGE[-1]
    assert shown[-1] == LARGE[-1]
