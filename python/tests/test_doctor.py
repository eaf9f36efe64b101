"""`tensorlane.doctor()`: what it finds with a sidecar, and what it says is missing without one."""

from __future__ import annotations

import numpy as np
from conftest import until

import tensorlane


def test_with_a_sidecar_it_tells_versions_peers_and_the_way_of_a_tensor_and_leaves_nothing(alone, capsys):
    tensors = alone.status().tensors
    found = tensorlane.doctor(alone.directory)
    assert found["sidecar"]["peer"] == "local" and found["sidecar"]["version"] == alone.status().version
    assert [(peer["name"], peer["state"]) for peer in found["peers"]] == [("local", "self")]
    assert found["put_and_get"] == "local" and found["packages"]["numpy"] == np.__version__
    assert found["shared_memory"]["works"] and found["socket"]["by"] == "the argument"
    assert found["missing"] == []
    until("what it put is gone", lambda: alone.status().tensors <= tensors)
    told = capsys.readouterr().out
    for word in ("peer local of exchange", f"numpy {np.__version__}", "missing: nothing"):
        assert word in told


def test_without_a_sidecar_it_says_where_it_looked_and_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TENSORLANE_SOCKETS", str(tmp_path))
    found = tensorlane.doctor(quiet=True)
    assert capsys.readouterr().out == ""
    assert (found["sidecar"], found["peers"], found["put_and_get"]) == (None, [], None)
    assert found["socket"] == {"directory": str(tmp_path), "by": "TENSORLANE_SOCKETS", "path": f"{tmp_path}/session.sock", "there": False}
    assert found["environment"]["TENSORLANE_SOCKETS"] == str(tmp_path)
    (missing,) = found["missing"]
    for word in (str(tmp_path), "tensorlane.dev/inject", "tensorlane.local()"):
        assert word in missing


def test_a_socket_that_nobody_serves_and_programs_that_are_not_there_are_missing(tmp_path, monkeypatch, capsys):
    (tmp_path / "session.sock").touch()
    monkeypatch.setenv("TENSORLANE_BIN_DIR", str(tmp_path))
    missing = " ".join(tensorlane.doctor(tmp_path)["missing"])
    for word in (f"the sidecar at {tmp_path}/session.sock failed", f"no program {tmp_path}/tensorlane-sidecar", "TENSORLANE_BIN_DIR"):
        assert word in missing
    assert "missing: the sidecar at" in capsys.readouterr().out
