"""Rows of a batch → graded observations → counts by (position, bin): float64 sums that add in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import EDGES, NUM_BINS
from acceptd.limits import MAX_LOG_ODDS
from acceptd.segments import NUM_SEGMENTS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Index of rows whose worker does not tell segments apart: after the protocol's own.
UNKNOWN: Final = NUM_SEGMENTS

#: Segments a pair's statistics tell apart, `UNKNOWN` included.
NUM_SLOTS: Final = NUM_SEGMENTS + 1

#: All edges are multiples of this, nats, so a table over equal steps finds the bin without a search.
_STEP: Final = 0.25
_BIN_OF_STEP: Final = (
    np.searchsorted(np.asarray(EDGES), np.arange(-MAX_LOG_ODDS, MAX_LOG_ODDS + _STEP, _STEP), side="right") - 1
).clip(0, NUM_BINS - 1)
_STEPS_BELOW_ZERO: Final = round(MAX_LOG_ODDS / _STEP)


class Rows(Protocol):
    """Columns of a checked batch; `acceptd.codec.Observations` is one. See there for shapes."""

    @property
    def accepted(self) -> NDArray[np.uint8]:
        """uint8[B]."""

    @property
    def admitted(self) -> NDArray[np.uint8]:
        """uint8[B]."""

    @property
    def features(self) -> NDArray[np.float32]:
        """float32[N], |x| <= 40."""

    @property
    def segments(self) -> NDArray[np.uint8]:
        """uint8[B]; values of NUM_SEGMENTS and more: unknown."""

    @property
    def explored(self) -> NDArray[np.uint8]:
        """uint8[B]: positions below it are an unbiased sample."""

    @property
    def propensities(self) -> NDArray[np.float32]:
        """float32[B], of `explored`; 0 where that is 0."""


def bins_of(x: NDArray[np.floating]) -> Ints:
    """Bin of each x (float32 or float64[N], |x| <= 40): b with EDGES[b] <= x < EDGES[b + 1].

    >>> bins_of(np.array([-40.0, 0.0, 0.1, 0.25, 40.0])).tolist()
    [0, 64, 64, 65, 127]
    """
    # Scaling by a power of two is exact, so rows on an edge and just below it part as they should in float32, too.
    found: Ints = _BIN_OF_STEP.take(np.floor(x * (1.0 / _STEP)).astype(np.int64) + _STEPS_BELOW_ZERO)
    return found


@dataclass(frozen=True)
class Graded:
    """Observations of one batch, N of them, row by row.

    position: int64[N]. cell: int64[N], (segment·K + position)·NUM_BINS + bin, segment in [0, NUM_SLOTS).
    x: float64[N]. accepted: bool[N]. observed, first: int64[B], observations of each row, and the index of its first.
    """

    position: Ints
    cell: Ints
    x: Floats
    accepted: NDArray[np.bool_]
    observed: Ints
    first: Ints


def grade(rows: Rows, num_positions: int) -> Graded:
    """The labels of a decoded batch: 1 below `accepted`, 0 at the first rejection, none after."""
    rejected = rows.accepted < rows.admitted
    observed = rows.accepted.astype(np.int64) + rejected
    end = np.cumsum(observed)
    first = end - observed
    position = np.arange(len(rows.features)) - np.repeat(first, observed)
    accepted = np.ones(len(position), np.bool_)
    accepted[end[rejected] - 1] = False
    cell = position * NUM_BINS
    cell += bins_of(rows.features)
    slots = np.minimum(rows.segments, UNKNOWN).astype(np.int64) * (num_positions * NUM_BINS)
    cell += slots[0] if len(slots) and (slots == slots[0]).all() else np.repeat(slots, observed)
    return Graded(position, cell, rows.features.astype(np.float64), accepted, observed, first)


def sums_by(index: NDArray[np.integer], weight: NDArray[np.number] | None, size: int) -> Floats:
    """Sum of weight (None: count) by index, which is within [0, size): float64[size]."""
    total = np.zeros(size)
    # Half the time of a bincount, which first looks for the range of its indices; of these types alone.
    values = 1.0 if weight is None else np.asarray(weight, np.float64)
    np.add.at(total, np.asarray(index, np.intp), values)
    return total


def histogram_of_codes(
    code: NDArray[np.integer], x: NDArray[np.floating], cells: int, weight: Floats | None = None
) -> Floats:
    """`histogram` of observations whose cell and label are one number, int[N]: 2·cell + accepted."""
    code = code.astype(np.intp)
    rejected, accepted = sums_by(code, weight, 2 * cells).reshape(cells, 2).T
    sum_x = sums_by(code >> 1, x if weight is None else x * weight, cells)
    return np.stack((rejected + accepted, accepted, sum_x))


def histogram(cell: Ints, x: Floats, accepted: NDArray[np.bool_], cells: int, weight: Floats | None = None) -> Floats:
    """Sums of (weight, weight·accepted, weight·x) by cell: float64[3, cells]. Without weights each row counts 1."""
    passed = accepted.astype(np.float64)
    if weight is not None:
        passed, x = passed * weight, x * weight
    return np.stack((sums_by(cell, weight, cells), sums_by(cell, passed, cells), sums_by(cell, x, cells)))
