"""Watching names from Python: what there is, each change once and in order, going on from a revision, and being cut."""

from __future__ import annotations

import asyncio
import math
import pickle
import signal
import threading

import numpy as np
import pytest

import tensorlane
import tensorlane.aio
from conftest import python, said


@pytest.fixture
def name(request):
    return request.node.name


def short(event):
    return event.kind, event.name


def test_a_loop_gets_what_there_is_and_then_each_change_in_order(client, name):
    first = client.put(np.arange(3), f"{name}/a")
    watch = client.watch(f"{name}/")
    events = iter(watch)
    present, synced = next(events), next(events)
    assert (short(present), present.reference, present.revision) == (("present", f"{name}/a"), first.reference, None)
    assert (short(synced), synced.reference) == (("synced", ""), None) and watch.revision == synced.revision
    second = client.put(np.arange(4), f"{name}/a", replaces=first)
    client.put(np.arange(5), f"{name}/b", keep=False)
    client.unname(f"{name}/b", f"{name}/a")
    told = [next(events) for _ in range(4)]
    assert [short(event) for event in told] == [
        ("replaced", f"{name}/a"),
        ("appeared", f"{name}/b"),
        ("gone", f"{name}/b"),
        ("gone", f"{name}/a"),
    ]
    assert told[0].reference == second.reference == told[3].reference, "the second one is held yet"
    assert told[2].reference is None, "nothing keeps it"
    assert watch.revision == told[3].revision
    with pytest.raises(tensorlane.Timeout):
        watch.next(timeout=0)
    again = client.watch(f"{name}/", after=told[1].revision)
    assert [short(again.next(timeout=60)) for _ in range(2)] == [short(event) for event in told[2:]]


def test_a_server_takes_each_policy_that_a_trainer_publishes(client, name):
    script = """
import sys, numpy as np, tensorlane
with tensorlane.connect(sys.argv[1]) as client:
    for step in range(3):
        client.publish({"w": np.full(4, step)}, sys.argv[2], keep=1)
        sys.stdin.readline()
"""
    trainer, got = python(script, client.directory, name), []
    for event in client.watch(name):
        if event.name == name and event.kind in ("present", "appeared", "replaced"):
            weights = client.get_set(name)
            got.append((weights.version, int(weights["w"].numpy()[0])))
            if len(got) == 3:
                break
            trainer.stdin.write("next\n")
            trainer.stdin.flush()
    said(trainer, "\n")
    assert got == [(1, 0), (2, 1), (3, 2)]
    client.unname(name, f"{name}@3")


def test_a_wait_is_ended_by_an_interrupt_and_goes_on_afterwards(client, name):
    script = """
import sys, tensorlane
client = tensorlane.connect(sys.argv[1])
watch = client.watch(sys.argv[2])
print(watch.next().kind, flush=True)
try:
    print("waits", flush=True)
    watch.next(timeout=float("inf"))
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(watch.next(timeout=60).kind, flush=True)
"""
    process = python(script, client.directory, name)
    assert [process.stdout.readline() for _ in range(2)] == ["synced\n", "waits\n"]
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    stored = client.put(np.arange(3), name)
    assert said(process) == "appeared\n"
    client.unname(name)
    stored.release()


def test_another_thread_ends_a_watch_that_waits(client, name):
    watch = client.watch(name)
    assert watch.next().kind == "synced"
    ended = []

    def wait():
        while not ended:
            try:
                watch.next(timeout=math.inf)
            except tensorlane.Invalid:
                pass  # The other thread was faster.
            except tensorlane.Error as error:
                ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(tensorlane.Invalid, match="one call at a time"):
        while True:
            try:
                watch.next(timeout=0)
            except tensorlane.Timeout:
                pass
    watch.close()
    watch.close()
    thread.join(60)
    assert not thread.is_alive() and isinstance(ended[0], tensorlane.Withdrawn)
    with pytest.raises(tensorlane.Invalid, match="closed"):
        watch.next()


def test_what_cannot_be_watched_is_refused_with_the_reason(client, name):
    for refused, words in [
        ({"after": "yesterday"}, "no revision"),
        ({"peer": "NO PEER"}, "not a name"),
        ({"prefix": "x" * 513}, "513 bytes"),
    ]:
        with pytest.raises(tensorlane.Invalid, match=words):
            client.watch(**refused).next()
    with pytest.raises(tensorlane.Error, match="PEER_UNREACHABLE"):
        client.watch(name, peer="elsewhere").next()
    assert client.watch("").revision is None
    synced = [event for event in take(client.watch(name), "synced")][-1]
    life, sequence = synced.revision.split(".")
    with pytest.raises(tensorlane.Invalid, match="latest"):
        client.watch(name, after=f"{life}.{int(sequence) + 10**9}").next()
    other = client.watch(name, after=f"{'0' * 31}1.{sequence}")
    with pytest.raises(tensorlane.WatchCut, match="begin"):
        other.next()
    assert other.revision is None and other.next().kind == "synced"
    with pytest.raises(TypeError):
        pickle.dumps(other)


def test_a_watch_that_is_too_slow_is_told_once_that_it_was_cut_and_begins_anew():
    # The least that is remembered: a mebibyte of changes.
    with tensorlane.local(arena="64Mi", settings={"TENSORLANE_ARENA_BASE": "16Mi"}) as client:
        slow, array = client.watch("slow/"), np.arange(3)
        assert slow.next().kind == "synced"
        names = [f"slow/{number}/".ljust(500, "x") for number in range(1000)]

        def change(*changed: str) -> None:
            client.put_many({name: array for name in changed}, keep=False)
            client.unname(*changed)

        change(names[0])
        assert short(slow.next()) == ("appeared", names[0])
        oldest = slow.revision
        for _ in range(3):
            change(*names)
        with pytest.raises(tensorlane.WatchCut) as cut:
            # What it has taken from the sidecar already comes first.
            while True:
                assert slow.next(timeout=60).name in names
        assert cut.value.reason == "WATCH_CUT" and "next()" in cut.value.remedy and slow.revision is None
        with pytest.raises(tensorlane.WatchCut):
            client.watch("slow/", after=oldest).next()
        # The names that there are, and then each change: nothing is lost from here on.
        with client.put(array, "slow/last"):
            assert [short(slow.next(timeout=60)) for _ in range(2)] == [("present", "slow/last"), ("synced", "")]
            client.unname("slow/last")
            assert short(slow.next(timeout=60)) == ("gone", "slow/last")


def take(watch, last):
    for event in watch:
        yield event
        if event.kind == last:
            return


def test_a_task_that_is_cancelled_loses_no_event(sidecar, name):
    async def work():
        async with await tensorlane.aio.connect(sidecar.directory) as client, client.watch(name) as watch:
            assert (await watch.next()).kind == "synced"
            waiting = asyncio.create_task(watch.next(timeout=math.inf))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(tensorlane.Timeout):
                await watch.next(timeout=0.01)
            for number in range(3):
                await client.put(np.arange(3), f"{name}/{number}")
            told = []
            async for event in watch:
                told.append(short(event))
                if len(told) == 3:
                    break
            assert watch.revision is not None
            await client.unname(*(name for _, name in told))
            return told

    told = asyncio.run(asyncio.wait_for(work(), 60))
    assert told == [("appeared", f"{name}/{number}") for number in range(3)]


def test_a_revision_of_asyncio_is_that_of_the_last_event_that_was_given(sidecar, client, name):
    async def work():
        async with await tensorlane.aio.connect(sidecar.directory) as awaited, awaited.watch(f"{name}/") as watch:
            synced = await watch.next()
            waiting = asyncio.create_task(watch.next(timeout=math.inf))
            while watch._next._wait is None or not watch._next._wait.call.running():
                await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            client.put(np.arange(3), f"{name}/a", keep=True)
            while not watch._next._wait.call.done():
                await asyncio.sleep(0.005)
            # The thread has the event, and nobody was given it.
            assert watch.revision == synced.revision
            with client.watch(f"{name}/", after=watch.revision) as resumed:
                first = resumed.next(timeout=60)
            assert short(first) == short(await watch.next()) == ("appeared", f"{name}/a")
            assert watch.revision == first.revision
        async with await tensorlane.aio.connect(sidecar.directory) as awaited:
            assert awaited.watch(name, after=first.revision).revision == first.revision

    asyncio.run(asyncio.wait_for(work(), 60))
    client.unname(f"{name}/a")


def test_names_of_another_peer_are_watched_and_its_tickets_redeemed(clients, name):
    owner, reader = clients
    array = np.arange(300_000)
    watch = reader.watch(f"{name}/", peer=owner.peer)
    assert short(watch.next(timeout=60)) == ("synced", "")
    with owner.put(array, f"{name}/a") as stored:
        assert short(watch.next(timeout=60)) == ("appeared", f"{name}/a")
        ticket = owner.ticket(stored, uses=2, ttl=60)
    owner.unname(f"{name}/a")
    assert short(watch.next(timeout=60)) == ("gone", f"{name}/a")
    assert (reader.redeem(ticket).numpy() == array).all()

    async def redeemed():
        async with await tensorlane.aio.connect(reader.directory) as client:
            return (await client.redeem(ticket)).numpy().copy()

    assert (asyncio.run(redeemed()) == array).all()
    with pytest.raises(tensorlane.Error) as spent:
        reader.redeem(ticket)
    assert spent.value.reason == "TICKET_SPENT"
