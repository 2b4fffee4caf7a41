from acceptd.v1 import estimator_pb2 as _estimator_pb2
from acceptd.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(_message.Message):
    __slots__ = ("trouble",)
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    trouble: str
    def __init__(self, trouble: _Optional[str] = ...) -> None: ...

class PinPairRequest(_message.Message):
    __slots__ = ("pair", "version")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    pair: str
    version: _types_pb2.Version
    def __init__(self, pair: _Optional[str] = ..., version: _Optional[_Union[_types_pb2.Version, _Mapping]] = ...) -> None: ...

class PinPairResponse(_message.Message):
    __slots__ = ("state", "durability")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    durability: Durability
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ..., durability: _Optional[_Union[Durability, _Mapping]] = ...) -> None: ...

class UnpinPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class UnpinPairResponse(_message.Message):
    __slots__ = ("state", "durability")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    durability: Durability
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ..., durability: _Optional[_Union[Durability, _Mapping]] = ...) -> None: ...

class RollbackPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class RollbackPairResponse(_message.Message):
    __slots__ = ("state", "durability")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    durability: Durability
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ..., durability: _Optional[_Union[Durability, _Mapping]] = ...) -> None: ...

class ResetPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class ResetPairResponse(_message.Message):
    __slots__ = ("state", "durability")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    durability: Durability
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ..., durability: _Optional[_Union[Durability, _Mapping]] = ...) -> None: ...

class SetModeRequest(_message.Message):
    __slots__ = ("pair", "mode", "exploration_rate")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_RATE_FIELD_NUMBER: _ClassVar[int]
    pair: str
    mode: _types_pb2.Mode
    exploration_rate: float
    def __init__(self, pair: _Optional[str] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., exploration_rate: _Optional[float] = ...) -> None: ...

class SetModeResponse(_message.Message):
    __slots__ = ("state", "durability")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    durability: Durability
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ..., durability: _Optional[_Union[Durability, _Mapping]] = ...) -> None: ...

class ExportPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class ExportPairResponse(_message.Message):
    __slots__ = ("export",)
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    export: PairExport
    def __init__(self, export: _Optional[_Union[PairExport, _Mapping]] = ...) -> None: ...

class PairExport(_message.Message):
    __slots__ = ("key", "coefficients", "header", "window", "checksum", "exported_at_seconds", "acceptd_version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTD_VERSION_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.PairKey
    coefficients: _types_pb2.Coefficients
    header: str
    window: bytes
    checksum: bytes
    exported_at_seconds: float
    acceptd_version: str
    def __init__(self, key: _Optional[_Union[_types_pb2.PairKey, _Mapping]] = ..., coefficients: _Optional[_Union[_types_pb2.Coefficients, _Mapping]] = ..., header: _Optional[str] = ..., window: _Optional[bytes] = ..., checksum: _Optional[bytes] = ..., exported_at_seconds: _Optional[float] = ..., acceptd_version: _Optional[str] = ...) -> None: ...

class ImportPairRequest(_message.Message):
    __slots__ = ("export", "replace")
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    export: PairExport
    replace: bool
    def __init__(self, export: _Optional[_Union[PairExport, _Mapping]] = ..., replace: bool = ...) -> None: ...

class ImportPairResponse(_message.Message):
    __slots__ = ("state", "durability")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    durability: Durability
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ..., durability: _Optional[_Union[Durability, _Mapping]] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("pair", "limit")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    pair: str
    limit: int
    def __init__(self, pair: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("at_seconds", "who", "peer", "action", "pair", "before", "after")
    AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    at_seconds: float
    who: str
    peer: str
    action: str
    pair: str
    before: str
    after: str
    def __init__(self, at_seconds: _Optional[float] = ..., who: _Optional[str] = ..., peer: _Optional[str] = ..., action: _Optional[str] = ..., pair: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListPairsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPairsResponse(_message.Message):
    __slots__ = ("pairs",)
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[PairSummary]
    def __init__(self, pairs: _Optional[_Iterable[_Union[PairSummary, _Mapping]]] = ...) -> None: ...

class PairSummary(_message.Message):
    __slots__ = ("id", "key", "version", "workers", "observations", "published_at_seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    key: _types_pb2.PairKey
    version: _types_pb2.Version
    workers: int
    observations: int
    published_at_seconds: float
    def __init__(self, id: _Optional[str] = ..., key: _Optional[_Union[_types_pb2.PairKey, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.Version, _Mapping]] = ..., workers: _Optional[int] = ..., observations: _Optional[int] = ..., published_at_seconds: _Optional[float] = ...) -> None: ...

class GetPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class GetPairResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ...) -> None: ...

class WatchPairRequest(_message.Message):
    __slots__ = ("pair", "interval_seconds")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    pair: str
    interval_seconds: float
    def __init__(self, pair: _Optional[str] = ..., interval_seconds: _Optional[float] = ...) -> None: ...

class WatchPairResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: PairState
    def __init__(self, state: _Optional[_Union[PairState, _Mapping]] = ...) -> None: ...

class PairState(_message.Message):
    __slots__ = ("summary", "coefficients", "standard_errors", "observations", "acceptances", "blocks", "exclusions", "rejects", "refit", "calibration", "mode", "notices", "totals", "pinned", "exploration_rate", "drifts")
    class RejectsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    REJECTS_FIELD_NUMBER: _ClassVar[int]
    REFIT_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_RATE_FIELD_NUMBER: _ClassVar[int]
    DRIFTS_FIELD_NUMBER: _ClassVar[int]
    summary: PairSummary
    coefficients: _types_pb2.Coefficients
    standard_errors: _containers.RepeatedScalarFieldContainer[float]
    observations: _containers.RepeatedScalarFieldContainer[int]
    acceptances: _containers.RepeatedScalarFieldContainer[int]
    blocks: int
    exclusions: _containers.RepeatedCompositeFieldContainer[_types_pb2.ExclusionCount]
    rejects: _containers.ScalarMap[str, int]
    refit: RefitState
    calibration: Calibration
    mode: _types_pb2.Mode
    notices: _containers.RepeatedScalarFieldContainer[str]
    totals: _types_pb2.WorkerTotals
    pinned: _types_pb2.Version
    exploration_rate: float
    drifts: _containers.RepeatedCompositeFieldContainer[DriftEntry]
    def __init__(self, summary: _Optional[_Union[PairSummary, _Mapping]] = ..., coefficients: _Optional[_Union[_types_pb2.Coefficients, _Mapping]] = ..., standard_errors: _Optional[_Iterable[float]] = ..., observations: _Optional[_Iterable[int]] = ..., acceptances: _Optional[_Iterable[int]] = ..., blocks: _Optional[int] = ..., exclusions: _Optional[_Iterable[_Union[_types_pb2.ExclusionCount, _Mapping]]] = ..., rejects: _Optional[_Mapping[str, int]] = ..., refit: _Optional[_Union[RefitState, _Mapping]] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., notices: _Optional[_Iterable[str]] = ..., totals: _Optional[_Union[_types_pb2.WorkerTotals, _Mapping]] = ..., pinned: _Optional[_Union[_types_pb2.Version, _Mapping]] = ..., exploration_rate: _Optional[float] = ..., drifts: _Optional[_Iterable[_Union[DriftEntry, _Mapping]]] = ...) -> None: ...

class DriftEntry(_message.Message):
    __slots__ = ("at_seconds", "kind", "cause", "slope", "slope_error", "intercept", "intercept_error", "delay_rounds")
    AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SLOPE_FIELD_NUMBER: _ClassVar[int]
    SLOPE_ERROR_FIELD_NUMBER: _ClassVar[int]
    INTERCEPT_FIELD_NUMBER: _ClassVar[int]
    INTERCEPT_ERROR_FIELD_NUMBER: _ClassVar[int]
    DELAY_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    at_seconds: float
    kind: str
    cause: str
    slope: float
    slope_error: float
    intercept: float
    intercept_error: float
    delay_rounds: int
    def __init__(self, at_seconds: _Optional[float] = ..., kind: _Optional[str] = ..., cause: _Optional[str] = ..., slope: _Optional[float] = ..., slope_error: _Optional[float] = ..., intercept: _Optional[float] = ..., intercept_error: _Optional[float] = ..., delay_rounds: _Optional[int] = ...) -> None: ...

class RefitState(_message.Message):
    __slots__ = ("done", "held", "last_held", "last_seconds", "pending_blocks", "published_link")
    class HeldEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DONE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LAST_HELD_FIELD_NUMBER: _ClassVar[int]
    LAST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PENDING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_LINK_FIELD_NUMBER: _ClassVar[int]
    done: int
    held: _containers.ScalarMap[str, int]
    last_held: str
    last_seconds: float
    pending_blocks: int
    published_link: str
    def __init__(self, done: _Optional[int] = ..., held: _Optional[_Mapping[str, int]] = ..., last_held: _Optional[str] = ..., last_seconds: _Optional[float] = ..., pending_blocks: _Optional[int] = ..., published_link: _Optional[str] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("log_loss", "auc", "ece", "gap", "observations", "log_loss_by_position", "auc_by_position", "ece_by_position", "gap_by_position", "survival_ece", "reliability")
    LOG_LOSS_FIELD_NUMBER: _ClassVar[int]
    AUC_FIELD_NUMBER: _ClassVar[int]
    ECE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_LOSS_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    AUC_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    ECE_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    GAP_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    SURVIVAL_ECE_FIELD_NUMBER: _ClassVar[int]
    RELIABILITY_FIELD_NUMBER: _ClassVar[int]
    log_loss: float
    auc: float
    ece: float
    gap: float
    observations: int
    log_loss_by_position: _containers.RepeatedScalarFieldContainer[float]
    auc_by_position: _containers.RepeatedScalarFieldContainer[float]
    ece_by_position: _containers.RepeatedScalarFieldContainer[float]
    gap_by_position: _containers.RepeatedScalarFieldContainer[float]
    survival_ece: float
    reliability: _containers.RepeatedCompositeFieldContainer[ReliabilityBin]
    def __init__(self, log_loss: _Optional[float] = ..., auc: _Optional[float] = ..., ece: _Optional[float] = ..., gap: _Optional[float] = ..., observations: _Optional[int] = ..., log_loss_by_position: _Optional[_Iterable[float]] = ..., auc_by_position: _Optional[_Iterable[float]] = ..., ece_by_position: _Optional[_Iterable[float]] = ..., gap_by_position: _Optional[_Iterable[float]] = ..., survival_ece: _Optional[float] = ..., reliability: _Optional[_Iterable[_Union[ReliabilityBin, _Mapping]]] = ...) -> None: ...

class ReliabilityBin(_message.Message):
    __slots__ = ("observations", "predicted", "observed")
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    observations: float
    predicted: float
    observed: float
    def __init__(self, observations: _Optional[float] = ..., predicted: _Optional[float] = ..., observed: _Optional[float] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("pair", "limit", "before")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    pair: str
    limit: int
    before: _types_pb2.Version
    def __init__(self, pair: _Optional[str] = ..., limit: _Optional[int] = ..., before: _Optional[_Union[_types_pb2.Version, _Mapping]] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class HistoryEntry(_message.Message):
    __slots__ = ("coefficients", "published_at_seconds", "cause", "calibration", "origin")
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    coefficients: _types_pb2.Coefficients
    published_at_seconds: float
    cause: str
    calibration: Calibration
    origin: _types_pb2.Version
    def __init__(self, coefficients: _Optional[_Union[_types_pb2.Coefficients, _Mapping]] = ..., published_at_seconds: _Optional[float] = ..., cause: _Optional[str] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., origin: _Optional[_Union[_types_pb2.Version, _Mapping]] = ...) -> None: ...

class TapPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class TapPairResponse(_message.Message):
    __slots__ = ("pair", "worker", "workload", "batch", "dropped_batches", "dropped_rows")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_ROWS_FIELD_NUMBER: _ClassVar[int]
    pair: PairSummary
    worker: str
    workload: str
    batch: _estimator_pb2.ObservationBatch
    dropped_batches: int
    dropped_rows: int
    def __init__(self, pair: _Optional[_Union[PairSummary, _Mapping]] = ..., worker: _Optional[str] = ..., workload: _Optional[str] = ..., batch: _Optional[_Union[_estimator_pb2.ObservationBatch, _Mapping]] = ..., dropped_batches: _Optional[int] = ..., dropped_rows: _Optional[int] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ...) -> None: ...

class GetCostsRequest(_message.Message):
    __slots__ = ("pair", "worker")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    pair: str
    worker: str
    def __init__(self, pair: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class GetCostsResponse(_message.Message):
    __slots__ = ("workers", "omitted")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerCosts]
    omitted: int
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerCosts, _Mapping]]] = ..., omitted: _Optional[int] = ...) -> None: ...

class WorkerCosts(_message.Message):
    __slots__ = ("worker", "incarnation", "pair", "costs")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    pair: str
    costs: _types_pb2.CostTable
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., pair: _Optional[str] = ..., costs: _Optional[_Union[_types_pb2.CostTable, _Mapping]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("worker", "incarnation", "pair", "workload", "peer", "connected_at_seconds", "connected", "version_applied", "blocks", "last_sequence", "quarantined", "last_rejected_update", "capabilities", "mode", "hook_version", "vllm_version")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_APPLIED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    LAST_REJECTED_UPDATE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HOOK_VERSION_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    pair: str
    workload: str
    peer: str
    connected_at_seconds: float
    connected: bool
    version_applied: _types_pb2.Version
    blocks: int
    last_sequence: int
    quarantined: str
    last_rejected_update: str
    capabilities: _types_pb2.Capabilities
    mode: _types_pb2.Mode
    hook_version: str
    vllm_version: str
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., pair: _Optional[str] = ..., workload: _Optional[str] = ..., peer: _Optional[str] = ..., connected_at_seconds: _Optional[float] = ..., connected: bool = ..., version_applied: _Optional[_Union[_types_pb2.Version, _Mapping]] = ..., blocks: _Optional[int] = ..., last_sequence: _Optional[int] = ..., quarantined: _Optional[str] = ..., last_rejected_update: _Optional[str] = ..., capabilities: _Optional[_Union[_types_pb2.Capabilities, _Mapping]] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., hook_version: _Optional[str] = ..., vllm_version: _Optional[str] = ...) -> None: ...
