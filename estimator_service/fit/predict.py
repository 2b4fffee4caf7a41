"""Coefficients as arrays: confidences of rows, and float32-exact coefficients from a fitted point."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import EDGES, NUM_BINS
from acceptd.segments import NUM_SEGMENTS
from acceptd.types import Coefficients, SegmentCoefficients
from estimator_service.fit.histogram import NUM_SLOTS, UNKNOWN

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_EDGES: Final = np.asarray(EDGES)

#: Coefficients whose cells are kept: what workers hold, and what was found last. Raising it serves many labels at once
#: better, for 9 kB a position each.
_COMPILED: Final = 2


@dataclass(frozen=True)
class Predictor:
    """Coefficients by segment slot. slopes: float64[NUM_SLOTS, 1 + J], intercepts: [NUM_SLOTS, K], knots: [J]."""

    slopes: Floats
    intercepts: Floats
    knots: Floats

    @staticmethod
    def of(value: Coefficients) -> Predictor:
        """From a published version; a segment that is absent, and rows of unknown segment, use the line."""
        slopes = np.zeros((NUM_SLOTS, 1 + len(value.knots)))
        intercepts = np.zeros((NUM_SLOTS, value.num_positions))
        for slot in range(NUM_SLOTS):
            served = value.line if slot == UNKNOWN else value.of(slot)
            slopes[slot, : len(served.slopes)] = served.slopes
            intercepts[slot] = served.intercepts
        return Predictor(slopes, intercepts, np.asarray(value.knots, np.float64))

    def link(self, segment: Ints, x: Floats) -> Floats:
        """g(x) of each row's segment, float64[N]."""
        value: Floats = self.slopes[segment, 0] * x
        for j, knot in enumerate(self.knots):
            value += self.slopes[segment, 1 + j] * np.maximum(x - knot, 0.0)
        return value

    def log_odds(self, segment: Ints, position: Ints, x: Floats) -> Floats:
        """Log-odds of acceptance, float64[N], nats."""
        return self.link(segment, x) + self.intercepts[segment, position]

    def by_cell(self) -> CellLines | None:
        """The lines of every cell of `histogram.Graded`; None if a knot lies inside a bin."""
        inner = np.searchsorted(_EDGES, self.knots)
        if not np.array_equal(_EDGES[inner.clip(0, len(_EDGES) - 1)], self.knots):
            return None
        left = _EDGES[:-1]
        active = left[:, None] >= self.knots
        slope = self.slopes[:, :1] + self.slopes[:, 1:] @ active.T
        offset = -(self.slopes[:, 1:] * self.knots) @ active.T
        shape = (*self.intercepts.shape, len(left))
        slopes = np.broadcast_to(slope[:, None, :], shape)
        offsets = offset[:, None, :] + self.intercepts[:, :, None]
        return CellLines(slopes.ravel().astype(np.float32), offsets.ravel().astype(np.float32))


@dataclass(frozen=True)
class CellLines:
    """log-odds = slope·x + offset in each cell (segment, position, bin): two look-ups a row. float32[cells] each.

    Coefficients are float32-exact, so a line loses nothing; beyond a knot the sum of slopes is rounded once.
    """

    slope: NDArray[np.float32]
    offset: NDArray[np.float32]

    def log_odds(self, cell: Ints, x: Floats) -> Floats:
        """float64[N], nats."""
        value: Floats = self.slope.take(cell) * x
        value += self.offset.take(cell)
        return value


class Compiled:
    """Log-odds by coefficients of K positions, whose cells are worked out once for the latest few.

    Takes 9 kB a position and entry.
    """

    def __init__(self, num_positions: int) -> None:
        self._num_positions = num_positions
        self._lines: OrderedDict[int, tuple[Coefficients, CellLines | None]] = OrderedDict()

    def log_odds(self, value: Coefficients, cell: Ints, x: Floats) -> Floats:
        """float64[N], nats, of observations in `histogram.Graded`'s cells."""
        # By identity: a version that is served is one object, and comparing all its numbers takes longer than this.
        if id(value) not in self._lines:
            self._lines[id(value)] = value, Predictor.of(value).by_cell()
            if len(self._lines) > _COMPILED:
                self._lines.popitem(last=False)
        self._lines.move_to_end(id(value))
        lines = self._lines[id(value)][1]
        if lines is not None:
            return lines.log_odds(cell, x)
        slot, position = np.divmod(cell // NUM_BINS, self._num_positions)
        return Predictor.of(value).log_odds(slot, position, x)


def sigmoid(log_odds: Floats) -> Floats:
    """1 / (1 + exp(−log_odds)), without overflow."""
    small = np.exp(-np.abs(log_odds))
    value: Floats = np.where(log_odds >= 0, 1.0, small) / (1.0 + small)
    return value


def float32_exact(values: Floats) -> tuple[float, ...]:
    """The nearest float32 values, as Python floats."""
    return tuple(values.astype(np.float32).astype(np.float64).tolist())


def segment_coefficients(piece_slopes: Floats, intercepts: Floats) -> SegmentCoefficients:
    """From slopes of the pieces [1 + J] and intercepts [K]: slope first, then its changes at the knots."""
    changes = piece_slopes.copy()
    changes[1:] -= piece_slopes[:-1]
    return SegmentCoefficients(float32_exact(changes), float32_exact(intercepts))


def all_segments(value: SegmentCoefficients) -> dict[int, SegmentCoefficients]:
    """The same coefficients for every segment of the protocol."""
    return dict.fromkeys(range(NUM_SEGMENTS), value)
