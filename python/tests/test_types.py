"""Types: the package checks, the stubs are what the native half has, and programs of strangers are checked by them."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import tensorlane

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"

# What mypy compares nowhere: buffers before Python 3.12 have no method, and modules of pyo3 list their names.
UNSEEN = r"""
tensorlane\._tensorlane\.\w+\.__(release_)?buffer__
tensorlane\._tensorlane\.__all__
"""


def checked(*arguments: str, cwd: Path) -> str:
    """Output of a module of mypy in an empty directory, where no sources hide the installed package."""
    process = subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, capture_output=True, text=True)
    return f"{process.returncode}: {process.stdout}{process.stderr}"


def test_the_package_is_typed_and_its_types_are_right(tmp_path):
    assert (Path(tensorlane.__file__).parent / "py.typed").exists()
    assert checked("mypy", "--config-file", str(SETTINGS), "-p", "tensorlane", cwd=tmp_path).startswith("0: ")


def test_the_stubs_are_what_the_native_half_has(tmp_path):
    unseen = tmp_path / "unseen"
    unseen.write_text(UNSEEN)
    told = checked("mypy.stubtest", "--allowlist", str(unseen), "--ignore-unused-allowlist", "tensorlane._tensorlane", cwd=tmp_path)
    assert told.startswith("0: "), told


PROGRAM = """
import asyncio
import numpy
import tensorlane
import tensorlane.aio

with tensorlane.local() as client:
    stored = client.put(numpy.arange(3), "a")
    reveal_type(stored)
    reveal_type(client.get_many(["a"]))
    reveal_type(client.names())
    client.put(numpy.arange(3), nmae="a")

async def main() -> None:
    async with await tensorlane.aio.connect() as client:
        reveal_type(await client.names("a/"))
        reveal_type(await client.put(numpy.arange(3)))
        await client.put(numpy.arange(3), nmae="a")
        await client.get("a", nmae="a")
"""


def test_a_program_is_checked_against_the_package_also_where_it_awaits(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    told = checked("mypy", "--strict", "program.py", cwd=tmp_path)
    assert told.count('Unexpected keyword argument "nmae"') == 3, told
    assert told.count("dict[str, tensorlane._tensorlane.Reference]") == 2, told
    assert told.count("tensorlane._tensorlane.Stored\"") == 2, told


def test_every_public_name_is_documented_and_its_parameters_have_types():
    for module in ("tensorlane", "tensorlane.aio", "tensorlane.tensordict", "tensorlane.vllm"):
        for name, value in vars(importlib.import_module(module)).items():
            if name.startswith("_") or not getattr(value, "__module__", "").startswith("tensorlane") or name in ("P", "R"):
                continue
            assert inspect.getdoc(value), name
            if inspect.isfunction(value):
                hints = inspect.get_annotations(value)
                assert set(inspect.signature(value).parameters) <= set(hints) and "return" in hints, name
    assert all(hasattr(tensorlane, name) for name in tensorlane.__all__)


