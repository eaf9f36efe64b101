"""Local sidecars that join one exchange by a peers file, in one program and in several."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorlane
import tensorlane.aio
from conftest import PATIENCE, python, said, until
from tensorlane import peersfile

A = '{name: a, addresses: ["127.1.1.1:9421"], fingerprints: ["sha256:0f"]}'
B = '{name: b, addresses: ["127.1.1.2:9421"], fingerprints: ["sha256:1f"]}'

FILES = {
    "nothing": ("", f"peers:\n  - {A}\n", "peers: []\n"),
    "comments alone": ("# who is here", f"# who is here\npeers:\n  - {A}\n", "# who is here\npeers: []\n"),
    "nobody": ("peers: []\n", f"peers:\n  - {A}\n", "peers: []\n"),
    "nobody, with a comment": ("# top\npeers:  []  # none yet\n# end\n", f"# top\npeers:  # none yet\n  - {A}\n# end\n", "# top\npeers: []  # none yet\n# end\n"),
    "a peer in a line": (f"peers: # all\n    # the first\n    - {B}\n", f"peers: # all\n    - {A}\n    # the first\n    - {B}\n", None),
    "a block without indent": (
        "---\npeers:\n- name: b\n  addresses:\n    - 127.1.1.2:9421\n  fingerprints: ['sha256:1f']\n",
        f"---\npeers:\n- {A}\n- name: b\n  addresses:\n    - 127.1.1.2:9421\n  fingerprints: ['sha256:1f']\n",
        None,
    ),
    "a block whose dash is alone": (
        "peers:\n  -\n    name: b\n    addresses:\n      - 127.1.1.2:9421\n    fingerprints:\n      - sha256:1f\n",
        f"peers:\n  - {A}\n  -\n    name: b\n    addresses:\n      - 127.1.1.2:9421\n    fingerprints:\n      - sha256:1f\n",
        None,
    ),
}


@pytest.mark.parametrize("before, with_a, after", FILES.values(), ids=FILES)
def test_a_peer_that_comes_and_goes_leaves_the_rest_as_it_was(before, with_a, after):
    assert peersfile.with_peer(before, A) == with_a
    assert peersfile.without_peer(with_a, A) == (before if after is None else after)
    assert peersfile.without_peer(with_a, B.replace("1f", "2f")) == with_a


@pytest.mark.parametrize("name", ["a", '"a"', "'a'"])
@pytest.mark.parametrize("form", ["- {{name: {0}, addresses: []}}", "- name: {0}", "- addresses: []\n    name: {0} # here"])
def test_a_name_that_is_there_in_any_form_is_refused(name, form):
    with pytest.raises(ValueError, match="has a peer a already"):
        peersfile.with_peer(f"peers:\n  {form.format(name)}\n", A)
    assert peersfile.with_peer(f"peers:\n  # - {{name: a}}\n  {form.format('ab')}\n", A).count("name: a,") == 1


@pytest.mark.parametrize("text", ["peers: [{name: b}]\n", '{"peers": []}\n', "others: []\n", "peers: null\n", "peers:\n  [{name: b}]\n"])
def test_a_file_of_another_form_is_refused_and_says_which(text):
    with pytest.raises(ValueError, match="no line `peers:`"):
        peersfile.with_peer(text, A)


WRITER = """
import sys
from tensorlane import peersfile
path, number = sys.argv[1:]
def peer(turn): return f'{{name: p{number}-{turn}, addresses: [], fingerprints: ["sha256:{number}"]}}'
sys.stdin.readline()
for turn in range(30):
    peersfile.join(path, peer(turn))
    if turn % 3:
        peersfile.leave(path, peer(turn))
"""


def test_processes_that_write_the_file_at_once_lose_nothing(tmp_path):
    path = tmp_path / "peers.yaml"
    path.write_text("# kept\npeers: []  # nobody\n")
    path.chmod(0o640)
    writers = [python(WRITER, str(path), str(number)) for number in range(5)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        said(writer)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# kept", "peers:  # nobody"]
    expected = {f"p{number}-{turn}" for number in range(5) for turn in range(0, 30, 3)}
    assert sorted(line.split(",")[0].removeprefix("  - {name: ") for line in lines[2:]) == sorted(expected)
    assert os.listdir(tmp_path) == ["peers.yaml"] and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_sidecar_that_is_added_while_its_directory_is_locked_waits_and_gives_up(tmp_path, monkeypatch):
    monkeypatch.setattr(peersfile, "_PATIENCE", 0.05)
    with peersfile._locked(str(tmp_path)), pytest.raises(TimeoutError, match="is locked"):
        peersfile.join(str(tmp_path / "peers.yaml"), A)
    assert os.listdir(tmp_path) == []


def local(path, **options):
    return tensorlane.local(arena="64Mi", peers=path, **options)


def test_local_sidecars_of_one_program_are_one_exchange(tmp_path):
    path = tmp_path / "peers.yaml"
    path.write_text("# ours\npeers: []\n")
    with local(path, peer="trainer") as trainer, local(path) as rollout:
        assert trainer.peer == "trainer" and rollout.peer.startswith("local-")
        assert path.read_text().count("fingerprints") == 2
        with trainer.put(np.arange(100_000), "weights") as stored:
            got = rollout.get("weights", peer="trainer", wait=20)
            assert got.route.startswith("tcp") and got.numpy()[-1] == 99_999
            ticket = stored.reference.ticket()
        trainer.unname("weights")
        assert rollout.redeem(ticket).shape == (100_000,)
    assert path.read_text() == "# ours\npeers: []\n" and os.listdir(tmp_path) == ["peers.yaml"]


def mapped_of(address: int) -> str:
    """Line of this process's maps that has an address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split(" ", 1)[0].split("-"))
            if begin <= address < end:
                return line
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_a_tensor_of_another_sidecar_of_the_node_is_mapped_and_takes_no_memory_of_the_own_one(tmp_path):
    node = tmp_path / "node"
    node.mkdir()
    settings = {"TENSORLANE_NODE_DIRECTORY": str(node)}
    array = np.arange(4 << 20)
    with local(tmp_path / "peers.yaml", peer="owner", settings=settings) as owner:
        with local(tmp_path / "peers.yaml", peer="reader", settings=settings) as reader, owner.put(array, "weights") as stored:
            reader.get("weights", peer="owner", wait=20).release()
            before = reader.status()
            got, again = reader.get(stored, require="zero_copy"), reader.get(stored, require="same_node")
            shown = got.numpy()
            assert got.route.startswith("shm") and not shown.flags.owndata and not shown.flags.writeable
            assert shown.ctypes.data == again.numpy().ctypes.data, "one map for both"
            assert (shown == array).all()
            line = mapped_of(shown.ctypes.data)
            assert " r--s " in line and "memfd:" in line, line
            assert owner.get(stored).numpy()[-1] == shown[-1]
            after = reader.status()
            assert (after.free_bytes, after.sealed_bytes) == (before.free_bytes, before.sealed_bytes)
            assert before.arena_bytes - after.free_bytes < array.nbytes, "it never had room for it"
            part = reader.get(stored.reference[5:7])
            assert part.route.startswith("shm") and part.numpy().tolist() == [5, 6]
            # Its bytes stay for as long as somebody maps them.
            owner.unname("weights")
            stored.release()
            del got, again, part
            assert shown[-1] == array[-1] and owner.status().tensors == 1
            del shown
            until("it is freed", lambda: owner.status().tensors == 0)


JOINED = """
import sys, tensorlane
with tensorlane.local(arena="64Mi", peers=sys.argv[1], peer="second") as client:
    total = int(client.get("numbers", wait=20).numpy().sum())
    with client.put(client.get("numbers").numpy() * 2, "doubled"):
        print(total, flush=True)
        sys.stdin.readline()
"""


def test_a_second_process_joins_and_leaves(tmp_path):
    path = tmp_path / "new.yaml"
    with local(str(path)) as client:
        stored = client.put(np.arange(1000), "numbers")
        second = python(JOINED, str(path))
        assert second.stdout.readline() == "499500\n"
        assert client.get("doubled", peer="second", wait=20).numpy()[3] == 6
        said(second, "done\n")
        until("the line of the second is gone", lambda: "second" not in path.read_text())
        until("the second has left", lambda: all(peer.state in ("self", "left") for peer in client.peers()))
        stored.release()
    assert path.read_text() == "peers: []\n"


KILLED = """
import sys, tensorlane
with tensorlane.local(arena="64Mi", peers=sys.argv[1], peer="second"):
    print("joined", flush=True)
    sys.stdin.readline()
"""


def test_the_line_of_a_program_that_was_killed_goes_with_its_sidecar(tmp_path):
    path = tmp_path / "peers.yaml"
    second = python(KILLED, str(path))
    assert second.stdout.readline() == "joined\n" and "second" in path.read_text()
    second.send_signal(signal.SIGKILL)
    second.communicate(timeout=60)
    until("its line is gone", lambda: path.read_text() == "peers: []\n", patience=60)


def test_what_cannot_be_joined_is_refused_and_leaves_nothing(tmp_path):
    path = tmp_path / "peers.yaml"
    with local(path, peer="one"):
        before = path.read_text()
        with pytest.raises(tensorlane.Invalid, match="has a peer one already"), local(path, peer="one"):
            pass
        assert path.read_text() == before
    with pytest.raises(tensorlane.Invalid, match="cannot be joined.*No such file"), local(tmp_path / "none" / "peers.yaml"):
        pass
    path.write_text("peers: [{name: b}]\n")
    with pytest.raises(tensorlane.Invalid, match="no line `peers:`"), local(path):
        pass
    with pytest.raises(tensorlane.Invalid, match="cannot be a peer"), local(path, peer="no name!"):
        pass
    assert path.read_text() == "peers: [{name: b}]\n" and os.listdir(tmp_path) == ["peers.yaml"]


def test_a_sidecar_that_does_not_start_is_taken_out_again(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"TENSORLANE_PEERS_LISTEN": f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(tensorlane.Unavailable, match="ended with exit code"), local(tmp_path / "peers.yaml", settings=settings):
            pass
    assert (tmp_path / "peers.yaml").read_text() == "peers: []\n"


def test_a_file_that_is_a_link_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "peers.yaml"
    link.symlink_to(tmp_path / "real" / "peers.yaml")
    with local(link):
        assert 'name: "local-' in (tmp_path / "real" / "peers.yaml").read_text()
    assert link.is_symlink() and os.listdir(tmp_path / "real") == ["peers.yaml"]


def test_an_awaited_local_sidecar_joins_too(tmp_path):
    path = tmp_path / "peers.yaml"

    async def work():
        async with tensorlane.aio.local(arena="64Mi", peers=path, peer="awaited") as client:
            with local(path) as other:
                stored = other.put(np.arange(3), "here")
                got = (await client.get("here", wait=20)).numpy().tolist()
                stored.release()
                return got

    assert asyncio.run(work()) == [0, 1, 2]
    assert path.read_text() == "peers: []\n"

def test_a_get_waits_for_a_peer_that_has_not_joined_yet(tmp_path):
    path = tmp_path / "peers.yaml"
    admin = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.9:9420"

    def waits() -> bool:
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=PATIENCE) as told:
            return "sidecar_waiting_bytes 0\n" not in told.read().decode()

    settings = {"TENSORLANE_ADMIN_LISTEN": admin}
    with local(path, peer="first", settings=settings) as first, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.get, "weights", peer="second", wait=PATIENCE)
        until("it waits", waits)
        with local(path, peer="second") as second, second.put(np.arange(1000), "weights"):
            assert waiting.result(PATIENCE).numpy()[-1] == 999
            second.unname("weights")
        with pytest.raises(tensorlane.NotFound) as caught:
            first.get("weights", peer="nobody", wait=0.2)
        assert caught.value.reason == "PEER_UNKNOWN" and "client.peers()" in caught.value.remedy
