"""The client: a process's standing with the sidecar of its pod."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from typing import Any, Iterable, Literal, Mapping, Sequence, TypedDict, Unpack, get_args, overload

from . import archives, arrays, bars, device as devices, files, gpu, loading, mutable, opaque, parts, reservation, sets, sizes, structures
from ._tensorlane import Acquired, Cancel, Core, Reference, Stored, release_idle
from .channels import ChannelReader, ChannelWriter
from .device import DeviceReservation, leased
from .errors import Error, Invalid, Remedies, Unsupported
from .mutable import MutableSet, SetStatus
from .objects import Objects, Search
from .parts import Part
from .pipes import Listener, Pipe
from .reservation import Reservation
from .sets import Published, Set
from .status import Description, Peer, Status
from .structures import Structure
from .tensor import Tensor, copy_into
from .watching import Watch

_INLINE = 64 << 10
"""Up to here the bytes travel inside the request, and strided arrays are made dense first."""

_PIECE = 256 << 20
"""Bytes that are copied at once where a bar shows how many were."""

_TRY = 1.0
"""Seconds that an array has for its turn where the time for all of them is over, but no wait for room was in vain."""

Item = tuple[Any, str, Sequence[int], Sequence[tuple[str, str]], dict[str, Any]]
"""An array as the native half takes it: bytes, dtype, shape, metadata, and how it is kept."""

Target = Reference | Stored | Part | str
"""A tensor to get: by its reference, a part of one, what a put returned, or a name."""


Requirement = Literal["zero_copy", "same_node", "encrypted"]
"""A class of route: no byte is copied on the way into this process; the bytes stay on their node; none leaves it unencrypted."""

Require = Requirement | Iterable[Requirement] | None
"""Requirements of a get: one class that its route must be of, or several."""


Keys = Sequence[str | tuple[str, ...]] | None
"""Keys of a set that are got; None for all of them."""


_OURS = "client.names() lists names of this peer"
_GONE = "a tensor that nothing keeps is gone: hold what put returned, or give it a name or a ticket"
_TAKEN_OF_MANY = Remedies(NAME_TAKEN="take the name away first, by client.unname, or put that one alone with replaces=REFERENCE")


class PutOptions(TypedDict, total=False):
    """Options of a put, as `Client.put` has them."""

    keep: bool
    replaces: Reference | Stored | None
    ticket: float | None
    uses: int
    metadata: Mapping[str, str] | None
    checksum: bool
    deadline: float | None
    progress: bool


class Client:
    """A connection to the sidecar in `directory`, or in $TENSORLANE_SOCKETS, or in /run/tensorlane.

    Any number of threads may use it. A forked child opens a connection of its own at its first call. Times are in seconds.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, name: str | None = None, deadline: float = 30.0, patience: float = 0.0
    ):
        self._deadline, patience = sizes.time("deadline", deadline), sizes.time("patience", patience)
        name = name or f"python[{os.getpid()}]"
        self._core = Core(None if directory is None else os.fspath(directory), name, self._deadline, patience)
        with _open_lock:
            _open.add(self)

    @property
    def directory(self) -> str:
        """Directory of the sockets: what TENSORLANE_SOCKETS is to be for other processes."""
        return os.fspath(self._core.directory)

    @property
    def exchange(self) -> str:
        """The exchange of the sidecar."""
        return self._core.exchange

    @property
    def peer(self) -> str:
        """The name of the sidecar in its exchange."""
        return self._core.peer

    @property
    def deadline(self) -> float:
        """The deadline of calls that name none, in seconds."""
        return self._deadline

    @overload
    def put(self, x: Structure, name: None = None, **options: Unpack[PutOptions]) -> Any: ...
    @overload
    def put(self, x: Any, name: str | None = None, **options: Unpack[PutOptions]) -> Stored: ...

    def put(
        self,
        x: Any,
        name: str | None = None,
        *,
        keep: bool = True,
        replaces: Reference | Stored | None = None,
        ticket: float | None = None,
        uses: int = 1,
        metadata: Mapping[str, str] | None = None,
        checksum: bool = False,
        deadline: float | None = None,
        progress: bool = True,
    ) -> Any:
        """Stores an array and returns its reference with the lease that keeps it; of nested dicts and lists, the same with leases.

        The bytes are copied once, into the shared memory; an array that is no dense block is written there row by row. One in the
        memory of a GPU is copied once there, behind what is on the caller's stream, and stays on that GPU. Without `keep` nothing leases it, and its name or a ticket of so many seconds and uses must keep it.
        """
        keeping = _keeping(keep=keep, ticket=ticket, uses=uses, checksum=checksum, deadline=deadline)
        if isinstance(x, (Mapping, list, tuple)):
            if name is not None or replaces is not None or metadata:
                raise Invalid("a nested value has no name or metadata of its own", remedy="publish it under a name, or put its arrays")
            leaves = structures.keyed(x)
            return structures.rebuilt(x, self._put_all(leaves, keeping, progress))
        keeping = {**keeping, "name": sizes.name(name), "replaces": reservation.replaced(replaces)}
        source, words = arrays.source(x, gpus=True), _words(metadata)
        if source.on_gpu is None and source.nbytes <= _INLINE:
            with reservation.TAKEN:
                (stored,) = _all(self._core.put([(source.dense(), source.dtype, source.shape, words, keeping)]))
            return stored
        with reservation.TAKEN, bars.copying(f"put {name or 'a tensor'}", source.nbytes, progress) as count:
            return self._alone(source, words, keeping, count, progress)

    def put_many(
        self,
        xs: Iterable[Any] | Mapping[str, Any],
        *,
        keep: bool = True,
        ticket: float | None = None,
        uses: int = 1,
        checksum: bool = False,
        deadline: float | None = None,
        progress: bool = True,
    ) -> list[Stored]:
        """Stores arrays, small ones together in few calls; those of a mapping under the names that are its keys, all in one step.

        Where one fails its exception is raised, the leases of the others are given up, and no name is given.
        """
        keeping = _keeping(keep=keep, ticket=ticket, uses=uses, checksum=checksum, deadline=deadline)
        if not isinstance(xs, Mapping):
            return self._put_all([(f"[{at}]", x) for at, x in enumerate(xs)], keeping, progress)
        names = [sizes.name(name) for name in xs]
        # Leases keep them until they have their names.
        stored = self._put_all([(str(name), x) for name, x in xs.items()], {**keeping, "lease": True}, progress)
        try:
            with _TAKEN_OF_MANY:
                self._core.name_together([(name, one.reference) for name, one in zip(names, stored) if name is not None])
        except BaseException:
            _give_up(stored)
            raise
        if not keep:
            _give_up(stored)
        return stored

    def _put_all(self, keyed: list[tuple[str, Any]], keeping: dict[str, Any], progress: bool) -> list[Stored]:
        """Stores arrays; each has a key for errors."""
        return self._in_order([(arrays.source_under(key, x, gpus=True), keeping) for key, x in keyed], progress=progress)

    def _written(self, source: arrays.Source, words: list[tuple[str, str]], keeping: dict[str, Any]) -> Stored:
        """Stores an array that is no dense block: row by row, straight into the shared memory."""
        block = self._core.reserve(source.dtype, source.shape, words, keeping["deadline"])
        source.write(memoryview(block))
        return self._core.seal(block, keeping)

    def _stage(
        self,
        sources: list[arrays.Source],
        *,
        checksum: bool = False,
        deadline: float | None = None,
        within: float | None = None,
        progress: bool = False,
    ) -> list[Stored]:
        """Stores arrays for as long as their leases are held, each in the way that copies it once; `within` is for all of them together."""
        keeping = _keeping(keep=True, ticket=None, uses=1, checksum=checksum, deadline=deadline)
        return self._in_order([(source, keeping) for source in sources], within, progress)

    def _there(self, x: Any) -> Reference | None:
        """The reference of a value that lies in the arena of this peer, and need not be put again."""
        if isinstance(x, Reference):
            return x
        if not isinstance(x, Tensor) or x.device != "cpu" or x.nbytes <= _INLINE:
            return None
        reference = self._core.reference_of(x)
        return reference if reference is not None and reference.peer == self.peer else None

    def _in_order(
        self, sources: list[tuple[arrays.Source, dict[str, Any]]], within: float | None = None, progress: bool = False
    ) -> list[Stored]:
        """Stores arrays: large ones first, which need most room, then the small ones together. The first that fails ends it, and none is leased.

        Each waits for room as long as its deadline says, or all of them `within` so many seconds.
        """
        until = math.inf if within is None else time.monotonic() + within
        small = [at for at, (source, _) in enumerate(sources) if source.on_gpu is None and source.nbytes <= _INLINE]
        stored: dict[int, Stored] = {}

        def bounded(keeping: dict[str, Any]) -> dict[str, Any]:
            if within is None:
                return keeping
            # Where copies took the time, what comes behind them is tried all the same.
            return {**keeping, "deadline": max(until - time.monotonic(), min(within, _TRY))}

        try:
            large = sorted(set(range(len(sources))) - set(small))
            with bars.copying(f"put {len(large)} tensors", sum(sources[at][0].nbytes for at in large), progress) as count:
                for at in large:
                    source, keeping = sources[at]
                    stored[at] = self._alone(source, [], bounded(keeping), count, progress)
            if small:
                items: list[Item] = [_item(source, bounded(keeping)) for source, keeping in (sources[at] for at in small)]
                stored.update(zip(small, _all(self._core.put(items))))
        except BaseException:
            _give_up(stored.values())
            raise
        return [stored[at] for at in range(len(sources))]

    def _alone(
        self, source: arrays.Source, words: list[tuple[str, str]], keeping: dict[str, Any], count: bars.Count, progress: bool
    ) -> Stored:
        """Stores one array in the way that copies it once, and counts its bytes."""
        if source.on_gpu is not None:
            stored = devices.put(self._core, source.on_gpu, words, keeping)
        elif not source.is_dense:
            stored = self._written(source, words, keeping)
        elif source.nbytes > 4 * _PIECE and bars.is_seen(progress):
            return self._in_pieces(source, words, keeping, count)
        else:
            (stored,) = _all(self._core.put([(source.dense(), source.dtype, source.shape, words, keeping)]))
        count.bytes += source.nbytes
        return stored

    def _in_pieces(self, source: arrays.Source, words: list[tuple[str, str]], keeping: dict[str, Any], count: bars.Count) -> Stored:
        """Stores a dense array piece by piece, so that a bar can show how far it is."""
        block, dense = self._core.reserve(source.dtype, source.shape, words, keeping["deadline"]), source.dense()
        for at in range(0, source.nbytes, _PIECE):
            piece = dense[at : at + _PIECE]
            block.copy_from(at, piece)
            count.bytes += len(piece)
        return self._core.seal(block, keeping)

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float32",
        *,
        device: Any = None,
        metadata: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> Reservation:
        """Makes room for a tensor that is computed in place: write its `array`, or its `torch()`, then `seal` it.

        `dtype` is what numpy reads as one, or of torch, or a tensor or reference that has it. With `device="cuda:0"` the room is on that GPU.
        """
        wanted = sizes.shape_of(shape)
        short = reservation.dtype_of(dtype)
        index = gpu.index_of(device)
        if index is not None:
            return DeviceReservation(self._core, short, wanted, _words(metadata), index)
        block = self._core.reserve(short, wanted, _words(metadata), sizes.seconds("deadline", deadline))
        return Reservation(self._core, block, short, wanted)

    def release_idle(self, device: Any = "cuda") -> int:
        """Gives memory of a GPU that this process keeps for its next puts back to others in it, and tells how many bytes.

        At most one 64th of the GPU's memory is kept, and where a put finds no more, it goes by itself.
        """
        index = gpu.index_of(device)
        return 0 if index is None else release_idle(self._core, index)

    def put_file(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        replace: bool = False,
        prune: bool = False,
        checksum: bool = False,
        strict: bool = False,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> dict[str, Reference]:
        """Puts all tensors of a safetensors file, named `name/NAME-IN-FILE` in one step, and returns their references.

        The file is read straight into the shared memory. `replace` gives names that are taken to the new tensors; `prune` takes
        those below `name` away that the file does not have, in the same step. What of its metadata is left out, and which names
        stay below `name`, is a warning, and with `strict` an error. A put that fails leaves nothing.
        """
        if prune and not replace:
            raise Invalid("prune takes away what an earlier file has left, and this put replaces none", remedy="pass replace=True, too")
        wanted = {"--replace": replace, "--prune": prune, "--checksum": checksum, "--strict": strict}
        flags = [flag for flag, is_wanted in wanted.items() if is_wanted]
        return files.put(self.directory, path, name, flags, deadline, cancel, progress)

    def get_file(
        self,
        prefix: str,
        path: str | os.PathLike[str],
        *,
        strict: bool = False,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> list[str]:
        """Writes all tensors below a name of this peer into a safetensors file, which appears when it is whole; lists them.

        What is left out (metadata on which the tensors do not agree, sets) is a warning, and with `strict` an error.
        """
        total = sum(one.nbytes for one in self.names(f"{prefix}/").values()) if bars.is_seen(progress) else None
        return files.get(self.directory, prefix, path, ["--strict"] if strict else [], deadline, cancel, progress, total)

    def get(
        self,
        target: Target | Structure,
        *,
        wait: float | None = None,
        deadline: float | None = None,
        peer: str | None = None,
        out: Any = None,
        part: Any = None,
        require: Require = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> Any:
        """Leases a tensor of this peer or another one and maps it, on its GPU if it is there; with `out`, copies it there and returns `out`.

        `wait` is for how long a name may not exist yet. Of `reference[3:10]`, or with `part=numpy.s_[3:10]` of a name, only the
        part travels. `require` is what the route must be, "zero_copy", "same_node" or "encrypted", else it is RequirementNotMet and nothing
        moves. `cancel` withdraws the call from another thread. Of nested dicts and lists of targets, it gives the same with tensors.
        """
        if isinstance(target, (Mapping, list, tuple)):
            if out is not None or part is not None:
                raise Invalid("`out` and `part` are for one tensor", remedy="get the tensors one by one")
            leaves = structures.leaves(target)
            got_all = self.get_many(leaves, wait=wait, deadline=deadline, peer=peer, require=require, cancel=cancel, progress=progress)
            return structures.rebuilt(target, got_all)
        whole: Target = target
        if isinstance(target, Part):
            if part is not None:
                raise Invalid("the target is a part already, and `part` names another one", remedy="index once: reference[3:10]")
            whole, part = target.reference, target.index
        wanted = _target(whole, peer)
        if peer is not None and isinstance(wanted, Reference):
            raise Invalid(f"`peer` is {peer!r}, and a reference says itself whose it is", remedy="leave `peer` out, or pass a name")
        asked = None if part is None else parts.selection(part, getattr(wanted, "shape", None))
        terms = _terms(wait, deadline, require)
        with _missing(wanted, wait), bars.arriving(self._core, [wanted], progress):
            (acquired,) = _all(self._core.acquire([wanted], terms, cancel, asked))
        got = _tensor(acquired, wanted)
        if out is None:
            return got
        with got:
            return copy_into(got, out)

    def get_many(
        self,
        targets: Iterable[Target],
        *,
        wait: float | None = None,
        deadline: float | None = None,
        peer: str | None = None,
        require: Require = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> list[Tensor]:
        """Leases and maps tensors, in few calls. Where one fails, its exception is raised and none is kept."""
        if isinstance(targets, str):
            raise Unsupported(f"targets is the one text {targets!r}, and a list is asked for", remedy=f"give [{targets!r}], or call get")
        wanted = [_target(target, peer) for target in targets]
        terms = _terms(wait, deadline, require)
        with _missing(wanted, wait), bars.arriving(self._core, wanted, progress):
            results = _all(self._core.acquire(wanted, terms, cancel, None))
        return [_tensor(acquired, target) for acquired, target in zip(results, wanted, strict=True)]

    def ticket(self, target: Target | Tensor, *, uses: int = 1, ttl: float | None = None) -> str:
        """Makes a ticket for a tensor of this peer: text that keeps it until it was redeemed `uses` times, or `ttl` seconds (60) are over.

        A `Tensor` that was got, or rows of a set that were read, are passed on where they lie: others in the pod map the same memory.
        """
        wanted: Reference | tuple[str, str | None] = self._leased(target) if isinstance(target, Tensor) else _target(target, None)
        seconds = sizes.seconds("ttl", ttl)
        with _missing(wanted):
            return self._core.ticket(wanted, seconds, sizes.whole("uses", uses, sizes.MANY))

    def _leased(self, tensor: Tensor) -> Reference:
        """The reference of a tensor that this client leases."""
        if tensor.device != "cpu":
            raise Unsupported("a tensor of a GPU is not passed on by what was got", remedy="pass its reference")
        reference = self._core.reference_of(tensor)
        if reference is None:
            raise Invalid("the tensor is a part of another one, or another client leases it", remedy="pass the reference of the whole one")
        return reference

    def redeem(
        self, ticket: str, *, retry_id: bytes | None = None, deadline: float | None = None, cancel: Cancel | None = None
    ) -> Tensor:
        """Turns a ticket of this peer or another one into a tensor, and uses it once.

        With a `retry_id`, 16 bytes such as `uuid.uuid4().bytes`, a call that failed may be repeated: the ticket is used once all the same.
        """
        text, seconds = sizes.text("the ticket", ticket), sizes.seconds("deadline", deadline)
        spent = "a ticket is good for its uses and its ttl: have its maker make another one"
        with Remedies(NOT_FOUND=spent, TICKET_SPENT=spent):
            return leased(self._core.redeem(text, sizes.retry_id(retry_id), seconds, cancel))

    def publish(
        self,
        tree: Mapping[str, Any],
        name: str,
        *,
        keep: int = 2,
        expects: int | None = None,
        checksum: bool = False,
        deadline: float | None = None,
        progress: bool = True,
    ) -> Published:
        """Publishes a nested mapping of arrays and plain values, such as a `state_dict()`, as the next version of a name.

        Readers get all of one version or all of another. Version 7 of `policy` is named `policy@7` as well; `keep` is how
        many versions stay. With `expects`, nothing is published unless that is the latest version (0: there is none).
        """
        if not opaque.is_mapping(tree):
            remedy = "publish what its state_dict() returns" if hasattr(tree, "state_dict") else "publish a dict of arrays, or put one array"
            raise Unsupported(f"a {type(tree).__name__} is no mapping", remedy=remedy)
        name, kept = sizes.text("the name", name), sizes.whole("keep", keep, sizes.MANY)
        latest = None if expects is None else sizes.whole("expects", expects)
        flat = sets.flatten(tree)
        # Leased until the version has them.
        stored = self._stage(sets.sources(flat), checksum=checksum, deadline=deadline, progress=progress)
        try:
            nodes = [(path, stored[node].reference if isinstance(node, int) else node) for path, node in flat.nodes]
            with Remedies(VERSION_CHANGED=f"read the latest version of {name} at {self.peer} and publish on top of it; each peer counts its own"):
                return Published(*self._core.publish(name, nodes, kept, latest, deadline))
        finally:
            for one in stored:
                one.release()

    def get_set(
        self,
        target: Target | Published,
        *,
        wait: float | None = None,
        deadline: float | None = None,
        peer: str | None = None,
        require: Require = None,
        keys: Keys = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> Set:
        """Leases and maps all of a set: the latest version of a name, `name@7`, or what `publish` returned.

        With `keys`, only those: `keys=["lr", ("next", "reward"), "encoder.*"]`. A key names a leaf or a mapping with all that is in it;
        one that ends in `*` stands for all keys that begin so. No other tensor is leased or moved.
        """
        named = sets.asked(keys)
        wanted = None if named is None else (named, True)
        return self._set(target, wanted, _terms(wait, deadline, require), (wait, peer), cancel, progress)

    def _set(
        self,
        target: Target | Published,
        keys: tuple[list[str], bool] | None,
        terms: tuple[float, float | None, str],
        where: tuple[float | None, str | None],
        cancel: Cancel | None,
        progress: bool,
    ) -> Set:
        """A set, of which some keys are got; `where` says how long its name is waited for, and whose it is."""
        wait, peer = where
        wanted = _target(target.reference if isinstance(target, Published) else target, peer)
        with _missing(wanted, wait), bars.arriving_set(self._core, wanted, progress):
            return Set(*self._core.acquire_set(wanted, terms, cancel, keys))

    def load_into(
        self,
        into: Any,
        target: Target | Published,
        *,
        convert: bool = False,
        strict: bool = True,
        wait: float | None = None,
        deadline: float | None = None,
        peer: str | None = None,
        require: Require = None,
        keys: Keys = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> int:
        """Copies a set into a `torch.nn.Module` or a mapping of arrays, and returns its version.

        Keys, shapes, types and whether the arrays can be written are checked before the first byte. Types are converted with
        `convert` only; without `strict`, tensors that `into` does not have are left out, and do not come here. With `keys`, as `get_set`
        has them, only those are loaded, and the rest of `into` stays as it is. A module whose `state_dict` hands out copies or
        plain values takes the version by its `load_state_dict`. Mappings take tensors alone.
        """
        named = sets.asked(keys)
        wanted = (named, True) if named is not None else None if strict else (loading.names(into), False)
        with self._set(target, wanted, _terms(wait, deadline, require), (wait, peer), cancel, progress) as got:
            loading.load(into, got, convert=convert, strict=strict, partial=named is not None)
            return got.version

    def publish_file(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        keep: int = 2,
        expects: int | None = None,
        checksum: bool = False,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> Published:
        """Publishes a safetensors file, whose name ends so, or what tensordict saved, as the next version of a name.

        Names in a file are keys of the set; texts of its `__metadata__` are values. What tensordict saved is a directory, or an archive
        whose name ends in .tdz: it is unpacked into a temporary directory first. Otherwise as `publish`.
        """
        flags = ["--keep", str(sizes.whole("keep", keep, sizes.MANY)), *(["--checksum"] if checksum else [])]
        if expects is not None:
            flags += ["--expects", str(sizes.whole("expects", expects))]
        named = sizes.text("the name", name)
        if archives.is_meant(path):
            with archives.unpacked(path, self.status().arena_bytes, cancel) as folder:
                return Published(*files.publish(self.directory, folder, named, flags, deadline, cancel, progress))
        return Published(*files.publish(self.directory, path, named, flags, deadline, cancel, progress))

    def save_set(
        self,
        target: str | Reference | Published | MutableSet,
        path: str | os.PathLike[str],
        *,
        replace: bool = False,
        strict: bool = False,
        wait: float | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        progress: bool = True,
    ) -> int:
        """Writes a set into a safetensors file, whose name ends so, or into what `TensorDict.load_memmap` opens: a directory, or an archive (.tdz).

        Takes a sealed set by name or reference, or a mutable one, all of one version, which is returned. A name is that of a mutable set,
        as it is at this moment, or else of a sealed one; `name@version` is a sealed one, such as a snapshot. The path appears when it is
        whole; what is there already is kept but with `replace`. In a file, nested keys are joined by dots, and values are in its
        `__metadata__`. Parts that it cannot hold, such as batch shapes, are a warning, and with `strict` an error.
        """
        wanted = target.reference if isinstance(target, (Published, MutableSet)) else target
        flags = (["--replace"] if replace else []) + (["--strict"] if strict else []) + files.time("wait", wait or None)
        text = sizes.text("the target", wanted) if isinstance(wanted, str) else str(wanted)
        if archives.is_meant(path):
            with archives.packing(path, replace, cancel) as folder:
                return files.save(self.directory, text, folder, flags, deadline, cancel, progress)
        return files.save(self.directory, text, path, flags, deadline, cancel, progress)

    def create_set(
        self,
        name: str,
        rows: int | None = None,
        leaves: Mapping[str, Any] | None = None,
        *,
        writers: Sequence[str] = (),
        directory: str | None = None,
        open: bool = False,
        durability: str | None = None,
        contiguous: bool = False,
    ) -> MutableSet:
        """Makes a set of `rows` rows, all of them zero, which any process of the exchange opens by its reference.

        `leaves` has for each key `(dtype, row shape)`, or an array of rows, such as a batch; keys of mappings inside are joined
        by `/`. Workloads of this peer may write, and those of peers that `writers` name: `rollout-*`. Nothing is written: a row
        takes memory when it is first written. It lives until it is dropped, or its sidecar ends.

        With `directory`, rows lie in files in a new directory of that name below `sets.root` of the sidecar, which
        `TensorDict.load_memmap` opens, and the set is there again when its sidecar has started again. With `open`, the directory may
        be there; it gives rows and leaves where none are given. `durability` is `process`, the default, `none`, or `disk`,
        with which a commit that was answered survives a loss of power: see docs/sets.md. A set that is opened keeps its durability and
        its writers; others that are given are SET_MISMATCH.

        With `contiguous`, the rows of each leaf lie in one piece of the arena, whose room is taken at once: `MutableSet.map` shows
        them there, without a copy.
        """
        if directory is None and (rows is None or leaves is None):
            raise Unsupported("a set in memory has rows and leaves", remedy="give both, or a directory and open=True")
        files = None if directory is None else (directory, open, durability)
        layout, allowed = mutable.layout(leaves) if leaves is not None else [], sizes.texts("writers", writers)
        count, place = sizes.whole("rows", rows or 0), (files, contiguous)
        made = self._core.create_set(sizes.text("the name", name), count, layout, allowed, place)
        return MutableSet(made.reference, self, made)

    def open_set(self, target: MutableSet | str, *, wait: float | None = None, cancel: Cancel | None = None) -> MutableSet:
        """Opens a mutable set by its reference, its name at this peer, or `peer/name`.

        Waits `wait` seconds for a set by its name that is not there yet, or whose peer is not. Of a reference nothing is waited for.
        """
        lists = "client.mutable_sets() lists those of this peer, peer/name is one of another; a set that was published is got by client.get_set"
        seconds = sizes.seconds("wait", wait)
        with Remedies(NOT_FOUND=lists):
            opened = self._core.open_set(_set(target), seconds or 0.0, cancel)
        return MutableSet(opened.reference, self, opened)

    def mutable_sets(self, prefix: str = "") -> list[SetStatus]:
        """Mutable sets of this peer whose names begin so, in order."""
        return [mutable.told(opened) for opened in self._core.mutable_sets(_prefix(prefix))]

    def drop_set(self, target: MutableSet | str) -> None:
        """Takes a mutable set of this peer away, with its rows. Rows that were read stay, and so does a directory."""
        with Remedies(NOT_FOUND="client.mutable_sets() lists those of this peer; a set of another peer is dropped by a client there"):
            self._core.drop_set(_set(target))

    def channel_writer(
        self,
        name: str,
        *,
        slots: int = 4,
        slot_bytes: int = 1 << 20,
        expect_readers: int = 0,
        readers_max: int = 0,
        policy: str = "block",
        pickle: bool = False,
        fixed: bool = False,
        readers: Sequence[str] | None = None,
        evictable: bool = False,
        evict_after: float | None = None,
        same_object: bool = False,
        growth: int = 0,
    ) -> ChannelWriter:
        """Makes a channel that this process writes: `slots` messages of up to `slot_bytes` in this pod's shared memory.

        The first write waits for `expect_readers` readers, so that none of them misses a message. The `policy` says what becomes of
        messages whose readers are slow: "block" waits for them; "drop_oldest" and "latest" wait for nobody, and a slow reader goes on
        at the oldest message that is there, or at the newest, and is told how many it missed. With `pickle`, messages may have
        objects of any kind, for readers that say so, too. With `fixed`, arrays of all messages are of the types and shapes of the first
        one's: another message is LAYOUT_MISMATCH, and is not written.

        `readers` are patterns of other peers that may read it: `["rollout-*"]`; every peer by default, none by `[]`. This pod always may.
        An `evictable` channel lets `evict` take a slow reader out; with `evict_after`, so is one for which a write has waited so many
        seconds. A reader of it holds 7 messages at most, and fewer than there are slots.

        With `same_object`, readers of this process that say so, too, get the very objects that are written, as long as their messages lie
        in the ring. Nobody may change them any more then. Other readers get what was written, as always.

        With `growth`, the largest message in bytes, a message may be larger than a slot. It has memory of its own then, until its slot
        is used again, and costs a call to the sidecar; so make slots as large as most messages are.
        """
        name, bytes_each = sizes.text("the name", name), sizes.whole("slot_bytes", slot_bytes)
        most = sizes.whole("growth", growth)
        many = [sizes.whole(word, count, sizes.MANY) for word, count in (("readers_max", readers_max), ("expect_readers", expect_readers))]
        slots, allowed = sizes.whole("slots", slots, sizes.MANY), sizes.patterns("readers", readers)
        evicts = (evictable, sizes.seconds("evict_after", evict_after))
        # Before the channel is there: a reader that is attached at once finds them.
        objects = Objects(name) if same_object else None
        core = self._core.channel_writer(name, (slots, bytes_each, most), (many[0], many[1], allowed), policy, evicts)
        most_bytes = max(bytes_each, most)
        return ChannelWriter(name, core, message_bytes=most_bytes, pickle=pickle, fixed=fixed, objects=objects)

    def channel_reader(
        self,
        name: str,
        *,
        oldest: bool = False,
        hold: int = 2,
        wait: float | None = None,
        pickle: bool = False,
        follow: bool = False,
        require: str = "",
        same_object: bool = False,
    ) -> ChannelReader:
        """Attaches to a channel of this pod, or as `peer/name` of another one; waits `wait` seconds for one that is not there yet.

        It begins with the next message, or with the oldest that is still there, and holds up to `hold` messages at a time:
        2 let a loop keep one while it takes the next. With `pickle`, objects that the writer pickled are made here: who writes the
        channel can run what it likes in this process then.

        With `follow`, it goes on after the end of the channel: a read waits, within its timeout, for another one of the name, and
        `Message.epoch` counts them. `require` insists on a way: "zero_copy" reads a map of the writer's ring or nothing.

        With `same_object`, it gets the very objects that were written, if the writer is in this process and says so, too; `route` is
        `process` then. Arrays are those of the writer, and not `tensorlane.Tensor`. Not for a reader that follows.
        """
        if same_object and follow:
            what = "a reader that follows may come to a writer of another process, and gets no objects of this one"
            raise Invalid(what, remedy="leave out follow, or same_object")
        many, text = sizes.whole("hold", hold, sizes.MANY), sizes.text("the name", name)
        seconds = sizes.seconds("wait", wait)
        search = Search(text) if same_object else None
        with Remedies(NOT_FOUND=f"{_later(seconds)}; client.channels() lists those of this pod, peer/name is one of another"):
            core = self._core.channel_reader(text, (oldest, follow), many, seconds or 0.0, sizes.text("require", require))
        objects = [] if search is None else search.found(core.channel)
        return ChannelReader(name, core, deadline=self.deadline, pickle=pickle, objects=objects)

    def channels(self, prefix: str = "") -> list[dict[str, Any]]:
        """Channels of this pod whose names begin so, with how far each reader is behind.

        The channel of just this name comes first. All readers and patterns have 4 MiB together; `readers_left_out` and
        `allowed_left_out` count what has no room.
        """
        return self._core.channels(_prefix(prefix))

    def listen(self, name: str, *, allow: Sequence[str] | None = None) -> Listener:
        """Opens an entry point for pipes of this peer: other processes `connect_pipe` to its name.

        `allow` are patterns of other peers that may: `["rollout-*"]`; every peer by default, none by `[]`. This pod always may.
        """
        return Listener(self, name, self._core.listen(sizes.text("the name", name), sizes.patterns("allow", allow)))

    def connect_pipe(self, to: str, *, wait: float | None = None) -> Pipe:
        """Connects to a listener of this peer, or of another one as `peer/name`; waits `wait` seconds for one that is not there yet.

        Messages may be written before it is accepted.
        """
        name, seconds = sizes.text("the name", to), sizes.seconds("wait", wait)
        with Remedies(NOT_FOUND=f"{_later(seconds)}; have the other end listen first, peer/name is a listener of another peer"):
            return Pipe(self, self._core.connect_pipe(name, seconds))

    def describe(self, target: Target, *, peer: str | None = None) -> Description:
        """Tells the kind, names and leases of a tensor, which is not moved."""
        wanted = _target(target, peer)
        with _missing(wanted):
            known = self._core.describe(wanted)
        return Description(**{**known, "shape": tuple(known["shape"]), "metadata": dict(known["metadata"])})

    def names(self, prefix: str = "") -> dict[str, Reference]:
        """Names of this peer that begin so, with what they stand for."""
        return dict(self._core.names(_prefix(prefix)))

    def watch(self, prefix: str = "", *, after: str | None = None, peer: str | None = None) -> Watch:
        """Watches the names of a peer, by default this one, that begin so: `for event in client.watch("policy")`.

        First come the names that there are, then each change, once and in order. With `after`, the revision of an earlier watch of
        whichever client, only what has changed since.
        """
        return Watch(prefix, self._core.watch(_prefix(prefix), after, peer), after)

    def unname(self, *names: str) -> None:
        """Takes names of this peer away. What nothing else keeps is freed."""
        with Remedies(NOT_FOUND=_OURS):
            self._core.unname([sizes.text("the name", name) for name in names])

    def status(self) -> Status:
        """The state of the sidecar, with what this process gave back already counted as gone."""
        self._core.flush()
        return Status(**self._core.status())

    def peers(self) -> list[Peer]:
        """Peers of the exchange as this sidecar knows them, itself first."""
        return [Peer(**peer) for peer in self._core.peers()]

    def flush(self) -> None:
        """Tells the sidecar at once of leases that ended, instead of a moment later."""
        self._core.flush()

    def close(self) -> None:
        """Ends the use of this client. Arrays stay readable; the connection ends when the last of them is gone."""
        with _open_lock:
            _open.discard(self)
        self._core.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a client stays in its process; connect in each one")

    def __repr__(self) -> str:
        return f"<tensorlane.Client of {self.directory}>"


def connect(
    directory: str | os.PathLike[str] | None = None, *, name: str | None = None, deadline: float = 30.0, patience: float = 0.0
) -> Client:
    """Connects to the sidecar in `directory`, or in $TENSORLANE_SOCKETS, or in /run/tensorlane.

    `deadline` is that of calls that name none, `patience` how long the sidecar may not be there yet.
    """
    return Client(directory, name=name, deadline=deadline, patience=patience)


_open: weakref.WeakSet[Client] = weakref.WeakSet()
_open_lock = threading.Lock()
_defaults: dict[str, Client] = {}


def _unlock() -> None:
    """Gives a forked child a lock of its own: a thread that had it is not there."""
    global _open_lock
    _open_lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def default() -> Client:
    """The client of values that came to this process without one, such as sets that were pickled.

    `connect()` makes it at its first use: one for each directory that TENSORLANE_SOCKETS named meanwhile.
    """
    named = os.environ.get("TENSORLANE_SOCKETS", "")
    return _defaults.get(named) or _defaults.setdefault(named, connect())


def ticket_of(reference: Reference, uses: int, ttl: float | None) -> str:
    """A ticket for a tensor, by a client of this process whose sidecar has it: one that is open, else the one that `connect()` finds."""
    with _open_lock:
        clients = list(_open)
    beside = next((client for client in clients if client._core.owns(reference)), None)
    try:
        return (beside or default()).ticket(reference, uses=uses, ttl=ttl)
    except Error as error:
        if beside is None:
            place = f"a ticket is made beside peer {reference.peer}"
            error.remedy = f"{place}: connect there in this process first, by tensorlane.connect(DIRECTORY)"
        raise


def _terms(wait: float | None, deadline: float | None, require: Require) -> tuple[float, float | None, str]:
    """Terms of a get, as the native half takes them."""
    words = [] if require is None else [require] if isinstance(require, str) else sizes.texts("require", require)
    for word in words:
        if word not in get_args(Requirement):
            raise Invalid(f"require is {word!r}", remedy="give zero_copy, same_node or encrypted, or a list of them")
    return sizes.seconds("wait", wait) or 0.0, sizes.seconds("deadline", deadline), ",".join(words)


def _item(source: arrays.Source, keeping: dict[str, Any]) -> Item:
    return source.dense(), source.dtype, source.shape, [], keeping


def _all(results: list[Any]) -> list[Any]:
    """Results of one call each, or the first exception among them."""
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        # An interrupt is told, whichever of the calls it ended.
        failed = next((one for one in failures if not isinstance(one, Exception)), failures[0])
        # The traceback keeps this list for as long as somebody looks at the exception; leases end now.
        results.clear()
        raise failed
    return results


def _give_up(stored: Iterable[Stored]) -> None:
    for one in stored:
        one.release()


def _keeping(*, keep: bool, ticket: float | None, uses: int, checksum: bool, deadline: float | None) -> dict[str, Any]:
    times = {"ticket": sizes.seconds("ticket", ticket), "deadline": sizes.seconds("deadline", deadline)}
    flags = {"lease": sizes.flag("keep", keep), "checksum": sizes.flag("checksum", checksum)}
    return {"name": None, "replaces": None, "uses": sizes.whole("uses", uses, sizes.MANY), **flags, **times}


def _set(target: MutableSet | str) -> str:
    return target.reference if isinstance(target, MutableSet) else sizes.text("the name", target)


def _later(wait: float | None) -> str:
    """Help with a name that was not there, whether or not it was waited for."""
    return f"it did not come within {wait:g} s: wait longer, or correct the name" if wait else "wait=SECONDS waits for one that is made later"


def _missing(wanted: Any, wait: float | None = None) -> Remedies:
    """Help with a tensor that is not there, as it was asked for: by its name, by its reference, or in one of both."""

    def told() -> str:
        kinds = {isinstance(one, Reference) for one in (wanted if isinstance(wanted, list) else [wanted])}
        named = f"{_later(wait)}; {_OURS}, peer=NAME asks another one"
        return "; ".join(text for kind, text in ((False, named), (True, _GONE)) if kind in kinds)

    return Remedies(NOT_FOUND=told)


def _prefix(prefix: str) -> str:
    return sizes.text("the prefix", prefix)


def _tensor(acquired: Acquired, target: object) -> Tensor:
    """The tensor that was acquired, unless it is the manifest of a set, whose bytes nobody means."""
    got = leased(acquired)
    if sets.METADATA in got.metadata:
        got.release()
        shown = target[0] if isinstance(target, tuple) else target
        raise Unsupported(f"{shown} is a set, and a tensor is asked for", remedy="client.get_set(...) gets its tensors, client.load_into(...) loads them")
    return got


def _words(metadata: Mapping[str, str] | None) -> list[tuple[str, str]]:
    return [(sizes.text("metadata", str(key)), sizes.text("metadata", str(value))) for key, value in (metadata or {}).items()]


def _target(target: Target, peer: str | None) -> Reference | tuple[str, str | None]:
    if isinstance(target, Stored):
        return target.reference
    if isinstance(target, Reference):
        return target
    if isinstance(target, str):
        # The text of a reference is one, and no name.
        sizes.text("the name", target)
        return Reference(target) if target.startswith("tl1:") else (target, peer if peer is None else sizes.text("the peer", peer))
    if isinstance(target, Part):
        raise Invalid("a part is got alone", remedy="call get for each part, from threads if there are many")
    raise Invalid(f"a {type(target).__name__} names no tensor", remedy="pass a Reference, what put returned, or a name")
