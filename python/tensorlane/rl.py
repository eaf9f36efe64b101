"""TorchRL over the exchange: a storage of replay buffers whose rows lie in a mutable set, and the writer for many processes.

    storage = SetStorage.create("replay", 50_000, {"obs": ("uint8", (4, 84, 84)), "reward": ("float32", (1,))}, writers=["rollout-*"])
    buffer = TensorDictReplayBuffer(storage=storage, writer=SetWriter(), batch_size=256)
    buffer.extend(rollout)                      # in any number of processes, of any pod: rows round robin
    batch = buffer.sample()                     # in another one: only these rows travel

The storage pickles as the reference of its set. One leaf of the set, `_written`, has for each row whether it counts: the length of the
storage is the number of rows from the first on that do. A set without that leaf is a storage that is full from the start.
"""

from __future__ import annotations

import functools
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from . import dtypes, opaque, parts
from . import rows as selecting
from . import values as preparing
from .client import Client, default
from .errors import Error, Invalid, OutOfRange, Unsupported
from .mutable import Leaf, MutableSet
from .tensordict import _FILL, _KEY, _device_word, _home, _on

try:
    import torch
    from tensordict import TensorDict, is_tensorclass
    from torchrl.data import ReplayBuffer, TensorStorage, Writer
    from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
    from torchrl.data.replay_buffers.samplers import Sampler

    from .lazyrows import LazyRows
except ImportError as error:
    raise ImportError(f"TorchRL cannot be used ({error}): pip install 'torchrl>=0.14,<0.15'") from error

WRITTEN = "_written"
"""Key of the leaf that says of each row whether it counts."""

_THEIRS = ("index", "index_generation")
"""Keys that TorchRL's own writers add, which are left out unless the set has them: a sample has its index anyway."""

_ROWS = 1 << 20
"""Rows that one commit may write."""

_WINDOW = 4096
"""Rows of which the first look at the length asks."""

_PATIENCE = 30.0
"""Seconds in which a storage is emptied while others write."""

_GLANCE = 0.005
"""Seconds between two looks at what other processes wrote into a full storage."""

_METADATA = "storage_metadata.json"
"""File beside the rows of a checkpoint, as TorchRL names it."""


class SetCheckpointer(StorageCheckpointerBase):  # type: ignore[misc]
    """Writes the rows of a storage into a directory of tensordict, as TorchRL's own storages do, and takes them from one."""

    def dumps(self, storage: SetStorage, path: Any) -> None:
        """Writes the rows that count, part by part. Warns where rows were written meanwhile: those of the checkpoint are of several versions."""
        path, version, length = Path(path), storage.mutable_set.version, len(storage)
        path.mkdir(exist_ok=True)
        if self._save_hooks:
            rows = storage[:]
            self._set_hooks_shift_is_full(storage)
            for hook in self._save_hooks:
                rows = hook(rows, path=path)
            _dict(rows).memmap(path, copy_existing=True)
        else:
            saved = storage._shaped(length).memmap_like(path)
            for part in storage._parts(length):
                saved[part] = _dict(storage[part])
        status = storage.mutable_set.status()
        told = {"metadata": {}, "is_pytree": False, "len": length, "cursor": status.cursor}
        (path / _METADATA).write_text(json.dumps(told))
        if status.version != version:
            words = f"rows of {storage.mutable_set.reference} were written while {path} was: they may be of any version from {version} to"
            warnings.warn(f"{words} {status.version}; write a checkpoint while nobody extends, to have one moment", stacklevel=3)

    def loads(self, storage: SetStorage, path: Any) -> None:
        """Takes rows from a directory, part by part."""
        path = Path(path)
        told = json.loads((path / _METADATA).read_text())
        if told["is_pytree"]:
            raise Unsupported(f"{path} has a pytree", remedy="save it from a storage of TensorDicts")
        rows = TensorDict.load_memmap(path)
        for hook in self._load_hooks:
            rows = hook(rows, out=None)
        storage._fill(rows[_KEY] if storage._is_bare else rows, told["len"], told.get("cursor"))


class SetStorage(TensorStorage):  # type: ignore[misc]
    """A storage of TorchRL over a mutable set, in memory or on files, for processes of any pod of the exchange.

    Items are TensorDicts of the rows asked for, each from one version of the set; those of a set made for plain tensors are tensors.
    They are copies: change the storage by `storage[rows] = …` or `buffer[rows] = …`, which may have some of the keys.
    """

    supports_conditional_update = False
    _default_checkpointer = SetCheckpointer
    _storage = None

    def __init__(self, target: MutableSet | str, *, device: Any = None, client: Client | None = None):
        """Takes a set, its reference, its name at this peer, or `peer/name`. Samples land on `device`."""
        whole = target if isinstance(target, MutableSet) else (client or default()).open_set(target)
        self._begin(whole if client is None else whole.bind(client), device)

    def _begin(self, whole: MutableSet, device: Any) -> None:
        # Without those of TorchRL, which make what this process alone shares with its children. Nothing is asked of the set yet.
        self.mutable_set: MutableSet = whole
        self.checkpointer: Any = None  # TorchRL makes it the default one.
        self.device = torch.device(device or "cpu")
        self.ndim, self.initialized, self._compilable = 1, True, False
        # Rows that counted when the length was asked for last, and when that was.
        self._seen, self._counted_at = 0, -math.inf
        # The row that this process set last, and the cursor of extensions before.
        self._latest: tuple[int, int] | None = None
        # Buffers whose samplers were told of what was written, up to which row, and when that was looked at last.
        self._heard: list[Any] = []
        self._told, self._was_full, self._looked, self._is_noticing = 0, False, -math.inf, False

    @property
    def max_size(self) -> int:
        """Number of rows of the set."""
        return self.mutable_set.rows

    @functools.cached_property
    def _leaves(self) -> dict[str, Leaf]:
        """Leaves that the rows have, but for the storage's own."""
        return {key: leaf for key, leaf in self.mutable_set.leaves.items() if key != WRITTEN}

    @property
    def _is_bare(self) -> bool:
        """True where items are tensors."""
        return list(self._leaves) == [_KEY]

    @functools.cached_property
    def _counts(self) -> bool:
        return WRITTEN in self.mutable_set.leaves

    @classmethod
    def create(
        cls,
        name: str,
        max_size: int,
        leaves: Any,
        *,
        device: Any = None,
        client: Client | None = None,
        writers: Sequence[str] = (),
        directory: str | None = None,
        open: bool = False,
        durability: str | None = None,
    ) -> SetStorage:
        """Makes an empty storage of `max_size` rows, and its set.

        `leaves` is what `Client.create_set` takes: `(dtype, row shape)` by key, or a batch such as a TensorDict; or a tensor of
        rows, for a storage of plain tensors. The other options are those of `create_set` and of the storage.
        """
        layout = {key: leaf for key, leaf in preparing.once(_tree(leaves)).items() if key not in _THEIRS}
        if WRITTEN in layout:
            raise Invalid(f"{WRITTEN} is the storage's own key", remedy="give that leaf another name")
        layout[WRITTEN] = ("bool", ())
        made = (client or default()).create_set(
            name, max_size, layout, writers=writers, directory=directory, open=open, durability=durability
        )
        return cls(made, device=device)

    def bind(self, client: Client) -> SetStorage:
        """Storage with the rows of this one, used by this client."""
        return SetStorage(self.mutable_set, device=self.device, client=client)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Writes rows in one commit. With `set_cursor` they have all keys, and count from then on."""
        rows = _index(cursor)
        leaves = self._given(data, whole=set_cursor)
        if isinstance(rows, np.ndarray) and len(rows) > self.max_size:
            # As round robin leaves it: the last ones.
            rows, leaves = rows[-self.max_size :], {key: leaf[-self.max_size :] for key, leaf in leaves.items()}
        if not set_cursor:
            self.mutable_set.write(rows, leaves)
            return
        if self._counts:
            leaves[WRITTEN] = True
        # Before the write: an extension that comes between is behind it.
        before = self.mutable_set.status().cursor
        self.mutable_set.write(rows, leaves)
        written = _numbers(rows, self.max_size)
        if not len(written):
            return
        first, last = int(written[0]), int(written[-1])
        self._latest = last, before
        if not self._all_heard:
            self._notice(self._counted(), at_once=True)
        elif self._told == first and last - first == len(written) - 1 and self._seen < self.max_size:
            # Whoever writes them by this storage tells of them.
            self._told = last + 1

    def append(self, data: Any) -> Any:
        """Writes a batch of rows behind those that any process appended last, round robin, and gives their indices.

        Of more rows than the storage has, the last ones stay, as if the others had been written before.
        """
        leaves = self._given(data, whole=True)
        count = len(next(iter(leaves.values())))
        left = max(0, count - self.max_size)
        if left:
            leaves = {key: leaf[left:] for key, leaf in leaves.items()}
        if self._counts:
            leaves[WRITTEN] = np.ones(count - left, dtype=bool)
        first = self.mutable_set.extend(leaves).first
        if self._told % self.max_size == first and self._all_heard:
            # Whoever writes them by this storage tells of them.
            self._told = (first + count - left - 1) % self.max_size + 1
        elif self._hearing:
            self._notice(self._counted(), at_once=True)
        return (first + torch.arange(-left, count - left, device="cpu")) % self.max_size

    def get(self, index: Any) -> Any:
        """Rows of one version: a number, a slice, numbers in a list, array or tensor of any shape, or a mask, among those that count.

        By a key, all rows of that leaf alone, as a tensor.
        """
        key = preparing.as_key(index)
        if key is not None:
            return self._one_leaf(key, len(self))
        rows = _index(index)
        if isinstance(rows, slice):
            chosen = range(*rows.indices(len(self)))
            rows = slice(chosen.start, chosen.stop, chosen.step) if chosen.step > 0 else np.array(chosen, dtype=np.int64)
        elif isinstance(rows, np.ndarray):
            rows = self._among(rows)
        elif rows < 0:
            rows = int(self._among(np.array([rows]))[0])
        shape = rows.shape if isinstance(rows, np.ndarray) else None
        return self._read(rows if shape is None else rows.reshape(-1), shape)

    def __getitem__(self, index: Any) -> Any:
        """Rows as `get` gives them. All of them, by `[:]`, are a TensorDict that reads a leaf alone when it is asked for by its key."""
        if self._is_bare or not (index is Ellipsis or (isinstance(index, slice) and index == slice(None))):
            return self.get(index)
        length = len(self)
        return LazyRows(length, self.device, self._leaves, lambda key: self._one_leaf(key, length), lambda: self._read(slice(0, length), None))

    def _one_leaf(self, key: str, length: int) -> Any:
        if key not in self._leaves:
            raise preparing.no_leaf(key, self._leaves)
        return _on(self.mutable_set.read(slice(0, length), [key])[key].torch(), self.device)

    def _among(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of rows that a mask or numbers mean, among those that count."""
        if rows.dtype == bool:
            length = len(self)
            if rows.shape not in ((length,), (self.max_size,)):
                raise OutOfRange(f"a mask of shape {list(rows.shape)} for {length} rows", remedy="give one for each row that counts")
            return np.flatnonzero(rows)
        if not rows.size or (least := int(rows.min())) >= 0:
            return rows
        length = len(self)
        if least < -length:
            raise OutOfRange(f"row {least} of {length} rows", remedy="ask for rows from -len(storage) on")
        return np.where(rows < 0, rows.astype(np.int64) + length, rows)

    def _read(self, rows: Any, shape: tuple[int, ...] | None) -> Any:
        read = self.mutable_set.read(rows)
        if self._counts and not (counted := read[WRITTEN].numpy()).all():
            # Some other process emptied the storage, perhaps.
            self._seen = 0
            first = int(np.flatnonzero(~np.atleast_1d(counted))[0])
            raise OutOfRange(f"row {_row_at(rows, first)} of the storage is empty", remedy="ask for rows below len(storage)")
        tensors = {key: _on(read[key].torch(), self.device) for key in self._leaves}
        if shape is not None and len(shape) != 1:
            tensors = {key: tensor.reshape(*shape, *tensor.shape[1:]) for key, tensor in tensors.items()}
        if self._is_bare:
            return tensors[_KEY]
        one = not isinstance(rows, (slice, np.ndarray))
        batch = () if one else shape if shape is not None else (len(next(iter(tensors.values()))),)
        return TensorDict({tuple(key.split("/")): tensor for key, tensor in tensors.items()}, batch_size=batch, device=self.device)

    def _given(self, data: Any, *, whole: bool) -> dict[str, Any]:
        """Leaves of what is written, by their keys; all of them, if `whole`."""
        if isinstance(data, list):
            data = torch.stack(data)
        leaves = self.mutable_set.leaves
        given = {key: _home(leaf) for key, leaf in preparing.once(_tree(data)).items() if key in leaves or key not in _THEIRS}
        for key in given:
            if key not in self._leaves:
                raise preparing.no_leaf(key, self._leaves)
        missing = [key for key in self._leaves if key not in given]
        if missing and (whole or not given):
            raise Invalid(f"the rows have no {missing}", "SET_MISMATCH", remedy="give every leaf of a row that is new")
        return given

    def __len__(self) -> int:
        return self._len

    @property
    def _len(self) -> int:
        """Number of rows from the first on that count. Samplers are told of what other processes extended since."""
        length = self._counted()
        self._notice(length)
        return length

    @_len.setter
    def _len(self, length: int) -> None:
        """Has more rows count, or fewer."""
        before = self._counted()
        if length != before:
            self._mark(range(min(before, length), max(before, length)), length > before, None)
            self._seen = min(length, before)

    def _counted(self) -> int:
        is_early = self._seen == self.max_size and time.monotonic() - self._counted_at < _GLANCE
        if not self._counts or is_early:
            return self.max_size
        # Of a full storage, the last row again: another process may have emptied it.
        at, window = min(self._seen, self.max_size - 1), _WINDOW
        while at < self.max_size:
            # From the last one that counted on: it may count no more.
            start = max(0, at - 1)
            counted = self.mutable_set.read(slice(start, at + window), [WRITTEN])[WRITTEN].numpy()
            behind = int(np.argmin(counted)) if not counted.all() else len(counted)
            if behind == 0 and start > 0:
                at, window = 0, _WINDOW
                continue
            at, window = start + behind, min(8 * window, _ROWS - 1)
            if behind < len(counted):
                break
        self._seen, self._counted_at = at, time.monotonic()
        return at

    @property
    def _hearing(self) -> list[Any]:
        """Buffers whose samplers want to know which rows were written, and whatever else does."""
        return [entity for entity in self._attached_entities if _hears(entity)]

    @property
    def _all_heard(self) -> bool:
        return all(entity in self._heard for entity in self._hearing)

    def _notice(self, length: int, *, at_once: bool = False) -> None:
        """Tells samplers of rows that other processes extended since that was looked at last, so that they have a priority."""
        hearing, now, is_full = self._hearing, time.monotonic(), length == self.max_size
        # Whoever is new is told before it samples: later it would take for new what it has sampled.
        is_early = is_full and not at_once and self._all_heard and now - self._looked < _GLANCE
        if not hearing or self._is_noticing or is_early:
            return
        heard, told, upto = self._heard, self._told, self.mutable_set.status().cursor if is_full else length
        # The cursor of a storage that has just become full may be where it began.
        is_filled, self._was_full = is_full and not self._was_full, is_full
        self._heard, self._told, self._looked = hearing, upto, now
        # They ask for the length, too.
        self._is_noticing = True
        try:
            for entity in hearing:
                rows = _extended(told if entity in heard else None, upto, length, self.max_size, is_filled)
                if len(rows):
                    entity.mark_update(rows)
        finally:
            self._is_noticing = False

    @property
    def _total_shape(self) -> Any:
        return torch.Size([self.max_size])

    @property
    def _mutation_revision(self) -> int:
        """Number of commits, whoever made them: what samplers remember of the contents is good for one."""
        return self.mutable_set.version

    def _bump_mutation_revision(self) -> None:
        """Refuses: TorchRL calls it where a buffer has changed `storage[:]` in place, which is a copy."""
        what = "set_at_, set_ and update_ of a buffer change a copy of its rows, and not the storage"
        raise Unsupported(what, remedy="write buffer[rows] = {key: values}, or buffer.write_all(values)")

    @property
    def _last_cursor_index(self) -> int | None:
        """Row that was written last: the one that this process set, unless there was an extension since, of whichever process."""
        if self._latest is None and not len(self):
            return None
        cursor = self.mutable_set.status().cursor
        if self._latest is not None and self._latest[1] == cursor:
            return self._latest[0]
        return (cursor - 1) % self.max_size

    _last_cursor = _last_cursor_index

    def flatten(self) -> SetStorage:
        """The storage: it has one dimension."""
        return self

    def contains(self, item: Any) -> Any:
        """Tells of a row, or of each in a tensor, whether it counts."""
        length = len(self)
        if isinstance(item, torch.Tensor):
            return (item >= -length) & (item < length)
        return -length <= item < length

    def _empty(self) -> None:
        """Has no row count, and the next extension begin at the first one."""
        self._restart(0, False)

    def _restart(self, cursor: int, counts: bool) -> None:
        """Has no row count and brings the cursor of extensions to a row, on top of each other: others that write meanwhile are seen."""
        if not self._counts:
            raise Unsupported("this storage is always full: its set has no leaf _written", remedy="make it by SetStorage.create")
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                status = self.mutable_set.status()
                version = self._mark(range(self.max_size), False, status.version)
                self._turn(status.cursor, cursor, counts, version)
                break
            except Error as error:
                if error.reason != "VERSION_CHANGED" or time.monotonic() > until:
                    raise
        self._seen, self._latest, self._told, self._was_full = 0, None, 0, False

    def _mark(self, rows: range, counts: bool, expects: int | None) -> int | None:
        """Writes of a range of rows whether they count; gives the version, if one was expected."""
        for start in range(rows.start, rows.stop, _ROWS):
            part = slice(start, min(start + _ROWS, rows.stop))
            version = self.mutable_set.write(part, {WRITTEN: counts}, expects=expects).version
            expects = None if expects is None else version
        return expects

    def _turn(self, cursor: int, to: int, counts: bool, expects: int | None) -> None:
        """Brings the cursor of extensions to a row, by extensions that say of rows alone whether they count."""
        left = (to - cursor) % self.max_size
        while left:
            count = min(left, _ROWS)
            version = self.mutable_set.extend({WRITTEN: np.full(count, counts)}, expects=expects).version
            expects = None if expects is None else version
            left -= count

    def state_dict(self) -> dict[str, Any]:
        """Rows that count, as TensorStorage has them, and the cursor of extensions. All of them come into memory."""
        rows = self.get(slice(None))
        stored = rows if isinstance(rows, torch.Tensor) else rows.state_dict()
        return {"_storage": stored, "initialized": True, "_len": len(rows), "_cursor": self.mutable_set.status().cursor}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes the rows of a state, also of a TensorStorage. Nobody may write meanwhile: they come by several commits."""
        stored, length = state_dict["_storage"], int(state_dict["_len"])
        rows = stored if isinstance(stored, torch.Tensor) else TensorDict().load_state_dict(stored, strict=False)
        self._fill(rows, length, state_dict.get("_cursor"))

    def _fill(self, rows: Any, length: int, cursor: int | None) -> None:
        """Has the storage be the first rows of a batch, and brings the cursor behind them or, if it is full, to where it was."""
        if length > self.max_size:
            raise Invalid(f"{length} rows for a storage of {self.max_size}", remedy="load into one that has as many")
        self._restart(0, False)
        for part in self._parts(length):
            self.append(rows[part])
        if length == self.max_size:
            self._turn(0, cursor or 0, True, None)

    def _parts(self, length: int) -> Iterator[slice]:
        """Slices of the first rows, as many as one commit takes."""
        status = self.mutable_set.status()
        # Rows lie in the arena twice while they are written.
        room = min(_FILL, self.mutable_set._bound.status().arena_bytes // 4)
        step = max(1, min(_ROWS, room * status.rows // max(1, status.nbytes)))
        for start in range(0, length, step):
            yield slice(start, min(start + step, length))

    def _shaped(self, length: int) -> Any:
        """A TensorDict of so many rows, which take no memory."""
        one = {key: torch.zeros((), dtype=dtypes.to_torch(leaf.dtype), device="cpu") for key, leaf in self._leaves.items()}
        leaves = {tuple(key.split("/")): one[key].expand(length, *leaf.row_shape) for key, leaf in self._leaves.items()}
        return TensorDict(leaves, batch_size=[length])

    def loads(self, path: Any) -> None:
        """Takes the rows that `dumps` wrote, or that a TensorStorage of TorchRL did."""
        self.checkpointer.loads(self, path)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "reference": self.mutable_set.reference,
            "device": _device_word(self.device),
            "attached": self._attached_entities,
            "checkpointer": self.checkpointer,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(MutableSet(state["reference"]), state["device"])
        self._attached_entities_list, self.checkpointer = state["attached"], state["checkpointer"]

    def __repr__(self) -> str:
        return f"SetStorage({self.mutable_set!r}, len={len(self)}, max_size={self.max_size}, device={self.device})"


class SetWriter(Writer):  # type: ignore[misc]
    """A writer whose rows the set itself gives out, round robin, to any number of processes that write into one storage."""

    _storage: SetStorage

    def __init__(self) -> None:
        super().__init__()
        self._write_count = 0

    def register_storage(self, storage: Any) -> None:
        """Takes the storage of its buffer."""
        if not isinstance(storage, SetStorage):
            raise Unsupported(f"a {type(storage).__name__} gives out no rows", remedy="use a RoundRobinWriter, or a SetStorage")
        super().register_storage(storage)

    def add(self, data: Any) -> int:
        """Writes one item; gives its index."""
        one = data[None] if hasattr(data, "shape") else {key: leaf[None] for key, leaf in data.items()}
        return int(self.extend(one)[0])

    def extend(self, data: Any) -> Any:
        """Writes a batch in one commit; gives its indices. Of more rows than the storage has, the last ones stay."""
        if len(data) == 0:
            raise Invalid("an extension by no row", remedy="give one at least")
        index = self._storage.append(data)
        self._write_count += len(index)
        for entity in self._storage._attached_entities_iter():
            entity.mark_update(index)
        return index

    def _empty(self, empty_write_count: bool = True) -> None:
        # The storage brings the cursor back.
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """Number of rows that this process wrote. The cursor is in the state of the storage."""
        return {"_write_count": self._write_count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a state, also of TorchRL's own writer."""
        self._write_count = state_dict.get("_write_count", 0)

    def dumps(self, path: Any) -> None:
        """Writes its state into a directory."""
        Path(path).mkdir(exist_ok=True)
        (Path(path) / "metadata.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: Any) -> None:
        """Takes its state from a directory."""
        self.load_state_dict(json.loads((Path(path) / "metadata.json").read_text()))


def _tree(data: Any) -> Any:
    """A mapping of what TorchRL calls data."""
    if is_tensorclass(data):
        return data.to_tensordict()
    return {_KEY: data} if isinstance(data, torch.Tensor) else data


def _dict(rows: Any) -> Any:
    return TensorDict({_KEY: rows}, batch_size=[len(rows)]) if isinstance(rows, torch.Tensor) else rows


def _index(index: Any) -> Any:
    """A number, a slice or an array of numbers or a mask, for what TorchRL takes as an index."""
    if isinstance(index, tuple):
        if len(index) != 1:
            raise Unsupported(f"an index of {len(index)} dimensions", remedy="give rows alone, and index what comes back")
        return _index(index[0])
    if index is Ellipsis:
        return slice(None)
    if isinstance(index, slice):
        return parts.whole_slice(index)
    opaque.check_under("the index of rows", index)
    rows = selecting._of_torch(index) if isinstance(index, torch.Tensor) else np.asarray(index)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.dtype.kind not in "iub" or (rows.ndim == 0 and rows.dtype.kind == "b"):
        raise selecting._no_rows(index)
    return int(rows) if rows.ndim == 0 else rows


def _row_at(rows: Any, at: int) -> int:
    """Row that stands at a place among those that were asked for."""
    if isinstance(rows, slice):
        return int(rows.start + at * rows.step)
    return int(rows[at]) if isinstance(rows, np.ndarray) else int(rows)


def _hears(entity: Any) -> bool:
    """True for what wants to know which rows were written: of a buffer, its sampler says so."""
    hearer = getattr(entity, "_sampler", None) if isinstance(entity, ReplayBuffer) else entity
    return hearer is not None and type(hearer).mark_update is not Sampler.mark_update


def _extended(told: int | None, upto: int, length: int, size: int, is_filled: bool) -> Any:
    """Rows that count and were extended behind those that were told of. Of a storage that was emptied, all."""
    if told is None or (told > upto and length < size):
        return torch.arange(length, device="cpu")
    ahead = (upto - told) % size if length == size else upto - told
    if ahead == 0 and is_filled and told < size:
        ahead = size
    rows = (told + torch.arange(ahead, device="cpu")) % size
    return rows[rows < length]


def _numbers(rows: Any, size: int) -> Any:
    """Numbers of the rows that an index means, in order."""
    if isinstance(rows, slice):
        return range(*rows.indices(size))
    if isinstance(rows, int):
        return [rows % size]
    return np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64) % size
