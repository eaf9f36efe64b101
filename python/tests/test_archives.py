"""Archives of tensordict, `NAME.tdz`: published, saved, and refused where they are no directory of tensordict in a zip."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack

import tensorlane
from tensorlane import archives
from tensorlane.programs import program
from tensorlane.tensordict import to_tensordict

META = b'{"x": {"device": "cpu", "shape": [4], "dtype": "torch.uint8", "is_nested": false}, "shape": []}'


KEYS = ["obs", ("n\u00e4chste/r", "done")]


@pytest.fixture
def unpacked(tmp_path, monkeypatch) -> Path:
    """Directory of temporary directories, in which nothing is left."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert os.listdir(place) == []


def nested() -> TensorDict:
    return TensorDict({"obs": torch.arange(24.0).reshape(4, 6), "n\u00e4chste/r": {"done": torch.ones(4, 1).bool()}, "label": "kept"}, [4])


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, files: dict[str | zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_an_archive_that_tensordict_saved_is_published(client, name, tmp_path, unpacked):
    saved = nested()
    saved.memmap(tmp_path / "saved.tdz")
    client.publish_file(tmp_path / "saved.tdz", name)
    back = to_tensordict(client.get_set(name))
    assert all(torch.equal(back[key], saved[key]) for key in KEYS) and back["label"] == "kept" and back.batch_size == (4,)


def stack() -> TensorDict:
    return lazy_stack([TensorDict({"a": torch.ones(size)}, [size]) for size in (2, 3)])


@pytest.mark.parametrize("make, keys", [(nested, KEYS), (stack, ["a"])])
def test_an_archive_of_a_set_has_its_directory_and_is_opened_by_tensordict(client, name, tmp_path, make, keys):
    given = make()
    client.publish(given, name)
    assert client.save_set(name, tmp_path / "got.tdz") == client.save_set(name, tmp_path / "got")
    in_directory = {str(path.relative_to(tmp_path / "got")): path.read_bytes() for path in (tmp_path / "got").rglob("*") if path.is_file()}
    assert entries(tmp_path / "got.tdz") == in_directory
    loaded = TensorDict.load_memmap(tmp_path / "got.tdz")
    assert type(loaded) is type(given) and len(loaded) == len(given)
    for one, other in zip(loaded.unbind(0), given.unbind(0)):
        assert all(torch.equal(one[key], other[key]) for key in keys)
    assert sorted(os.listdir(tmp_path)) == ["got", "got.tdz"], "nothing else is left"


@pytest.mark.parametrize("make, keys", [(nested, KEYS), (stack, ["a"])])
def test_the_command_writes_the_archive_that_python_writes_and_each_reads_the_others(client, name, tmp_path, make, keys):
    def command(*words: str) -> None:
        environment = {**os.environ, "TENSORLANE_SOCKETS": client.directory}
        subprocess.run([program("tensorlane"), "set", *words], cwd=tmp_path, env=environment, check=True, timeout=120)

    given = make()
    client.publish(given, name)
    client.save_set(name, tmp_path / "python.tdz")
    command("get", name, "--to", "command.tdz")
    assert entries(tmp_path / "command.tdz") == entries(tmp_path / "python.tdz")
    with zipfile.ZipFile(tmp_path / "command.tdz") as archive:
        assert archive.testzip() is None and all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    command("put", "python.tdz", "--name", f"{name} by the command")
    client.publish_file(tmp_path / "command.tdz", f"{name} by python")
    loaded = TensorDict.load_memmap(tmp_path / "command.tdz")
    for back in (loaded, *(to_tensordict(client.get_set(f"{name} by {whom}")) for whom in ("the command", "python"))):
        assert type(back) is type(given) and len(back) == len(given)
        for one, other in zip(back.unbind(0), given.unbind(0)):
            assert all(torch.equal(one[key], other[key]) for key in keys)


def test_an_archive_that_tensordict_saved_is_put_by_the_command(client, name, tmp_path):
    nested().memmap(tmp_path / "saved.tdz")
    environment = {**os.environ, "TENSORLANE_SOCKETS": client.directory}
    words = [program("tensorlane"), "set", "put", "saved.tdz", "--name", name]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, timeout=120)
    back = to_tensordict(client.get_set(name))
    assert all(torch.equal(back[key], nested()[key]) for key in KEYS) and back["label"] == "kept"


def test_tensors_in_an_archive_lie_stored_at_multiples_of_64_bytes(client, name, tmp_path):
    path = tmp_path / "got.tdz"
    client.publish({f"leaf-{'x' * at}": np.full(at + 1, at, np.uint8) for at in range(70)}, name)
    client.save_set(name, path)
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        tensors = [entry for entry in archive.infolist() if entry.filename.endswith(".memmap")]
    assert len(tensors) == 70
    for entry in tensors:
        lengths = struct.unpack_from("<2H", raw, entry.header_offset + 26)
        start = entry.header_offset + 30 + sum(lengths)
        count = len(entry.filename.removesuffix(".memmap").removeprefix("leaf-"))
        assert start % 64 == 0 and raw[start : start + entry.file_size] == bytes([count]) * (count + 1)


def test_archives_that_other_tools_made_are_published_stored_or_deflated(client, name, tmp_path, unpacked):
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        client.publish_file(packed(tmp_path / "made.tdz", {"x.memmap": b"abcd", "below/": b"", "meta.json": META}, compression), name)
        assert client.get_set(name)["x"].tobytes() == b"abcd"
    with pytest.raises(tensorlane.Unsupported, match="compressed otherwise"):
        client.publish_file(packed(tmp_path / "made.tdz", {"meta.json": META}, zipfile.ZIP_BZIP2), name)


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize("wrong", ["../x.memmap", "/x.memmap", "a/../x.memmap", "./x.memmap", "a//x.memmap", "/".join("a" * 200), "b" * 256, link("x.memmap")])
def test_paths_that_lead_elsewhere_and_links_are_refused_before_anything_is_unpacked(client, name, tmp_path, unpacked, wrong):
    path = packed(tmp_path / "wrong.tdz", {"meta.json": META, wrong: b"abcd"})
    with pytest.raises(tensorlane.Unsupported, match="is no path|is a link"):
        client.publish_file(path, name)
    assert sorted(os.listdir(tmp_path)) == ["temporary", "wrong.tdz"] and name not in client.names()


def test_archives_that_are_no_directory_of_tensordict_are_refused_with_why(client, name, tmp_path, unpacked):
    path = tmp_path / "wrong.tdz"

    def refused(kind: type[tensorlane.Error]) -> str:
        with pytest.raises(kind) as error:
            client.publish_file(path, name)
        return error.value.message

    assert "is no file" in refused(tensorlane.Invalid)
    path.write_bytes(b"no zip")
    assert "is damaged, or no zip" in refused(tensorlane.Invalid)
    packed(path, {"x.memmap": b"abcd"})
    assert "has no meta.json" in refused(tensorlane.Invalid)
    packed(path, {"meta.json": META, "x.memmap": b"abcd", "x.memmap/y": b""})
    assert "stands in a file" in refused(tensorlane.Unsupported)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("meta.json", META)
    assert "stands there twice" in refused(tensorlane.Unsupported)
    raw = packed(path, {"meta.json": META, "x.memmap": b"abcd"}).read_bytes()
    path.write_bytes(raw.replace(b"abcd", b"abce"))
    assert "is damaged" in refused(tensorlane.Invalid)
    for end in range(0, len(raw), 7):
        path.write_bytes(raw[:end])
        assert "is damaged" in refused(tensorlane.Invalid)
    packed(path, {"meta.json": META, "x.memmap": b"abc"})
    assert "x.memmap" in refused(tensorlane.Error), "as of a directory"
    assert name not in client.names()


def test_an_archive_of_more_bytes_than_there_is_room_for_is_refused_before_it_is_unpacked(tmp_path, unpacked):
    path = packed(tmp_path / "bomb.tdz", {"meta.json": META, "x.memmap": bytes(18 << 20)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    with pytest.raises(tensorlane.Invalid) as refused:
        with archives.unpacked(path, 1 << 20, None):
            raise AssertionError("it was unpacked")
    assert refused.value.reason == "TOO_LARGE"
    with archives.unpacked(path, 3 << 20, None) as folder:
        assert os.path.getsize(os.path.join(folder, "x.memmap")) == 18 << 20


def test_a_save_that_fails_leaves_what_was_there_and_nothing_else(client, name, tmp_path):
    path = tmp_path / "got.tdz"
    with pytest.raises(tensorlane.Error):
        client.save_set(name, path)
    assert os.listdir(tmp_path) == []
    client.publish({"x": np.arange(4, dtype=np.uint8)}, name)
    client.save_set(name, path)
    path.chmod(0o600)
    before = path.read_bytes()
    client.publish({"x": np.arange(5, dtype=np.uint8)}, name)
    with pytest.raises(tensorlane.Error, match="exists") as refused:
        client.save_set(name, path)
    assert "replace=True" in refused.value.remedy and path.read_bytes() == before
    client.save_set(name, path, replace=True)
    assert entries(path)["x.memmap"] == bytes(range(5)) and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["got.tdz"]


def test_an_archive_is_saved_where_files_have_no_second_names(client, name, tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError("no second names")

    monkeypatch.setattr(os, "link", refused)
    client.publish({"x": np.arange(4, dtype=np.uint8)}, name)
    client.save_set(name, tmp_path / "got.tdz")
    assert entries(tmp_path / "got.tdz")["x.memmap"] == bytes(range(4)) and os.listdir(tmp_path) == ["got.tdz"]


def test_an_archive_takes_the_place_of_what_a_link_leads_to(client, name, tmp_path):
    (tmp_path / "latest.tdz").symlink_to("first.tdz")
    for count in (4, 5):
        client.publish({"x": np.arange(count, dtype=np.uint8)}, name)
        client.save_set(name, tmp_path / "latest.tdz", replace=True)
        assert entries(tmp_path / "first.tdz")["x.memmap"] == bytes(range(count))
    assert (tmp_path / "latest.tdz").is_symlink() and sorted(os.listdir(tmp_path)) == ["first.tdz", "latest.tdz"]
