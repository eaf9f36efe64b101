"""A sidecar of a program's own, which ends with it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from contextlib import contextmanager
from typing import Iterator

from . import peersfile, sizes
from .client import Client
from .errors import Invalid, Unavailable
from .programs import program

SOCKETS = "TENSORLANE_SOCKETS"
"""The variable that names the directory of the sockets."""

_PATIENCE = 20.0

_PORT = 9421
"""Port of every local peer; the address is its own."""

_BYE = b"bye\n"

# The sidecar ends at a line of the standard input, or when that ends, and so when the last process that holds the other end is
# gone, however it went. Then its directory goes, too, and its line of the peers file, which the words behind are to take away.
_KEEPER = """
exec 3<&0 </dev/null
"$1" 3<&- & sidecar=$!
{ read -r _ <&3; kill "$sidecar"; } 2>/dev/null & watcher=$!
wait "$sidecar"; code=$?
kill "$watcher" 2>/dev/null
rm -rf -- "$2"
shift 2
[ $# = 0 ] || "$@" 3<&-
exit "$code"
"""


_running: weakref.WeakSet[Sidecar] = weakref.WeakSet()


class Sidecar:
    """A running sidecar with a temporary directory. Use it as a context, or end it with `close`.

    It is that of the process that made it: forked children use it, and do not keep it.
    """

    directory: str
    """Directory of its sockets: what TENSORLANE_SOCKETS is set to for other processes."""

    def __init__(
        self,
        *,
        arena: str | int = "1Gi",
        peers: str | os.PathLike[str] | None = None,
        peer: str | None = None,
        settings: dict[str, str] | None = None,
    ):
        sidecar = program("tensorlane-sidecar")
        # A file that is a link is replaced where it lies.
        self._peers_file = None if peers is None else os.path.realpath(os.fspath(peers))
        self._entry: str | None = None
        self._root = tempfile.mkdtemp(prefix="tensorlane-")
        self.directory = os.path.join(self._root, "sockets")
        os.mkdir(self.directory)
        self._log = tempfile.TemporaryFile()
        self._owner = os.getpid()
        try:
            environment = self._environment(arena, peer, settings or {})
            self._process = subprocess.Popen(
                ["sh", "-c", _KEEPER, "tensorlane-keeper", sidecar, self._root, *self._join(sidecar, environment)],
                # Without a buffer, which a child that was forked would have, too.
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                # ^C at a terminal is for the program, which still needs its tensors while it ends.
                start_new_session=True,
            )
        except BaseException:
            self._tidy()
            raise
        _running.add(self)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _environment(self, arena: str | int, peer: str | None, settings: dict[str, str]) -> dict[str, str]:
        for key in settings:
            if "." in key or key != key.upper():
                variable = "TENSORLANE_" + re.sub(r"(?<=[a-z])(?=[A-Z])|\.", "_", key).upper()
                raise Invalid(f"settings has {key!r}, and variables are asked for", remedy=f"write {variable}")
        joins: dict[str, str] = {}
        if self._peers_file is not None:
            # An address of the loopback network that no other one has, so that no port has to be found.
            high, middle, low = (1 + secrets.randbelow(254) for _ in range(3))
            joins = {"TENSORLANE_PEERS_FILE": self._peers_file, "TENSORLANE_PEERS_LISTEN": f"127.{high}.{middle}.{low}:{_PORT}"}
            peer = peer or f"local-{secrets.token_hex(4)}"
        ours = {
            "TENSORLANE_PEER": "local" if peer is None else sizes.text("the peer", peer),
            "TENSORLANE_SOCKETS_DIRECTORY": self.directory,
            "TENSORLANE_STATE_DIRECTORY": os.path.join(self._root, "state"),
            "TENSORLANE_ARENA_SIZE": str(arena),
            "TENSORLANE_ADMIN_LISTEN": "off",
            "TENSORLANE_LOG_FORMAT": "text",
        }
        # What the surroundings say of another sidecar is not for this one.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TENSORLANE_")}
        return {**kept, **ours, **joins, **settings}

    def _join(self, sidecar: str, environment: dict[str, str]) -> list[str]:
        """Adds this sidecar to the peers file, with the key that it is to have; gives the command that takes it away again."""
        if self._peers_file is None:
            return []
        asked = subprocess.run([sidecar, "--print-peer"], capture_output=True, text=True, env=environment)
        if asked.returncode != 0:
            raise Invalid(f"the sidecar cannot be a peer: {asked.stderr.strip()}", remedy="correct the name of the peer, or settings")
        entry = asked.stdout.strip().removeprefix("- ")
        try:
            peersfile.join(self._peers_file, entry)
        except (OSError, ValueError) as error:
            remedy = "give a file in a directory that is there and may be written, or correct what stands in it"
            raise Invalid(f"the peers file {self._peers_file} cannot be joined: {error}", remedy=remedy) from error
        self._entry = entry
        # A program that embeds Python may have none to run: then `close` does it alone.
        return [sys.executable, "-I", peersfile.__file__, self._peers_file, entry] if sys.executable else []

    def _wait(self) -> None:
        socket = os.path.join(self.directory, "session.sock")
        until = time.monotonic() + _PATIENCE
        while not os.path.exists(socket):
            if self._process.poll() is not None:
                raise Unavailable(f"the sidecar ended with exit code {self._process.returncode}: {self.log()[-500:].strip()}")
            if time.monotonic() > until:
                raise Unavailable(f"the sidecar made no socket in {_PATIENCE:.0f} s: {self.log()[-500:].strip()}")
            time.sleep(0.01)

    def log(self) -> str:
        """Output of the sidecar so far."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def close(self) -> None:
        """Ends it and removes its directory, whatever children live. Arrays that are mapped stay readable. Nothing in a forked child."""
        if self._owner != os.getpid():
            return
        _running.discard(self)
        if self._process.stdin and not self._process.stdin.closed:
            try:
                # Who else holds this end, such as a child that was forked without Python's doing, keeps nothing from ending.
                if self._process.poll() is None:
                    self._process.stdin.write(_BYE)
            except OSError:
                pass  # It has ended.
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            # The keeper, and the sidecar in its session.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._tidy()

    def _tidy(self) -> None:
        if self._peers_file is not None and self._entry is not None:
            try:
                # Where the keeper could not.
                peersfile.leave(self._peers_file, self._entry)
            except (OSError, ValueError) as error:
                warnings.warn(f"{self._peers_file} still has {self._entry}: {error}; take that line out", RuntimeWarning, stacklevel=3)
        shutil.rmtree(self._root, ignore_errors=True)
        self._log.close()

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tensorlane.Sidecar in {self.directory}>"


def _let_go() -> None:
    """Leaves the sidecars to the parent of this child, so that they end with that one."""
    for sidecar in list(_running):
        if sidecar._process.stdin:
            sidecar._process.stdin.close()
    _running.clear()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def local(
    *,
    arena: str | int = "1Gi",
    export: bool = False,
    peers: str | os.PathLike[str] | None = None,
    peer: str | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[Client]:
    """Starts a sidecar for this program and connects to it. It ends with the context, or with the program, whatever children live.

    Other processes of this program find it in `client.directory`; with `export` it is in TENSORLANE_SOCKETS meanwhile, which
    processes inherit that are started then. `arena` is its memory, in bytes or as `4Gi`, `settings` are further variables of docs/configuration.md.

    Sidecars that name one file as `peers` are one exchange, in this program and in others of the machine. The file is made where
    there is none; a line is added about this sidecar, as `peer` or under a name of its own, and goes with it.
    """
    with Sidecar(arena=arena, peers=peers, peer=peer, settings=settings) as sidecar:
        before = os.environ.get(SOCKETS)
        if export:
            os.environ[SOCKETS] = sidecar.directory
        try:
            with Client(sidecar.directory, patience=_PATIENCE) as client:
                yield client
        finally:
            if export:
                os.environ.pop(SOCKETS, None)
                os.environ.update({SOCKETS: before} if before is not None else {})
