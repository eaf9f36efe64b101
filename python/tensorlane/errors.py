"""Exceptions of calls: one class for each kind of failure, with the reason of the sidecar and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ._tensorlane import Stored


class Error(Exception):
    """A call that failed, and left nothing behind."""

    reason: str | None
    """The stable word of docs/errors.md, such as ``ARENA_FULL``; None where it was not a sidecar that refused."""
    details: dict[str, str]
    """The values that were wrong, by name."""
    remedy: str | None
    """Remedy in Python, where there is one."""

    delivered: str | None = None
    """Of a write to a pipe: "no" where the other end has not seen the message and will not, "unknown" where it may have read it."""

    stored: tuple[Stored, ...] = ()
    """Of a write to a pipe: its reservations, in order, which were sealed for it. Write them again; they last as long as this exception."""

    def __init__(self, message: str, reason: str | None = None, details: dict[str, str] | None = None, remedy: str | None = None):
        self.message, self.reason, self.details = message, reason, dict(details or {})
        self.remedy = _REMEDIES.get(reason or "") if remedy is None else remedy
        super().__init__(message)

    def __str__(self) -> str:
        head = f"{self.reason}: {self.message}" if self.reason else self.message
        told = {key: value for key, value in self.details.items() if value not in self.message}
        if told:
            head += " (" + ", ".join(f"{key}={value}" for key, value in told.items()) + ")"
        return f"{head}\nhint: {self.remedy}" if self.remedy else head

    def __reduce__(self) -> tuple[Any, ...]:
        # With what was set later: `delivered`, notes. Leases stay in their process.
        told = {word: value for word, value in self.__dict__.items() if word != "stored"}
        return type(self), (self.message, self.reason, self.details, self.remedy), told


class NotFound(Error, LookupError):
    """No such tensor, name, ticket or peer."""


class NameTaken(Error):
    """The name belongs to another tensor."""


class Invalid(Error, ValueError):
    """The arguments cannot be right, whatever the sidecar says."""


class OutOfRange(Invalid, IndexError):
    """A row or an index that is not there."""


class Unsupported(Error, TypeError):
    """A kind of array or element that cannot be stored, or made of what is stored."""


class Exhausted(Error):
    """Something is used up: the arena, leases, descriptors."""


class Refused(Error, PermissionError):
    """The caller may not."""

    # PermissionError formats two arguments by itself.
    __str__ = Error.__str__


class RequirementNotMet(Error):
    """No route is what `require` asks for, and nothing was moved. `details` has each transport with why it is not the one."""


class GpuError(Error):
    """The GPU, its driver, or what another process put there, refuses. `details["refusal"]` is a stable word for it."""


class Timeout(Error, TimeoutError):
    """The deadline passed first."""

    __str__ = Error.__str__


class Unavailable(Error, ConnectionError):
    """The sidecar, the peer or the owner is out of reach or gone."""

    __str__ = Error.__str__


class SessionLost(Unavailable):
    """The connection to the sidecar ended, and its leases with it. Told once; the next call connects anew."""


class WatchCut(Error):
    """A watch has missed changes: it was too slow, or its sidecar is another one. Told once; its next call begins anew."""


class Withdrawn(Error):
    """The call was withdrawn by its caller."""


_KINDS = {
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": NameTaken,
    "INVALID_ARGUMENT": Invalid,
    "OUT_OF_RANGE": Invalid,
    "UNIMPLEMENTED": Unsupported,
    "RESOURCE_EXHAUSTED": Exhausted,
    "PERMISSION_DENIED": Refused,
    "DEADLINE_EXCEEDED": Timeout,
    "UNAVAILABLE": Unavailable,
    "SIDECAR_UNREACHABLE": Unavailable,
    "SESSION_LOST": SessionLost,
    "CANCELLED": Withdrawn,
    "WITHDRAWN": Withdrawn,
    "GPU": GpuError,
}

_REASONS = {"SELECTION_OUT_OF_RANGE": OutOfRange, "WATCH_CUT": WatchCut, "REQUIREMENT_NOT_MET": RequirementNotMet}

START = "with `tensorlane.local() as client:` a program starts a sidecar of its own"
"""Remedy where no sidecar is reached."""

_REMEDIES = {
    "NOT_FOUND": "correct what was asked for; client.names(), client.channels() and client.mutable_sets() list what this peer has",
    "NAME_TAKEN": "take another name, or end what has this one",
    "INVALID_ARGUMENT": "correct the argument that the message names",
    "DTYPE_UNKNOWN": "correct the dtype, or install the same release everywhere: who sent it may be newer",
    "REFERENCE_MALFORMED": "pass references and tickets on as they were made, as str(reference) or pickled",
    "SELECTION_OUT_OF_RANGE": "give rows and ranges that are there; reference.shape says how many there are",
    "LAYOUT_MISMATCH": "give a type, a shape and as many bytes as agree; the message has both",
    "RETRY_MISMATCH": "make a retry_id for each call, uuid.uuid4().bytes, and repeat it with that very call alone",
    "NOT_SEALED": "seal it first; client.get(name, wait=60) waits until it is sealed",
    "ALREADY_SEALED": "make other room: client.empty(shape, dtype)",
    "NOT_YOURS": "let the process that writes it seal it, or make other room: client.empty(shape, dtype)",
    "CHECKSUM_MISMATCH": "call again; if it comes again, suspect who wrote the tensor in place, then the memory of a machine",
    "CHANNEL_ENDED": "attach again, or make the channel again; a reader with follow=True goes on with the next channel of the name",
    "WRITER_NOT_ANSWERING": "attach again when the process that the message names runs",
    "MESSAGE_DAMAGED": "read the next message; if it comes again, restart the writer that the message names, and attach again",
    "SESSION_LIMIT": "close clients that are not needed, since one serves all threads of a process, or raise limits.sessions",
    "SESSION_REQUIRED": "make the call by a client of this package: tensorlane.connect()",
    "STAGER_STALLED": "look at the process that has the GPU, and call again",
    "STAGING_FAILED": "call again, or look at the process that has the GPU",
    "UNSUPPORTED": "install the same release of the package and of all sidecars; the message says which cannot do it",
    "INTERNAL": "look into the sidecar's log, and report it with the message",
    "CANCELLED": "call again, if it was not withdrawn on purpose",
    "CLOSED": "connect again: tensorlane.connect()",
    "FORKED": "make channels, pipes and memory of GPUs in the process that uses them",
    "TICKET_SPENT": "have its maker make another ticket; a redeem that may be repeated has a retry_id",
    "OWNER_LOST": "put the tensor again, or make the set again: the sidecar that had it has ended, and what it held with it",
    "WOULD_VANISH": "pass name=, ticket= or keep the lease: without one of them nothing keeps the tensor",
    "NEVER_FITS": "put it in parts, or raise the size of the arena: client.status() says how large it is",
    "PEER_UNREACHABLE": "client.peers() says what was wrong with each address of it",
    "LIMIT_EXCEEDED": "try again when others have ended; details name the limit, and client.status() counts",
    "TOO_LARGE": "send less at a time; details have the limit",
    "DRAINING": "connect again when the sidecar is back; what it had is gone then",
    "WRONG_EXCHANGE": "get it by a client of the exchange that its reference names",
    "PEER_UNKNOWN": "client.peers() lists the peers of the exchange; wait=SECONDS waits for one that is not there yet",
    "NAME_CHANGED": "describe the name again and pass what it stands for now as replaces",
    "VERSION_CHANGED": "read the latest version and write on top of it; details say which one it is",
    "WATCH_CUT": "call next() again: the watch begins anew, with the names that there are",
    "SET_MISMATCH": "write rows of the type and shape that the message says",
    "TORN_ROWS": "write these rows again, in the leaf that the message names",
    "NO_STORAGE": "set sets.root of the sidecar, or leave the directory out for a set in memory",
    "STORAGE_FULL": "free room on the disk; nothing was written",
    "STORAGE_FAILED": "put back what was there, or drop the set",
    "UNSUPPORTED_FORMAT": "save the directory again by tensordict 0.15, with rows",
    "PERMISSION_DENIED": "have its owner name this peer: in writers of a set, readers of a channel, allow of a listener",
    "EVICTED": "attach again, and read faster, hold less, or have a channel with more slots",
    "NOT_A_SET": "get it as a tensor: client.get(...)",
    "AMBIGUOUS_NAME": "pass peer=NAME",
    "REQUIREMENT_NOT_MET": "get it where the requirement is met, or leave it out of require; client.peers() shows the routes",
    "NOT_OWNED": "make the call with a client that is connected to the sidecar of the peer that the reference names",
    "BLOCKED_BY": "let the reader that is named go on, or make the channel with more slots; client.channels() shows who is behind",
    "HOLD_LIMIT": "drop the messages before, or attach with a larger hold",
    "PIPE_CLOSED": "connect again, or write before the other end closes; finish() lets it read what is there",
    "PIPE_LOST": "connect again; the process at the other end is gone, or the way to it",
    "MESSAGE_WITHDRAWN": "read the next message: the writer gave this one up, and has it back",
    "ARENA_FULL": "drop arrays and release what is stored; deadline=300 waits longer for room, client.status() counts",
    "DEADLINE_EXCEEDED": "give it more time, by timeout=, wait= or deadline=, whichever the call has",
    "SIDECAR_UNREACHABLE": START,
    "SESSION_LOST": "call again: the client connects anew; put again what is still needed, and make channels, listeners and pipes again",
    "NO_GPU_PROCESS": "client.get its reference in a process of its pod that reaches that GPU, or have a copy of the host put: tensor.cpu()",
    "GPU": "tensorlane.doctor() shows what this process has of GPUs",
}


class Remedies:
    """Says, by reasons, what helps with errors of the calls inside, as these are meant."""

    __slots__ = ("_by_reason",)

    def __init__(self, **by_reason: str | Callable[[], str]):
        self._by_reason = by_reason

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error) and error.reason in self._by_reason:
            remedy = self._by_reason[error.reason]
            error.remedy = remedy if isinstance(remedy, str) else remedy()


def make(kind: str, reason: str | None, message: str, details: dict[str, str]) -> Error:
    """Makes the exception of a failed call."""
    # Where this side refuses an argument, the message says what to do.
    remedy = None if reason is None and kind == "INVALID_ARGUMENT" else _REMEDIES.get(reason or kind)
    made = _REASONS.get(reason or "") or _KINDS.get(kind, Error)
    return made(message, reason, details, remedy)
