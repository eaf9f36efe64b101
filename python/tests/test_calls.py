"""Names, waits, errors, and what ends a wait early."""

from __future__ import annotations

import copy
import os
import pickle
import re
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorlane
from conftest import PATIENCE, python, said, until
from tensorlane import errors
from tensorlane.client import _all


def test_a_name_is_got_listed_and_taken_away(client):
    with client.put(np.arange(3), "models/a") as stored:
        assert client.names("models/") == {"models/a": stored.reference}
        assert client.get("models/a").numpy().tolist() == [0, 1, 2]
        client.unname("models/a")
        assert client.names("models/") == {}


def test_a_get_waits_for_a_name_that_comes_later(client):
    got = []
    waiter = threading.Thread(target=lambda: got.append(client.get("later/x", wait=50).numpy().tolist()))
    waiter.start()
    stored = client.put(np.arange(2), "later/x")
    waiter.join(50)
    assert got == [[0, 1]]
    client.unname("later/x")
    stored.release()


def test_a_name_replaces_what_it_stood_for(client):
    first = client.put(np.zeros(1), "swap")
    with pytest.raises(tensorlane.NameTaken) as caught:
        client.put(np.ones(1), "swap")
    assert caught.value.reason == "NAME_TAKEN" and "replaces" in caught.value.remedy
    client.put(np.ones(1), "swap", replaces=first, keep=False)
    assert client.get("swap").numpy().tolist() == [1]
    client.unname("swap")


def test_a_ticket_or_a_name_keeps_what_nobody_leases(client):
    stored = client.put(np.arange(4), "kept/by/name", keep=False)
    assert not stored.held
    assert client.describe("kept/by/name").leases == 0
    client.unname("kept/by/name")
    with pytest.raises(tensorlane.Error) as caught:
        client.put(np.arange(4), keep=False)
    assert caught.value.reason == "WOULD_VANISH"


def test_an_error_has_the_reason_of_the_sidecar_and_what_helps(client):
    with pytest.raises(tensorlane.NotFound, match="NOT_FOUND") as caught:
        client.get("nobody/put/this")
    error = caught.value
    assert (error.reason, isinstance(error, LookupError)) == ("NOT_FOUND", True)
    assert "wait=" in error.remedy and "hint:" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), type(again), again.details) == (str(error), type(error), error.details)


def test_a_wait_that_is_over_is_a_timeout_or_says_that_nothing_came(sidecar):
    # Had it the time of a call, too, it would end much later.
    with tensorlane.connect(sidecar.directory, deadline=3600) as client:
        with pytest.raises((tensorlane.Timeout, tensorlane.NotFound)):
            client.get("never", wait=0.2)


def test_what_is_too_large_for_the_arena_is_refused_by_its_numbers(client):
    with pytest.raises(tensorlane.Exhausted) as caught:
        client.put(np.zeros(client.status().arena_bytes + 1, np.uint8))
    assert caught.value.reason == "NEVER_FITS" and caught.value.details


@pytest.mark.parametrize("text", ["", "tl1:", "tl9:a", "weights"])
def test_a_text_that_is_no_reference_is_a_value_error(text):
    with pytest.raises(ValueError):
        tensorlane.Reference(text)


def test_a_reference_is_equal_hashable_and_says_what_it_names(client):
    with client.put(np.zeros((2, 3), "f4")) as stored:
        reference = tensorlane.Reference(str(stored))
        assert reference == stored.reference and len({reference, stored.reference}) == 1
        assert (reference.dtype, reference.shape, reference.nbytes) == ("f32", (2, 3), 24)
        assert (reference.peer, reference.exchange) == (client.peer, client.exchange)
        assert client.get(str(reference)).shape == (2, 3)


def test_a_program_without_a_sidecar_is_told_where_it_looked_and_what_to_do(tmp_path):
    with pytest.raises(tensorlane.Unavailable) as caught:
        tensorlane.connect(tmp_path)
    for word in (str(tmp_path), "TENSORLANE_SOCKETS", "tensorlane.local()"):
        assert word in str(caught.value)
    script = "import tensorlane\ntry: tensorlane.connect()\nexcept tensorlane.Error as error: print(error)"
    told = said(python(script, TENSORLANE_SOCKETS=str(tmp_path / "not there")))
    assert "not there" in told


def test_a_closed_client_says_so(sidecar):
    client = tensorlane.connect(sidecar.directory)
    client.close()
    with pytest.raises(tensorlane.Error, match="closed"):
        client.status()


def test_a_closed_client_and_an_open_one_tell_where_their_sidecar_is(sidecar):
    client = tensorlane.connect(sidecar.directory)
    for _ in range(2):
        assert repr(client) == f"<tensorlane.Client of {sidecar.directory}>"
        client.close()
    assert sidecar.directory in repr(sidecar)


def test_the_deadline_of_a_client_is_the_one_that_it_was_made_with(sidecar):
    with tensorlane.connect(sidecar.directory, deadline=60) as client:
        with pytest.raises(AttributeError):
            client.deadline = 1
        assert client.deadline == 60


def test_a_cancel_withdraws_a_wait_from_another_thread(client):
    cancel, ended = tensorlane.Cancel(), []

    def wait() -> None:
        with pytest.raises(tensorlane.Withdrawn):
            client.get("never/comes", wait=3600, cancel=cancel)
        ended.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    cancel.cancel()
    waiter.join(PATIENCE)
    assert ended


INTERRUPTED = """
import os, signal, sys, threading, tensorlane
client = tensorlane.connect()
def strike():
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=strike, daemon=True).start()
try:
    print("ready", flush=True)
    client.get("never/comes", wait=3600)
except KeyboardInterrupt:
    print("interrupted")
print(client.status().tensors >= 0)
"""


def test_a_keyboard_interrupt_ends_a_wait_and_the_client_works_on(sidecar):
    process = python(INTERRUPTED, TENSORLANE_SOCKETS=sidecar.directory)
    assert process.stdout.readline() == "ready\n"
    # It waits by now, or will; either way the signal must end the wait.
    assert said(process, "go\n").split() == ["interrupted", "True"]


def test_an_interrupt_is_told_before_other_failures_of_a_call():
    results = [1, tensorlane.NotFound("it is gone"), KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        _all(results)
    assert results == []
    with pytest.raises(tensorlane.NotFound, match="first"):
        _all([tensorlane.NotFound("first"), tensorlane.Invalid("second")])


CONNECTING = """
import os, signal, sys, threading, tensorlane
def strike():
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=strike, daemon=True).start()
try:
    print("ready", flush=True)
    tensorlane.connect(sys.argv[1], patience=3600)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_keyboard_interrupt_ends_the_wait_for_a_sidecar_that_is_not_there(tmp_path):
    process = python(CONNECTING, str(tmp_path))
    assert process.stdout.readline() == "ready\n"
    assert said(process, "go\n") == "interrupted\n"


def test_a_wait_lets_other_threads_run():
    with tensorlane.local(arena="64Mi") as client:
        large, counted = np.zeros(40 << 20, np.uint8), [0]
        held = client.put(large)

        def count() -> None:
            until("the put waits for room", lambda: client.status().waiting)
            while counted[0] < 100_000:
                counted[0] += 1
            held.release()

        counter = threading.Thread(target=count)
        counter.start()
        # With the interpreter's lock it would wait for itself.
        with client.put(large, deadline=60):
            assert counted[0] == 100_000
        counter.join()


def test_any_number_of_threads_share_a_client(client):
    failures = []

    def work(number: int) -> None:
        for turn in range(50):
            with client.put(np.full(100, number * turn)) as stored:
                if client.get(stored).numpy()[3] != number * turn:
                    failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert failures == []


def test_a_signal_that_a_program_handles_does_not_end_a_wait(client):
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    main = threading.main_thread().ident
    striker = threading.Thread(target=lambda: [signal.pthread_kill(main, signal.SIGUSR1), client.put(np.ones(1), "after/signal", keep=False)])
    striker.start()
    try:
        assert client.get("after/signal", wait=20).numpy().tolist() == [1]
        until("the handler ran", lambda: came)
    finally:
        striker.join()
        signal.signal(signal.SIGUSR1, before)
        client.unname("after/signal")


class Stop(Exception):
    """Raised by a handler."""


def test_what_a_handler_raises_is_told_though_the_call_is_answered_meanwhile(client):
    main, package = threading.main_thread().ident, os.path.dirname(tensorlane.__file__)

    def handle(*_):
        client.put(np.ones(1), "after/raise", keep=False)
        # Reads what has come for the get that waits, too.
        for _ in range(50):
            client.status()
        raise Stop

    def strike() -> None:
        until("the get is under way", lambda: sys._current_frames()[main].f_code.co_filename.startswith(package))
        signal.pthread_kill(main, signal.SIGUSR1)

    before, striker = signal.signal(signal.SIGUSR1, handle), threading.Thread(target=strike)
    try:
        striker.start()
        with pytest.raises(Stop):
            client.get("after/raise", wait=60)
    finally:
        striker.join()
        signal.signal(signal.SIGUSR1, before)
    client.unname("after/raise")


def pickled(error):
    return pickle.loads(pickle.dumps(error))


def kinds(kind=tensorlane.Error):
    return {kind}.union(*(kinds(below) for below in kind.__subclasses__()))


@pytest.mark.parametrize("kind", sorted(kinds(), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy], ids=lambda again: again.__name__)
def test_an_exception_travels_with_all_that_is_known_of_it(kind, again):
    error = kind("it went wrong", "PIPE_LOST", {"pipe": "7"}, remedy="connect again")
    error.delivered = "unknown"
    error.add_note("while it wrote")
    error.step = 7
    other = again(error)
    assert type(other) is kind and vars(other) == vars(error) and other.args == error.args and str(other) == str(error)
    assert (other.delivered, other.__notes__, other.step) == ("unknown", ["while it wrote"], 7)
    other.details["pipe"] = "8"
    assert error.details == {"pipe": "7"} or again is copy.copy
    assert again(kind("plain")).delivered is None


@pytest.mark.parametrize(
    "call, kind, told, helps",
    [
        (lambda client: client.get("x", wait="60"), TypeError, "wait is '60'", "number"),
        (lambda client: client.get("x", deadline=b"1"), TypeError, "deadline is b'1'", "number"),
        (lambda client: client.put(np.ones(1), ticket="60"), TypeError, "ticket is '60'", "number"),
        (lambda client: client.put(np.ones(1), "x", replaces="k"), TypeError, "replaces is a str", "client.names()"),
        (lambda client: client.put(np.ones(1), ""), ValueError, "empty", "leave it out"),
        (lambda client: client.put_many({"": np.ones(1)}), ValueError, "empty", "leave it out"),
        (lambda client: client.empty(3, "flt"), TypeError, "'flt' is no dtype", "float32"),
        (lambda client: client.open_set("x", wait="1"), TypeError, "wait is '1'", "number"),
        (lambda client: client.channel_reader("x", wait="1"), TypeError, "wait is '1'", "number"),
        (lambda client: client.connect_pipe("x", wait="1"), TypeError, "wait is '1'", "number"),
        (lambda client: client.get("x", wait=-1), ValueError, "wait is -1", "from 0 on"),
        (lambda client: client.put(np.ones(1), deadline=-0.5), ValueError, "deadline is -0.5", "from 0 on"),
        (lambda client: client.put_file("x", "x", deadline=-1), ValueError, "deadline is -1", "from 0 on"),
        (lambda client: client.get("x", deadline=-(10**400)), ValueError, "deadline is -inf", "from 0 on"),
        (lambda client: client.put(np.ones(1), keep=2), TypeError, "keep is 2", "True or False"),
        (lambda client: client.empty(3).seal(checksum="crc32c"), TypeError, "checksum is 'crc32c'", "True or False"),
        (lambda client: client.empty(3, deadline="5"), TypeError, "deadline is '5'", "number"),
        (lambda client: client.channel_writer("x", evict_after="5"), TypeError, "evict_after is '5'", "number"),
        (lambda client: tensorlane.connect(client.directory, deadline=None), TypeError, "deadline is None", "number"),
        (lambda client: tensorlane.connect(client.directory, patience="5"), TypeError, "patience is '5'", "number"),
        (lambda client: client.publish(torch.nn.Linear(1, 1), "x"), TypeError, "a Linear is no mapping", "state_dict()"),
        (lambda client: tensorlane.Sidecar(settings={"node.directory": "/tmp"}), ValueError, "node.directory", "TENSORLANE_NODE_DIRECTORY"),
        (
            lambda client: tensorlane.Sidecar(settings={"limits.setJournalBytes": "1"}),
            ValueError,
            "limits.setJournalBytes",
            "TENSORLANE_LIMITS_SET_JOURNAL_BYTES",
        ),
    ],
)
def test_arguments_of_a_wrong_kind_are_named_with_what_to_give(client, call, kind, told, helps):
    with pytest.raises(tensorlane.Error) as caught:
        call(client)
    assert isinstance(caught.value, kind) and told in caught.value.message and helps in caught.value.remedy


def test_help_with_what_is_not_there_is_for_how_it_was_asked(client, tmp_path):
    def remedy(call):
        with pytest.raises(tensorlane.Error) as caught:
            call()
        return caught.value.remedy or ""

    gone = client.put(np.ones(1))
    gone.release()
    client.flush()
    assert "wait=SECONDS" in remedy(lambda: client.get("no/such"))
    assert "within 0.1 s" in remedy(lambda: client.get("no/such", wait=0.1))
    assert "hold what put returned" in remedy(lambda: client.get(gone.reference)) and "wait" not in remedy(lambda: client.get(gone))
    assert "client.mutable_sets()" in remedy(lambda: client.open_set("nosuch"))
    assert "wait" not in remedy(lambda: client.unname("no/such"))
    with client.channel_writer("help") as writer:
        assert "wait" not in remedy(lambda: writer.evict(99))
        assert "replaces" not in remedy(lambda: client.channel_writer("help"))
    path = tmp_path / "one.safetensors"
    with client.put(np.ones(1), "help/a", keep=True):
        client.get_file("help", path)
        assert "replace=True" in remedy(lambda: client.put_file(path, "help"))
    assert " -" not in remedy(lambda: client.get_file("no/such", path))
    client.unname("help/a")


def test_every_reason_of_the_page_has_a_remedy_in_python():
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    reasons = re.findall(r"^## ([A-Z_]+)$", page, re.MULTILINE)
    assert {"NOT_FOUND", "CHANNEL_ENDED", "INTERNAL"} <= set(reasons)
    for reason in reasons:
        told, made_here = errors.make("UNKNOWN", reason, "it went wrong", {}), tensorlane.Error("it went wrong", reason)
        assert told.remedy and told.remedy == made_here.remedy, reason
    assert tensorlane.Error("it went wrong", "NOT_FOUND", remedy="look there").remedy == "look there"
    assert tensorlane.Error("it went wrong").remedy is None


def test_help_with_a_shape_and_with_a_type_of_rows_differs(client):
    rows = client.create_set("help/rows", 4, {"x": ("float32", (2,))})
    with pytest.raises(tensorlane.Invalid, match="SET_MISMATCH") as caught:
        rows[[0, 1]] = {"x": np.ones((3, 2), np.float32)}
    assert "as many rows" in caught.value.remedy
    with pytest.raises(tensorlane.Invalid, match="SET_MISMATCH") as caught:
        rows[[0, 1]] = {"x": np.ones((2, 2))}
    assert "convert" in caught.value.remedy
    client.drop_set("help/rows")


def test_an_arena_is_a_number_of_bytes_or_a_text():
    with tensorlane.local(arena=64 << 20) as client:
        assert client.status().arena_bytes == 64 << 20


def test_torch_that_is_not_installed_is_said_with_what_to_do():
    script = """
import sys
import importlib.abc
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Without())
import numpy, tensorlane
with tensorlane.local(arena="64Mi") as client:
    try:
        client.get(client.put(numpy.ones(2))).torch()
    except ModuleNotFoundError as error:
        print(error)
"""
    assert "pip install torch" in said(python(script))
