"""Mutable sets: a fixed layout whose rows are read and written from any process of the exchange.

>>> import tensorlane
>>> with tensorlane.local() as client:
...     replay = client.create_set("replay", 50_000, {"obs": ("uint8", (4, 4)), "reward": ("float32", ())})
...     replay[[1, 34572]] = {"obs": 7, "reward": [0.5, 1.5]}
...     replay["reward"][[1, 2, 34572]].numpy()
array([0.5, 0. , 1.5], dtype=float32)

Rows of a set are new arrays when they are read, and are written as a whole: a reader sees all of a commit or nothing of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import arrays, opaque, rowparts, sizes
from . import rows as selecting
from . import values as preparing
from ._tensorlane import Cancel, Opened, Reference
from .errors import Error, Unsupported
from .tensor import Tensor

if TYPE_CHECKING:
    from .client import Client

_COMMITS = 1.0
"""Seconds that a commit has at least, where copies took the time before."""

Keys = Sequence[str] | None
"""Keys of leaves; None for all of them."""


class Committed(NamedTuple):
    """A commit that was made: the first row that it wrote, and the version that it made."""

    first: int
    version: int


@dataclass(frozen=True)
class Leaf:
    """The layout of a leaf: the short name of its dtype, such as `u8`, and the shape of one row."""

    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True)
class SetStatus:
    """A mutable set as it was when it was asked for."""

    name: str
    reference: str
    rows: int
    version: int
    """Number of commits."""
    cursor: int
    """Row that the next extension begins at."""
    nbytes: int
    """Bytes that it takes when every row was written."""
    held_bytes: int
    """Bytes that it takes in the arena of its owner."""
    writers: tuple[str, ...]
    """Peers whose workloads may write, beside the owner's own."""
    leaves: dict[str, Leaf]
    contiguous: bool = False
    """True if each leaf lies in one piece, so that rows can be mapped."""
    directory: str | None = None
    """Directory below `sets.root` of its sidecar, of a set on files."""
    durability: str | None = None
    """`none`, `process` or `disk`, of a set on files."""
    torn_rows: int = 0
    """Rows of which a leaf is TORN_ROWS: to be written again."""


class Snapshot(NamedTuple):
    """A snapshot that was published: `client.get_set(snapshot.reference)` gets it, from anywhere."""

    name: str
    """Name of the sealed set at the peer of the mutable set."""
    version: int
    """Version of the sealed set."""
    set_version: int
    """Version of the mutable set: the number of its commits that the snapshot has, all of each."""
    reference: Reference
    """The manifest."""


class Rows(Mapping[str, Tensor]):
    """Rows of one version: a mapping of keys to tensors, all of them leased and mapped.

    Leases end when the last array of a tensor is gone and the rows are released or gone.
    """

    def __init__(self, version: int, tensors: dict[str, Tensor], mapped: bool = False):
        self.version, self._tensors, self.mapped = version, tensors, mapped

    @property
    def route(self) -> str:
        """Way in which the rows came: `map` where they are shown where their set has them, else `copy` and that of the copy."""
        if self.mapped:
            return "map"
        routes = dict.fromkeys(tensor.route for tensor in self.values())
        return f"copy by {' and '.join(routes)}"

    def __getitem__(self, key: str | tuple[str, ...]) -> Tensor:
        """The rows of a leaf, by its key or by the parts of its key."""
        joined = preparing.as_key(key)
        if joined is None:
            raise KeyError(key)
        return self._tensors[joined]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def numpy(self) -> dict[str, np.ndarray]:
        """Arrays of numpy by key, to be read only; nothing is copied."""
        return {key: tensor.numpy() for key, tensor in self.items()}

    def torch(self) -> dict[str, Any]:
        """Tensors of torch by key, which may be written: nobody else sees it."""
        return {key: tensor.torch() for key, tensor in self.items()}

    def release(self) -> None:
        """Gives the leases back, as far as no array needs them."""
        for tensor in self.values():
            tensor.release()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("leased rows stay in their process; pickle the set, or what .numpy() gives, copied")

    def __repr__(self) -> str:
        return f"<tensorlane.Rows of version {self.version}, keys {list(self)}>"


class MutableSet:
    """A set whose rows change, opened by its reference. Threads and forked children may share it.

    It pickles as its reference. Where it comes out it uses the sidecar that `tensorlane.connect()` finds, when it is first
    asked for something; `bind` has it use another client.
    """

    __iter__: None = None
    """Iteration would ask for the rows one by one."""

    def __init__(self, reference: str, client: Client | None = None, opened: Opened | None = None):
        """Takes a reference; nothing is asked before the first use."""
        self._reference, self._client, self._found = reference, client, opened
        self._layout: dict[str, Leaf] | None = None

    @property
    def reference(self) -> str:
        """Text that names the set from anywhere in the exchange, at most 300 bytes."""
        return self._reference

    @property
    def name(self) -> str:
        """Name of the set at its peer."""
        return self._opened.name

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._opened.rows

    @property
    def version(self) -> int:
        """Number of commits until now, as its owner says."""
        return self.status().version

    @property
    def leaves(self) -> dict[str, Leaf]:
        """Layout of each leaf by its key."""
        if self._layout is None:
            self._layout = _leaves(self._opened)
        return self._layout

    def keys(self) -> list[str]:
        """Keys of its leaves, in order; those of nested mappings are joined by `/`."""
        return list(self.leaves)

    def status(self) -> SetStatus:
        """The set as it is now, as its owner says."""
        return told(self._bound._core.open_set(self._reference))

    def bind(self, client: Client) -> MutableSet:
        """Set with the data of this one, used by this client."""
        return MutableSet(self._reference, client, self._found)

    def read(
        self, rows: Any = slice(None), keys: Keys = None, *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> Rows:
        """Reads rows of some leaves or of all. All of them are of one version, and only they travel.

        `rows` is a number, a slice, whole numbers in a list or an array, or a mask. Of a number, the arrays have no dimension
        of rows.
        """
        selected, wanted = self._wanted(rows, keys)
        return self._read(wanted, selected.words, False, deadline, cancel)

    def map(
        self, rows: Any = slice(None), keys: Keys = None, *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> Rows:
        """Rows of some leaves or of all, shown where they lie: nothing is copied, and they do not change while they are held.

        A commit to one of them waits until they are released, at the end of `with` or when the last array is gone. It names the
        process that holds them when its deadline has passed. That is for slices of neighbouring rows of a set that was made with
        `contiguous`, in the pod where it was made. Else, and on files, the rows are a copy, and no commit waits: `route` and `mapped` say which.
        """
        selected, wanted = self._wanted(rows, keys)
        return self._read(wanted, selected.words, True, deadline, cancel)

    def write(
        self, rows: Any, values: Any, *, expects: int | None = None, retry_id: bytes | None = None, deadline: float | None = None
    ) -> Committed:
        """Writes rows of the leaves that `values` has, in one step or not at all. Other leaves stay as they are.

        `values` is a mapping of arrays or a TensorDict; arrays that are smaller are repeated as in numpy, and numbers are made
        what the leaf has. What `Client.put` returned is written from where it lies, and not put again. With `expects`, nothing is written if the version is another one: VERSION_CHANGED.

        With a `retry_id`, 16 bytes such as `uuid.uuid4().bytes`, a call whose answer was lost may be repeated: one that was made is not
        made again, and is answered with its version. A set remembers its last 1,024 commits.
        """
        selected = selecting.of(rows, self.rows)
        prepared = preparing.prepared(values, self.leaves, selected.count)
        return self._commit(prepared, selected.words, (expects, retry_id), deadline)

    def extend(
        self, values: Any, *, expects: int | None = None, retry_id: bytes | None = None, deadline: float | None = None
    ) -> Committed:
        """Writes rows behind those of the extension before, round robin, whoever wrote it: first row and version.

        With `expects`, nothing is written and no row is taken if the version is another one: VERSION_CHANGED. A `retry_id` is that of
        `write`: a repeat takes no rows again.
        """
        flat = preparing.flat(values, self.leaves)
        count = preparing.counted(flat, self.leaves)
        return self._commit(preparing.prepared(flat, self.leaves, count), None, (expects, retry_id), deadline)

    def flush(self) -> SetStatus:
        """Brings what was committed to the disk, of a set on files: it then survives a loss of power. For those who may write."""
        return told(self._bound._core.flush_set(self._opened))

    def snapshot(self, name: str | None = None, *, keep: int = 2, deadline: float | None = None) -> Snapshot:
        """Publishes all rows as they are at one moment, as the next version of a sealed set at the set's own peer.

        Commits go on meanwhile, and none of them is in it in part. The sealed set has the name of this one by default; where the
        set is of another peer it has no other. `keep` is how many versions stay; each is a copy of all rows. For those who may write.
        """
        text = None if name is None else sizes.text("the name", name)
        kept, within = sizes.whole("keep", keep, sizes.MANY), sizes.seconds("deadline", deadline)
        return Snapshot(*self._bound._core.snapshot_set(self._opened, text, kept, within))

    def drop(self) -> None:
        """Takes the set away, with its rows; in its own pod only. The directory of one on files stays."""
        self._bound.drop_set(self)

    def __getitem__(self, index: Any) -> Any:
        """Rows of all leaves; by a key, a view of one leaf; and by rows and a key, with further indices behind it, what that view has there."""
        key = preparing.as_key(index)
        if key is not None:
            return LeafView(self, key)
        if (named := _in_leaf(index)) is not None:
            return LeafView(self, named[0])[named[1]]
        return self.read(index)

    def __getitems__(self, rows: Sequence[int]) -> Rows:
        """Rows of all leaves, by one read: a DataLoader of torch asks so for a batch. `tensorlane.collate` makes tensors of it."""
        return self.read(list(rows))

    def __setitem__(self, index: Any, values: Any) -> None:
        """Writes rows of all leaves that `values` has, in one step; by a key, all rows of a leaf.

        By rows and a key, `replay[3:10, "obs", :, ::2] = 0`, writes rows of a leaf, or the part of each that further indices mean.
        """
        key = preparing.as_key(index)
        if key is not None:
            LeafView(self, key)[:] = values
        elif (named := _in_leaf(index)) is not None:
            LeafView(self, named[0])[named[1]] = values
        else:
            self.write(index, values)

    def __len__(self) -> int:
        return self.rows

    def __reduce__(self) -> Any:
        return MutableSet, (self._reference,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MutableSet) and self._reference == other._reference

    def __hash__(self) -> int:
        return hash(self._reference)

    def __repr__(self) -> str:
        if self._found is None:
            return f"<tensorlane.MutableSet {self._reference}>"
        return f"<tensorlane.MutableSet {self._found.name!r} of {self._found.rows} rows, keys {self.keys()}>"

    @property
    def _bound(self) -> Client:
        if self._client is None:
            from .client import default

            self._client = default()
        return self._client

    @property
    def _opened(self) -> Opened:
        if self._found is None:
            self._found = self._bound._core.open_set(self._reference)
        return self._found

    def _wanted(self, rows: Any, keys: Keys) -> tuple[selecting.Selected, list[str]]:
        wanted = [] if keys is None else sizes.texts("keys", keys)
        if keys is not None and not wanted:
            raise Unsupported("a read of no leaf", remedy="give keys, or leave them out for all")
        return selecting.of(rows, self.rows), wanted

    def _read(self, wanted: list[str], words: Any, is_map: bool, deadline: float | None, cancel: Cancel | None) -> Rows:
        within = sizes.seconds("deadline", deadline)
        version, read, mapped = self._bound._core.read_rows(self._opened, (wanted, is_map), words, within, cancel)
        return Rows(version, {key: Tensor(acquired) for key, acquired in read}, mapped)

    def _commit(
        self, prepared: dict[str, Any], words: Any, terms: tuple[int | None, bytes | None], deadline: float | None
    ) -> Committed:
        expects, retry_id = terms
        asked = expects, sizes.retry_id(retry_id)
        client = self._bound
        there = {key: reference for key, x in prepared.items() if (reference := client._there(x)) is not None}
        new = {key: x for key, x in prepared.items() if key not in there}
        given = sizes.seconds("deadline", deadline)
        within = client.deadline if given is None else given
        until = time.monotonic() + within
        # Leased until the commit has them.
        sources = [x if isinstance(x, arrays.Source) else arrays.source_under(key, x) for key, x in new.items()]
        staged = client._stage(sources, within=within)
        try:
            there.update((key, stored.reference) for key, stored in zip(new, staged))
            parts = [(key, there[key]) for key in prepared]
            left = max(until - time.monotonic(), min(within, _COMMITS))
            return Committed(*client._core.commit_rows(self._opened, parts, words, asked, left))
        finally:
            for stored in staged:
                stored.release()


class LeafView:
    """Leaf of a mutable set, indexed as an array of numpy is. Each access is a read or a commit of its own."""

    __iter__: None = None
    """Iteration would ask for the rows one by one."""

    def __init__(self, whole: MutableSet, key: str):
        self.set, self.key = whole, key
        if key not in whole.leaves:
            raise preparing.no_leaf(key, whole.leaves)

    @property
    def dtype(self) -> str:
        """The short name of its dtype, such as `u8`."""
        return self.set.leaves[self.key].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and the shape of one."""
        return (self.set.rows, *self.set.leaves[self.key].row_shape)

    def __getitem__(self, index: Any) -> Any:
        """Rows as a `tensorlane.Tensor`. With further indices, whole rows travel and an array of numpy shows the part."""
        rows, inner = selecting.split(index, len(self.shape))
        read = self.set.read(rows, [self.key])[self.key]
        return read if inner is None else selecting.part(read.numpy(), rows, inner)

    def __getitems__(self, rows: Sequence[int]) -> Tensor:
        """Rows by one read, as a DataLoader of torch asks for a batch."""
        return self.set.read(list(rows), [self.key])[self.key]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes whole rows, or with further indices a part of each. What is smaller is repeated as in numpy."""
        rows, inner = selecting.split(index, len(self.shape))
        if inner is None:
            self.set.write(rows, {self.key: value})
        else:
            self.write_part(rows, inner, value)

    def write_part(self, rows: Any, inner: tuple[Any, ...], value: Any, *, of_torch: bool = False) -> None:
        """Writes the part of rows that further indices mean, as numpy means them, or torch: the rest of the rows stays as it is.

        Rows are read and committed whole, on top of the version that was read. Where another writer was sooner, they are read
        again, until the deadline of the client: then it is VERSION_CHANGED. Nothing of another writer is lost.
        """
        whole, selected = self.set, selecting.of(rows, self.set.rows)
        ranges, listed, _ = selected.words
        words = ranges, listed, list[int]()
        until = time.monotonic() + whole._bound.deadline
        while True:
            left = max(until - time.monotonic(), _COMMITS)
            with whole._read([self.key], words, False, left, None) as read:
                version, part = read.version, rowparts.ReadRows(self.key, read[self.key])
            if not part.write(selected.one, inner, value, of_torch):
                return
            try:
                whole._commit({self.key: part.source()}, words, (version, None), left)
                return
            except Error as error:
                if error.reason != "VERSION_CHANGED" or time.monotonic() >= until:
                    raise

    def __len__(self) -> int:
        return self.set.rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:].__array__(dtype, copy))

    def __repr__(self) -> str:
        return f"<tensorlane.LeafView {self.key!r} {self.dtype}{list(self.shape)} of {self.set!r}>"


def _in_leaf(index: Any) -> tuple[str, Any] | None:
    """Key, and index of its leaf, that rows and a key with further indices behind it mean; None for another index."""
    key = preparing.as_key(index[1]) if isinstance(index, tuple) and len(index) > 1 else None
    if key is None:
        return None
    rows, _, *inner = index
    return key, (rows, *inner) if inner else rows


def _leaves(opened: Opened) -> dict[str, Leaf]:
    return {key: Leaf(dtype, tuple(row_shape)) for key, dtype, row_shape in opened.leaves}


def told(opened: Opened) -> SetStatus:
    """The status of a set that was asked for."""
    directory, durability = opened.files or (None, None)
    return SetStatus(
        opened.name,
        opened.reference,
        opened.rows,
        opened.version,
        opened.cursor,
        opened.nbytes,
        opened.held_bytes,
        tuple(opened.writers),
        _leaves(opened),
        opened.contiguous,
        directory,
        durability,
        opened.torn_rows,
    )


def layout(leaves: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Key, dtype and row shape of each leaf that a mapping means: `(dtype, row shape)`, or an array of rows."""
    if not opaque.is_mapping(leaves):
        raise Unsupported(f"a {type(leaves).__name__} is no mapping", remedy="pass a dict of (dtype, row shape), or of arrays of rows")
    return [(key, *preparing.row_of(key, leaf)) for key, leaf in preparing.walked(leaves)]

