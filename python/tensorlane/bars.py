"""Progress bars of long transfers: by tqdm, on a terminal, in no worker, and only once a transfer takes seconds.

The calls draw nothing. One thread of the process looks four times a second at the transfers that may be long, asks how far each is,
and ends when there are none.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import multiprocessing
import os
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Callable, ContextManager, Iterable, Iterator

from ._tensorlane import Core, Reference

VARIABLE = "TENSORLANE_PROGRESS"
"""The variable that turns bars off: `off`, `no`, `false` or `0`."""

FROM = 16 << 20
"""Bytes below which nothing is looked at."""

PATIENCE = 2.0
"""Seconds that need no bar."""

_LOOK = 0.25
_IDLE_LOOKS = 8
_OFF = ("off", "no", "false", "0")


class Transfer:
    """A transfer under way, which a bar shows once it takes long and bytes have moved."""

    def __init__(self, what: str, total: int | None, done: Callable[[], int]):
        """`total` is None where nobody knows it. `done` counts bytes from whatever number on, and is asked by another thread."""
        self._what, self._total, self._done = what, total, done
        self._began = time.monotonic()
        self._first: int | None = None
        self._bar: Any = None
        self._over = False
        self._lock = threading.Lock()

    def look(self) -> None:
        """Asks how far it is, and shows that if it is time. A count that cannot be had shows nothing new."""
        try:
            done = self._done()
        except Exception:
            return
        with self._lock:
            if self._over:
                return
            self._first = done if self._first is None else self._first
            came = min(done - self._first, math.inf if self._total is None else self._total)
            took = time.monotonic() - self._began
            if self._bar is None and came > 0 and took >= PATIENCE:
                self._bar = _bar(self._what, self._total, took)
            if self._bar is not None:
                self._bar.n = max(self._bar.n, int(came))
                self._bar.refresh()

    def __enter__(self) -> Transfer:
        _watcher.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _watcher.remove(self)
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.close()


class _Watcher:
    """The transfers that may be long, and the thread that looks at them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._transfers: list[Transfer] = []
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()

    def add(self, transfer: Transfer) -> None:
        with self._lock:
            self._transfers.append(transfer)
            if self._thread is None and not self._ends.is_set():
                self._thread = threading.Thread(target=self._look, name="tensorlane-bars")
                self._thread.start()

    def remove(self, transfer: Transfer) -> None:
        with self._lock:
            self._transfers.remove(transfer)

    def end(self) -> None:
        """Ends the thread: the interpreter ends."""
        self._ends.set()

    def _look(self) -> None:
        idle = 0
        while not self._ends.wait(_LOOK):
            with self._lock:
                transfers = list(self._transfers)
                idle = 0 if transfers else idle + 1
                if idle > _IDLE_LOOKS:
                    self._thread = None
                    return
            for transfer in transfers:
                transfer.look()


def is_seen(progress: bool) -> bool:
    """Tells whether a bar is wanted, and somebody would see it."""
    if not progress or not _is_terminal() or os.environ.get(VARIABLE, "").lower() in _OFF or _is_worker():
        return False
    return _has_tqdm()


def arriving(core: Core, targets: list[Any], progress: bool) -> ContextManager[Any]:
    """Context of a get: what comes from other peers is counted by what comes to this one. A name's bytes are known to nobody."""
    if (len(targets) == 1 and isinstance(targets[0], Reference) and targets[0].nbytes < FROM) or not is_seen(progress):
        return _NOTHING
    known = [target.nbytes for target in targets if isinstance(target, Reference)]
    total = sum(known) if len(known) == len(targets) else None
    if total is not None and total < FROM:
        return _NOTHING
    return Transfer(_told("get", targets), total, lambda: _came(core))


def arriving_set(core: Core, target: Any, progress: bool) -> ContextManager[Any]:
    """Context of a get of a set: its manifest alone is known, and nobody knows the bytes of its tensors."""
    if not is_seen(progress):
        return _NOTHING
    what = f"get {target[0] if isinstance(target, tuple) else 'a set'}"
    return Transfer(what, None, lambda: _came(core))


def running(what: str, total: int | None, process: int, word: str, progress: bool) -> ContextManager[Any]:
    """Context of a command that reads or writes a file: its calls are counted by the kernel, as `rchar` and `wchar`."""
    return Transfer(what, total, lambda: _calls_of(process, word)) if is_seen(progress) else _NOTHING


class Count:
    """Bytes that were copied so far."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def copying(what: str, total: int, progress: bool) -> Iterator[Count]:
    """Context of a put, which counts what it has copied."""
    count = Count()
    if total < FROM or not is_seen(progress):
        yield count
        return
    with Transfer(what, total, lambda: count.bytes) as transfer:
        transfer.look()
        yield count


def _came(core: Core) -> int:
    """Bytes that came from other peers until now."""
    return sum(peer["bytes_in"] for peer in core.peers())


@functools.cache
def _has_tqdm() -> bool:
    return importlib.util.find_spec("tqdm") is not None


def _bar(what: str, total: int | None, took: float) -> Any:
    """A bar of a transfer that has taken so many seconds already."""
    from tqdm import tqdm

    form = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "leave": False, "dynamic_ncols": True, "smoothing": 0}
    bar = tqdm(total=total, desc=what, file=sys.stderr, **form)
    bar.start_t -= took
    return bar


def _told(verb: str, targets: Iterable[Any]) -> str:
    first, *more = targets
    if more:
        return f"{verb} {1 + len(more)} tensors"
    return f"{verb} {first[0] if isinstance(first, tuple) else 'a tensor'}"


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False  # None, or closed.


def _is_worker() -> bool:
    """True in processes that others started to work for them: of multiprocessing, torchrun and Ray."""
    if multiprocessing.parent_process() is not None or os.environ.get("LOCAL_RANK", "0") != "0":
        return True
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "default_worker.py"


def _calls_of(process: int, word: str) -> int:
    with open(f"/proc/{process}/io", encoding="ascii") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith(f"{word}:"))


_NOTHING = nullcontext()
_watcher = _Watcher()


def _afresh() -> None:
    """Leaves the thread, and bars that it drew, to the parent of this child."""
    global _watcher
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_afresh)
# The end of a program joins its threads.
threading._register_atexit(lambda: _watcher.end())  # type: ignore[attr-defined]
