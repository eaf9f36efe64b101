from tensorlane.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SetDurability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SET_DURABILITY_UNSPECIFIED: _ClassVar[SetDurability]
    SET_DURABILITY_NONE: _ClassVar[SetDurability]
    SET_DURABILITY_PROCESS: _ClassVar[SetDurability]
    SET_DURABILITY_DISK: _ClassVar[SetDurability]
SET_DURABILITY_UNSPECIFIED: SetDurability
SET_DURABILITY_NONE: SetDurability
SET_DURABILITY_PROCESS: SetDurability
SET_DURABILITY_DISK: SetDurability

class PublishSetRequest(_message.Message):
    __slots__ = ("manifest", "leaves", "name", "version", "keep")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    manifest: int
    leaves: _containers.RepeatedScalarFieldContainer[int]
    name: str
    version: int
    keep: int
    def __init__(self, manifest: _Optional[int] = ..., leaves: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., keep: _Optional[int] = ...) -> None: ...

class PublishSetResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class SetLeaf(_message.Message):
    __slots__ = ("key", "dtype", "row_shape")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROW_SHAPE_FIELD_NUMBER: _ClassVar[int]
    key: str
    dtype: int
    row_shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key: _Optional[str] = ..., dtype: _Optional[int] = ..., row_shape: _Optional[_Iterable[int]] = ...) -> None: ...

class SetSpec(_message.Message):
    __slots__ = ("leaves", "name", "rows", "writers", "files", "contiguous")
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CONTIGUOUS_FIELD_NUMBER: _ClassVar[int]
    leaves: _containers.RepeatedCompositeFieldContainer[SetLeaf]
    name: str
    rows: int
    writers: _containers.RepeatedScalarFieldContainer[str]
    files: SetFiles
    contiguous: bool
    def __init__(self, leaves: _Optional[_Iterable[_Union[SetLeaf, _Mapping]]] = ..., name: _Optional[str] = ..., rows: _Optional[int] = ..., writers: _Optional[_Iterable[str]] = ..., files: _Optional[_Union[SetFiles, _Mapping]] = ..., contiguous: bool = ...) -> None: ...

class SetFiles(_message.Message):
    __slots__ = ("directory", "open", "durability")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    open: bool
    durability: SetDurability
    def __init__(self, directory: _Optional[str] = ..., open: bool = ..., durability: _Optional[_Union[SetDurability, str]] = ...) -> None: ...

class SetInfo(_message.Message):
    __slots__ = ("reference", "spec", "version", "cursor", "bytes", "held_bytes", "torn_rows")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TORN_ROWS_FIELD_NUMBER: _ClassVar[int]
    reference: str
    spec: SetSpec
    version: int
    cursor: int
    bytes: int
    held_bytes: int
    torn_rows: int
    def __init__(self, reference: _Optional[str] = ..., spec: _Optional[_Union[SetSpec, _Mapping]] = ..., version: _Optional[int] = ..., cursor: _Optional[int] = ..., bytes: _Optional[int] = ..., held_bytes: _Optional[int] = ..., torn_rows: _Optional[int] = ...) -> None: ...

class SetCreateRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: SetSpec
    def __init__(self, spec: _Optional[_Union[SetSpec, _Mapping]] = ...) -> None: ...

class SetCreateResponse(_message.Message):
    __slots__ = ("set",)
    SET_FIELD_NUMBER: _ClassVar[int]
    set: SetInfo
    def __init__(self, set: _Optional[_Union[SetInfo, _Mapping]] = ...) -> None: ...

class SetOpenRequest(_message.Message):
    __slots__ = ("set", "deadline_ms", "flush", "wait_ms")
    SET_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    set: str
    deadline_ms: int
    flush: bool
    wait_ms: int
    def __init__(self, set: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., flush: bool = ..., wait_ms: _Optional[int] = ...) -> None: ...

class SetOpenResponse(_message.Message):
    __slots__ = ("set",)
    SET_FIELD_NUMBER: _ClassVar[int]
    set: SetInfo
    def __init__(self, set: _Optional[_Union[SetInfo, _Mapping]] = ...) -> None: ...

class SetReadRequest(_message.Message):
    __slots__ = ("keys", "set", "rows", "deadline_ms", "map")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    set: str
    rows: _tensor_pb2.Selection
    deadline_ms: int
    map: bool
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., set: _Optional[str] = ..., rows: _Optional[_Union[_tensor_pb2.Selection, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., map: bool = ...) -> None: ...

class SetReadLeaf(_message.Message):
    __slots__ = ("key", "descriptor", "moved")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    key: str
    descriptor: _tensor_pb2.Descriptor
    moved: _tensor_pb2.Moved
    def __init__(self, key: _Optional[str] = ..., descriptor: _Optional[_Union[_tensor_pb2.Descriptor, _Mapping]] = ..., moved: _Optional[_Union[_tensor_pb2.Moved, _Mapping]] = ...) -> None: ...

class SetReadHead(_message.Message):
    __slots__ = ("version", "leaves")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    version: int
    leaves: _containers.RepeatedCompositeFieldContainer[SetReadLeaf]
    def __init__(self, version: _Optional[int] = ..., leaves: _Optional[_Iterable[_Union[SetReadLeaf, _Mapping]]] = ...) -> None: ...

class SetBytes(_message.Message):
    __slots__ = ("leaf", "data")
    LEAF_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    leaf: int
    data: bytes
    def __init__(self, leaf: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SetReadChunk(_message.Message):
    __slots__ = ("head", "bytes")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    head: SetReadHead
    bytes: SetBytes
    def __init__(self, head: _Optional[_Union[SetReadHead, _Mapping]] = ..., bytes: _Optional[_Union[SetBytes, _Mapping]] = ...) -> None: ...

class SetPart(_message.Message):
    __slots__ = ("key", "reference")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    key: str
    reference: str
    def __init__(self, key: _Optional[str] = ..., reference: _Optional[str] = ...) -> None: ...

class SetCommitRequest(_message.Message):
    __slots__ = ("parts", "set", "rows", "extend", "expects_version", "retry_id", "deadline_ms")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETRY_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[SetPart]
    set: str
    rows: _tensor_pb2.Selection
    extend: bool
    expects_version: int
    retry_id: bytes
    deadline_ms: int
    def __init__(self, parts: _Optional[_Iterable[_Union[SetPart, _Mapping]]] = ..., set: _Optional[str] = ..., rows: _Optional[_Union[_tensor_pb2.Selection, _Mapping]] = ..., extend: bool = ..., expects_version: _Optional[int] = ..., retry_id: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class SetCommitHead(_message.Message):
    __slots__ = ("set", "keys", "rows", "extend", "expects_version", "retry_id", "deadline_ms")
    SET_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETRY_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    set: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    rows: _tensor_pb2.Selection
    extend: int
    expects_version: int
    retry_id: bytes
    deadline_ms: int
    def __init__(self, set: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., rows: _Optional[_Union[_tensor_pb2.Selection, _Mapping]] = ..., extend: _Optional[int] = ..., expects_version: _Optional[int] = ..., retry_id: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class SetCommitChunk(_message.Message):
    __slots__ = ("head", "bytes")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    head: SetCommitHead
    bytes: SetBytes
    def __init__(self, head: _Optional[_Union[SetCommitHead, _Mapping]] = ..., bytes: _Optional[_Union[SetBytes, _Mapping]] = ...) -> None: ...

class SetCommitResponse(_message.Message):
    __slots__ = ("version", "first")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    version: int
    first: int
    def __init__(self, version: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class SetSnapshotRequest(_message.Message):
    __slots__ = ("set", "name", "keep", "deadline_ms")
    SET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    set: str
    name: str
    keep: int
    deadline_ms: int
    def __init__(self, set: _Optional[str] = ..., name: _Optional[str] = ..., keep: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class SetSnapshotResponse(_message.Message):
    __slots__ = ("version", "set_version", "reference")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SET_VERSION_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    set_version: int
    reference: str
    def __init__(self, version: _Optional[int] = ..., set_version: _Optional[int] = ..., reference: _Optional[str] = ...) -> None: ...

class SetDropRequest(_message.Message):
    __slots__ = ("set",)
    SET_FIELD_NUMBER: _ClassVar[int]
    set: str
    def __init__(self, set: _Optional[str] = ...) -> None: ...

class SetDropResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetStatRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class SetStatResponse(_message.Message):
    __slots__ = ("sets",)
    SETS_FIELD_NUMBER: _ClassVar[int]
    sets: _containers.RepeatedCompositeFieldContainer[SetInfo]
    def __init__(self, sets: _Optional[_Iterable[_Union[SetInfo, _Mapping]]] = ...) -> None: ...
