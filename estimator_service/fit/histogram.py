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


def bins_of(x: Floats) -> Ints:
    """Bin of each x (float64[N], |x| <= 40): b with EDGES[b] <= x < EDGES[b + 1].

    >>> bins_of(np.array([-40.0, 0.0, 0.1, 0.25, 40.0])).tolist()
    [0, 64, 64, 65, 127]
    """
    found: Ints = _BIN_OF_STEP[((x + MAX_LOG_ODDS) * (1.0 / _STEP)).astype(np.int64)]
    return found


@dataclass(frozen=True)
class Graded:
    """Observations of one batch, N of them, row by row.

    row, position, segment: int64[N], segment in [0, NUM_SLOTS). cell: int64[N], (segment·K + position)·NUM_BINS + bin.
    x: float64[N]. accepted: float64[N], 0 or 1.
    """

    row: Ints
    position: Ints
    segment: Ints
    cell: Ints
    x: Floats
    accepted: Floats


def grade(rows: Rows, num_positions: int) -> Graded:
    """The labels of a decoded batch: 1 below `accepted`, 0 at the first rejection, none after."""
    observed = np.minimum(rows.accepted.astype(np.int64) + 1, rows.admitted)
    row = np.repeat(np.arange(len(observed)), observed)
    position = np.arange(len(row)) - (np.cumsum(observed) - observed)[row]
    accepted = position < rows.accepted[row]
    segment = np.minimum(rows.segments, UNKNOWN).astype(np.int64)[row]
    x = rows.features.astype(np.float64)
    cell = (segment * num_positions + position) * NUM_BINS + bins_of(x)
    return Graded(row, position, segment, cell, x, accepted.astype(np.float64))


def sums_by(index: Ints, weight: Floats | None, size: int) -> Floats:
    """Sum of weight (None: count) by index: float64[size]."""
    return np.asarray(np.bincount(index, weight, size), np.float64)


def histogram(cell: Ints, x: Floats, accepted: Floats, cells: int, weight: Floats | None = None) -> Floats:
    """Sums of (weight, weight·accepted, weight·x) by cell: float64[3, cells]. Without weights each row counts 1."""
    if weight is not None:
        accepted, x = accepted * weight, x * weight
    return np.stack((sums_by(cell, weight, cells), sums_by(cell, accepted, cells), sums_by(cell, x, cells)))
