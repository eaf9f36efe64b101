from tensorlane.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PipeDelivered(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIPE_DELIVERED_UNKNOWN: _ClassVar[PipeDelivered]
    PIPE_DELIVERED_YES: _ClassVar[PipeDelivered]
    PIPE_DELIVERED_NO: _ClassVar[PipeDelivered]
PIPE_DELIVERED_UNKNOWN: PipeDelivered
PIPE_DELIVERED_YES: PipeDelivered
PIPE_DELIVERED_NO: PipeDelivered

class PipeListenRequest(_message.Message):
    __slots__ = ("name", "allow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    allow: _tensor_pb2.PeerPatterns
    def __init__(self, name: _Optional[str] = ..., allow: _Optional[_Union[_tensor_pb2.PeerPatterns, _Mapping]] = ...) -> None: ...

class PipeListenResponse(_message.Message):
    __slots__ = ("listener",)
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    listener: int
    def __init__(self, listener: _Optional[int] = ...) -> None: ...

class PipeAcceptRequest(_message.Message):
    __slots__ = ("listener", "deadline_ms")
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    listener: int
    deadline_ms: int
    def __init__(self, listener: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PipeConnectRequest(_message.Message):
    __slots__ = ("peer", "name", "wait_ms", "deadline_ms")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    name: str
    wait_ms: int
    deadline_ms: int
    def __init__(self, peer: _Optional[str] = ..., name: _Optional[str] = ..., wait_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PipeOpened(_message.Message):
    __slots__ = ("pipe", "peer", "client", "route")
    PIPE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    pipe: int
    peer: str
    client: str
    route: str
    def __init__(self, pipe: _Optional[int] = ..., peer: _Optional[str] = ..., client: _Optional[str] = ..., route: _Optional[str] = ...) -> None: ...

class PipePart(_message.Message):
    __slots__ = ("inline", "reference", "bytes", "descriptor", "metadata")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    inline: bytes
    reference: str
    bytes: int
    descriptor: _tensor_pb2.Descriptor
    metadata: bytes
    def __init__(self, inline: _Optional[bytes] = ..., reference: _Optional[str] = ..., bytes: _Optional[int] = ..., descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class PipeMessage(_message.Message):
    __slots__ = ("metadata", "payloads", "tensors")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    metadata: bytes
    payloads: _containers.RepeatedCompositeFieldContainer[PipePart]
    tensors: _containers.RepeatedCompositeFieldContainer[PipePart]
    def __init__(self, metadata: _Optional[bytes] = ..., payloads: _Optional[_Iterable[_Union[PipePart, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[PipePart, _Mapping]]] = ...) -> None: ...

class PipeWriteRequest(_message.Message):
    __slots__ = ("pipe", "sequence", "message", "deadline_ms")
    PIPE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    pipe: int
    sequence: int
    message: bytes
    deadline_ms: int
    def __init__(self, pipe: _Optional[int] = ..., sequence: _Optional[int] = ..., message: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PipeWriteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PipeReadRequest(_message.Message):
    __slots__ = ("pipe", "deadline_ms")
    PIPE_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    pipe: int
    deadline_ms: int
    def __init__(self, pipe: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., **kwargs) -> None: ...

class PipeReadResponse(_message.Message):
    __slots__ = ("sequence", "message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    message: bytes
    def __init__(self, sequence: _Optional[int] = ..., message: _Optional[bytes] = ...) -> None: ...

class PipeEndRequest(_message.Message):
    __slots__ = ("pipe", "listener", "read", "finished", "closed")
    PIPE_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    pipe: int
    listener: int
    read: int
    finished: bool
    closed: bool
    def __init__(self, pipe: _Optional[int] = ..., listener: _Optional[int] = ..., read: _Optional[int] = ..., finished: bool = ..., closed: bool = ...) -> None: ...

class PipeConnect(_message.Message):
    __slots__ = ("name", "peer", "wait_ms", "deadline_ms", "client")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    peer: str
    wait_ms: int
    deadline_ms: int
    client: str
    def __init__(self, name: _Optional[str] = ..., peer: _Optional[str] = ..., wait_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class PipeAccept(_message.Message):
    __slots__ = ("name", "deadline_ms", "client", "allow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    deadline_ms: int
    client: str
    allow: _tensor_pb2.PeerPatterns
    def __init__(self, name: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., client: _Optional[str] = ..., allow: _Optional[_Union[_tensor_pb2.PeerPatterns, _Mapping]] = ...) -> None: ...

class PipeStreamPart(_message.Message):
    __slots__ = ("descriptor", "bytes", "data", "metadata")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    descriptor: _tensor_pb2.Descriptor
    bytes: int
    data: bytes
    metadata: bytes
    def __init__(self, descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class PipeStreamMessage(_message.Message):
    __slots__ = ("metadata", "parts", "deadline_ms")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    metadata: bytes
    parts: _containers.RepeatedCompositeFieldContainer[PipeStreamPart]
    deadline_ms: int
    def __init__(self, metadata: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[PipeStreamPart, _Mapping]]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PipeChunk(_message.Message):
    __slots__ = ("part", "data")
    PART_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    part: int
    data: bytes
    def __init__(self, part: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PipeTaken(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: int
    def __init__(self, message: _Optional[int] = ...) -> None: ...

class PipeFinish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PipeRequest(_message.Message):
    __slots__ = ("connect", "accept", "message", "chunk", "taken", "finish")
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    connect: PipeConnect
    accept: PipeAccept
    message: PipeStreamMessage
    chunk: PipeChunk
    taken: PipeTaken
    finish: PipeFinish
    def __init__(self, connect: _Optional[_Union[PipeConnect, _Mapping]] = ..., accept: _Optional[_Union[PipeAccept, _Mapping]] = ..., message: _Optional[_Union[PipeStreamMessage, _Mapping]] = ..., chunk: _Optional[_Union[PipeChunk, _Mapping]] = ..., taken: _Optional[_Union[PipeTaken, _Mapping]] = ..., finish: _Optional[_Union[PipeFinish, _Mapping]] = ...) -> None: ...

class PipeWritten(_message.Message):
    __slots__ = ("message", "delivered", "failure")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    message: int
    delivered: PipeDelivered
    failure: _tensor_pb2.Failure
    def __init__(self, message: _Optional[int] = ..., delivered: _Optional[_Union[PipeDelivered, str]] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class PipeReceived(_message.Message):
    __slots__ = ("message", "metadata", "parts")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    message: int
    metadata: bytes
    parts: _containers.RepeatedCompositeFieldContainer[PipeStreamPart]
    def __init__(self, message: _Optional[int] = ..., metadata: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[PipeStreamPart, _Mapping]]] = ...) -> None: ...

class PipeMissed(_message.Message):
    __slots__ = ("message", "failure")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    message: int
    failure: _tensor_pb2.Failure
    def __init__(self, message: _Optional[int] = ..., failure: _Optional[_Union[_tensor_pb2.Failure, _Mapping]] = ...) -> None: ...

class PipeEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PipeResponse(_message.Message):
    __slots__ = ("opened", "received", "chunk", "written", "missed", "end")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    opened: PipeOpened
    received: PipeReceived
    chunk: PipeChunk
    written: PipeWritten
    missed: PipeMissed
    end: PipeEnd
    def __init__(self, opened: _Optional[_Union[PipeOpened, _Mapping]] = ..., received: _Optional[_Union[PipeReceived, _Mapping]] = ..., chunk: _Optional[_Union[PipeChunk, _Mapping]] = ..., written: _Optional[_Union[PipeWritten, _Mapping]] = ..., missed: _Optional[_Union[PipeMissed, _Mapping]] = ..., end: _Optional[_Union[PipeEnd, _Mapping]] = ...) -> None: ...
