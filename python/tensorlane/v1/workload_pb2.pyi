from tensorlane.v1 import channel_pb2 as _channel_pb2
from tensorlane.v1 import pipe_pb2 as _pipe_pb2
from tensorlane.v1 import set_pb2 as _set_pb2
from tensorlane.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NameEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NAME_EVENT_KIND_UNSPECIFIED: _ClassVar[NameEventKind]
    NAME_EVENT_KIND_PRESENT: _ClassVar[NameEventKind]
    NAME_EVENT_KIND_APPEARED: _ClassVar[NameEventKind]
    NAME_EVENT_KIND_REPLACED: _ClassVar[NameEventKind]
    NAME_EVENT_KIND_GONE: _ClassVar[NameEventKind]
NAME_EVENT_KIND_UNSPECIFIED: NameEventKind
NAME_EVENT_KIND_PRESENT: NameEventKind
NAME_EVENT_KIND_APPEARED: NameEventKind
NAME_EVENT_KIND_REPLACED: NameEventKind
NAME_EVENT_KIND_GONE: NameEventKind

class Target(_message.Message):
    __slots__ = ("reference", "id", "name", "peer")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    reference: str
    id: int
    name: str
    peer: str
    def __init__(self, reference: _Optional[str] = ..., id: _Optional[int] = ..., name: _Optional[str] = ..., peer: _Optional[str] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("name", "replaces", "ticket_ms", "ticket_uses", "no_lease")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    TICKET_MS_FIELD_NUMBER: _ClassVar[int]
    TICKET_USES_FIELD_NUMBER: _ClassVar[int]
    NO_LEASE_FIELD_NUMBER: _ClassVar[int]
    name: str
    replaces: str
    ticket_ms: int
    ticket_uses: int
    no_lease: bool
    def __init__(self, name: _Optional[str] = ..., replaces: _Optional[str] = ..., ticket_ms: _Optional[int] = ..., ticket_uses: _Optional[int] = ..., no_lease: bool = ...) -> None: ...

class PutItem(_message.Message):
    __slots__ = ("retry_id", "descriptor", "data", "keep", "crc32c")
    RETRY_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    retry_id: bytes
    descriptor: _tensor_pb2.Descriptor
    data: bytes
    keep: Keep
    crc32c: int
    def __init__(self, retry_id: _Optional[bytes] = ..., descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., data: _Optional[bytes] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., crc32c: _Optional[int] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("items", "deadline_ms")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PutItem]
    deadline_ms: int
    def __init__(self, items: _Optional[_Iterable[_Union[PutItem, _Mapping]]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PutChunk(_message.Message):
    __slots__ = ("item", "data", "deadline_ms")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    item: PutItem
    data: bytes
    deadline_ms: int
    def __init__(self, item: _Optional[_Union[PutItem, _Mapping]] = ..., data: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("reference", "id", "ticket")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    reference: str
    id: int
    ticket: str
    def __init__(self, reference: _Optional[str] = ..., id: _Optional[int] = ..., ticket: _Optional[str] = ...) -> None: ...

class StoredResult(_message.Message):
    __slots__ = ("stored", "failure")
    STORED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    stored: Stored
    failure: _tensor_pb2.Failure
    def __init__(self, stored: _Optional[_Union[Stored, _Mapping]] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[StoredResult]
    def __init__(self, results: _Optional[_Iterable[_Union[StoredResult, _Mapping]]] = ...) -> None: ...

class ReserveItem(_message.Message):
    __slots__ = ("retry_id", "descriptor")
    RETRY_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    retry_id: bytes
    descriptor: _tensor_pb2.Descriptor
    def __init__(self, retry_id: _Optional[bytes] = ..., descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("items", "deadline_ms")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ReserveItem]
    deadline_ms: int
    def __init__(self, items: _Optional[_Iterable[_Union[ReserveItem, _Mapping]]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("id", "location")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    id: int
    location: _tensor_pb2.Location
    def __init__(self, id: _Optional[int] = ..., location: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ...) -> None: ...

class ReserveResult(_message.Message):
    __slots__ = ("reserved", "failure")
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    reserved: Reserved
    failure: _tensor_pb2.Failure
    def __init__(self, reserved: _Optional[_Union[Reserved, _Mapping]] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReserveResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ReserveResult, _Mapping]]] = ...) -> None: ...

class FillChunk(_message.Message):
    __slots__ = ("id", "offset", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: int
    offset: int
    data: bytes
    def __init__(self, id: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class FillResponse(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class SealItem(_message.Message):
    __slots__ = ("retry_id", "id", "keep", "crc32c")
    RETRY_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    retry_id: bytes
    id: int
    keep: Keep
    crc32c: int
    def __init__(self, retry_id: _Optional[bytes] = ..., id: _Optional[int] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., crc32c: _Optional[int] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[SealItem]
    def __init__(self, items: _Optional[_Iterable[_Union[SealItem, _Mapping]]] = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[StoredResult]
    def __init__(self, results: _Optional[_Iterable[_Union[StoredResult, _Mapping]]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DoneResult(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: _tensor_pb2.Failure
    def __init__(self, failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DoneResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DoneResult, _Mapping]]] = ...) -> None: ...

class GetItem(_message.Message):
    __slots__ = ("target", "selection")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    target: Target
    selection: _tensor_pb2.Selection
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., selection: _Optional[_Union[_tensor_pb2.Selection, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("items", "require", "deadline_ms", "wait_ms")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GetItem]
    require: _tensor_pb2.Require
    deadline_ms: int
    wait_ms: int
    def __init__(self, items: _Optional[_Iterable[_Union[GetItem, _Mapping]]] = ..., require: _Optional[_Union[_tensor_pb2.Require, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class GetHead(_message.Message):
    __slots__ = ("descriptor", "moved")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    descriptor: _tensor_pb2.Descriptor
    moved: _tensor_pb2.Moved
    def __init__(self, descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., moved: _Optional[_Union[_tensor_pb2.Moved, _Mapping]] = ...) -> None: ...

class GetChunk(_message.Message):
    __slots__ = ("item", "head", "data", "failure")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    item: int
    head: GetHead
    data: bytes
    failure: _tensor_pb2.Failure
    def __init__(self, item: _Optional[int] = ..., head: _Optional[_Union[GetHead, _Mapping]] = ..., data: _Optional[bytes] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("items", "require", "deadline_ms", "wait_ms", "host")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GetItem]
    require: _tensor_pb2.Require
    deadline_ms: int
    wait_ms: int
    host: bool
    def __init__(self, items: _Optional[_Iterable[_Union[GetItem, _Mapping]]] = ..., require: _Optional[_Union[_tensor_pb2.Require, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., host: bool = ...) -> None: ...

class Acquired(_message.Message):
    __slots__ = ("id", "location", "descriptor", "copied", "moved", "crc32c")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    id: int
    location: _tensor_pb2.Location
    descriptor: _tensor_pb2.Descriptor
    copied: bool
    moved: _tensor_pb2.Moved
    crc32c: int
    def __init__(self, id: _Optional[int] = ..., location: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ..., descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., copied: bool = ..., moved: _Optional[_Union[_tensor_pb2.Moved, _Mapping]] = ..., crc32c: _Optional[int] = ...) -> None: ...

class AcquireResult(_message.Message):
    __slots__ = ("acquired", "failure")
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    acquired: Acquired
    failure: _tensor_pb2.Failure
    def __init__(self, acquired: _Optional[_Union[Acquired, _Mapping]] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AcquireResult]
    def __init__(self, results: _Optional[_Iterable[_Union[AcquireResult, _Mapping]]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("ids", "still_mapped")
    IDS_FIELD_NUMBER: _ClassVar[int]
    STILL_MAPPED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    still_mapped: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., still_mapped: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DoneResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DoneResult, _Mapping]]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("targets", "deadline_ms")
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    deadline_ms: int
    def __init__(self, targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("reference", "descriptor", "sealed", "names", "leases", "tickets", "crc32c", "here")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    reference: str
    descriptor: _tensor_pb2.Descriptor
    sealed: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    leases: int
    tickets: int
    crc32c: int
    here: bool
    def __init__(self, reference: _Optional[str] = ..., descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., sealed: bool = ..., names: _Optional[_Iterable[str]] = ..., leases: _Optional[int] = ..., tickets: _Optional[int] = ..., crc32c: _Optional[int] = ..., here: bool = ...) -> None: ...

class DescribeResult(_message.Message):
    __slots__ = ("description", "failure")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    description: Description
    failure: _tensor_pb2.Failure
    def __init__(self, description: _Optional[_Union[Description, _Mapping]] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DescribeResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DescribeResult, _Mapping]]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("prefix", "page_size", "page_token", "lease")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    page_size: int
    page_token: str
    lease: bool
    def __init__(self, prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., lease: bool = ...) -> None: ...

class Listed(_message.Message):
    __slots__ = ("name", "description", "lease")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: Description
    lease: int
    def __init__(self, name: _Optional[str] = ..., description: _Optional[_Union[Description, _Mapping]] = ..., lease: _Optional[int] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("entries", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Listed]
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[Listed, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("prefix", "peer", "after", "page_token", "page_size", "deadline_ms")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    peer: str
    after: str
    page_token: str
    page_size: int
    deadline_ms: int
    def __init__(self, prefix: _Optional[str] = ..., peer: _Optional[str] = ..., after: _Optional[str] = ..., page_token: _Optional[str] = ..., page_size: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class NameEvent(_message.Message):
    __slots__ = ("kind", "name", "reference", "sequence")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    kind: NameEventKind
    name: str
    reference: str
    sequence: int
    def __init__(self, kind: _Optional[_Union[NameEventKind, str]] = ..., name: _Optional[str] = ..., reference: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("events", "revision", "snapshot", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[NameEvent]
    revision: str
    snapshot: bool
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[NameEvent, _Mapping]]] = ..., revision: _Optional[str] = ..., snapshot: bool = ..., next_page_token: _Optional[str] = ...) -> None: ...

class NameItem(_message.Message):
    __slots__ = ("target", "name", "replaces")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    target: Target
    name: str
    replaces: str
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., name: _Optional[str] = ..., replaces: _Optional[str] = ...) -> None: ...

class NameRequest(_message.Message):
    __slots__ = ("items", "together")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[NameItem]
    together: bool
    def __init__(self, items: _Optional[_Iterable[_Union[NameItem, _Mapping]]] = ..., together: bool = ...) -> None: ...

class NameResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DoneResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DoneResult, _Mapping]]] = ...) -> None: ...

class UnnameRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class UnnameResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DoneResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DoneResult, _Mapping]]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("names", "peer", "wait_ms", "deadline_ms")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    peer: str
    wait_ms: int
    deadline_ms: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., peer: _Optional[str] = ..., wait_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DescribeResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DescribeResult, _Mapping]]] = ...) -> None: ...

class TicketItem(_message.Message):
    __slots__ = ("target", "ttl_ms", "uses")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    target: Target
    ttl_ms: int
    uses: int
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., uses: _Optional[int] = ...) -> None: ...

class TicketRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[TicketItem]
    def __init__(self, items: _Optional[_Iterable[_Union[TicketItem, _Mapping]]] = ...) -> None: ...

class TicketResult(_message.Message):
    __slots__ = ("ticket", "failure")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ticket: str
    failure: _tensor_pb2.Failure
    def __init__(self, ticket: _Optional[str] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class TicketResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TicketResult]
    def __init__(self, results: _Optional[_Iterable[_Union[TicketResult, _Mapping]]] = ...) -> None: ...

class RedeemItem(_message.Message):
    __slots__ = ("retry_id", "ticket")
    RETRY_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    retry_id: bytes
    ticket: str
    def __init__(self, retry_id: _Optional[bytes] = ..., ticket: _Optional[str] = ...) -> None: ...

class RedeemRequest(_message.Message):
    __slots__ = ("items", "deadline_ms")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[RedeemItem]
    deadline_ms: int
    def __init__(self, items: _Optional[_Iterable[_Union[RedeemItem, _Mapping]]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class RedeemResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AcquireResult]
    def __init__(self, results: _Optional[_Iterable[_Union[AcquireResult, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ArenaStatus(_message.Message):
    __slots__ = ("total", "free", "reserved", "sealed", "held", "retired", "inherited", "populated", "largest_put", "largest_copied_put")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FIELD_NUMBER: _ClassVar[int]
    POPULATED_FIELD_NUMBER: _ClassVar[int]
    LARGEST_PUT_FIELD_NUMBER: _ClassVar[int]
    LARGEST_COPIED_PUT_FIELD_NUMBER: _ClassVar[int]
    total: int
    free: int
    reserved: int
    sealed: int
    held: int
    retired: int
    inherited: int
    populated: int
    largest_put: int
    largest_copied_put: int
    def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., reserved: _Optional[int] = ..., sealed: _Optional[int] = ..., held: _Optional[int] = ..., retired: _Optional[int] = ..., inherited: _Optional[int] = ..., populated: _Optional[int] = ..., largest_put: _Optional[int] = ..., largest_copied_put: _Optional[int] = ...) -> None: ...

class HolderStatus(_message.Message):
    __slots__ = ("kind", "number", "client", "process", "address", "seconds", "still_seconds", "bytes", "leases", "reservations", "streams")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    number: int
    client: str
    process: int
    address: str
    seconds: float
    still_seconds: float
    bytes: int
    leases: int
    reservations: int
    streams: int
    def __init__(self, kind: _Optional[str] = ..., number: _Optional[int] = ..., client: _Optional[str] = ..., process: _Optional[int] = ..., address: _Optional[str] = ..., seconds: _Optional[float] = ..., still_seconds: _Optional[float] = ..., bytes: _Optional[int] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., streams: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("version", "exchange", "peer", "incarnation", "fingerprint", "uptime_seconds", "arena", "tensors", "copies", "leases", "names", "tickets", "sessions", "waiting", "holders", "tables", "budgets")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    version: str
    exchange: str
    peer: str
    incarnation: str
    fingerprint: str
    uptime_seconds: float
    arena: ArenaStatus
    tensors: int
    copies: int
    leases: int
    names: int
    tickets: int
    sessions: int
    waiting: int
    holders: _containers.RepeatedCompositeFieldContainer[HolderStatus]
    tables: TablesStatus
    budgets: _containers.RepeatedCompositeFieldContainer[BudgetStatus]
    def __init__(self, version: _Optional[str] = ..., exchange: _Optional[str] = ..., peer: _Optional[str] = ..., incarnation: _Optional[str] = ..., fingerprint: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., arena: _Optional[_Union[ArenaStatus, _Mapping]] = ..., tensors: _Optional[int] = ..., copies: _Optional[int] = ..., leases: _Optional[int] = ..., names: _Optional[int] = ..., tickets: _Optional[int] = ..., sessions: _Optional[int] = ..., waiting: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[HolderStatus, _Mapping]]] = ..., tables: _Optional[_Union[TablesStatus, _Mapping]] = ..., budgets: _Optional[_Iterable[_Union[BudgetStatus, _Mapping]]] = ...) -> None: ...

class BudgetStatus(_message.Message):
    __slots__ = ("name", "used", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    used: int
    limit: int
    def __init__(self, name: _Optional[str] = ..., used: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class TablesStatus(_message.Message):
    __slots__ = ("metadata", "metadata_max", "ledger", "ledger_max")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METADATA_MAX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    LEDGER_MAX_FIELD_NUMBER: _ClassVar[int]
    metadata: int
    metadata_max: int
    ledger: int
    ledger_max: int
    def __init__(self, metadata: _Optional[int] = ..., metadata_max: _Optional[int] = ..., ledger: _Optional[int] = ..., ledger_max: _Optional[int] = ...) -> None: ...

class PeersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("name", "state", "incarnation", "addresses", "bytes_in", "bytes_out", "last_error", "route", "node", "candidates", "gpus")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    incarnation: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    bytes_in: int
    bytes_out: int
    last_error: str
    route: _tensor_pb2.Moved
    node: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuRoute]
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., incarnation: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., last_error: _Optional[str] = ..., route: _Optional[_Union[_tensor_pb2.Moved, _Mapping]] = ..., node: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuRoute, _Mapping]]] = ...) -> None: ...

class GpuRoute(_message.Message):
    __slots__ = ("cuda_uuid", "standing", "why", "cuda_driver")
    CUDA_UUID_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CUDA_DRIVER_FIELD_NUMBER: _ClassVar[int]
    cuda_uuid: bytes
    standing: str
    why: str
    cuda_driver: int
    def __init__(self, cuda_uuid: _Optional[bytes] = ..., standing: _Optional[str] = ..., why: _Optional[str] = ..., cuda_driver: _Optional[int] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("transport", "standing", "why", "goodput", "plain")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    transport: _tensor_pb2.Transport
    standing: str
    why: str
    goodput: float
    plain: bool
    def __init__(self, transport: _Optional[_Union[_tensor_pb2.Transport, str]] = ..., standing: _Optional[str] = ..., why: _Optional[str] = ..., goodput: _Optional[float] = ..., plain: bool = ...) -> None: ...

class PeersResponse(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...
