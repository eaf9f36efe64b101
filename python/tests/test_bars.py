"""Progress bars: on a terminal, of what takes long, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading

import numpy as np
import pytest
import safetensors.numpy

from conftest import until
from tensorlane import bars


class Drawn:
    """A bar that remembers what it was told."""

    def __init__(self, what, total):
        self.what, self.total, self.n, self.shown, self.closed = what, total, 0, [], False

    def refresh(self):
        self.shown.append(self.n)

    def close(self):
        self.closed = True


@pytest.fixture
def drawn(monkeypatch):
    made = []
    monkeypatch.setattr(bars, "_bar", lambda what, total, _: made.append(Drawn(what, total)) or made[-1])
    return made


@pytest.fixture
def looked_at_here_alone(monkeypatch):
    """Nobody looks but the test: the thread has a test of its own."""
    for word in ("add", "remove"):
        monkeypatch.setattr(bars._watcher, word, lambda _: None)


def test_a_bar_comes_when_a_transfer_takes_long_and_bytes_have_moved(drawn, looked_at_here_alone, monkeypatch):
    done = [1000]
    monkeypatch.setattr(bars, "PATIENCE", 60.0)
    with bars.Transfer("get x", 100, lambda: done[0]) as early:
        early.look()
        done[0] += 50
        early.look()
        assert drawn == [], "nothing is drawn before the patience is over"
    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    with bars.Transfer("get x", 100, lambda: done[0]) as transfer:
        transfer.look()
        assert drawn == [], "no byte has moved"
        for more in (10, 30, -5, 500):
            done[0] += more
            transfer.look()
        (bar,) = drawn
        assert (bar.what, bar.total, bar.shown) == ("get x", 100, [10, 40, 40, 100])
    assert bar.closed
    transfer.look()
    assert bar.shown == [10, 40, 40, 100], "nothing is drawn behind the end"


def test_a_count_that_fails_and_a_total_that_nobody_knows_do_no_harm(drawn, looked_at_here_alone, monkeypatch):
    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    counts = iter([0, 5, None, 9])
    with pytest.raises(KeyError), bars.Transfer("get x", None, lambda: next(counts) + 0) as transfer:
        for _ in range(6):
            transfer.look()
        raise KeyError
    assert drawn[0].shown == [5, 9] and drawn[0].closed


def test_the_thread_ends_when_nothing_is_under_way(drawn, monkeypatch):
    monkeypatch.setattr(bars, "_LOOK", 0.01)
    with bars.Transfer("put x", 1, lambda: 0):
        until("the thread looks", lambda: any(one.name == "tensorlane-bars" for one in threading.enumerate()))
    until("it is gone", lambda: not any(one.name == "tensorlane-bars" for one in threading.enumerate()))


def test_the_kernel_counts_what_a_process_reads_and_writes(tmp_path):
    before = [bars._calls_of(os.getpid(), word) for word in ("rchar", "wchar")]
    (tmp_path / "x").write_bytes(bytes(1 << 20))
    assert len((tmp_path / "x").read_bytes()) == 1 << 20
    assert all(bars._calls_of(os.getpid(), word) >= count + (1 << 20) for word, count in zip(("rchar", "wchar"), before))


BEGIN = """
import os, sys, numpy, tensorlane
from tensorlane import bars, client as calls
bars.PATIENCE, bars._LOOK, bars.FROM, calls._PIECE = 60.0 if "patient" in sys.argv else 0.0, 0.001, 1, 1 << 20
client = tensorlane.connect(sys.argv[1])
other = tensorlane.connect(sys.argv[2])
data = numpy.arange(64 << 20, dtype="u1")
"""

PUT = 'stored = client.put(data, "bars/put"); assert (client.get(stored).numpy() == data).all(); client.unname("bars/put")'
MANY = "stored = client.put_many([data[: 8 << 20]] * 8); assert (client.get(stored[7]).numpy() == data[: 8 << 20]).all()"
PUBLISH = 'client.publish({"w": data}, "bars/set"); client.unname("bars/set", "bars/set@1")'
SET = 'other.publish({"w": data}, "bars/sets"); client.get_set("bars/sets", peer=other.peer); other.unname("bars/sets", "bars/sets@1")'
GET = 'stored = other.put(data, "bars/get"); client.get("bars/get", peer=other.peer); other.unname("bars/get")'


def until_drawn(script: str, *wanted: str) -> str:
    """The script again and again until these bars were drawn: a transfer may be over before anybody looks."""
    return (
        "drawn, bar = set(), bars._bar\n"
        "bars._bar = lambda what, *more: drawn.add(what) or bar(what, *more)\n"
        "for turn in range(50):\n"
        f"    {script}\n"
        f"    if all(any(one in what for what in drawn) for one in {wanted!r}): break\n"
    )


def ended(script: str, *arguments: str, terminal: bool = True, **variables: str) -> str:
    """Output on standard error of a Python that ended well, which has a terminal or not."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    told = [b""]

    def read() -> None:
        try:
            while more := os.read(ours, 1 << 16):
                told[0] += more
        except OSError:
            pass  # The other end is closed.

    reader = threading.Thread(target=read)
    reader.start()
    try:
        process = subprocess.run(
            [sys.executable, "-c", BEGIN + script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            env={**os.environ, **variables},
            timeout=120,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    said = (told[0] + (process.stderr or b"")).decode(errors="replace")
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def places(two_nodes):
    return two_nodes[1].directory, two_nodes[0].directory


@pytest.mark.parametrize(
    "script, what",
    [(PUT, "put bars/put"), (MANY, "put 8 tensors"), (PUBLISH, "put 1 tensors"), (GET, "get bars/get"), (SET, "get bars/sets")],
    ids=["put", "put_many", "publish", "get", "get_set"],
)
def test_a_long_transfer_has_a_bar_on_a_terminal(places, script, what):
    pytest.importorskip("tqdm")
    assert what in ended(until_drawn(script, what), *places)


@pytest.mark.parametrize(
    "options",
    [{"terminal": False}, {"TENSORLANE_PROGRESS": "off"}, {"LOCAL_RANK": "1"}],
    ids=["no terminal", "variable", "worker of torchrun"],
)
def test_where_nobody_looks_there_is_none(places, options):
    assert ended(PUT + "\n" + GET, *places, **options) == ""


def test_progress_false_draws_none(places):
    script = (PUT + "\n" + GET).replace('"bars/put")', '"bars/put", progress=False)', 1).replace("peer=other.peer", "peer=other.peer, progress=False")
    script = script.replace('other.put(data, "bars/get")', 'other.put(data, "bars/get", progress=False)').replace("client.get(stored)", "client.get(stored, progress=False)")
    assert ended(script, *places) == ""


def test_what_is_short_has_none(places):
    assert ended(PUT + "\n" + GET, *places, "patient") == ""


def test_without_tqdm_there_is_none(places):
    assert ended("sys.modules['tqdm'] = None\n" + PUT, *places) == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_multiprocessing_has_none(places, tmp_path, method):
    (tmp_path / "work.py").write_text("from __future__ import annotations\n" + BEGIN + "def work():\n    " + PUT.replace("; ", "\n    ") + "\n")
    script = f"import multiprocessing, work\nworker = multiprocessing.get_context('{method}').Process(target=work.work)\nworker.start(); worker.join()\nassert worker.exitcode == 0"
    assert ended(script, *places, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}") == ""


def test_files_have_a_bar_and_are_what_they_were(places, tmp_path):
    pytest.importorskip("tqdm")
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"w": np.arange(64 << 20, dtype=np.uint8)}, path)
    script = "client.put_file(sys.argv[3], 'bars/file'); client.get_file('bars/file', f'{sys.argv[4]}.{turn}'); client.unname('bars/file/w')"
    script += "; client.publish_file(sys.argv[3], 'bars/all'); client.save_set('bars/all', sys.argv[5]); client.unname('bars/all', 'bars/all@1')"
    script += "; os.replace(f'{sys.argv[4]}.{turn}', sys.argv[4]); os.remove(sys.argv[5])"
    wanted = ("put bars/file", "get bars/file", "publish bars/all", "save saved.safetensors")
    said = ended(until_drawn(script, *wanted), *places, str(path), str(tmp_path / "again"), str(tmp_path / "saved.safetensors"))
    for what in wanted:
        assert what in said, what
    assert (safetensors.numpy.load_file(tmp_path / "again")["w"] == np.arange(64 << 20, dtype=np.uint8)).all()
