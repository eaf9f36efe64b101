"""Ends that the bench asks: processes in a node, or here, that answer lines of JSON."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Iterator

import nodes

_ENDS = Path(__file__).resolve().parent / "ends"
_PATIENCE = 180.0
_END = 10.0
_SAID = 400
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
# A namespace has interfaces of its own, which some look up in /sys.
_IN_NODE = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "in-node"]
_QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class Failed(Exception):
    """An end that did not start or answer: the message is what it said."""


class End:
    """A program of `ends`, in a process of its own that ends with its input."""

    def __init__(
        self,
        program: str,
        *arguments: str,
        python: str | Path = sys.executable,
        node: nodes.Node | None = None,
        core: int | None = None,
        environment: dict[str, str] | None = None,
    ):
        self._begin(program, [str(python), str(_ENDS / f"{program}.py"), *arguments], node, core, environment or {})

    @classmethod
    def of_program(cls, name: str, command: list[str], *, core: int | None = None) -> End:
        """End by another program that answers so."""
        end = cls.__new__(cls)
        end._begin(name, command, None, core, {})
        return end

    def _begin(
        self, name: str, command: list[str], node: nodes.Node | None, core: int | None, environment: dict[str, str]
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()
        self._rest = b""
        # The directory of the program is where it finds its own modules, and where processes find them that it starts.
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
        with node.inside() if node else nullcontext(), on_core(core):
            self._process = subprocess.Popen(
                [*(_IN_NODE if node else []), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**kept, **_QUIET, "PYTHONPATH": str(_ENDS), **environment},
                preexec_fn=nodes.end_with_parent,
                start_new_session=True,
            )
        self.process_id = self._process.pid

    def ready(self) -> End:
        """The end, once it has said that it is ready."""
        self.hear()
        return self

    def ask(self, what: str, **given: Any) -> Any:
        """Answer to a question."""
        self.tell(what, **given)
        return self.hear()

    def tell(self, what: str, **given: Any) -> None:
        """Asks, for `hear` to wait for the answer."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": what, **given}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Failed(f"{self.name} has ended: {self.said()}") from None

    def hear(self, patience: float = _PATIENCE) -> Any:
        """The next answer."""
        assert self._process.stdout
        until = time.monotonic() + patience
        while b"\n" not in self._rest:
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise Failed(f"{self.name} did not answer in {patience:.0f} s: {self.said()}")
            more = os.read(self._process.stdout.fileno(), 1 << 20)
            if not more:
                raise Failed(f"{self.name} has ended: {self.said()}")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        return answer["got"]

    def said(self) -> str:
        """The last error that it said on its standard error, or the last line."""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        return ([*lines, *errors] or ["nothing"])[-1][-_SAID:]

    def close(self) -> None:
        """Ends it, by the end of its input or at last by force, and all that it started and left."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.close()
        except OSError:
            pass
        until = time.monotonic() + _END
        # It is not collected before its group is ended, so that the number is still its own.
        while not os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOWAIT | os.WNOHANG) and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(self.process_id, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes that are started meanwhile stay on that core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
