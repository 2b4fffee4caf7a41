"""Rows to learn from: those of a journal whose workers passed the judge, with their weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from estimator_service.fit.dispersion import ScoreSums
from estimator_service.fit.histogram import NUM_SLOTS, Floats, Ints, histogram_of_codes, sums_by
from estimator_service.fit.journal import Pending


@dataclass(frozen=True)
class Learned:
    """N observations of workers that passed the judge, to be learned from.

    code: 2·cell + accepted, as journalled. x: float32[N]. weight: float64[N] below 1 beyond a worker's cap, None for 1
    each. explored: float32[N], inverse propensities, None for 0. label: int64[N], index into `labels`; None if all rows
    have the only one. scores: of their batches.
    """

    code: NDArray[np.integer]
    x: NDArray[np.float32]
    weight: Floats | None
    explored: NDArray[np.float32] | None
    label: Ints | None
    labels: tuple[str, ...]
    scores: ScoreSums

    @staticmethod
    def of(pending: Pending, weights: Floats, num_positions: int) -> Learned:
        """The rows of workers whose weight is above 0. weights: float64[W], as `pending.workers`."""
        by_row = None if (weights == 1.0).all() else weights[pending.worker][pending.batch()]
        kept = slice(None) if weights.all() or by_row is None else by_row > 0
        scores = pending.scores if weights.all() else pending.scores[weights[pending.worker] > 0]
        return Learned(
            pending.code[kept],
            pending.x[kept],
            None if by_row is None else by_row[kept],
            None if pending.weight is None else pending.weight[kept],
            None if len(pending.workloads) == 1 else pending.workload[pending.batch()][kept],
            pending.workloads,
            ScoreSums.of(scores, num_positions),
        )

    def counts(self, num_positions: int) -> Floats:
        """Rows of each cell, weights left aside: float64[1, NUM_SLOTS, K, NUM_BINS]."""
        size = NUM_SLOTS * num_positions * NUM_BINS
        return sums_by(self.code >> 1, None, size).reshape(1, NUM_SLOTS, num_positions, NUM_BINS)

    def sums(self, num_positions: int, rows: slice | np.ndarray = slice(None)) -> Floats:
        """Sums of n, accepted, x of some rows: float64[3, NUM_SLOTS, K, NUM_BINS]."""
        size = NUM_SLOTS * num_positions * NUM_BINS
        weight = None if self.weight is None else self.weight[rows]
        counted = histogram_of_codes(self.code[rows], self.x[rows], size, weight)
        return counted.reshape(3, NUM_SLOTS, num_positions, NUM_BINS)
