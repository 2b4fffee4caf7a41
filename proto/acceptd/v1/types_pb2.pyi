from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExclusionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXCLUSION_REASON_UNSPECIFIED: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_PADDED: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_PREFILL: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_INVALID_DRAFT: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_STALE_PREDICTION: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_WARMUP: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_REJECTION_METHOD: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_PENALTIES: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_BAD_WORDS: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_LOGIT_BIAS: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_ALLOWED_TOKENS: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_MIN_TOKENS: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_GRAMMAR: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_THINKING_BUDGET: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_LOGITS_PROCESSOR: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_QUEUE_FULL: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_NON_FINITE: _ClassVar[ExclusionReason]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_TRIM: _ClassVar[Mode]
    MODE_SHADOW: _ClassVar[Mode]
    MODE_OFF: _ClassVar[Mode]
EXCLUSION_REASON_UNSPECIFIED: ExclusionReason
EXCLUSION_REASON_PADDED: ExclusionReason
EXCLUSION_REASON_PREFILL: ExclusionReason
EXCLUSION_REASON_INVALID_DRAFT: ExclusionReason
EXCLUSION_REASON_STALE_PREDICTION: ExclusionReason
EXCLUSION_REASON_WARMUP: ExclusionReason
EXCLUSION_REASON_REJECTION_METHOD: ExclusionReason
EXCLUSION_REASON_PENALTIES: ExclusionReason
EXCLUSION_REASON_BAD_WORDS: ExclusionReason
EXCLUSION_REASON_LOGIT_BIAS: ExclusionReason
EXCLUSION_REASON_ALLOWED_TOKENS: ExclusionReason
EXCLUSION_REASON_MIN_TOKENS: ExclusionReason
EXCLUSION_REASON_GRAMMAR: ExclusionReason
EXCLUSION_REASON_THINKING_BUDGET: ExclusionReason
EXCLUSION_REASON_LOGITS_PROCESSOR: ExclusionReason
EXCLUSION_REASON_QUEUE_FULL: ExclusionReason
EXCLUSION_REASON_NON_FINITE: ExclusionReason
MODE_UNSPECIFIED: Mode
MODE_TRIM: Mode
MODE_SHADOW: Mode
MODE_OFF: Mode

class PairKey(_message.Message):
    __slots__ = ("target", "draft", "target_revision", "draft_revision", "method", "num_speculative_tokens", "draft_sampling", "quantization", "weights_generation", "feature_schema")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    TARGET_REVISION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_REVISION_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    target: str
    draft: str
    target_revision: str
    draft_revision: str
    method: str
    num_speculative_tokens: int
    draft_sampling: str
    quantization: str
    weights_generation: int
    feature_schema: int
    def __init__(self, target: _Optional[str] = ..., draft: _Optional[str] = ..., target_revision: _Optional[str] = ..., draft_revision: _Optional[str] = ..., method: _Optional[str] = ..., num_speculative_tokens: _Optional[int] = ..., draft_sampling: _Optional[str] = ..., quantization: _Optional[str] = ..., weights_generation: _Optional[int] = ..., feature_schema: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("epoch", "counter")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    counter: int
    def __init__(self, epoch: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class SegmentCoefficients(_message.Message):
    __slots__ = ("segment", "slopes", "intercepts")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SLOPES_FIELD_NUMBER: _ClassVar[int]
    INTERCEPTS_FIELD_NUMBER: _ClassVar[int]
    segment: int
    slopes: _containers.RepeatedScalarFieldContainer[float]
    intercepts: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, segment: _Optional[int] = ..., slopes: _Optional[_Iterable[float]] = ..., intercepts: _Optional[_Iterable[float]] = ...) -> None: ...

class Coefficients(_message.Message):
    __slots__ = ("version", "line", "knots", "segments", "evidence")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    KNOTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    version: Version
    line: SegmentCoefficients
    knots: _containers.RepeatedScalarFieldContainer[float]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentCoefficients]
    evidence: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., line: _Optional[_Union[SegmentCoefficients, _Mapping]] = ..., knots: _Optional[_Iterable[float]] = ..., segments: _Optional[_Iterable[_Union[SegmentCoefficients, _Mapping]]] = ..., evidence: _Optional[_Iterable[float]] = ...) -> None: ...

class WorkerTotals(_message.Message):
    __slots__ = ("steps", "scheduled", "verified", "accepted", "explored", "clamped_steps", "zero_budget_steps", "verification_saved_seconds", "lost_accepted", "exclusions", "explored_extra", "explored_seconds", "judged_lost", "judged_blocks")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EXPLORED_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    ZERO_BUDGET_STEPS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_SAVED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOST_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    EXPLORED_EXTRA_FIELD_NUMBER: _ClassVar[int]
    EXPLORED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JUDGED_LOST_FIELD_NUMBER: _ClassVar[int]
    JUDGED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    scheduled: int
    verified: int
    accepted: int
    explored: int
    clamped_steps: int
    zero_budget_steps: int
    verification_saved_seconds: float
    lost_accepted: float
    exclusions: _containers.RepeatedCompositeFieldContainer[ExclusionCount]
    explored_extra: int
    explored_seconds: float
    judged_lost: float
    judged_blocks: float
    def __init__(self, steps: _Optional[int] = ..., scheduled: _Optional[int] = ..., verified: _Optional[int] = ..., accepted: _Optional[int] = ..., explored: _Optional[int] = ..., clamped_steps: _Optional[int] = ..., zero_budget_steps: _Optional[int] = ..., verification_saved_seconds: _Optional[float] = ..., lost_accepted: _Optional[float] = ..., exclusions: _Optional[_Iterable[_Union[ExclusionCount, _Mapping]]] = ..., explored_extra: _Optional[int] = ..., explored_seconds: _Optional[float] = ..., judged_lost: _Optional[float] = ..., judged_blocks: _Optional[float] = ...) -> None: ...

class CostTable(_message.Message):
    __slots__ = ("draft", "verify", "notices", "can_trim")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    CAN_TRIM_FIELD_NUMBER: _ClassVar[int]
    draft: CostCurve
    verify: CostCurve
    notices: _containers.RepeatedScalarFieldContainer[str]
    can_trim: bool
    def __init__(self, draft: _Optional[_Union[CostCurve, _Mapping]] = ..., verify: _Optional[_Union[CostCurve, _Mapping]] = ..., notices: _Optional[_Iterable[str]] = ..., can_trim: bool = ...) -> None: ...

class CostCurve(_message.Message):
    __slots__ = ("sizes", "milliseconds")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    milliseconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ..., milliseconds: _Optional[_Iterable[float]] = ...) -> None: ...

class ExclusionCount(_message.Message):
    __slots__ = ("reason", "blocks")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    reason: ExclusionReason
    blocks: int
    def __init__(self, reason: _Optional[_Union[ExclusionReason, str]] = ..., blocks: _Optional[int] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("max_knots", "max_segments")
    MAX_KNOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    max_knots: int
    max_segments: int
    def __init__(self, max_knots: _Optional[int] = ..., max_segments: _Optional[int] = ...) -> None: ...
