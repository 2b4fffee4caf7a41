"""What trimming cost: accepted tokens lost, estimated from blocks that were verified beyond the budget.

A trimmed token's verdict is unknown. Explored rows, and all rows in shadow mode, were verified to a depth that did
not look at the confidences; of those, the tokens that passed although the budget alone would have left them out are
counted, each row standing for 1 / propensity blocks (Hájek's ratio estimator, position by position).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def merit(
    confidences: NDArray[np.float32],
    scheduled: NDArray[np.int32],
    admitted: NDArray[np.int32],
    forced: NDArray[np.int32],
) -> NDArray[np.int32]:
    """int32[R], what each request would have been admitted without being forced, at the same worst admitted slot.

    confidences: float32[R, K]; admitted: int32[R] as `budget.split` gave it with `forced`. A forced slot had merit if
    it survives at least as probably as the worst slot that was admitted unforced; if there is none, it had not.
    """
    survival = np.multiply.accumulate(confidences, axis=1)
    positions = np.arange(confidences.shape[1])
    chosen = (positions < admitted[:, None]) & (positions >= forced[:, None])
    worst = survival[chosen].min(initial=np.inf)
    would = (positions < np.minimum(scheduled, forced)[:, None]) & (survival >= worst)
    merited = np.where(would.sum(axis=1) < forced, would.sum(axis=1), admitted)
    return np.asarray(merited, np.int32)


class TrimmingLoss:
    """Accepted tokens a block that trimming loses, from blocks verified beyond the budget.

    num_positions: K. State: weight float64[K], loss float64[K], squares float64[K].
    """

    def __init__(self, num_positions: int) -> None:
        self._weight = np.zeros(num_positions)
        self._loss = np.zeros(num_positions)
        self._squares = np.zeros((2, num_positions))

    def add(
        self,
        explored: NDArray[np.integer],
        propensities: NDArray[np.floating],
        accepted: NDArray[np.integer],
        merited: NDArray[np.integer],
    ) -> None:
        """Blocks of one step, each [B]; those with `explored` 0 are passed over.

        explored: depth verified whatever the confidences; propensities: of that depth, in (0, 1]; accepted: tokens
        that passed; merited: what the budget alone would have verified.
        """
        drawn = np.flatnonzero(explored)
        positions = np.arange(len(self._weight))
        seen = positions < explored[drawn, None]
        weight = seen / propensities[drawn, None]
        lost = (positions >= merited[drawn, None]) & (positions < accepted[drawn, None])
        self._weight += weight.sum(axis=0)
        self._loss += (weight * lost).sum(axis=0)
        self._squares += (weight**2).sum(axis=0), (weight**2 * lost).sum(axis=0)

    @property
    def by_position(self) -> NDArray[np.float64]:
        """float64[K], accepted tokens a block lost at each position; NaN where no row reached that deep."""
        with np.errstate(invalid="ignore"):
            return self._loss / self._weight

    @property
    def tokens_a_block(self) -> float:
        """Accepted tokens lost a block; NaN while a position was never seen."""
        return float(self.by_position.sum())

    @property
    def standard_error(self) -> float:
        """Of `tokens_a_block`, with rows taken as independent and positions as perfectly correlated: an upper bound."""
        rate = self.by_position
        all_squares, lost_squares = self._squares
        # Σ w²(lost − rate)², with lost either 0 or 1.
        spread = lost_squares * (1.0 - 2.0 * rate) + all_squares * rate**2
        with np.errstate(invalid="ignore"):
            return float((np.sqrt(np.maximum(spread, 0.0)) / self._weight).sum())
