from tensorlane.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChannelPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_POLICY_BLOCK: _ClassVar[ChannelPolicy]
    CHANNEL_POLICY_DROP_OLDEST: _ClassVar[ChannelPolicy]
    CHANNEL_POLICY_LATEST: _ClassVar[ChannelPolicy]

class ChannelFrom(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_FROM_NEXT: _ClassVar[ChannelFrom]
    CHANNEL_FROM_OLDEST: _ClassVar[ChannelFrom]

class ChannelOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_OUTCOME_UNSPECIFIED: _ClassVar[ChannelOutcome]
    CHANNEL_OUTCOME_FINISHED: _ClassVar[ChannelOutcome]
    CHANNEL_OUTCOME_WRITER_LOST: _ClassVar[ChannelOutcome]
    CHANNEL_OUTCOME_PEER_LOST: _ClassVar[ChannelOutcome]
CHANNEL_POLICY_BLOCK: ChannelPolicy
CHANNEL_POLICY_DROP_OLDEST: ChannelPolicy
CHANNEL_POLICY_LATEST: ChannelPolicy
CHANNEL_FROM_NEXT: ChannelFrom
CHANNEL_FROM_OLDEST: ChannelFrom
CHANNEL_OUTCOME_UNSPECIFIED: ChannelOutcome
CHANNEL_OUTCOME_FINISHED: ChannelOutcome
CHANNEL_OUTCOME_WRITER_LOST: ChannelOutcome
CHANNEL_OUTCOME_PEER_LOST: ChannelOutcome

class ChannelSpec(_message.Message):
    __slots__ = ("name", "slots", "slot_bytes", "readers_max", "policy", "evicts", "growth")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    READERS_MAX_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EVICTS_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    slot_bytes: int
    readers_max: int
    policy: ChannelPolicy
    evicts: bool
    growth: int
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., readers_max: _Optional[int] = ..., policy: _Optional[_Union[ChannelPolicy, str]] = ..., evicts: bool = ..., growth: _Optional[int] = ...) -> None: ...

class ChannelCreateRequest(_message.Message):
    __slots__ = ("spec", "key", "deadline_ms", "readers")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    spec: ChannelSpec
    key: int
    deadline_ms: int
    readers: _tensor_pb2.PeerPatterns
    def __init__(self, spec: _Optional[_Union[ChannelSpec, _Mapping]] = ..., key: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., readers: _Optional[_Union[_tensor_pb2.PeerPatterns, _Mapping]] = ...) -> None: ...

class ChannelCreateResponse(_message.Message):
    __slots__ = ("channel", "ring", "policy")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    channel: int
    ring: _tensor_pb2.Location
    policy: ChannelPolicy
    def __init__(self, channel: _Optional[int] = ..., ring: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ..., policy: _Optional[_Union[ChannelPolicy, str]] = ...) -> None: ...

class ChannelAttachRequest(_message.Message):
    __slots__ = ("name", "peer", "hold", "wait_ms", "deadline_ms", "takes_gaps", "require")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TAKES_GAPS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_FIELD_NUMBER: _ClassVar[int]
    name: str
    peer: str
    hold: int
    wait_ms: int
    deadline_ms: int
    takes_gaps: bool
    require: _tensor_pb2.Require
    def __init__(self, name: _Optional[str] = ..., peer: _Optional[str] = ..., hold: _Optional[int] = ..., wait_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., takes_gaps: bool = ..., require: _Optional[_Union[_tensor_pb2.Require, _Mapping]] = ..., **kwargs) -> None: ...

class ChannelAttachResponse(_message.Message):
    __slots__ = ("reader", "channel", "spec", "ring", "cursor", "first", "missed", "writer", "route", "peer", "epoch")
    READER_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    reader: int
    channel: int
    spec: ChannelSpec
    ring: _tensor_pb2.Location
    cursor: _tensor_pb2.Location
    first: int
    missed: int
    writer: str
    route: str
    peer: str
    epoch: int
    def __init__(self, reader: _Optional[int] = ..., channel: _Optional[int] = ..., spec: _Optional[_Union[ChannelSpec, _Mapping]] = ..., ring: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ..., cursor: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ..., first: _Optional[int] = ..., missed: _Optional[int] = ..., writer: _Optional[str] = ..., route: _Optional[str] = ..., peer: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ChannelExtentRequest(_message.Message):
    __slots__ = ("channel", "reader", "extent", "bytes", "deadline_ms")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    channel: int
    reader: int
    extent: int
    bytes: int
    deadline_ms: int
    def __init__(self, channel: _Optional[int] = ..., reader: _Optional[int] = ..., extent: _Optional[int] = ..., bytes: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ChannelExtentResponse(_message.Message):
    __slots__ = ("extent", "location")
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    extent: int
    location: _tensor_pb2.Location
    def __init__(self, extent: _Optional[int] = ..., location: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ...) -> None: ...

class ChannelDetachRequest(_message.Message):
    __slots__ = ("channel", "reader", "still_mapped", "evicts", "extent")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    STILL_MAPPED_FIELD_NUMBER: _ClassVar[int]
    EVICTS_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    channel: int
    reader: int
    still_mapped: bool
    evicts: bool
    extent: int
    def __init__(self, channel: _Optional[int] = ..., reader: _Optional[int] = ..., still_mapped: bool = ..., evicts: bool = ..., extent: _Optional[int] = ...) -> None: ...

class ChannelReader(_message.Message):
    __slots__ = ("key", "reader", "cursor", "client", "gone")
    KEY_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    key: int
    reader: int
    cursor: _tensor_pb2.Location
    client: str
    gone: bool
    def __init__(self, key: _Optional[int] = ..., reader: _Optional[int] = ..., cursor: _Optional[_Union[_tensor_pb2.Location, _Mapping]] = ..., client: _Optional[str] = ..., gone: bool = ..., **kwargs) -> None: ...

class ChannelReady(_message.Message):
    __slots__ = ("reader", "first", "missed", "gone", "error")
    READER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reader: int
    first: int
    missed: int
    gone: bool
    error: str
    def __init__(self, reader: _Optional[int] = ..., first: _Optional[int] = ..., missed: _Optional[int] = ..., gone: bool = ..., error: _Optional[str] = ...) -> None: ...

class ChannelStatRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ChannelStatus(_message.Message):
    __slots__ = ("spec", "writer", "written", "finished", "readers", "bytes", "peer", "route", "allowed", "away", "readers_left_out", "allowed_left_out")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    READERS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    spec: ChannelSpec
    writer: str
    written: int
    finished: bool
    readers: _containers.RepeatedCompositeFieldContainer[ChannelReaderStatus]
    bytes: int
    peer: str
    route: str
    allowed: _tensor_pb2.PeerPatterns
    away: bool
    readers_left_out: int
    allowed_left_out: int
    def __init__(self, spec: _Optional[_Union[ChannelSpec, _Mapping]] = ..., writer: _Optional[str] = ..., written: _Optional[int] = ..., finished: bool = ..., readers: _Optional[_Iterable[_Union[ChannelReaderStatus, _Mapping]]] = ..., bytes: _Optional[int] = ..., peer: _Optional[str] = ..., route: _Optional[str] = ..., allowed: _Optional[_Union[_tensor_pb2.PeerPatterns, _Mapping]] = ..., away: bool = ..., readers_left_out: _Optional[int] = ..., allowed_left_out: _Optional[int] = ...) -> None: ...

class ChannelReaderStatus(_message.Message):
    __slots__ = ("reader", "client", "next", "waits", "route", "dropped", "evicted", "away")
    READER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    reader: int
    client: str
    next: int
    waits: bool
    route: str
    dropped: int
    evicted: bool
    away: bool
    def __init__(self, reader: _Optional[int] = ..., client: _Optional[str] = ..., next: _Optional[int] = ..., waits: bool = ..., route: _Optional[str] = ..., dropped: _Optional[int] = ..., evicted: bool = ..., away: bool = ...) -> None: ...

class ChannelStatResponse(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelStatus]
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelStatus, _Mapping]]] = ...) -> None: ...

class ChannelLayout(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Descriptor]
    def __init__(self, parts: _Optional[_Iterable[_Union[_tensor_pb2.Descriptor, _Mapping]]] = ...) -> None: ...

class ChannelPart(_message.Message):
    __slots__ = ("descriptor", "bytes", "data")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    descriptor: _tensor_pb2.Descriptor
    bytes: int
    data: bytes
    def __init__(self, descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ChannelChunk(_message.Message):
    __slots__ = ("part", "data")
    PART_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    part: int
    data: bytes
    def __init__(self, part: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ChannelOpen(_message.Message):
    __slots__ = ("spec", "expect_readers", "deadline_ms", "client", "readers", "evict_after_ms", "fixed")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    EXPECT_READERS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    EVICT_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    spec: ChannelSpec
    expect_readers: int
    deadline_ms: int
    client: str
    readers: _tensor_pb2.PeerPatterns
    evict_after_ms: int
    fixed: bool
    def __init__(self, spec: _Optional[_Union[ChannelSpec, _Mapping]] = ..., expect_readers: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., client: _Optional[str] = ..., readers: _Optional[_Union[_tensor_pb2.PeerPatterns, _Mapping]] = ..., evict_after_ms: _Optional[int] = ..., fixed: bool = ...) -> None: ...

class ChannelWriteMessage(_message.Message):
    __slots__ = ("parts", "wait_ms")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ChannelPart]
    wait_ms: int
    def __init__(self, parts: _Optional[_Iterable[_Union[ChannelPart, _Mapping]]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ChannelFinish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChannelEvict(_message.Message):
    __slots__ = ("reader",)
    READER_FIELD_NUMBER: _ClassVar[int]
    reader: int
    def __init__(self, reader: _Optional[int] = ...) -> None: ...

class ChannelWriteRequest(_message.Message):
    __slots__ = ("open", "message", "chunk", "finish", "evict")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    open: ChannelOpen
    message: ChannelWriteMessage
    chunk: ChannelChunk
    finish: ChannelFinish
    evict: ChannelEvict
    def __init__(self, open: _Optional[_Union[ChannelOpen, _Mapping]] = ..., message: _Optional[_Union[ChannelWriteMessage, _Mapping]] = ..., chunk: _Optional[_Union[ChannelChunk, _Mapping]] = ..., finish: _Optional[_Union[ChannelFinish, _Mapping]] = ..., evict: _Optional[_Union[ChannelEvict, _Mapping]] = ...) -> None: ...

class ChannelOpened(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: ChannelSpec
    def __init__(self, spec: _Optional[_Union[ChannelSpec, _Mapping]] = ...) -> None: ...

class ChannelWritten(_message.Message):
    __slots__ = ("message", "sequence", "readers", "dropped")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    message: int
    sequence: int
    readers: int
    dropped: bool
    def __init__(self, message: _Optional[int] = ..., sequence: _Optional[int] = ..., readers: _Optional[int] = ..., dropped: bool = ...) -> None: ...

class ChannelRefused(_message.Message):
    __slots__ = ("message", "failure")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    message: int
    failure: _tensor_pb2.Failure
    def __init__(self, message: _Optional[int] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class ChannelBlocked(_message.Message):
    __slots__ = ("message", "client", "reader", "sequence", "held_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    message: int
    client: str
    reader: int
    sequence: int
    held_ms: int
    def __init__(self, message: _Optional[int] = ..., client: _Optional[str] = ..., reader: _Optional[int] = ..., sequence: _Optional[int] = ..., held_ms: _Optional[int] = ...) -> None: ...

class ChannelFinished(_message.Message):
    __slots__ = ("written",)
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    written: int
    def __init__(self, written: _Optional[int] = ...) -> None: ...

class ChannelWriteResponse(_message.Message):
    __slots__ = ("opened", "written", "refused", "blocked", "finished")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    opened: ChannelOpened
    written: ChannelWritten
    refused: ChannelRefused
    blocked: ChannelBlocked
    finished: ChannelFinished
    def __init__(self, opened: _Optional[_Union[ChannelOpened, _Mapping]] = ..., written: _Optional[_Union[ChannelWritten, _Mapping]] = ..., refused: _Optional[_Union[ChannelRefused, _Mapping]] = ..., blocked: _Optional[_Union[ChannelBlocked, _Mapping]] = ..., finished: _Optional[_Union[ChannelFinished, _Mapping]] = ...) -> None: ...

class ChannelReadRequest(_message.Message):
    __slots__ = ("name", "peer", "wait_ms", "deadline_ms", "client", "follow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    peer: str
    wait_ms: int
    deadline_ms: int
    client: str
    follow: bool
    def __init__(self, name: _Optional[str] = ..., peer: _Optional[str] = ..., wait_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., client: _Optional[str] = ..., follow: bool = ..., **kwargs) -> None: ...

class ChannelAttached(_message.Message):
    __slots__ = ("spec", "first", "missed", "writer", "route", "peer")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    spec: ChannelSpec
    first: int
    missed: int
    writer: str
    route: str
    peer: str
    def __init__(self, spec: _Optional[_Union[ChannelSpec, _Mapping]] = ..., first: _Optional[int] = ..., missed: _Optional[int] = ..., writer: _Optional[str] = ..., route: _Optional[str] = ..., peer: _Optional[str] = ...) -> None: ...

class ChannelMessage(_message.Message):
    __slots__ = ("sequence", "parts")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    parts: _containers.RepeatedCompositeFieldContainer[ChannelPart]
    def __init__(self, sequence: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[ChannelPart, _Mapping]]] = ...) -> None: ...

class ChannelGap(_message.Message):
    __slots__ = ("dropped", "next")
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    next: int
    def __init__(self, dropped: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class ChannelEnd(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: ChannelOutcome
    def __init__(self, outcome: _Optional[_Union[ChannelOutcome, str]] = ...) -> None: ...

class ChannelEpoch(_message.Message):
    __slots__ = ("outcome", "attached")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    outcome: ChannelOutcome
    attached: ChannelAttached
    def __init__(self, outcome: _Optional[_Union[ChannelOutcome, str]] = ..., attached: _Optional[_Union[ChannelAttached, _Mapping]] = ...) -> None: ...

class ChannelReadResponse(_message.Message):
    __slots__ = ("attached", "message", "chunk", "gap", "end", "epoch")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    attached: ChannelAttached
    message: ChannelMessage
    chunk: ChannelChunk
    gap: ChannelGap
    end: ChannelEnd
    epoch: ChannelEpoch
    def __init__(self, attached: _Optional[_Union[ChannelAttached, _Mapping]] = ..., message: _Optional[_Union[ChannelMessage, _Mapping]] = ..., chunk: _Optional[_Union[ChannelChunk, _Mapping]] = ..., gap: _Optional[_Union[ChannelGap, _Mapping]] = ..., end: _Optional[_Union[ChannelEnd, _Mapping]] = ..., epoch: _Optional[_Union[ChannelEpoch, _Mapping]] = ...) -> None: ...
