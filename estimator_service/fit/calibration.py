"""How well predictions matched labels: sums that add over batches, and the scores that follow from them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator_service.fit.histogram import Floats, Ints, sums_by
from estimator_service.fit.report import Calibration
from estimator_service.fit.scored import ECE_BINS, Scored

#: Bins of the log-odds in which ROC curves are accumulated, over ±_AUC_RANGE nats. Rows of one bin count as ties, which
#: costs an AUC about 1e-4; memory of a pair grows by K·16 bytes a bin.
_AUC_BINS: Final = 320
_AUC_RANGE: Final = 10.0

#: Blocks of a group of batches whose survival products are scored, evenly spaced. Products need whole rows; raising it
#: costs time in the hot path.
_SURVIVAL_ROWS: Final = 512


class CalibrationSums:
    """Sums over one round's scored observations of a pair with K positions."""

    def __init__(self, num_positions: int) -> None:
        self._k = num_positions
        self._loss = np.zeros(num_positions)
        # count, predicted, observed by (position, ECE bin)
        self._reliability = np.zeros((3, num_positions, ECE_BINS))
        # rejected, accepted by (position, log-odds bin)
        self._ranks = np.zeros((2, num_positions, _AUC_BINS))
        # blocks, predicted minus observed survival by (position, ECE bin of the first confidence)
        self._survival = np.zeros((2, num_positions, ECE_BINS))

    @property
    def observations(self) -> int:
        """Observations scored."""
        return int(self._reliability[0].sum())

    def add(self, rows: Scored, weight: Floats | None = None) -> None:
        """Score N observations. weight: float64[N], None for 1 each."""
        k = self._k
        loss = rows.loss() if weight is None else rows.loss() * weight
        counts = rows.table(weight)
        predicted = rows.table(rows.confidence if weight is None else rows.confidence * weight)
        rank = rows.log_odds + _AUC_RANGE
        rank *= _AUC_BINS / (2 * _AUC_RANGE)
        index = rank.clip(0, _AUC_BINS - 1, out=rank).astype(np.int64)
        index += rows.kind * _AUC_BINS
        self._reliability[0] += counts[0] + counts[1]
        self._reliability[1] += predicted.sum(axis=0)
        self._reliability[2] += counts[1]
        self._loss += sums_by(rows.cell, loss, 2 * k * ECE_BINS).reshape(2, k, ECE_BINS).sum(axis=(0, 2))
        self._ranks += sums_by(index, weight, 2 * k * _AUC_BINS).reshape(2, k, _AUC_BINS)

    def add_survival(self, first: Ints, observed: Ints, accepted: NDArray[np.uint8], confidence: Floats) -> None:
        """Score products of confidences of whole blocks, B of them.

        first, observed: int64[B] as graded. accepted: uint8[B]. confidence: float64[N] of the observations. Survival
        through k minus its prediction is Σ_j [reached j] (y_j − p_j) Π_{j<i≤k} p_i. Confidences after a rejection are
        not reported, so the mean at that position stands in for each p_i of the last factor. Blocks are grouped by
        their first confidence, the only one that all have. Depths that trimming cut are left out.
        """
        k = self._k
        every = slice(None, None, -(-len(accepted) // _SURVIVAL_ROWS))
        first, observed, passed = first[every], observed[every], accepted[every].astype(np.int64)
        depth = np.arange(k)[:, None]
        reached = depth < observed
        table = confidence.take(first + depth, mode="clip") * reached
        mean = table.sum(axis=1) / np.maximum(reached.sum(axis=1), 1)
        total = table - (depth < passed)
        total *= reached
        for i in range(1, k):
            total[i] += total[i - 1] * mean[i]
        known = reached | (observed > passed)
        index = np.minimum((table[0] * ECE_BINS).astype(np.int64), ECE_BINS - 1) + depth * ECE_BINS
        for i, column in enumerate((known.astype(np.float64), total * known)):
            self._survival[i] += sums_by(index.ravel(), column.ravel(), k * ECE_BINS).reshape(k, ECE_BINS)

    def extend(self, other: CalibrationSums) -> None:
        """Take another's sums too."""
        self._loss = self._loss + other._loss
        self._reliability = self._reliability + other._reliability
        self._ranks = self._ranks + other._ranks
        self._survival = self._survival + other._survival

    def scores(self) -> Calibration | None:
        """The scores so far, None before the first observation."""
        by_position = self._reliability.sum(axis=2)
        total = float(by_position[0].sum())
        if total <= 0:
            return None
        pooled = self._reliability.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            loss = self._loss / by_position[0]
            gap = (by_position[1] - by_position[2]) / by_position[0]
            ece = np.abs(self._reliability[1] - self._reliability[2]).sum(axis=1) / by_position[0]
            means = pooled[1:] / pooled[0]
        return Calibration(
            log_loss=float(self._loss.sum() / total),
            auc=float(area_under_curve(*self._ranks.sum(axis=1))),
            ece=float(np.abs(pooled[1] - pooled[2]).sum() / total),
            gap=float((by_position[1].sum() - by_position[2].sum()) / total),
            observations=round(total),
            log_loss_by_position=tuple(loss.tolist()),
            auc_by_position=tuple(area_under_curve(*self._ranks).tolist()),
            ece_by_position=tuple(ece.tolist()),
            gap_by_position=tuple(gap.tolist()),
            survival_ece=float(np.abs(self._survival[1]).sum() / max(self._survival[0].sum(), 1.0)),
            reliability=tuple(zip(pooled[0].tolist(), *means.tolist(), strict=True)),
        )


def area_under_curve(rejected: Floats, accepted: Floats) -> Floats:
    """AUC by the Mann-Whitney statistic, ties half: [..., R] counts by ascending score → [...], or NaN."""
    below = np.cumsum(rejected, axis=-1) - rejected
    won = (accepted * (below + 0.5 * rejected)).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        value: Floats = won / (rejected.sum(axis=-1) * accepted.sum(axis=-1))
    return value
