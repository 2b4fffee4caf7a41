"""Graded blocks as they leave the device: fixed-size records of 32-bit words, and their columns.

Record (int32 words; K = positions): word 0 holds accepted, admitted, segment and explored, a byte each from the lowest
up; word 1 the propensity (float32 bits); word 2 the index of the coefficients it was predicted with; then K features
(float32 bits, nats), and with full features K entropies and K margins. Positions that were not observed hold 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from acceptd.types import Version

    Words = NDArray[np.int32]
    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

#: Words before the features.
HEADER_WORDS: Final = 3

#: Slots of the counter vector: ExclusionReason numbers first, totals after them. 32 leaves room for new reasons.
NUM_REASONS: Final = 32
PACKED: Final = 32  # rows given to the ring
VERIFIED: Final = 33  # draft tokens verified, graded or not
ACCEPTED: Final = 34  # of them accepted
EXPLORED: Final = 35  # of them in explored rows
JUDGED_LOST: Final = 36  # accepted tokens lost to trimming, by verdicts, in 1 / trimming_cost.UNITS
JUDGED_BLOCKS: Final = 37  # blocks that they stand for, in the same unit
NUM_COUNTERS: Final = 40

#: ExclusionReason numbers of types.proto, as plain ints: device code loads no protobuf.
PADDED: Final = 1
PREFILL: Final = 2
INVALID_DRAFT: Final = 3
STALE_PREDICTION: Final = 4
WARMUP: Final = 5
REJECTION_METHOD: Final = 6
QUEUE_FULL: Final = 15
NON_FINITE: Final = 16


def record_words(num_positions: int, *, full: bool) -> int:
    """Words of one record."""
    return HEADER_WORDS + num_positions * (3 if full else 1)


@dataclass(frozen=True)
class Columns:
    """Rows as the wire wants them; the fields of `acceptd.codec.Observations`, in the same order and dtypes."""

    accepted: Bytes
    admitted: Bytes
    features: Floats
    segments: Bytes
    explored: Bytes
    propensities: Floats
    entropies: Floats | None = None
    margins: Floats | None = None


@dataclass(frozen=True)
class Rows:
    """What one copy off the device brought. Owned by the receiver; nothing else writes to it.

    records: int32[n, record_words(K)]. versions: coefficient index → version, None for the worker's own. counters:
    int64[NUM_COUNTERS], running totals of this process. generation: weights generation of the records.
    """

    records: Words
    num_positions: int
    versions: Mapping[int, Version | None]
    counters: NDArray[np.int64]
    generation: int = 0
    full: bool = False

    def __len__(self) -> int:
        return len(self.records)

    @property
    def accepted(self) -> Bytes:
        """uint8[n]."""
        return _byte(self.records, 0)

    @property
    def admitted(self) -> Bytes:
        """uint8[n]."""
        return _byte(self.records, 1)

    @property
    def segments(self) -> Bytes:
        """uint8[n], acceptd.segments.Segment."""
        return _byte(self.records, 2)

    @property
    def explored(self) -> Bytes:
        """uint8[n], depth."""
        return _byte(self.records, 3)

    @property
    def propensities(self) -> Floats:
        """float32[n], 0 where explored is 0."""
        return np.ascontiguousarray(self.records[:, 1]).view(np.float32)

    @property
    def features(self) -> Floats:
        """float32[n, K], nats; 0 where not observed."""
        return self._matrix(0)

    @property
    def observed(self) -> NDArray[np.bool_]:
        """bool[n, K]: position < min(accepted + 1, admitted)."""
        count = np.minimum(self.accepted.astype(np.int64) + 1, self.admitted)
        return np.arange(self.num_positions) < count[:, None]

    def by_version(self) -> list[tuple[Version | None, Columns]]:
        """One entry a version, in the order the versions came into force."""
        if not len(self.records):
            return []
        index = self.records[:, 2]
        if (index == index[0]).all():
            return [(self.versions.get(int(index[0])), self._columns())]
        return [
            (self.versions.get(int(i)), replace(self, records=self.records[index == i])._columns())
            for i in np.unique(index)
        ]

    def _columns(self) -> Columns:
        observed = self.observed
        return Columns(
            self.accepted,
            self.admitted,
            self._matrix(0)[observed],
            self.segments,
            self.explored,
            self.propensities,
            self._matrix(1)[observed] if self.full else None,
            self._matrix(2)[observed] if self.full else None,
        )

    def _matrix(self, which: int) -> Floats:
        start = HEADER_WORDS + which * self.num_positions
        return np.ascontiguousarray(self.records[:, start : start + self.num_positions]).view(np.float32)


def _byte(records: Words, which: int) -> Bytes:
    return ((records[:, 0] >> (8 * which)) & 0xFF).astype(np.uint8)
