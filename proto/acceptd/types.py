"""The protocol's values as immutable Python types, without gRPC, protobuf or numpy."""

from __future__ import annotations

import hashlib
import math
import operator
import re
import struct
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from acceptd.errors import IncompatiblePeer, NonFiniteValue, TooLarge, WireError
from acceptd.limits import (
    FEATURE_SCHEMA,
    MAX_INTERCEPT,
    MAX_KNOTS,
    MAX_LOG_ODDS,
    MAX_NAME_BYTES,
    MAX_POSITIONS,
    MAX_SLOPE,
    PRIOR_INTERCEPT,
    PRIOR_SLOPE,
)
from acceptd.names import check_printable
from acceptd.segments import MAX_SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, order=True, slots=True)
class Version:
    """Version of a pair's coefficients: the store's epoch, then a counter. Epoch 0 is a worker's own prior."""

    epoch: int = 0
    counter: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"


@dataclass(frozen=True)
class PairKey:
    """What makes workers poolable; see `PairKey` in types.proto for each field."""

    target: str
    draft: str
    num_speculative_tokens: int
    method: str = "draft_model"
    draft_sampling: str = "probabilistic"
    target_revision: str = ""
    draft_revision: str = ""
    quantization: str = ""
    weights_generation: int = 0
    feature_schema: int = FEATURE_SCHEMA

    def validate(self) -> None:
        """Raises IncompatiblePeer (K, schema), TooLarge or WireError (names), naming the field."""
        if not 1 <= self.num_speculative_tokens <= MAX_POSITIONS:
            raise IncompatiblePeer(
                f"pair.num_speculative_tokens is {self.num_speculative_tokens}; accepted: 1 to {MAX_POSITIONS}"
            )
        if self.feature_schema != FEATURE_SCHEMA:
            raise IncompatiblePeer(f"pair.feature_schema is {self.feature_schema}; accepted: {FEATURE_SCHEMA}")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, str) and len(value.encode()) > MAX_NAME_BYTES:
                raise TooLarge(
                    f"pair.{item.name} has {len(value.encode())} bytes; accepted: at most {MAX_NAME_BYTES}",
                    field=f"pair.{item.name}",
                )
            if isinstance(value, str):
                check_printable(f"pair.{item.name}", value)
        for name in ("target", "draft", "method", "draft_sampling"):
            if not getattr(self, name):
                raise WireError(f"pair.{name} is empty", field=f"pair.{name}")

    @cached_property
    def id(self) -> str:
        """Readable and unique: `target~draft~kK~` and 8 hex digits of a hash over all fields.

        >>> PairKey("org/Llama-3-8B", "org/eagle3", 5).id
        'llama-3-8b~eagle3~k5~23d2a55d'
        """
        canonical = "\x1f".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:8]
        return f"{_slug(self.target)}~{_slug(self.draft)}~k{self.num_speculative_tokens}~{digest}"


def _slug(name: str) -> str:
    """Last path component, lower case, at most 40 characters of [a-z0-9._-]."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.rstrip("/").rsplit("/", 1)[-1].lower())[:40] or "unnamed"


@dataclass(frozen=True)
class SegmentCoefficients:
    """logit P(accept at k) = slopes[0]·x + Σ_j slopes[j]·max(x − knots[j−1], 0) + intercepts[k].

    slopes: 1 + J floats (J = 0: the straight line); intercepts: K floats, nats. Values are float32-exact, so that
    what the service shows equals, to the bit, what a worker holds.
    """

    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]


@dataclass(frozen=True)
class Coefficients:
    """One immutable version of a pair's coefficients.

    line: straight line over all segments. knots: J ascending floats, nats, shared by `segments`. segments: by
    `acceptd.segments.Segment` value; a segment that is absent uses the line. evidence: K effective observation counts.
    """

    version: Version
    line: SegmentCoefficients
    knots: tuple[float, ...] = ()
    segments: dict[int, SegmentCoefficients] = field(default_factory=dict)
    evidence: tuple[float, ...] = ()

    @property
    def num_positions(self) -> int:
        """K."""
        return len(self.line.intercepts)

    def of(self, segment: int) -> SegmentCoefficients:
        """The coefficients that serve `segment`."""
        return self.segments.get(segment, self.line)

    def straight(self) -> Coefficients:
        """The same version for a worker that can evaluate neither knots nor segments."""
        return Coefficients(self.version, self.line, evidence=self.evidence)

    def validate(self, num_positions: int) -> None:
        """Raises WireError (with field and index) unless finite, bounded and of K = `num_positions`.

        Bounds: the slope of each linear piece in [0, MAX_SLOPE], |intercept| <= MAX_INTERCEPT, knots ascending within
        ±MAX_LOG_ODDS, J <= MAX_KNOTS, segment < MAX_SEGMENTS.
        """
        if len(self.knots) > MAX_KNOTS:
            raise TooLarge(f"knots has {len(self.knots)} values; accepted: at most {MAX_KNOTS}", field="knots")
        if self._sound(num_positions):
            return
        for j, knot in enumerate(self.knots):
            _finite(knot, "knots", j)
            if abs(knot) > MAX_LOG_ODDS or (j and knot <= self.knots[j - 1]):
                raise WireError(
                    f"knots[{j}] = {knot}; accepted: ascending within ±{MAX_LOG_ODDS}", field="knots", index=j
                )
        _validate_segment(self.line, "line", num_positions, 0)
        for segment, values in self.segments.items():
            if not 0 <= segment < MAX_SEGMENTS:
                raise WireError(
                    f"segment {segment}; accepted: 0 to {MAX_SEGMENTS - 1}", field="segments", index=segment
                )
            _validate_segment(values, f"segments[{segment}]", num_positions, len(self.knots))

    def _sound(self, num_positions: int) -> bool:
        """Whether `validate` would find nothing: all values at once, without naming what is wrong.

        A worker checks each push in a thread that shares the interpreter with its decode loop.
        """
        knots, held = self.knots, self.segments.values()
        slopes = [self.line.slopes, *(values.slopes for values in held)]
        intercepts = [self.line.intercepts, *(values.intercepts for values in held)]
        return (
            all(0 <= segment < MAX_SEGMENTS for segment in self.segments)
            and list(map(len, slopes)) == [1] + [1 + len(knots)] * len(held)
            and set(map(len, intercepts)) == {num_positions}
            and _within(knots, -MAX_LOG_ODDS, MAX_LOG_ODDS)
            and all(map(operator.lt, knots, knots[1:]))
            and _within(chain.from_iterable(map(accumulate, slopes)), -_SLACK, MAX_SLOPE + _SLACK)
            and _within(chain.from_iterable(intercepts), -MAX_INTERCEPT, MAX_INTERCEPT)
        )


def _within(values: Iterable[float], low: float, high: float) -> bool:
    """Whether all values are finite and between the bounds, at C speed. A NaN or infinity makes the sum one."""
    held = tuple(values)
    return not held or (math.isfinite(sum(held)) and low <= min(held) and max(held) <= high)


def _finite(value: float, name: str, index: int) -> None:
    if not math.isfinite(value):
        raise NonFiniteValue(f"{name}[{index}] is {value}; accepted: finite", field=name, index=index)


def _validate_segment(values: SegmentCoefficients, name: str, num_positions: int, num_knots: int) -> None:
    if len(values.slopes) != 1 + num_knots:
        raise WireError(
            f"{name}.slopes has {len(values.slopes)} values; accepted: {1 + num_knots}",
            field=f"{name}.slopes",
        )
    if len(values.intercepts) != num_positions:
        raise WireError(
            f"{name}.intercepts has {len(values.intercepts)} values; accepted: K = {num_positions}",
            field=f"{name}.intercepts",
        )
    total = 0.0
    for j, slope in enumerate(values.slopes):
        _finite(slope, f"{name}.slopes", j)
        total += slope
        if not -_SLACK <= total <= MAX_SLOPE + _SLACK:
            raise WireError(
                f"{name}: piece {j} has slope {total}; accepted: 0 to {MAX_SLOPE}",
                field=f"{name}.slopes",
                index=j,
            )
    for k, intercept in enumerate(values.intercepts):
        _finite(intercept, f"{name}.intercepts", k)
        if abs(intercept) > MAX_INTERCEPT:
            raise WireError(
                f"{name}.intercepts[{k}] = {intercept}; accepted: within ±{MAX_INTERCEPT}",
                field=f"{name}.intercepts",
                index=k,
            )


#: float32 rounding of up to 1 + MAX_KNOTS summed slopes.
_SLACK = 1e-5


def prior(num_positions: int, version: Version | None = None) -> Coefficients:
    """The coefficients before any fit: slope 0.5, intercepts -0.2 (float32-exact), no evidence."""
    line = SegmentCoefficients((PRIOR_SLOPE,), (_f32(PRIOR_INTERCEPT),) * num_positions)
    return Coefficients(version or Version(), line, evidence=(0.0,) * num_positions)


def _f32(value: float) -> float:
    """The nearest float32, as a Python float."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
