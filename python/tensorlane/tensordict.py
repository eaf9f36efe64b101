"""Tensordict over the exchange: memory-mapped tensors and dicts of them, whose rows any process reads and writes.

>>> import torch
>>> from tensordict import TensorDict
>>> from tensorlane.tensordict import MemoryMappedTensor, MemoryMappedTensorDict
>>> data = MemoryMappedTensorDict({"images": MemoryMappedTensor.empty(1000, 8, 8, 3, dtype=torch.uint8)}, [1000])
>>> data[[4, 998]] = TensorDict({"images": torch.ones(2, 8, 8, 3, dtype=torch.uint8)}, [2])
>>> data[[3, 4]]["images"].sum((1, 2, 3))
tensor([  0, 192])

The rows lie in a mutable set instead of a file (docs/sets.md), so that other nodes need no storage in common with this one: what is
pickled is the reference of the set, and only rows travel. Rows that are read are plain tensors. The set is made when it is
first used, by the client that is given, else by the one that `tensorlane.connect()` gives; every peer of the exchange may write it,
or those that `writers` say. Without a name of its own it is dropped when the process that made it ends in order.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import uuid
import warnings
from multiprocessing import util
from typing import Any, Mapping, Sequence

from . import dtypes, opaque
from . import sizes as checking
from . import rows as selecting
from . import values as preparing
from .client import Client, connect, default
from .errors import Error, Invalid, Unsupported
from .mutable import LeafView, MutableSet
from .sets import Set
from .tensor import Tensor

_KEY = "tensor"
"""Key of the only leaf of a tensor that is in no dict."""

_FILL = 64 << 20
"""Bytes of rows that are copied by one commit while a set is filled, where the arena has room for them."""

_FILL_ROWS = 1 << 20
"""Rows that one commit may write."""

_EVERYBODY = ("*",)

_unnamed: dict[str, tuple[int, str]] = {}
"""References of sets without a name of their own, with the process that made each and the directory of its sidecar."""

_making = threading.Lock()
"""Held while a tensor makes its set, so that threads make one set and no more."""

_ending: set[int] = set()
"""Processes that drop their sets also where multiprocessing ends them."""


class MemoryMappedTensor:
    """A tensor whose first dimension is rows of a mutable set. Indexing gives a plain tensor; assigning writes rows, or parts of them."""

    __iter__: None = None
    requires_grad = False

    def __init__(self, shape: Sequence[int], dtype: Any, view: LeafView | None, device: Any, options: dict[str, Any]):
        """Takes a place in a set, or what is needed to make one; `empty` and `from_tensor` are for programs."""
        torch = _torch()
        self.shape, self.dtype = torch.Size(shape), dtype
        self.device = torch.device(device or "cpu")
        self._view, self._options, self._process = view, options, os.getpid()

    @classmethod
    def empty(
        cls,
        *size: Any,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        device: Any = None,
        name: str | None = None,
        client: Client | None = None,
        writers: Sequence[str] = _EVERYBODY,
    ) -> MemoryMappedTensor:
        """A tensor of zeros, of which nothing is written or sent. What is read of it lands on `device`."""
        torch = _torch()
        given = shape if shape is not None else size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        sizes = [int(one) for one in given]
        _at_least_one(sizes, "the tensor")
        options = _options(name, client, writers)
        return cls(sizes, dtype or torch.get_default_dtype(), None, device, options)

    zeros = empty

    @classmethod
    def from_tensor(
        cls,
        tensor: Any,
        *,
        device: Any = None,
        name: str | None = None,
        client: Client | None = None,
        writers: Sequence[str] = _EVERYBODY,
    ) -> MemoryMappedTensor:
        """A copy of a tensor."""
        _at_least_one(tensor.shape, "the tensor")
        options = _options(name, client, writers)
        whole = _filled({_KEY: tensor}, int(tensor.shape[0]), options)
        return _of(whole[_KEY], device)

    @property
    def view(self) -> LeafView:
        """The leaf that it is. Its set is made now where that was not needed before."""
        if self._view is None:
            with _making:
                if self._view is None:
                    self._view = self._first()
        return self._view

    def _first(self) -> LeafView:
        """Makes the set."""
        if self._process != os.getpid():
            remedy = "use it before the fork: each child would make one of its own"
            raise Invalid("this tensor was made before the fork, and was not used", remedy=remedy)
        return _made({_KEY: (self.dtype, self.shape[1:])}, int(self.shape[0]), self._options)[_KEY]

    def _is_configured(self) -> bool:
        """True where it was made with options of a set, which a dict has for all its tensors."""
        name, client, writers = (self._options[word] for word in ("name", "client", "writers"))
        return name is not None or client is not None or tuple(writers) != _EVERYBODY

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return self.shape.numel()

    def is_memmap(self) -> bool:
        """True: nothing of it is in this process."""
        return True

    def to(self, device: Any) -> MemoryMappedTensor:
        """The same tensor, whose rows land on a device."""
        return _of(self.view, device)

    def clone(self) -> Any:
        """All of it as a plain tensor."""
        return self[:].clone()

    def copy_(self, values: Any) -> MemoryMappedTensor:
        """Writes all rows, in one step."""
        self[:] = values
        return self

    def fill_(self, value: Any) -> MemoryMappedTensor:
        """Writes one number everywhere, in one step."""
        return self.copy_(value)

    def zero_(self) -> MemoryMappedTensor:
        """Writes zeros everywhere, in one step."""
        return self.copy_(0)

    def numpy(self) -> Any:
        """Refuses to be one array. A real TensorDict asks for that, and would keep what it gets as a value."""
        raise _no_array("tensor")

    def requires_grad_(self, requires_grad: bool = True) -> MemoryMappedTensor:
        """Refuses gradients."""
        return _no_gradients(self, requires_grad)

    def __getitem__(self, index: Any) -> Any:
        """Rows as a plain tensor: whole rows travel, and further indices are applied here."""
        rows, inner = selecting.split(index, len(self.view.shape))
        read = self.view[rows].torch()
        read = read if inner is None else read[selecting.behind(rows, inner)]
        return _on(read, self.device)

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Rows by one read, as a DataLoader of torch asks for a batch: `collate_fn=tensorlane.collate` takes them as they are."""
        return self[list(rows)]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes rows, or with further indices a part of each, repeated as in torch where the value is smaller."""
        rows, inner = selecting.split(index, len(self.view.shape))
        if inner is None:
            self.view[rows] = _home(value)
        else:
            self.view.write_part(rows, inner, _home(value), of_torch=True)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __reduce__(self) -> Any:
        return _unpickled, (self.view.set.reference, self.view.key, _device_word(self.device))

    def __repr__(self) -> str:
        return f"MemoryMappedTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


class MemoryMappedTensorDict:
    """A dict of memory-mapped tensors with a batch size, all of them leaves of one mutable set.

    An index gives a real `tensordict.TensorDict` of rows of one version; an assigned one is written in one step, in all leaves.
    Plain tensors in `source` are copied.
    """

    __iter__: None = None
    requires_grad = False

    def __init__(
        self,
        source: Mapping[str, Any],
        batch_size: Sequence[int] | int | None = None,
        device: Any = None,
        *,
        name: str | None = None,
        client: Client | None = None,
        writers: Sequence[str] = _EVERYBODY,
    ):
        torch = _torch()
        given = getattr(source, "batch_size", None) if batch_size is None else batch_size
        self.batch_size = torch.Size([given] if isinstance(given, int) else given or ())
        _at_least_one(self.batch_size, "the batch")
        leaves = preparing.once(source)
        for key, leaf in leaves.items():
            if not isinstance(leaf, (torch.Tensor, MemoryMappedTensor)):
                raise Unsupported(f"{key} is a {type(leaf).__name__}", remedy="give tensors of torch, or MemoryMappedTensor.empty(…)")
            if leaf.shape[: len(self.batch_size)] != self.batch_size:
                raise Invalid(f"{key} has shape {list(leaf.shape)} and the batch {list(self.batch_size)}", remedy="begin it so")
            if isinstance(leaf, MemoryMappedTensor) and leaf._view is None and leaf._is_configured():
                raise Invalid(f"{key} has a name, a client or writers of its own", remedy="give them to the dict, whose set it is in")
        options = _options(name, client, writers)
        self.set = _filled(leaves, int(self.batch_size[0]), options)
        for key, leaf in leaves.items():
            if isinstance(leaf, MemoryMappedTensor) and leaf._view is None:
                leaf._view = self.set[key]
        self.device = None if device is None else torch.device(device)
        self._path: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """Text that names the set from anywhere in the exchange."""
        return self.set.reference

    @property
    def shape(self) -> Any:
        """The batch size."""
        return self.batch_size

    def is_memmap(self) -> bool:
        """True: nothing of it is in this process."""
        return True

    def keys(self) -> list[str]:
        """Keys of tensors and of dicts below, in order."""
        return list(dict.fromkeys(key.split("/")[0] for key in self._below()))

    def values(self) -> list[Any]:
        """Tensors and dicts below."""
        return [self[key] for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Keys with tensors and dicts below."""
        return [(key, self[key]) for key in self.keys()]

    def get(self, key: str | tuple[str, ...], default: Any = None) -> Any:
        """Value under a key, or `default`."""
        return self[key] if key in self else default

    def get_at(self, key: str | tuple[str, ...], index: Any) -> Any:
        """Rows of a tensor or a dict below."""
        return self[key][index]

    def set_at_(self, key: str | tuple[str, ...], value: Any, index: Any) -> MemoryMappedTensorDict:
        """Writes rows of a tensor or a dict below, in one step."""
        self._entry(_a_key(key))[index] = value
        return self

    def set_(self, key: str | tuple[str, ...], value: Any) -> MemoryMappedTensorDict:
        """Writes all rows of a tensor or a dict below, in one step."""
        return self.set_at_(key, value, slice(None))

    def update_at_(self, values: Mapping[str, Any], index: Any) -> MemoryMappedTensorDict:
        """Writes rows of the tensors that `values` has, in one step."""
        self[index] = values
        return self

    def update_(self, values: Mapping[str, Any]) -> MemoryMappedTensorDict:
        """Writes all rows of the tensors that `values` has, in one step."""
        return self.update_at_(values, slice(None))

    def fill_(self, key: str | tuple[str, ...], value: Any) -> MemoryMappedTensorDict:
        """Writes one number into all rows of a tensor or a dict below, in one step."""
        return self.set_(key, value)

    def zero_(self) -> MemoryMappedTensorDict:
        """Writes zeros everywhere, in one step."""
        self[:] = 0
        return self

    def to_tensordict(self) -> Any:
        """All of it as a real TensorDict."""
        return self.clone()

    def to(self, device: Any) -> MemoryMappedTensorDict:
        """The same dict, whose rows land on a device."""
        return _dict_over(self.set, self._path, self.batch_size, device)

    def clone(self) -> Any:
        """All of it as a real TensorDict."""
        return self[:].clone()

    def numpy(self) -> Any:
        """Refuses to be arrays, as its tensors do."""
        raise _no_array("dict")

    def requires_grad_(self, requires_grad: bool = True) -> MemoryMappedTensorDict:
        """Refuses gradients."""
        return _no_gradients(self, requires_grad)

    def drop(self) -> None:
        """Takes the set away, with its rows; in its own pod only."""
        self.set.drop()
        # Only then: one whose drop failed is dropped at the end of the program.
        _unnamed.pop(self.set.reference, None)

    def __contains__(self, key: object) -> bool:
        word = preparing.as_key(key)
        return word is not None and any(below == word or below.startswith(f"{word}/") for below in self._below())

    def __getitem__(self, index: Any) -> Any:
        """A tensor or a dict below by its key; or rows of one version, as a real TensorDict."""
        key = preparing.as_key(index)
        if key is not None:
            return self._entry(key)
        rows, inner = selecting.split(index, len(self.batch_size))
        selected = selecting.of(rows, len(self))
        whole = self._whole_keys()
        read = self.set.read(rows, list(whole.values()))
        tree: dict[Any, Any] = {tuple(below.split("/")): _on(read[key].torch(), self.device) for below, key in whole.items()}
        batch = self.batch_size[1:] if selected.one else (selected.count, *self.batch_size[1:])
        made = _library().TensorDict(tree, batch_size=batch, device=self.device)
        return made if inner is None else made[selecting.behind(rows, inner)]

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Rows by one read, as a DataLoader of torch asks for a batch: `collate_fn=tensorlane.collate` takes them as they are."""
        return self[list(rows)]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes rows of the leaves that a TensorDict, a mapping or a number says, in one step; or by a key, all of a tensor."""
        key = preparing.as_key(index)
        if key is not None:
            self._entry(key)[:] = value
            return
        whole = self._whole_keys()
        given = preparing.once(value) if opaque.is_mapping(value) else dict.fromkeys(whole, value)
        for below in given:
            if below not in whole:
                raise preparing.no_leaf(below, whole)
        self.set.write(index, {whole[below]: _home(one) for below, one in given.items()})

    def __len__(self) -> int:
        return int(self.batch_size[0])

    def __reduce__(self) -> Any:
        return _unpickled_dict, (self.set.reference, self._path, tuple(self.batch_size), _device_word(self.device))

    def __repr__(self) -> str:
        fields = ", ".join(f"{key}: {value!r}" for key, value in self.items())
        return f"MemoryMappedTensorDict({{{fields}}}, batch_size={list(self.batch_size)}, device={self.device})"

    def _below(self) -> list[str]:
        return list(self._whole_keys())

    def _whole_keys(self) -> dict[str, str]:
        """Keys of the leaves from here on, with their keys in the set."""
        head = "".join(f"{part}/" for part in self._path)
        return {key[len(head) :]: key for key in self.set.keys() if key.startswith(head)}

    def _entry(self, key: str) -> Any:
        whole = self._whole_keys()
        if key in whole:
            return _of(self.set[whole[key]], self.device)
        if key not in self:
            raise preparing.no_leaf(key, whole)
        return _dict_over(self.set, (*self._path, *key.split("/")), self.batch_size, self.device)


def load(target: str | MutableSet, *, device: Any = None, client: Client | None = None) -> MemoryMappedTensorDict:
    """A dict over a mutable set: by its reference, its name at this peer, or `peer/name`. Its batch size is the number of rows."""
    if isinstance(target, MutableSet):
        whole = target if client is None else target.bind(client)
    else:
        whole = (client or default()).open_set(target)
    return _dict_over(whole, (), (whole.rows,), device)


def to_tensordict(got: Set) -> Any:
    """A real TensorDict of a set that was got, over the tensors of it: nothing that is large is copied.

    Its plain values are `NonTensorData`. What was published as a lazy stack is one. A tensorclass is one, too, if a module that was
    imported has a tensorclass of its name; else it is a TensorDict, and a warning names the class. No module is imported for it.
    """
    said = [json.loads(text) for text in got.classes]
    if said and _is_stack(said[-1]["_type"]):
        along = said.pop()[opaque.STACK_DIM]
        made = _stacked([to_tensordict(part) for part in got.values() if isinstance(part, Set)], along)
        values = {key: node for key, node in got.items() if key != opaque.STACK_DIM and not isinstance(node, Set)}
    else:
        made, values = _plain_of(got), {}
    for one in said:
        made = _of_class(one["_type"], made, values)
    return made


def _is_stack(name: str) -> bool:
    """True of the name of the class of lazy stacks."""
    return name.startswith("<class 'tensordict.") and name.endswith(".LazyStackedTensorDict'>")


def _stacked(parts: list[Any], along: int) -> Any:
    library = _library()
    if any(opaque.is_tensorclass(part) for part in parts):
        return library.lazy_stack(parts, along)
    return library.LazyStackedTensorDict(*parts, stack_dim=along)


def _of_class(name: str, made: Any, values: dict[str, Any]) -> Any:
    """The tensorclass of a name over what it has, or that itself, with a warning, where this program has no such class."""
    found = _imported(name)
    why = "no module that was imported has such a tensorclass: import its module first"
    if found is not None:
        try:
            return found.from_tensordict(made, values) if values else found.from_tensordict(made)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            why = f"the class here takes none of these fields: {error}"
    left = f", without {', '.join(values)}" if values else ""
    # At whoever calls `to_tensordict`, for a set that is a class itself.
    warnings.warn(f"a set of {name} comes as a {type(made).__name__}{left}: {why}", stacklevel=3)
    return made


def _imported(name: str) -> Any:
    """The tensorclass of a name such as `<class 'replay.Step'>`, in a module that was imported. No code is run to find it."""
    words = name.removeprefix("<class '").removesuffix("'>").split(".")
    for end in range(len(words) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(words[:end]))
        if found is None:
            continue
        for word in words[end:]:
            found = getattr(found, "__dict__", {}).get(word)
        is_class = isinstance(found, type) and bool(getattr(found, "_is_tensorclass", False))
        return found if is_class and not getattr(found, "_is_non_tensor", False) else None
    return None


def _plain_of(got: Set) -> Any:
    made = _library().TensorDict({}, batch_size=got.batch)
    for key, node in got.items():
        if isinstance(node, Set):
            made[key] = to_tensordict(node)
        elif isinstance(node, Tensor):
            made[key] = node.torch()
        else:
            made.set_non_tensor(key, node)
    return made


def _dict_over(whole: MutableSet, path: tuple[str, ...], batch: Sequence[int], device: Any) -> MemoryMappedTensorDict:
    torch = _torch()
    made = MemoryMappedTensorDict.__new__(MemoryMappedTensorDict)
    made.set, made._path = whole, path
    made.batch_size, made.device = torch.Size(batch), None if device is None else torch.device(device)
    return made


def _a_key(key: Any) -> str:
    """A key that is one, or the error."""
    word = preparing.as_key(key)
    if word is None:
        raise Unsupported(f"{key!r} is no key", remedy='give text, or a tuple of texts such as ("next", "reward")')
    return word


def _of(view: LeafView, device: Any) -> MemoryMappedTensor:
    return MemoryMappedTensor(view.shape, dtypes.to_torch(view.dtype), view, device, {})


def _unpickled(reference: str, key: str, device: str | None) -> MemoryMappedTensor:
    return _of(MutableSet(reference)[key], device)


def _unpickled_dict(reference: str, path: tuple[str, ...], batch: tuple[int, ...], device: str | None) -> MemoryMappedTensorDict:
    return _dict_over(MutableSet(reference), path, batch, device)


def _options(name: str | None, client: Client | None, writers: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "client": client, "writers": tuple(checking.texts("writers", writers))}


def _made(layout: dict[str, Any], rows: int, options: dict[str, Any]) -> MutableSet:
    client, name = options["client"] or default(), options["name"]
    whole = client.create_set(name or f"tensordict/{uuid.uuid4().hex}", rows, layout, writers=options["writers"])
    if name is None:
        _unnamed[whole.reference] = (os.getpid(), client.directory)
        if os.getpid() not in _ending:
            # Forked children of multiprocessing end without atexit, and forget what was registered before the fork.
            _ending.add(os.getpid())
            util.Finalize(None, _drop_unnamed, exitpriority=10)
    return whole


def _filled(leaves: Mapping[str, Any], rows: int, options: dict[str, Any]) -> MutableSet:
    """A set with the layout of tensors, and their values where they have any."""
    given = {key: leaf for key, leaf in leaves.items() if not isinstance(leaf, MemoryMappedTensor) or leaf._view is not None}
    for key, leaf in given.items():
        opaque.check_under(key, leaf)
        if leaf.requires_grad:
            raise Unsupported(f"{key} requires gradients, which a set does not keep", remedy="pass tensor.detach()")
    whole = _made({key: (leaf.dtype, tuple(leaf.shape[1:])) for key, leaf in leaves.items()}, rows, options)
    try:
        # Rows lie in the arena twice while they are written: as they are staged, and in the set.
        room = min(_FILL, whole._bound.status().arena_bytes // 4) if given else _FILL
        for key, leaf in given.items():
            step = max(1, min(_FILL_ROWS, room * rows // max(1, leaf.numel() * leaf.dtype.itemsize)))
            for start in range(0, rows, step):
                whole.write(slice(start, start + step), {key: _home(leaf[start : start + step])})
    except BaseException as error:
        try:
            whole.drop()
            _unnamed.pop(whole.reference, None)
        except Error as left:
            error.add_note(f"the set {whole.reference} is there yet: {left}")
        raise
    return whole


def _home(value: Any) -> Any:
    """A value in the memory of the host."""
    torch = _torch()
    if isinstance(value, MemoryMappedTensor):
        return value[:].cpu()
    return value.cpu() if isinstance(value, torch.Tensor) and value.device.type != "cpu" else value


def _on(tensor: Any, device: Any) -> Any:
    return tensor if device is None or device.type == "cpu" else tensor.to(device)


def _device_word(device: Any) -> str | None:
    return None if device is None or device.type == "cpu" else str(device)


def _at_least_one(sizes: Sequence[int], what: str) -> None:
    if not len(sizes):
        raise Invalid(f"{what} has no dimension", remedy="give it at least one, which is that of the rows")


def _no_gradients(value: Any, requires_grad: bool) -> Any:
    if requires_grad:
        raise Unsupported("memory-mapped tensors take no gradients", remedy="read rows, and call requires_grad_() on what comes back")
    return value


def _no_array(what: str) -> Unsupported:
    remedy = "make a MemoryMappedTensorDict of what is to be shared, or read it: `[rows]` of it, or clone()"
    return Unsupported(f"a memory-mapped {what} is no array, and no value of a real TensorDict", remedy=remedy)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise Unsupported("torch is not installed", remedy="pip install torch tensordict; `client.create_set` needs neither") from None
    return torch


def _library() -> Any:
    try:
        import tensordict
    except ImportError:
        raise Unsupported("tensordict is not installed", remedy="pip install tensordict; a MutableSet alone needs it not") from None
    return tensordict


@atexit.register
def _drop_unnamed() -> None:
    ours = [reference for reference, (process, _) in list(_unnamed.items()) if process == os.getpid()]
    for reference in ours:
        # Atexit and multiprocessing both come here, and a set is dropped once.
        _, directory = _unnamed.pop(reference, (0, None))
        if directory is None:
            continue
        try:
            # The client that made it may be closed.
            with connect(directory) as client:
                client.drop_set(reference)
        except Error:
            pass  # The sidecar has ended, or the set was dropped elsewhere.


def _unlock() -> None:
    """Gives a forked child a lock of its own: a thread that held the other one is not there."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
