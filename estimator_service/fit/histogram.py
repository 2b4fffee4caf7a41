"""Rows of a batch → graded observations → counts by (position, bin): float64 sums that add in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import EDGES, NUM_BINS
from acceptd.limits import MAX_LOG_ODDS
from acceptd.segments import NUM_SEGMENTS

if TYPE_CHECKING:
    from acceptd.codec import Observations

Floats = NDArray[np.float64]

#: Index of rows whose worker does not tell segments apart: after the protocol's own.
UNKNOWN: Final = NUM_SEGMENTS

#: Segments a pair's statistics tell apart, `UNKNOWN` included.
NUM_SLOTS: Final = NUM_SEGMENTS + 1

#: All edges are multiples of this, nats, so a table over equal steps finds the bin without a search.
_STEP: Final = 0.25
_BIN_OF_STEP: Final = (
    np.searchsorted(np.asarray(EDGES), np.arange(-MAX_LOG_ODDS, MAX_LOG_ODDS + _STEP, _STEP), side="right") - 1
).clip(0, NUM_BINS - 1)


def bins_of(x: Floats) -> NDArray[np.int64]:
    """Bin of each x (float64[N], |x| <= 40): b with EDGES[b] <= x < EDGES[b + 1].

    >>> bins_of(np.array([-40.0, 0.0, 0.1, 0.25, 40.0])).tolist()
    [0, 64, 64, 65, 127]
    """
    step = ((x + MAX_LOG_ODDS) * (1.0 / _STEP)).astype(np.int64)
    found: NDArray[np.int64] = _BIN_OF_STEP[step]
    return found


@dataclass(frozen=True)
class Graded:
    """Observations of one batch, N of them, row by row.

    row, position, segment, cell: int64[N], cell = position·NUM_BINS + bin; segment in [0, NUM_SLOTS). x: float64[N].
    accepted: float64[N], 0 or 1.
    """

    row: NDArray[np.int64]
    position: NDArray[np.int64]
    segment: NDArray[np.int64]
    cell: NDArray[np.int64]
    x: Floats
    accepted: Floats


def grade(rows: Observations) -> Graded:
    """The labels of a decoded batch: 1 below `accepted`, 0 at the first rejection, none after."""
    observed = rows.observed
    ends = np.cumsum(observed)
    row = np.repeat(np.arange(len(observed)), observed)
    position = np.arange(len(row)) - (ends - observed)[row]
    accepted = position < rows.accepted[row]
    segment = np.minimum(rows.segments, UNKNOWN).astype(np.int64)[row]
    x = rows.features.astype(np.float64)
    return Graded(row, position, segment, position * NUM_BINS + bins_of(x), x, accepted.astype(np.float64))


def histogram(cell: NDArray[np.int64], x: Floats, accepted: Floats, cells: int, weight: Floats | None = None) -> Floats:
    """Sums of (weight, weight·accepted, weight·x) by cell: float64[3, cells]. Without weights each row counts 1."""
    if weight is not None:
        accepted, x = accepted * weight, x * weight
    n = np.bincount(cell, weight, cells).astype(np.float64)
    return np.stack((n, np.bincount(cell, accepted, cells), np.bincount(cell, x, cells)))
