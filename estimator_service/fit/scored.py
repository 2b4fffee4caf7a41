"""Graded observations beside the confidences they were predicted with, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator_service.fit.histogram import Floats, Ints, sums_by

#: Equal-width bins of the expected calibration error.
ECE_BINS: Final = 15


@dataclass(frozen=True)
class Scored:
    """N observations of C batches of a pair with K positions.

    position: int64[N]. accepted: float64[N], 0 or 1. log_odds, confidence: float64[N], as predicted. kind: int64[N],
    label·K + position. cell: int64[N], kind·ECE_BINS + bin of the confidence. sizes: int64[C], observations of each
    batch, none empty.
    """

    num_positions: int
    position: Ints
    accepted: Floats
    log_odds: Floats
    confidence: Floats
    kind: Ints
    cell: Ints
    sizes: Ints
    _odds_against: Floats

    @staticmethod
    def of(
        position: Ints, accepted: NDArray[np.bool_], log_odds: Floats, num_positions: int, sizes: Ints | None = None
    ) -> Scored:
        """position: int64[N]. log_odds: within ±200 (bounds of x and of coefficients). sizes: None for one batch."""
        # Without branches: labels are hard to predict, for a processor, too.
        odds_against = np.exp(np.negative(log_odds))
        confidence = odds_against + 1.0
        np.reciprocal(confidence, out=confidence)
        kind = accepted * np.int64(num_positions)
        kind += position
        bins = (confidence * ECE_BINS).astype(np.int64)
        cell = np.minimum(bins, ECE_BINS - 1, out=bins)
        cell += kind * ECE_BINS
        labels = accepted.astype(np.float64)
        sizes = np.array([len(position)]) if sizes is None else sizes
        return Scored(num_positions, position, labels, log_odds, confidence, kind, cell, sizes, odds_against)

    def table(self, column: Floats | None) -> Floats:
        """Sums of a column, float64[N] (None: of ones), by (label, position, bin): float64[2, K, ECE_BINS]."""
        shape = (2, self.num_positions, ECE_BINS)
        return sums_by(self.cell, column, 2 * self.num_positions * ECE_BINS).reshape(shape)

    def by_position(self, column: Floats) -> Floats:
        """Sums of a column, float64[N], by (batch, position): float64[C, K]."""
        shape = (len(self.sizes), self.num_positions)
        return sums_by(self._place, column, shape[0] * shape[1]).reshape(shape)

    def by_batch(self, column: Floats) -> Floats:
        """Sums of a column, float64[N], by batch: float64[C]."""
        total: Floats = np.add.reduceat(column, np.cumsum(self.sizes) - self.sizes)
        return total

    def loss(self) -> Floats:
        """−log likelihood of each observation, nats: float64[N]."""
        value: Floats = np.log1p(self._odds_against)
        value += self.log_odds
        value -= self.accepted * self.log_odds
        return value

    @cached_property
    def _place(self) -> Ints:
        """batch·K + position of each observation."""
        return self.position + np.repeat(np.arange(len(self.sizes)) * self.num_positions, self.sizes)
