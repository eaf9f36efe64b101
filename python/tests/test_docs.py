"""The page docs/python.md: its blocks run in order and as they stand, and give and print what the page shows."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import numpy
import pytest
import safetensors.torch
import torch

import tensorlane
import tensorlane.aio
from conftest import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"

# Blocks of Python in other sections run here. These want what is not here, or are run by other tests. Those of the shell install.
ELSEWHERE = {
    "Tensors on a GPU": "a GPU: python/tests/gpu",
    "TorchRL": "TorchRL, which wants another tensordict: python/tests/rl",
    "Ray": "a program by itself, and Ray: test_ray.py",
    "vLLM's message queue": "a process for each of five ends: test_vllm.py",
    "Over gRPC": "a program by itself: test_grpc.py",
    "A channel over gRPC": "a program by itself: test_grpc.py",
}


@dataclass
class Block:
    """A fenced block of the page."""

    section: str
    kind: str
    code: str
    line: int


def blocks() -> list[Block]:
    found, section, lines = [], "", iter(enumerate(PAGE.read_text().splitlines(), 1))
    for number, line in lines:
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("```"):
            code = []
            for _, inside in lines:
                if inside == "```":
                    break
                code.append(inside)
            found.append(Block(section, line[3:], "\n".join(code) + "\n", number))
    return found


class Page:
    """The blocks that are left, and the one namespace in which they run."""

    def __init__(self) -> None:
        self.left = [block for block in blocks() if block.kind != "sh" and block.section not in ELSEWHERE]
        self.names: dict[str, Any] = {"__name__": "page"}

    def take(self, section: str, kind: str) -> Block:
        """The next block, which is of that section and kind."""
        block = self.left.pop(0)
        assert (block.section, block.kind) == (section, kind), f"line {block.line} of the page"
        return block

    def text(self, section: str) -> str:
        return self.take(section, "text").code

    def statements(self, section: str, **given: Any) -> list[ast.stmt]:
        """Statements of the next block; `given` are the names that it takes for granted."""
        self.names |= given
        block = self.take(section, "python")
        tree = ast.parse(block.code)
        return ast.increment_lineno(tree, block.line).body

    def run(self, section: str, **given: Any) -> list[Any]:
        """Runs the next block, and gives the values of its expressions; what it prints is what its comments say."""
        printed = re.findall(r"^\s*print\(.*\) +# (.*)$", self.left[0].code, re.MULTILINE)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            done = [(statement, self.done(statement)) for statement in self.statements(section, **given)]
        assert not printed or out.getvalue().splitlines() == printed
        return [value for statement, value in done if isinstance(statement, ast.Expr)]

    def done(self, statement: ast.stmt, names: dict[str, Any] | None = None) -> Any:
        """Runs a statement, and gives the value of one that is an expression."""
        names = self.names if names is None else names
        if isinstance(statement, ast.Expr):
            return eval(compile(ast.Expression(statement.value), str(PAGE), "eval"), names)
        exec(compile(ast.Module([statement], []), str(PAGE), "exec"), names)

    def ends(self, *statements: ast.stmt) -> list[dict[str, Any]]:
        """Runs statements at once, each with names of its own, as processes have them; gives these names."""
        each = [dict(self.names) for _ in statements]
        with ThreadPoolExecutor(len(statements)) as pool:
            for running in [pool.submit(self.done, *one) for one in zip(statements, each)]:
                running.result()
        return each


def said_by(refused: Callable[[], object]) -> str:
    """The text of the error of a call."""
    with pytest.raises(tensorlane.Error) as caught:
        refused()
    return f"{caught.value}\n"


class Seen(Exception):
    """All that the page shows was printed."""


class StandInForRpc:
    """A fake of torch.distributed.rpc: calls in this process, with arguments that were pickled. The real one: test_examples.py."""

    def rpc_sync(self, worker: str, function: Callable, args: tuple) -> Any:
        return function(*pickle.loads(pickle.dumps(args)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded", "ignore:This DataLoader will create")
def test_the_page_is_what_happens(tmp_path, monkeypatch):
    """Page as a single walk, since its blocks build on each other."""
    monkeypatch.chdir(tmp_path)
    page = Page()
    page.run("Install")
    join(page, tmp_path)
    with tensorlane.local(arena="2Gi", export=True):
        tensors(page)
        names(page)
        sets(page)
        channels(page)
        pipes(page)
        asynchronous(page)
        page.names["client"].close()
    doctor(page, tmp_path)
    assert page.left == []


def join(page: Page, directory: Path) -> None:
    """Two local sidecars of one exchange; the first one is there until the second has ended."""
    notebook, second = page.statements("Install", weights=numpy.arange(5))
    for word in (word for end in (notebook, second) for word in ast.walk(end)):
        if isinstance(word, ast.Constant) and word.value == "/tmp/ours.yaml":
            word.value = str(directory / "ours.yaml")
    notebook.body += ast.parse("meanwhile()").body
    page.names["meanwhile"] = lambda: page.ends(second)
    (mine,) = page.ends(notebook)
    assert mine["stored"].reference.peer == "trainer"


def tensors(page: Page) -> None:
    values = page.run("Put and get")
    assert (values[-1] == 1).all() and (page.names["weights"] == 1).all() and page.names["weights"].shape == (1024, 1024)
    page.run("Put and get")
    client = page.names["client"]
    assert (client.get("run/7/noise").numpy() == 1).all()
    client.unname("run/7/noise")

    layer = {"layer.weight": torch.randn(3, 4)}
    safetensors.torch.save_file(layer, "model.safetensors")
    _, got, written = page.run("Files")
    assert (got == layer["layer.weight"]).all() and written == ["layer.weight"]
    assert (safetensors.torch.load_file("copy.safetensors")["layer.weight"] == layer["layer.weight"]).all()
    with pytest.raises(tensorlane.Error):
        page.names["client"].get_file("models/none", "none.safetensors")

    references = [client.put(numpy.arange(number), f"page/{number}").reference for number in range(3)]
    page.run("Arrays that were got", references=references)
    requirement(page)

    client.put(numpy.arange(200), "run/7/weights", keep=False)
    _, named = page.run("Parts")
    assert named.shape == (100,)
    client.unname("run/7/weights")
    for name in ("stored", "part", "rows"):
        del page.names[name]


def requirement(page: Page) -> None:
    """The error of a get that may copy nothing, of a tensor of another peer."""
    peers = Path("required.yaml").absolute()
    with tensorlane.local(arena="64Mi", peers=peers, peer="trainer-0") as owner, tensorlane.local(arena="64Mi", peers=peers) as reader:
        until("the peers are connected", lambda: any(one.state == "connected" for one in reader.peers()))
        with owner.put(numpy.arange(10)) as stored:
            error = said_by(lambda: reader.get(stored.reference, require="zero_copy"))
    # The page breaks the line.
    assert page.text("Arrays that were got").split() == error.split()


def names(page: Page) -> None:
    _, got, listed, _ = page.run("Names, waits, errors", step=numpy.arange(7))
    assert got.shape == (7,) and list(listed) == ["run/7/weights"]
    client = page.names["client"]
    shown = page.left[1].code.splitlines()
    printed: list[str] = []

    def show(*words: str) -> None:
        printed.append(" ".join(words))
        if len(printed) == len(shown):
            raise Seen
        # A trainer that publishes when it is looked at, and when its first version was seen.
        if words in (("synced", ""), ("appeared", "policy")):
            client.publish({"w": numpy.arange(3)}, "policy", keep=1)

    with pytest.raises(Seen):
        page.run("Watching names", print=show)
    assert "\n".join(printed) + "\n" == page.text("Watching names")
    del page.names["print"]
    client.unname(*client.names("policy"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.encoder = torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)


def sets(page: Page) -> None:
    model, replica, tree = Model(), Model(), {"layer": {"weight": numpy.zeros(3)}}
    published, loaded, nested, chosen, first, second = page.run("Sets", model=model, replica=replica, tree=tree)
    assert published.version == loaded == first.version == 1 and second.version == 2
    assert (replica.layer.weight == model.layer.weight).all() and page.names["got"].version == 1
    assert not replica.load_state_dict(nested).missing_keys
    assert set(chosen) == {"encoder.weight", "encoder.bias"}

    client = page.names["client"]
    obs, reward = numpy.full((3, 84, 84, 3), 7, "u1"), numpy.arange(3, dtype="f4")
    corner, _ = page.run("Sets whose rows change", obs=obs, reward=reward)
    assert corner.shape == (2, 1, 1, 3) and page.names["batch"]["next", "reward"].numpy().tolist() == [0, 1, 2]
    replay, first = page.names["replay"], page.names["first"]
    assert (first, replay.version) == (0, page.names["version"] + 1) and replay["next/reward"][7].numpy() == 1.5
    assert not replay["obs"][3:6].numpy().any()
    client.drop_set("replay")

    *_, mapped = page.run("Sets whose rows change", step=lambda rows: rows.float().mean())
    assert mapped == (True, "map") and page.names["loss"] == 0
    client.drop_set("replay")

    replay = client.create_set("replay", 600, {"obs": ("uint8", (84, 84, 3)), "next": {"reward": ("float32", ())}})
    page.run("As a data set of torch", replay=replay, DataLoader=torch.utils.data.DataLoader)
    assert set(page.names["batch"]) == {"obs", "next/reward"} and len(page.names["batch"]["obs"]) == 600 % 256
    client.drop_set("replay")

    (ones,) = page.run("Tensordict", rpc=StandInForRpc(), worker="worker1")
    assert ones.flatten().tolist() == [1] * 5 and page.names["out"]["memmap"][[3, 8]].sum() == 0


def channels(page: Page) -> None:
    client = page.names["client"]
    arrays = {"obs": numpy.arange(6.0), "reward": numpy.arange(2.0)}
    writer, reader = page.statements("Channels", **arrays)
    _, first, second = page.ends(writer, reader, reader)
    for read in (first, second):
        assert read["message"].sequence == 1 and (read["message"].value["obs"].numpy() == arrays["obs"]).all()
        del read["message"]

    with client.channel_writer("nested") as writer, client.channel_reader("nested") as reader:
        code = page.left[0].code
        _, value = page.run("Nested values", writer=writer, reader=reader)
        assert code.splitlines()[-1] == f"# {value}"
        error = said_by(lambda: writer.write({"done": [print, {"a"}]}))
        assert page.text("Nested values") == error
        del value
    with client.channel_writer("objects", pickle=True) as writer, client.channel_reader("objects") as reader:
        writer.write({"tags": {"a"}})
        error = said_by(lambda: reader.read().value)
        assert page.text("Nested values") == error
    page.names.pop("writer"), page.names.pop("reader")


def pipes(page: Page) -> None:
    client = page.names["client"]
    obs, room = numpy.arange(4.0), client.empty(4, "float64")
    room.array[...] = 2
    given = {"batch": numpy.zeros((10, 4)), "obs": obs, "room": room, "stored": client.put(numpy.arange(3))}
    one, other = page.statements("Pipes", **given)
    read, _ = page.ends(one, other)
    assert (given["batch"][7] == obs).all() and read["descriptor"] is None
    assert [bytes(payload) for payload in read["received"].payloads] == [b"plain bytes"]
    del read


def asynchronous(page: Page) -> None:
    page.run("Asyncio")
    statements = page.statements("Asyncio", weights=numpy.arange(5))
    code = compile(ast.Module(statements, []), str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    client = page.names["client"]

    def other_end() -> list[int]:
        with client.connect_pipe("params", wait=20) as pipe:
            pipe.write([numpy.arange(2)])
            read = pipe.read()
            return read.tensors[0].numpy().tolist()

    async def work() -> list[int]:
        async with await tensorlane.aio.connect() as awaited:
            running = asyncio.ensure_future(eval(code, {**page.names, "client": awaited}))
            got = await asyncio.to_thread(other_end)
            assert not running.done()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            return got

    assert asyncio.run(asyncio.wait_for(work(), 60)) == [0, 1, 2, 3, 4]


def doctor(page: Page, directory: Path) -> None:
    """Lines that begin as those of the page."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        tensorlane.doctor(directory)
    shown = page.text("Types, and what is missing")
    begins = [[re.split(r"  |:", line)[0] for line in text.splitlines()] for text in (shown, out.getvalue())]
    assert begins[0] == begins[1]


def test_sections_that_run_elsewhere_are_there():
    sections = {block.section for block in blocks()}
    assert set(ELSEWHERE) <= sections


def ray_tests() -> dict[str, str]:
    """Docstrings of the tests of Ray's transport, by their names."""
    found = {}
    for file in Path(__file__).parent.glob("test_ray*.py"):
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
                found[statement.name.removeprefix("test_")] = ast.get_docstring(statement) or ""
    return found


def test_each_line_of_rays_page_is_named_by_a_test_and_stands_in_the_table():
    """S0.1 to S0.23."""
    lines = [f"S0.{number}" for number in range(1, 24)]
    tests = ray_tests()
    named = {line for told in tests.values() for line in re.findall(r"\bS0\.\d+", told)}
    assert named == set(lines)
    table = [row.split("|") for row in PAGE.read_text().splitlines() if row.startswith("| S0.")]
    assert sorted(re.findall(r"S0\.\d+", " ".join(row[1] for row in table))) == sorted(lines)
    for row in table:
        for name in re.findall(r"`([a-z_]+)…?`", row[3]):
            # Files are named, too.
            assert name.startswith("test_ray_") or any(test.startswith(name) for test in tests), name


def all_tests() -> set[str]:
    """Names of functions in Rust, and of tests here."""
    found = set()
    for crate in ("client", "memory", "proto", "sidecar", "tests"):
        for file in (ROOT / crate).rglob("*.rs"):
            found.update(re.findall(r"\bfn ([a-z0-9_]+)", file.read_text()))
    for file in Path(__file__).parent.glob("test_*.py"):
        found.update(re.findall(r"\bdef test_([a-z0-9_]+)", file.read_text()))
    return found


@pytest.mark.parametrize(("page", "lines"), [("channels.md", ("S1", 37)), ("pipes.md", ("S2", 33))])
def test_each_line_of_channels_and_pipes_stands_in_their_tables_with_tests_that_there_are(page, lines):
    text = (ROOT / "docs" / page).read_text()
    tables = text[text.index("and the tests of it") :]
    seed, last = lines
    stands: list[int] = []
    for row in tables.splitlines():
        if row.startswith(f"| {seed}."):
            for begin, end in re.findall(rf"{seed}\.(\d+)(?: – {seed}\.(\d+))?", row.split("|")[1]):
                stands.extend(range(int(begin), int(end or begin) + 1))
    assert sorted(stands) == list(range(1, last + 1))
    tests = all_tests()
    for name in re.findall(r"`([a-z0-9_…]+)`", tables):
        # Files and settings are named, too.
        if "…" in name or name.count("_") > 3:
            pattern = ".*".join(re.escape(part) for part in name.split("…"))
            assert any(re.fullmatch(pattern, test) for test in tests), name
