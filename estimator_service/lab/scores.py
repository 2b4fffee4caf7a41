"""How good predicted acceptance probabilities were: AUC, log-loss, ECE and gap, in memory that no trace outgrows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from acceptd.limits import MAX_LOG_ODDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Equal-width bins of probability for the ECE.
ECE_BINS: Final = 15

#: Probabilities are scored as if they were at least this far from 0 and 1, so that a sure and wrong one costs 16 nats
#: and not infinity. Columns of traces are float32, which resolves no finer near 1.
LOSS_FLOOR: Final = 1e-7

#: Bins of predicted log-odds a nat, for the AUC; predictions in one bin count as ties. The AUC is then right to about
#: 1e-5 (tests/unit/test_scores.py, against scikit-learn); memory is 80 kB a group at ±40 nats.
AUC_BINS_A_NAT: Final = 128
_AUC_BINS: Final = 2 * int(MAX_LOG_ODDS) * AUC_BINS_A_NAT

#: Observations held before they are counted: counting many at once is what makes it quick. 2^20 take 15 MB.
_PENDING: Final = 1 << 20


@dataclass(frozen=True)
class Summary:
    """Scores of one group of observations. Not-a-number where the group cannot tell (no observation, one class)."""

    observations: int
    acceptance: float
    auc: float
    log_loss: float
    ece: float
    gap: float

    def as_json(self) -> dict[str, float | int | None]:
        """The fields by name; None for not-a-number."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


class Tally:
    """Counts of G groups, from which each group's scores, or those of any union, follow.

    G grows as groups appear. Arrays are [G, ...]: outcomes by bin of predicted log-odds (int64), and by ECE bin
    the number, the sum of predictions and of labels (float64); loss is nats summed.
    """

    def __init__(self, groups: int = 1) -> None:
        self.outcomes = np.zeros((groups, _AUC_BINS, 2), np.int64)
        self.reliability = np.zeros((groups, ECE_BINS, 3))
        self.loss = np.zeros(groups)

    def add(
        self,
        group: NDArray[np.integer],
        log_odds_bin: NDArray[np.int64],
        probability: NDArray[np.float64],
        label: NDArray[np.bool_],
        loss: NDArray[np.float64],
    ) -> None:
        """Counts N observations, each argument [N]."""
        if not len(group):
            return
        groups = max(int(group.max()) + 1, len(self.loss))
        self._grow(groups)
        key = (group.astype(np.int64) * _AUC_BINS + log_odds_bin) * 2 + label
        self.outcomes += np.bincount(key, minlength=groups * _AUC_BINS * 2).reshape(self.outcomes.shape)
        ece_bin = group * np.int64(ECE_BINS) + np.minimum((probability * ECE_BINS).astype(np.int64), ECE_BINS - 1)
        for column, weights in enumerate((None, probability, label)):
            sums = np.bincount(ece_bin, weights, groups * ECE_BINS)
            self.reliability[:, :, column] += sums.reshape(groups, ECE_BINS)
        self.loss += np.bincount(group, loss, groups)

    def summary(self, groups: slice | list[int] | int = slice(None)) -> Summary:
        """The scores of the union of `groups`."""
        chosen = [groups] if isinstance(groups, int) else groups
        outcomes = self.outcomes[chosen].sum(0)
        number, predicted, accepted = self.reliability[chosen].sum(0).T
        total = float(number.sum())
        if not total:
            return Summary(0, *[float("nan")] * 5)
        return Summary(
            int(total),
            float(accepted.sum() / total),
            ranked_auc(outcomes),
            float(self.loss[chosen].sum() / total),
            float(np.abs(predicted - accepted).sum() / total),
            float((predicted.sum() - accepted.sum()) / total),
        )

    def _grow(self, groups: int) -> None:
        missing = groups - len(self.loss)
        if missing > 0:
            self.outcomes = np.concatenate([self.outcomes, np.zeros((missing, *self.outcomes.shape[1:]), np.int64)])
            self.reliability = np.concatenate([self.reliability, np.zeros((missing, ECE_BINS, 3))])
            self.loss = np.concatenate([self.loss, np.zeros(missing)])


class Scores:
    """Prequential scores of one estimator: overall, by position and by cell (a workload at a temperature)."""

    def __init__(self, num_positions: int) -> None:
        self.by_position = Tally(num_positions)
        self.by_cell = Tally()
        self._pending: list[tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.uint8], NDArray[np.int32]]] = []
        self._held = 0

    def add(
        self,
        probability: NDArray[np.float64],
        label: NDArray[np.bool_],
        position: NDArray[np.uint8],
        cell: NDArray[np.int32],
    ) -> None:
        """Scores N observations: predicted acceptance in [0, 1], what happened, and where they belong; each [N]."""
        self._pending.append((probability, label, position, cell))
        self._held += len(probability)
        if self._held >= _PENDING:
            self._count()

    def overall(self) -> Summary:
        """Over all observations."""
        self._count()
        return self.by_position.summary()

    def without_first(self) -> Summary:
        """Without position 0, whose features come from the target's own last token alone."""
        self._count()
        return self.by_position.summary(slice(1, None))

    def positions(self) -> list[Summary]:
        """K summaries."""
        self._count()
        return [self.by_position.summary(k) for k in range(len(self.by_position.loss))]

    def cells(self, groups: list[int]) -> Summary:
        """Over the union of some cells."""
        self._count()
        known = [g for g in groups if g < len(self.by_cell.loss)]
        return self.by_cell.summary(known)

    def reliability(self) -> NDArray[np.float64]:
        """float64[15, 3]: number, mean prediction and observed acceptance a bin of probability."""
        self._count()
        sums = self.by_position.reliability.sum(0)
        with np.errstate(invalid="ignore"):
            return np.stack([sums[:, 0], sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]], 1)

    def _count(self) -> None:
        if not self._pending:
            return
        probability, label, position, cell = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._held = [], 0
        loss = log_loss(probability, label)
        bins = _log_odds_bins(probability)
        self.by_position.add(position, bins, probability, label, loss)
        self.by_cell.add(cell, bins, probability, label, loss)


def log_loss(probability: NDArray[np.float64], label: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Nats an observation, −log of the probability given to what happened, floored at `LOSS_FLOOR`."""
    return np.asarray(-np.log(np.maximum(np.where(label, probability, 1.0 - probability), LOSS_FLOOR)))


def _log_odds_bins(probability: NDArray[np.float64]) -> NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        log_odds = np.log(probability) - np.log1p(-probability)
    scaled = (np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS) + MAX_LOG_ODDS) * AUC_BINS_A_NAT
    return np.asarray(np.minimum(scaled.astype(np.int64), _AUC_BINS - 1))


def ranked_auc(outcomes: NDArray[np.int64] | NDArray[np.float64]) -> float:
    """P(an accepted one was ranked above a rejected one), ties counted half. outcomes: number[bins, 2], ascending."""
    rejected, accepted = outcomes.astype(np.float64).T
    pairs = rejected.sum() * accepted.sum()
    if not pairs:
        return float("nan")
    below = np.cumsum(rejected) - rejected
    return float((accepted * (below + rejected / 2)).sum() / pairs)
