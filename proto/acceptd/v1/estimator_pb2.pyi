from acceptd.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RejectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_REASON_UNSPECIFIED: _ClassVar[RejectReason]
    REJECT_REASON_MALFORMED: _ClassVar[RejectReason]
    REJECT_REASON_NON_FINITE: _ClassVar[RejectReason]
    REJECT_REASON_TOO_LARGE: _ClassVar[RejectReason]
    REJECT_REASON_OUT_OF_ORDER: _ClassVar[RejectReason]
    REJECT_REASON_DUPLICATE: _ClassVar[RejectReason]
    REJECT_REASON_UNKNOWN_VERSION: _ClassVar[RejectReason]
    REJECT_REASON_QUARANTINED: _ClassVar[RejectReason]
    REJECT_REASON_OVER_QUOTA: _ClassVar[RejectReason]
REJECT_REASON_UNSPECIFIED: RejectReason
REJECT_REASON_MALFORMED: RejectReason
REJECT_REASON_NON_FINITE: RejectReason
REJECT_REASON_TOO_LARGE: RejectReason
REJECT_REASON_OUT_OF_ORDER: RejectReason
REJECT_REASON_DUPLICATE: RejectReason
REJECT_REASON_UNKNOWN_VERSION: RejectReason
REJECT_REASON_QUARANTINED: RejectReason
REJECT_REASON_OVER_QUOTA: RejectReason

class StreamRequest(_message.Message):
    __slots__ = ("hello", "batch", "update_status", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    UPDATE_STATUS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    batch: ObservationBatch
    update_status: UpdateStatus
    report: WorkerReport
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[ObservationBatch, _Mapping]] = ..., update_status: _Optional[_Union[UpdateStatus, _Mapping]] = ..., report: _Optional[_Union[WorkerReport, _Mapping]] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("welcome", "batch_result", "update", "heartbeat", "drain")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BATCH_RESULT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    batch_result: BatchResult
    update: CoefficientUpdate
    heartbeat: Heartbeat
    drain: Drain
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., batch_result: _Optional[_Union[BatchResult, _Mapping]] = ..., update: _Optional[_Union[CoefficientUpdate, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("pair", "worker", "incarnation", "workload", "capabilities", "version", "hook_version", "vllm_version")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOOK_VERSION_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    pair: _types_pb2.PairKey
    worker: str
    incarnation: int
    workload: str
    capabilities: _types_pb2.Capabilities
    version: _types_pb2.Version
    hook_version: str
    vllm_version: str
    def __init__(self, pair: _Optional[_Union[_types_pb2.PairKey, _Mapping]] = ..., worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., workload: _Optional[str] = ..., capabilities: _Optional[_Union[_types_pb2.Capabilities, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.Version, _Mapping]] = ..., hook_version: _Optional[str] = ..., vllm_version: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "limits", "flush", "update", "last_sequence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    limits: Limits
    flush: FlushPolicy
    update: CoefficientUpdate
    last_sequence: int
    def __init__(self, epoch: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., flush: _Optional[_Union[FlushPolicy, _Mapping]] = ..., update: _Optional[_Union[CoefficientUpdate, _Mapping]] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_rows", "max_batch_bytes", "max_in_flight")
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    max_batch_bytes: int
    max_in_flight: int
    def __init__(self, max_rows: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., max_in_flight: _Optional[int] = ...) -> None: ...

class FlushPolicy(_message.Message):
    __slots__ = ("rows", "max_age_seconds", "coefficients_max_age_seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    max_age_seconds: float
    coefficients_max_age_seconds: float
    def __init__(self, rows: _Optional[int] = ..., max_age_seconds: _Optional[float] = ..., coefficients_max_age_seconds: _Optional[float] = ...) -> None: ...

class ObservationBatch(_message.Message):
    __slots__ = ("sequence", "version", "accepted", "admitted", "features", "segments", "explored", "propensities", "entropies", "margins", "exclusions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    EXPLORED_FIELD_NUMBER: _ClassVar[int]
    PROPENSITIES_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    MARGINS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    version: _types_pb2.Version
    accepted: bytes
    admitted: bytes
    features: bytes
    segments: bytes
    explored: bytes
    propensities: bytes
    entropies: bytes
    margins: bytes
    exclusions: _containers.RepeatedCompositeFieldContainer[_types_pb2.ExclusionCount]
    def __init__(self, sequence: _Optional[int] = ..., version: _Optional[_Union[_types_pb2.Version, _Mapping]] = ..., accepted: _Optional[bytes] = ..., admitted: _Optional[bytes] = ..., features: _Optional[bytes] = ..., segments: _Optional[bytes] = ..., explored: _Optional[bytes] = ..., propensities: _Optional[bytes] = ..., entropies: _Optional[bytes] = ..., margins: _Optional[bytes] = ..., exclusions: _Optional[_Iterable[_Union[_types_pb2.ExclusionCount, _Mapping]]] = ...) -> None: ...

class BatchResult(_message.Message):
    __slots__ = ("sequence", "last_sequence", "rows_accepted", "rows_rejected", "reason", "field", "index", "message", "retry_after_seconds")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ROWS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    last_sequence: int
    rows_accepted: int
    rows_rejected: int
    reason: RejectReason
    field: str
    index: int
    message: str
    retry_after_seconds: float
    def __init__(self, sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., rows_accepted: _Optional[int] = ..., rows_rejected: _Optional[int] = ..., reason: _Optional[_Union[RejectReason, str]] = ..., field: _Optional[str] = ..., index: _Optional[int] = ..., message: _Optional[str] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class CoefficientUpdate(_message.Message):
    __slots__ = ("coefficients", "nonce", "mode", "exploration_rate")
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_RATE_FIELD_NUMBER: _ClassVar[int]
    coefficients: _types_pb2.Coefficients
    nonce: int
    mode: _types_pb2.Mode
    exploration_rate: float
    def __init__(self, coefficients: _Optional[_Union[_types_pb2.Coefficients, _Mapping]] = ..., nonce: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., exploration_rate: _Optional[float] = ...) -> None: ...

class UpdateStatus(_message.Message):
    __slots__ = ("nonce", "version", "rejected")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    version: _types_pb2.Version
    rejected: str
    def __init__(self, nonce: _Optional[int] = ..., version: _Optional[_Union[_types_pb2.Version, _Mapping]] = ..., rejected: _Optional[str] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("totals", "mode", "costs")
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    totals: _types_pb2.WorkerTotals
    mode: _types_pb2.Mode
    costs: _types_pb2.CostTable
    def __init__(self, totals: _Optional[_Union[_types_pb2.WorkerTotals, _Mapping]] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., costs: _Optional[_Union[_types_pb2.CostTable, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: _types_pb2.Version
    def __init__(self, version: _Optional[_Union[_types_pb2.Version, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason", "reconnect_after_seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    reconnect_after_seconds: float
    def __init__(self, reason: _Optional[str] = ..., reconnect_after_seconds: _Optional[float] = ...) -> None: ...
