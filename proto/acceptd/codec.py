"""Messages ↔ types. Decoding checks everything and applies nothing: what it returns is whole and valid.

Columns travel as raw little-endian bytes, so decoding is a view, not a copy a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptd import types
from acceptd.errors import MalformedBatch, NonFiniteValue, TooLarge, WireError
from acceptd.limits import MAX_LOG_ODDS, MAX_ROWS
from acceptd.segments import NUM_SEGMENTS
from acceptd.v1 import estimator_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Counts = NDArray[np.uint8]

#: Every byte, in order.
_BYTES = bytes(range(256))
_LARGEST = float(np.finfo(np.float32).max)
_FLOAT32 = np.dtype("<f4")

#: Segment of rows whose worker does not tell segments apart.
UNKNOWN_SEGMENT = 255


@dataclass(slots=True)
class Observations:
    """Graded blocks as columns; B rows (blocks), N = Σ n_i observations, n_i = min(accepted_i + 1, admitted_i).

    accepted, admitted: uint8[B]. features: float32[N], x, row by row. segments: uint8[B], `UNKNOWN_SEGMENT` where
    the worker does not say. explored: uint8[B], depth that is an unbiased sample. propensities: float32[B], of that
    depth, 0 where explored is 0. entropies, margins: float32[N] or None, nats. Arrays may be read-only views.
    Not frozen, which would take twice as long to make; nothing changes one all the same.
    """

    accepted: Counts
    admitted: Counts
    features: Floats
    segments: Counts
    explored: Counts
    propensities: Floats
    entropies: Floats | None = None
    margins: Floats | None = None

    @property
    def observed(self) -> NDArray[np.int64]:
        """int64[B]: n_i, observations of each row, worked out anew each time."""
        return observations_of(self.accepted, self.admitted)

    def __len__(self) -> int:
        return len(self.accepted)


def observations_of(accepted: Counts, admitted: Counts) -> NDArray[np.int64]:
    """How many of each row's drafts have a label: up to the first rejection, none beyond what was verified."""
    counts: NDArray[np.int64] = np.minimum(accepted + np.int64(1), admitted)
    return counts


def decode_batch(message: estimator_pb2.ObservationBatch, num_positions: int) -> Observations:
    """Checked columns of a batch of a pair with K = `num_positions`.

    Raises MalformedBatch, NonFiniteValue or TooLarge with the column's name and the index of the first bad value.
    """
    # Each access to a field makes a copy of its bytes. Of a small batch the rows take less time than numpy takes to
    # start a reduction, so bytes are counted and added up where that does as well.
    accepted_bytes, admitted_bytes, segment_bytes = message.accepted, message.admitted, message.segments
    accepted, admitted = np.frombuffer(accepted_bytes, np.uint8), np.frombuffer(admitted_bytes, np.uint8)
    rows = len(accepted)
    if not 1 <= rows <= MAX_ROWS:
        error = TooLarge if rows else MalformedBatch
        raise error(f"accepted has {rows} rows; accepted: 1 to {MAX_ROWS}", field="accepted", index=rows)
    _expect_length("admitted", len(admitted), rows)
    # Deleting what is in range leaves what is not: one pass, and of a small batch no more than a call.
    if admitted_bytes.translate(None, _BYTES[1 : num_positions + 1]):
        _reject_where((admitted < 1) | (admitted > num_positions), "admitted", admitted, f"1 to K = {num_positions}")
    # What is left after the accepted ones; less than none wraps around to at least 256 − MAX_POSITIONS, or is caught
    # by the first condition.
    left, depths = (admitted - accepted).tobytes(), _BYTES[: num_positions + 1]
    if accepted_bytes.translate(None, depths) or left.translate(None, depths):
        _reject_where(accepted > admitted, "accepted", accepted, "at most the row's admitted")
    # As `observations_of`, added up: the accepted ones, and a rejected one where any is left.
    total = sum(accepted_bytes) + rows - left.count(0)
    features = _floats(message.features, "features", total, MAX_LOG_ODDS)
    if segment_bytes:
        segments = np.frombuffer(segment_bytes, np.uint8)
        _expect_length("segments", len(segments), rows)
        if segment_bytes.translate(None, _BYTES[:NUM_SEGMENTS]):
            _reject_where(segments >= NUM_SEGMENTS, "segments", segments, f"0 to {NUM_SEGMENTS - 1}")
    else:
        segments = _constant(UNKNOWN_SEGMENT, np.uint8, rows)
    explored, propensities = _exploration(message, admitted)
    return Observations(
        accepted,
        admitted,
        features,
        segments,
        explored,
        propensities,
        _floats(message.entropies, "entropies", total) if message.entropies else None,
        _floats(message.margins, "margins", total) if message.margins else None,
    )


def encode_batch(
    sequence: int,
    version: types.Version | None,
    rows: Observations,
    exclusions: Mapping[int, int] | None = None,
) -> estimator_pb2.ObservationBatch:
    """The message of `rows`. `version` None: the worker's own prior. `exclusions`: ExclusionReason → blocks."""
    return encode_parts(sequence, version, (rows,), exclusions)


def encode_parts(
    sequence: int,
    version: types.Version | None,
    parts: Sequence[Observations],
    exclusions: Mapping[int, int] | None = None,
) -> estimator_pb2.ObservationBatch:
    """The one message of all rows of `parts`, in order; otherwise as `encode_batch`.

    Entropies and margins are left out unless all parts have them.
    """
    segments = _joined([part.segments for part in parts], np.uint8)
    explored = _joined([part.explored for part in parts], np.uint8)
    # Counting bytes asks what a numpy reduction would, without its start-up cost.
    drawn = explored.count(0) != len(explored)
    message = estimator_pb2.ObservationBatch(
        sequence=sequence,
        accepted=_joined([part.accepted for part in parts], np.uint8),
        admitted=_joined([part.admitted for part in parts], np.uint8),
        features=_joined([part.features for part in parts], "<f4"),
        segments=b"" if segments.count(UNKNOWN_SEGMENT) == len(segments) else segments,
        explored=explored if drawn else b"",
        propensities=_joined([part.propensities[part.explored > 0] for part in parts], "<f4") if drawn else b"",
        entropies=_joined([part.entropies for part in parts], "<f4"),
        margins=_joined([part.margins for part in parts], "<f4"),
    )
    for reason, blocks in sorted((exclusions or {}).items()):
        message.exclusions.add(reason=reason, blocks=blocks)
    if version is not None:
        message.version.epoch, message.version.counter = version.epoch, version.counter
    return message


def _joined(columns: Sequence[NDArray[Any] | None], dtype: Any) -> bytes:
    """The columns' bytes one after another; none if one of them is missing."""
    present = [column.astype(dtype, copy=False).tobytes() for column in columns if column is not None]
    return b"".join(present) if len(present) == len(columns) else b""


def _exploration(message: estimator_pb2.ObservationBatch, admitted: Counts) -> tuple[Counts, Floats]:
    rows, explored_bytes = len(admitted), message.explored
    if not explored_bytes:
        _expect_length("propensities", len(message.propensities) // 4, 0)
        return _constant(0, np.uint8, rows), _constant(0, np.float32, rows)
    explored = np.frombuffer(explored_bytes, np.uint8)
    _expect_length("explored", len(explored), rows)
    _reject_where(explored > admitted, "explored", explored, "at most the row's admitted")
    drawn = np.flatnonzero(explored)
    values = _floats(message.propensities, "propensities", len(drawn))
    _reject_where((values <= 0) | (values > 1), "propensities", values, "above 0, at most 1")
    propensities = np.zeros(rows, np.float32)
    propensities[drawn] = values
    return explored, propensities


@lru_cache(64)
def _constant(value: int, dtype: type[Any], rows: int) -> NDArray[Any]:
    """dtype[rows], read-only: one for all batches of as many rows."""
    column = np.full(rows, value, dtype)
    column.flags.writeable = False
    return column


def _expect_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise MalformedBatch(
            f"{name} has {length} values; accepted: {expected}", field=name, index=min(length, expected)
        )


def _reject_where(bad: NDArray[np.bool_], name: str, values: NDArray[np.generic], accepted: str) -> None:
    if np.count_nonzero(bad):
        index = int(np.argmax(bad))
        raise MalformedBatch(f"{name}[{index}] is {values[index]}; accepted: {accepted}", field=name, index=index)


def _floats(raw: bytes, name: str, expected: int, most: float = math.inf) -> Floats:
    """float32[expected], finite and within ±most."""
    if len(raw) != 4 * expected:
        raise MalformedBatch(
            f"{name} has {len(raw)} bytes; accepted: {4 * expected} (float32 × {expected})",
            field=name,
            index=min(len(raw) // 4, expected),
        )
    values = np.frombuffer(raw, _FLOAT32)
    magnitudes = np.abs(values)
    # A NaN counts as the largest, and is not below anything. Of few values argmax is several times as fast as max.
    if expected and not magnitudes[magnitudes.argmax()] <= min(most, _LARGEST):
        finite = np.isfinite(values)
        if not finite.all():
            index = int(np.argmin(finite))
            raise NonFiniteValue(f"{name}[{index}] is {values[index]}; accepted: finite", field=name, index=index)
        _reject_where(np.abs(values) > most, name, values, f"within ±{most:g}")
    return values


def encode_version(version: types.Version) -> types_pb2.Version:
    """Version → message."""
    return types_pb2.Version(epoch=version.epoch, counter=version.counter)


def decode_version(message: types_pb2.Version) -> types.Version:
    """Message → version."""
    return types.Version(message.epoch, message.counter)


def encode_coefficients(value: types.Coefficients) -> types_pb2.Coefficients:
    """Coefficients → message."""
    return types_pb2.Coefficients(
        version=encode_version(value.version),
        line=types_pb2.SegmentCoefficients(slopes=value.line.slopes, intercepts=value.line.intercepts),
        knots=value.knots,
        segments=[
            types_pb2.SegmentCoefficients(segment=segment, slopes=s.slopes, intercepts=s.intercepts)
            for segment, s in sorted(value.segments.items())
        ],
        evidence=value.evidence,
    )


def decode_coefficients(message: types_pb2.Coefficients, num_positions: int) -> types.Coefficients:
    """Message → coefficients, checked (finite, bounded, K). Raises WireError with the field at fault."""
    segments: dict[int, types.SegmentCoefficients] = {}
    for item in message.segments:
        if item.segment in segments:
            raise WireError(f"segment {item.segment} stands twice", field="segments", index=item.segment)
        segments[item.segment] = types.SegmentCoefficients(tuple(item.slopes), tuple(item.intercepts))
    value = types.Coefficients(
        decode_version(message.version),
        types.SegmentCoefficients(tuple(message.line.slopes), tuple(message.line.intercepts)),
        tuple(message.knots),
        segments,
        tuple(message.evidence),
    )
    value.validate(num_positions)
    return value


def encode_pair_key(key: types.PairKey) -> types_pb2.PairKey:
    """Pair key → message."""
    return types_pb2.PairKey(**{name: getattr(key, name) for name in _PAIR_FIELDS})


def decode_pair_key(message: types_pb2.PairKey) -> types.PairKey:
    """Message → pair key, checked. Raises IncompatiblePeer, TooLarge or WireError."""
    key = types.PairKey(**{name: getattr(message, name) for name in _PAIR_FIELDS})
    key.validate()
    return key


_PAIR_FIELDS = tuple(types.PairKey.__dataclass_fields__)
