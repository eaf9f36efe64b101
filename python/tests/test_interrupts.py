"""Interrupts (^C, SIGINT) of calls that wait: each ends as KeyboardInterrupt, and client and object work on."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import safetensors.numpy

import tensorlane
from conftest import nodes_of, pid_of, python, said, until

# The signal comes when the main thread has stood still in the call that waits: seen at one instruction, look after look.
CHILD = """
import math, os, signal, sys, threading, time, numpy, tensorlane
client, name = tensorlane.connect(), sys.argv[1]
room = client.status().arena_bytes
large = numpy.zeros(room * 5 // 8, numpy.uint8)
small = numpy.arange(3)

def place():
    frame = sys._current_frames()[threading.main_thread().ident]
    return frame.f_code.co_name, frame.f_lasti

def strike():
    seen, last = 0, None
    while seen < 20:
        now = place() if waits else None
        seen = seen + 1 if now is not None and now == last else 0
        last = now
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGINT)

waits = []
threading.Thread(target=strike, daemon=True).start()
{before}
try:
    waits.append(True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
{after}
with client.put(small) as stored:
    print(client.get(stored).numpy().tolist(), flush=True)
"""

MAPPED = 'replay = client.create_set(name, 8, {"x": ("int64", (4,))}, contiguous=True)\nview = replay.map(slice(0, 4))'
PIPE = "listener = client.listen(name)\npipe = client.connect_pipe(name)\nother = listener.accept(timeout=60)"
CHANNEL = "writer = client.channel_writer(name, slots=2)\nreader = client.channel_reader(name, hold=2)"

# Each thread of it stands still before the call, and answers nothing any more.
STOP = """
os.kill(int(sys.argv[3]), signal.SIGSTOP)
tasks = f"/proc/{sys.argv[3]}/task"
while any(open(f"{tasks}/{task}/stat").read().rpartition(")")[2].split()[0] != "T" for task in os.listdir(tasks)):
    time.sleep(0.001)
"""

# What is there before, the call that waits, and what shows that its object works on.
WAITS = {
    "a put that waits for room": (
        "held = client.put(large)",
        "client.put(large, deadline=600)",
        "held.release()\nclient.put(large, deadline=20)",
    ),
    "a put of rows with gaps that waits for room": (
        "held = client.put(large)",
        "client.put(large.reshape(2, -1).T, deadline=600)",
        "held.release()\nclient.put(large, deadline=20)",
    ),
    "a reservation that waits for room": (
        "held = client.put(large)",
        "client.empty(large.shape, 'u1', deadline=600)",
        "held.release()\nclient.empty(large.shape, 'u1', deadline=20)",
    ),
    "a file that waits for room": (
        "held = client.put(large)",
        "client.put_file(sys.argv[2], name, deadline=600)",
        "assert not client.names(name)\nheld.release()\nassert list(client.put_file(sys.argv[2], name)) == ['w']\nclient.unname(f'{name}/w')",
    ),
    "a get of a name": ("", "client.get(name, wait=600)", ""),
    "a get of a set": ("", "client.get_set(name, wait=600)", ""),
    "a load of a set": ("", "client.load_into({}, name, wait=600)", ""),
    "an open of a mutable set": ("", "client.open_set(name, wait=600)", ""),
    "a commit to rows that are mapped": (
        MAPPED,
        "replay.write([1], {'x': 1}, deadline=600)",
        "view.release()\nreplay.write([1], {'x': 2}, deadline=20)\nassert (replay['x'][1].numpy() == 2).all()\nreplay.drop()",
    ),
    "an accept": ("listener = client.listen(name)", "listener.accept(timeout=math.inf)", "end = client.connect_pipe(name)\nlistener.accept(timeout=60)"),
    "a connect": ("", "client.connect_pipe(name, wait=600)", "listener = client.listen(name)\nclient.connect_pipe(name)"),
    "a read of a pipe": (PIPE, "pipe.read(timeout=math.inf)", "writing = other.begin([small])\nassert len(pipe.read(timeout=60).tensors) == 1"),
    "a write to a pipe": (
        PIPE,
        "pipe.write([small], timeout=math.inf)",
        "writing = pipe.begin([small], metadata='again')\nassert other.read(timeout=60).metadata == b'again'\nwriting.wait()",
    ),
    "a write behind as many unread messages as there may be": (
        PIPE + "\nunread = [pipe.begin(metadata='unread') for _ in range(64)]",
        "pipe.write(metadata='late', timeout=math.inf)",
        "for one in unread: assert other.read(timeout=60).metadata == b'unread'; one.wait()\n"
        "writing = pipe.begin(metadata='again')\nassert other.read(timeout=60).metadata == b'again'\nwriting.wait()",
    ),
    "a wait for a write that has begun": (
        PIPE + "\nbegun = pipe.begin([small])",
        "begun.wait()",
        "writing = pipe.begin([small], metadata='again')\nassert other.read(timeout=60).metadata == b'again'\nwriting.wait()",
    ),
    "an attach to a channel": ("", "client.channel_reader(name, wait=600)", "writer = client.channel_writer(name)\nclient.channel_reader(name).close()"),
    "a save of a set": ("", "client.save_set(name, sys.argv[2], wait=600)", "assert not os.path.exists(sys.argv[2])"),
    "a write to a channel": (
        CHANNEL + "\nfor _ in range(2): writer.write(small)",
        "writer.write(small, timeout=math.inf)",
        "reader.read(timeout=60).release()\nassert writer.write(small, timeout=60) == 2",
    ),
    "a read of a channel": (CHANNEL, "reader.read(timeout=math.inf)", "writer.write(small)\nassert reader.read(timeout=60).sequence == 0"),
    "a shared read of a channel": (
        CHANNEL + "\ncached = reader.cached(1)",
        "cached.read(timeout=math.inf)",
        "writer.write(small)\nassert cached.read(timeout=60).sequence == 0",
    ),
    "a watch": (
        "watch = client.watch(name)\nwatch.next()",
        "watch.next(timeout=math.inf)",
        "with client.put(small, name): assert watch.next(timeout=60).kind == 'appeared'\nclient.unname(name)",
    ),
}


@pytest.fixture(scope="module")
def narrow():
    """A client of a sidecar with little room."""
    with tensorlane.local(arena="64Mi") as client:
        yield client


def interrupted(before: str, call: str, after: str, *arguments: str, **variables: str) -> list[str]:
    script = CHILD.replace("{before}", before).replace("{call}", call).replace("{after}", after)
    return said(python(script, *arguments, **variables)).splitlines()


@pytest.mark.parametrize("what", WAITS)
def test_an_interrupt_ends_a_call_that_waits_and_what_waited_works_on(narrow, tmp_path, what):
    file = tmp_path / "large.safetensors"
    if "file" in what:
        safetensors.numpy.save_file({"w": np.zeros(40 << 20, "u1")}, file)
    name = what.replace(" ", "-")
    assert interrupted(*WAITS[what], name, str(file), TENSORLANE_SOCKETS=narrow.directory) == ["interrupted", "[0, 1, 2]"]
    until("nothing is left of it", lambda: (narrow.status().tensors, narrow.status().leases) == (0, 0))


def test_an_interrupt_ends_calls_whose_owner_does_not_answer(tmp_path):
    """Sidecar of the owner is stopped meanwhile, so that it is connected and silent."""
    stop, go_on = STOP, "os.kill(int(sys.argv[3]), signal.SIGCONT)"
    with nodes_of(tmp_path, 2, first_host=71, arena="64Mi") as (near, far), tensorlane.connect(far.directory) as owner:
        with owner.put(np.arange(300_000), "far/x") as stored:
            ticket = owner.ticket(stored, uses=2, ttl=600)
            for call, after in (
                ("client.redeem(sys.argv[2], deadline=600)", "client.redeem(sys.argv[2])"),
                ("client.get('far/x', peer=sys.argv[1], deadline=600)", "client.get('far/x', peer=sys.argv[1])"),
            ):
                arguments = (owner.peer, ticket, str(pid_of(far)))
                try:
                    told = interrupted(stop, call, f"{go_on}\n{after}", *arguments, TENSORLANE_SOCKETS=near.directory)
                finally:
                    os.kill(pid_of(far), signal.SIGCONT)
                assert told == ["interrupted", "[0, 1, 2]"]
            owner.unname("far/x")
