"""Tensors that are computed where they will lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes, sizes
from ._tensorlane import Core, Reference, Stored
from .errors import Error, Invalid, Remedies, Unsupported


TAKEN = Remedies(NAME_TAKEN="pass replaces=REFERENCE to give the name to the new tensor")
"""Help where the name of a new tensor is taken."""


_AMBIGUOUS = {"u8": ("uint8", "uint64"), "i8": ("int8", "int64")}
"""Names of a dtype that numpy means otherwise, and the two that are clear."""


class Reservation:
    """Room in the shared memory that this process alone sees and writes, until `seal` makes it a tensor.

    Dropped without that, it is given back. What its bytes are before they are written is not said.
    """

    _AGAIN = "make another one: client.empty(shape, dtype)"

    def __init__(self, core: Core, block: Any, dtype: str, shape: tuple[int, ...]):
        self._core, self._block, self.dtype, self.shape = core, block, dtype, shape

    @property
    def array(self) -> np.ndarray:
        """The room as an array of numpy, to be written: `reservation.array[...] = 1`."""
        wanted = dtypes.to_numpy(self.dtype)
        if 0 in self.shape:
            return np.empty(self.shape, wanted)
        # Not numpy.ndarray(buffer=…), which keeps no view: the block could be sealed though the array may still write.
        return np.frombuffer(self._memory(), np.uint8).view(wanted).reshape(self.shape)

    def torch(self) -> Any:
        """The room as a tensor of torch, to be written."""
        torch, wanted = dtypes.torch(), dtypes.to_torch(self.dtype)
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=wanted, device="cpu")
        return torch.frombuffer(self._memory(), dtype=wanted).view(self.shape)

    def seal(
        self,
        name: str | None = None,
        *,
        keep: bool = True,
        replaces: Reference | Stored | None = None,
        ticket: float | None = None,
        uses: int = 1,
        checksum: bool = False,
        deadline: float | None = None,
    ) -> Stored:
        """Makes what was written a tensor, as `put` would, and copies nothing. No array of it may be left: nobody writes it again.

        A seal that is refused, for a name that is taken or the like, gives the room up.
        """
        self._held()
        times = {"ticket": sizes.seconds("ticket", ticket), "deadline": sizes.seconds("deadline", deadline)}
        flags = {"lease": sizes.flag("keep", keep), "checksum": sizes.flag("checksum", checksum)}
        options = {"name": sizes.name(name), "uses": sizes.whole("uses", uses, sizes.MANY), **flags}
        try:
            with TAKEN:
                stored = self._store({**options, **times, "replaces": replaced(replaces)})
        except BufferError as error:
            raise Invalid(str(error), remedy="del the arrays that were made of it, then seal it") from None
        except Error:
            self._block = None
            raise
        self._block = None
        return stored

    def release(self) -> None:
        """Gives the room back, once no array of it is left."""
        self._block = None

    def _store(self, options: dict[str, Any]) -> Stored:
        """Makes the room a tensor, as `seal` was told."""
        return self._core.seal(self._held(), options)

    def _held(self) -> Any:
        """The room; refused once it is gone."""
        if self._block is None:
            raise Invalid("this reservation was sealed or given up", remedy=self._AGAIN)
        return self._block

    def _memory(self) -> memoryview:
        return memoryview(self._held())

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a reservation stays in its process; seal it and pass its reference")

    def __repr__(self) -> str:
        return f"<tensorlane.Reservation {self.dtype}{list(self.shape)}{', gone' if self._block is None else ''}>"


def dtype_of(given: Any) -> str:
    """The short name of a dtype of torch or of whatever numpy reads as one, of such a name itself, or of an object that has one here."""
    ours = dtypes.of_ours(given)
    if ours is not None:
        return ours
    if isinstance(given, str) and given in _AMBIGUOUS:
        one, other = _AMBIGUOUS[given]
        raise Invalid(
            f"the dtype {given!r} has 64 bits for numpy and 8 here", remedy=f"say {one!r} or {other!r}, or pass the tensor that has it"
        )
    if isinstance(given, str) and given in dtypes.SHORT:
        return given
    torch = dtypes.torch_if_imported()
    if torch is not None and isinstance(given, torch.dtype):
        return dtypes.of_torch(given)
    try:
        read = np.dtype(given)
    except TypeError as error:
        raise Unsupported(f"{given!r} is no dtype: {error}", remedy="give one of numpy or torch, or its name, such as float32") from None
    return dtypes.of_numpy(read)


def replaced(given: Reference | Stored | None) -> Reference | None:
    """The reference of a tensor that is to lose its name."""
    if given is not None and not isinstance(given, (Reference, Stored)):
        told = f"replaces is a {type(given).__name__}, and no reference"
        raise Unsupported(told, remedy="give what put returned, or what client.names() says the name stands for")
    return given.reference if isinstance(given, Stored) else given
