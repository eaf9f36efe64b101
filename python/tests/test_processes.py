"""Other processes: forked, spawned, killed; and the sidecar of a program's own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

import tensorlane
from conftest import python, said, until
from tensorlane.programs import program

GOT = None
CLIENT = None


def test_a_pickled_reference_is_small_and_read_by_another_process(client):
    with client.put(np.arange(5)) as stored:
        pickled = pickle.dumps(stored.reference)
        assert len(pickled) < 300
        script = """
import pickle, sys, tensorlane
print(tensorlane.connect().get(pickle.loads(bytes.fromhex(sys.argv[1]))).numpy().sum())
"""
        assert said(python(script, pickled.hex(), TENSORLANE_SOCKETS=client.directory)) == "10\n"


def test_a_pickled_reference_stays_small_where_names_are_long():
    exchange, peer = "e" * 63, "p" * 63
    with tensorlane.local(arena="64Mi", peer=peer, settings={"TENSORLANE_EXCHANGE": exchange}) as client:
        with client.put(np.zeros((2, 3, 4, 5))) as stored:
            reference = stored.reference
            assert (reference.exchange, reference.peer) == (exchange, peer)
            assert all(len(pickle.dumps(reference, protocol)) < 300 for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1))
            assert client.get(pickle.loads(pickle.dumps(reference))).shape == (2, 3, 4, 5)


def _forked(index: int) -> tuple[int, int, int]:
    stored = CLIENT.put(np.full(10, index))
    return os.getpid(), int(CLIENT.get(stored).numpy().sum()), int(GOT[7])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_opens_a_connection_of_its_own_and_reads_what_it_inherited():
    global CLIENT, GOT
    with tensorlane.local() as CLIENT:
        stored = CLIENT.put(np.arange(100_000))
        GOT = CLIENT.get(stored).numpy()
        sessions = CLIENT.status().sessions
        with multiprocessing.get_context("fork").Pool(3) as pool:
            answers = pool.map(_forked, range(12), chunksize=1)
            assert CLIENT.status().sessions > sessions
        assert [total for _, total, _ in answers] == [10 * index for index in range(12)]
        assert all(pid != os.getpid() and seven == 7 for pid, _, seven in answers)
        until("the children's sessions are gone", lambda: CLIENT.status().sessions == sessions)
        # What the parent holds is still its own.
        assert stored.held and CLIENT.get(stored).numpy()[-1] == 99_999
        assert CLIENT.status().leases == 2
        GOT = None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_is_refused_a_reservation_of_its_parent_who_seals_it(client):
    reservation, code = client.empty(3, "int64"), 1
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call in (lambda: reservation.array, reservation.seal):
                try:
                    call()
                except tensorlane.Error as error:
                    refused += "forked" in str(error)
            code = 0 if refused == 2 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    reservation.array[:] = range(3)
    with reservation.seal() as stored:
        assert client.get(stored).numpy().tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_closes_the_client_of_its_parent_for_itself_alone():
    with tensorlane.local() as client:
        child, code = os.fork(), 1
        if child == 0:
            try:
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert client.get(client.put(np.arange(3))).numpy().tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_view_of_a_child_stays_good_when_its_parent_ends():
    with tensorlane.local() as client:
        script = """
import os, sys, numpy, tensorlane
client = tensorlane.connect()
shown = client.get(client.put(numpy.arange(100_000))).numpy()
reader, writer = os.pipe()
if os.fork():
    os._exit(0)
os.close(writer)
sys.stdin.read()
print(shown[99_999])
"""
        process = python(script, TENSORLANE_SOCKETS=client.directory)
        assert said(process, "") == "99999\n"


FORKED_IN_A_THREAD = """
import os, threading, warnings, numpy, tensorlane
warnings.simplefilter("ignore")
client = tensorlane.connect()
stored = client.put(numpy.arange(100_000))
shown, over, ends = client.get(stored).numpy(), threading.Event(), []

def get():
    while not over.is_set():
        assert client.get(stored.reference).numpy()[9] == 9

def fork():
    for _ in range(20):
        child, code = os.fork(), 1
        if child == 0:
            try:
                own = client.put(numpy.full(10, os.getpid()))
                assert client.get(own).numpy()[9] == os.getpid()
                assert client.get(stored.reference).numpy()[8] == 8 and shown[7] == 7
                code = 0
            finally:
                os._exit(code)
        ends.append(os.waitpid(child, 0)[1])

getting = [threading.Thread(target=get) for _ in range(2)]
forking = threading.Thread(target=fork)
for thread in [*getting, forking]:
    thread.start()
forking.join()
over.set()
for thread in getting:
    thread.join()
print(ends == [0] * 20, client.get(stored).numpy()[99_999])
"""


def test_children_that_a_thread_forks_while_others_get_have_connections_of_their_own():
    with tensorlane.local() as client:
        assert said(python(FORKED_IN_A_THREAD, TENSORLANE_SOCKETS=client.directory)) == "True 99999\n"
        until("nothing is left of any of them", lambda: (client.status().sessions, client.status().tensors) == (1, 0))


REPLACING = """
import os, pickle, sys, numpy, tensorlane
client = tensorlane.connect()
stored = client.put(numpy.arange(100_000))
shown = client.get(stored).numpy()
here, there = os.pipe()
if os.fork() == 0:
    os.set_inheritable(there, True)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], pickle.dumps(stored.reference).hex(), str(there)])
os.close(there)
assert os.read(here, 1) == b"1" and shown[7] == 7
"""

REPLACED = """
import os, pickle, sys, tensorlane
inherited = []
for number in os.listdir("/proc/self/fd"):
    try:
        inherited.append(os.readlink("/proc/self/fd/" + number))
    except FileNotFoundError:
        pass  # That of the directory itself.
with open("/proc/self/maps") as maps:
    inherited += maps.read().split("\\n")
print([one for one in inherited if "memfd" in one or "socket:" in one])
with tensorlane.connect() as client:
    print(client.get(pickle.loads(bytes.fromhex(sys.argv[1]))).numpy().sum(), flush=True)
os.write(int(sys.argv[2]), b"1")
sys.stdin.read()
"""


def test_a_child_that_becomes_another_program_keeps_nothing_of_its_parent_and_connects_anew():
    with tensorlane.local() as client:
        process = python(REPLACING, REPLACED, TENSORLANE_SOCKETS=client.directory)
        assert [process.stdout.readline() for _ in range(2)] == ["[]\n", "4999950000\n"]
        # Its parent ends, and it still runs: what it was before would keep the bytes.
        until("they are free", lambda: (client.status().tensors, client.status().retired_bytes) == (0, 0))
        assert process.wait(60) == 0 and said(process, "") == ""


def _spawned(reference, directory: str) -> int:
    with tensorlane.connect(directory) as client:
        return int(client.get(reference).numpy().sum())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_that_inherits_no_client_gets_by_reference(client, method):
    with client.put(np.arange(4)) as stored, multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_spawned, (stored.reference, client.directory)) == 6


class Numbers(torch.utils.data.Dataset):
    def __init__(self, client, references):
        self.client, self.references = client, references

    def __len__(self):
        return len(self.references)

    def __getitem__(self, index):
        return self.client.get(self.references[index]).torch()


@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_data_loader_get_with_the_client_of_their_parent(client):
    stored = client.put_many(torch.full((3,), float(number)) for number in range(8))
    numbers = Numbers(client, [one.reference for one in stored])
    loader = torch.utils.data.DataLoader(numbers, batch_size=4, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(2):
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_a_killed_process_held_is_freed():
    with tensorlane.local() as client:
        script = """
import sys, numpy, tensorlane
held = tensorlane.connect().put(numpy.zeros(1000))
print("held", flush=True)
sys.stdin.read()
"""
        process = python(script, TENSORLANE_SOCKETS=client.directory)
        assert process.stdout.readline() == "held\n"
        assert client.status().tensors == 1
        process.kill()
        process.communicate()
        until("it is freed", lambda: client.status().tensors == 0)


def test_a_local_sidecar_ends_with_its_context_and_leaves_nothing():
    with tensorlane.local(export=True) as client:
        root = os.path.dirname(client.directory)
        assert os.environ["TENSORLANE_SOCKETS"] == client.directory
        with tensorlane.connect() as other:
            assert other.peer == client.peer == "local"
    assert not os.path.exists(root) and "TENSORLANE_SOCKETS" not in os.environ
    with pytest.raises(tensorlane.Error):
        tensorlane.connect(client.directory)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_local_sidecar_ends_with_its_program_however_that_ends(end):
    script = """
import sys, tensorlane
with tensorlane.local() as client:
    print(client.directory, flush=True)
    sys.stdin.read()
"""
    process = python(script)
    directory = process.stdout.readline().strip()
    assert os.path.exists(directory)
    process.send_signal(end)
    process.communicate()
    until("its directory is removed", lambda: not os.path.exists(os.path.dirname(directory)))


def test_a_sidecar_that_no_context_spans_is_used_until_its_program_ends():
    script = """
import numpy, tensorlane
sidecar = tensorlane.Sidecar(arena="64Mi")
client = tensorlane.connect(sidecar.directory)
stored = client.put(numpy.arange(3))
print(sidecar.directory, client.get(stored).numpy().sum())
"""
    directory, total = said(python(script)).split()
    assert total == "3"
    until("its directory is removed", lambda: not os.path.exists(os.path.dirname(directory)))


# Nobody kills the sidecar meanwhile: it ends because it was told to.
FORKED = """
import os, sys, time, numpy, tensorlane
sys.modules["tensorlane.local"]._PATIENCE = 600.0
context = tensorlane.local()
client = context.__enter__()
stored = client.put(numpy.arange(1000))
here, there = os.pipe()
child = os.fork()
if child == 0:
    client.get(stored.reference)
    os.write(there, b"1")
    time.sleep(600)
assert os.read(here, 1) == b"1"
print(client.directory, child, flush=True)
sys.stdin.readline()
context.__exit__(None, None, None)
print("ended", flush=True)
"""


@contextlib.contextmanager
def forked():
    """A program with a local sidecar, and a child of it that lives and has used it: the program, and the sidecar's root."""
    process = python(FORKED)
    directory, child = process.stdout.readline().split()
    try:
        yield process, os.path.dirname(directory)
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.communicate()


def test_a_local_sidecar_ends_with_its_context_while_a_forked_child_lives():
    with forked() as (process, root):
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n" and not os.path.exists(root)
        until("its sidecar has ended", lambda: not sidecars_of(root))


def test_a_local_sidecar_ends_with_its_killed_program_while_a_forked_child_lives():
    with forked() as (process, root):
        assert sidecars_of(root)
        process.kill()
        process.wait()
        until("its directory is removed", lambda: not os.path.exists(root))
        until("its sidecar has ended", lambda: not sidecars_of(root))


def sidecars_of(root: str) -> list[str]:
    """Processes whose environment names the directory of a sidecar."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as environment, open(f"/proc/{process}/stat") as stat:
                if f"TENSORLANE_SOCKETS_DIRECTORY={root}".encode() in environment.read() and stat.read().split()[2] != "Z":
                    found.append(process)
        except OSError:
            pass  # It has just ended.
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_that_leaves_the_context_ends_no_sidecar():
    with tensorlane.Sidecar() as sidecar:
        child = os.fork()
        if child == 0:
            try:
                sidecar.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with tensorlane.connect(sidecar.directory) as client:
            client.put(np.arange(3)).release()


def test_a_sidecar_without_a_shell_leaves_no_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TENSORLANE_BIN_DIR", os.path.dirname(program("tensorlane-sidecar")))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        tensorlane.Sidecar()
    assert not os.listdir(tmp_path)


def test_a_local_sidecar_that_cannot_start_says_why():
    with pytest.raises(tensorlane.Unavailable, match="arena.size"):
        tensorlane.Sidecar(arena="nonsense")


def test_a_program_that_is_not_there_is_named_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORLANE_BIN_DIR", str(tmp_path))
    with pytest.raises(tensorlane.Error, match="TENSORLANE_BIN_DIR") as caught:
        tensorlane.Sidecar()
    assert str(tmp_path) in str(caught.value)


def test_the_command_comes_with_the_package(client):
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="tensorlane")
    assert script.load().__module__ == "tensorlane.__main__"
    with client.put(np.arange(3), "by/command"):
        listed = subprocess.run(
            [sys.executable, "-m", "tensorlane", "--sockets", client.directory, "ls"], capture_output=True, text=True, check=True
        )
        assert "by/command" in listed.stdout
        client.unname("by/command")


FREE_THREADED = """
import sysconfig
sysconfig.get_config_var = lambda name: 1
try:
    import tensorlane
except ImportError as error:
    print(error)
"""


def test_a_free_threaded_python_is_refused_by_name():
    assert "does not support free-threaded Python" in said(python(FREE_THREADED))
