from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Transport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSPORT_UNSPECIFIED: _ClassVar[Transport]
    TRANSPORT_LOCAL: _ClassVar[Transport]
    TRANSPORT_SHM: _ClassVar[Transport]
    TRANSPORT_CUDA_IPC: _ClassVar[Transport]
    TRANSPORT_TCP: _ClassVar[Transport]
    TRANSPORT_QUIC: _ClassVar[Transport]

class Way(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAY_STREAM: _ClassVar[Way]
    WAY_LANES: _ClassVar[Way]
    WAY_QUIC: _ClassVar[Way]
    WAY_SHM: _ClassVar[Way]
TRANSPORT_UNSPECIFIED: Transport
TRANSPORT_LOCAL: Transport
TRANSPORT_SHM: Transport
TRANSPORT_CUDA_IPC: Transport
TRANSPORT_TCP: Transport
TRANSPORT_QUIC: Transport
WAY_STREAM: Way
WAY_LANES: Way
WAY_QUIC: Way
WAY_SHM: Way

class Device(_message.Message):
    __slots__ = ("cuda_index", "cuda_uuid")
    CUDA_INDEX_FIELD_NUMBER: _ClassVar[int]
    CUDA_UUID_FIELD_NUMBER: _ClassVar[int]
    cuda_index: int
    cuda_uuid: bytes
    def __init__(self, cuda_index: _Optional[int] = ..., cuda_uuid: _Optional[bytes] = ...) -> None: ...

class Descriptor(_message.Message):
    __slots__ = ("dtype", "shape", "strides", "byte_length", "device", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    BYTE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    dtype: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    byte_length: int
    device: Device
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, dtype: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., byte_length: _Optional[int] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("start", "stop", "step")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    step: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Ranges(_message.Message):
    __slots__ = ("dimensions",)
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    dimensions: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, dimensions: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("indices",)
    INDICES_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("ranges", "rows")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ranges: Ranges
    rows: Rows
    def __init__(self, ranges: _Optional[_Union[Ranges, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("transport", "why")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    transport: Transport
    why: str
    def __init__(self, transport: _Optional[_Union[Transport, str]] = ..., why: _Optional[str] = ...) -> None: ...

class Path(_message.Message):
    __slots__ = ("way", "bytes", "lanes", "left", "plain_bytes")
    WAY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    way: Way
    bytes: int
    lanes: int
    left: str
    plain_bytes: int
    def __init__(self, way: _Optional[_Union[Way, str]] = ..., bytes: _Optional[int] = ..., lanes: _Optional[int] = ..., left: _Optional[str] = ..., plain_bytes: _Optional[int] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("transport", "bytes", "seconds", "refusals", "paths", "senders", "staged")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    transport: Transport
    bytes: int
    seconds: float
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    paths: _containers.RepeatedCompositeFieldContainer[Path]
    senders: _containers.RepeatedCompositeFieldContainer[Sender]
    staged: bool
    def __init__(self, transport: _Optional[_Union[Transport, str]] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., paths: _Optional[_Iterable[_Union[Path, _Mapping]]] = ..., senders: _Optional[_Iterable[_Union[Sender, _Mapping]]] = ..., staged: bool = ...) -> None: ...

class Sender(_message.Message):
    __slots__ = ("peer", "bytes")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    peer: str
    bytes: int
    def __init__(self, peer: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class PeerPatterns(_message.Message):
    __slots__ = ("patterns",)
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, patterns: _Optional[_Iterable[str]] = ...) -> None: ...

class Require(_message.Message):
    __slots__ = ("zero_copy", "same_node", "encrypted")
    ZERO_COPY_FIELD_NUMBER: _ClassVar[int]
    SAME_NODE_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    zero_copy: bool
    same_node: bool
    encrypted: bool
    def __init__(self, zero_copy: bool = ..., same_node: bool = ..., encrypted: bool = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "reason", "message", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    details: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ("segment", "offset", "bytes")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    bytes: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
