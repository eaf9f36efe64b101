"""Tensorlane: tensors in shared memory, put and got by any process of an exchange.

>>> import numpy, tensorlane
>>> with tensorlane.local() as client:
...     stored = client.put(numpy.arange(3))
...     client.get(stored.reference).numpy()
array([0, 1, 2])

`connect` speaks with the sidecar of this pod, `local` starts one for this program alone.
"""

from __future__ import annotations

import sysconfig

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("tensorlane does not support free-threaded Python: use the build of the same version with the GIL")

from ._tensorlane import Cancel, Reference, Stored, __version__
from .channels import CachedReader, ChannelReader, ChannelWriter, Message, SharedMessage
from .client import Client, connect
from .collating import collate
from .device import DeviceReservation, DeviceTensor
from .doctor import doctor
from .errors import (
    Error,
    Exhausted,
    GpuError,
    Invalid,
    NameTaken,
    NotFound,
    OutOfRange,
    Refused,
    RequirementNotMet,
    SessionLost,
    Timeout,
    Unavailable,
    Unsupported,
    WatchCut,
    Withdrawn,
)
from .local import Sidecar, local
from .mutable import Committed, Leaf, LeafView, MutableSet, Rows, SetStatus, Snapshot
from .parts import Part
from .pipes import SKIP, Descriptor, Listener, Pipe, Received, TensorDescriptor, Writing
from .reservation import Reservation
from .sets import Published, Set
from .status import Description, Peer, Status
from .tensor import Tensor
from .watching import Watch, WatchEvent

__all__ = [
    "SKIP",
    "CachedReader",
    "Cancel",
    "ChannelReader",
    "ChannelWriter",
    "Client",
    "Committed",
    "Description",
    "Descriptor",
    "DeviceReservation",
    "DeviceTensor",
    "Error",
    "Exhausted",
    "GpuError",
    "Invalid",
    "Listener",
    "Leaf",
    "LeafView",
    "Message",
    "MutableSet",
    "NameTaken",
    "NotFound",
    "OutOfRange",
    "Part",
    "Peer",
    "Pipe",
    "Published",
    "Received",
    "Reference",
    "Refused",
    "RequirementNotMet",
    "Reservation",
    "Rows",
    "SessionLost",
    "Set",
    "SetStatus",
    "Snapshot",
    "SharedMessage",
    "Sidecar",
    "Status",
    "Stored",
    "Tensor",
    "TensorDescriptor",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "Watch",
    "WatchCut",
    "WatchEvent",
    "Withdrawn",
    "Writing",
    "__version__",
    "collate",
    "connect",
    "doctor",
    "local",
]
