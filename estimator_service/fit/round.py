"""The original estimator: one damped Newton step a round from row-level sums, for comparison and as a fallback.

Definition: vLLM, `OnlineAcceptanceEstimator` (v1/worker/gpu/spec_decode/acceptance_estimator.py). The sums are taken at
the coefficients each row was predicted with, so they stay row-level: bins would move the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.limits import PRIOR_INTERCEPT, PRIOR_SLOPE
from estimator_service.fit.histogram import Floats, Ints
from estimator_service.fit.predict import sigmoid

#: A step is scaled by n / (n + this); raising it moves coefficients less on thin rounds.
_DAMPING: Final = 50.0

#: Added to the Hessian's diagonal, not to the gradient.
_RIDGE: Final = 1e-3


@dataclass
class RoundNewton:
    """State of the original: slope, intercepts float64[K], and the open round's sums.

    a, b, c: blocks of XᵀWX, [K] each (a summed over positions on solving); slope_gradient, gradient: Xᵀr, [K] each;
    n: [K] observations.
    """

    slope: float
    intercepts: Floats
    sums: Floats

    @staticmethod
    def initial(num_positions: int) -> RoundNewton:
        """The cold start: slope .5, intercepts −.2."""
        return RoundNewton(PRIOR_SLOPE, np.full(num_positions, PRIOR_INTERCEPT), np.zeros((6, num_positions)))

    def add(self, position: Ints, x: Floats, accepted: NDArray[np.bool_], confidence: Floats | None = None) -> None:
        """N rows; confidence: float64[N] they were predicted with, by default that of the coefficients here."""
        if confidence is None:
            confidence = sigmoid(self.slope * x + self.intercepts[position])
        weight, residual = confidence * (1.0 - confidence), accepted - confidence
        for i, column in enumerate((weight * x * x, weight * x, weight, residual * x, residual, None)):
            self.sums[i] += np.bincount(position, column, len(self.intercepts))

    def step(self) -> None:
        """Solve, move, and clear the sums. A slope step that is NaN or would make the slope negative is dropped."""
        a, b, c, slope_gradient, gradient, n = self.sums
        c = c + _RIDGE
        schur = a.sum() + _RIDGE - (b * b / c).sum()
        total = n.sum()
        move = (slope_gradient.sum() - (b * gradient / c).sum()) / schur * (total / (total + _DAMPING))
        if not np.isfinite(move) or self.slope + move < 0.0:
            move = 0.0
        moves = (gradient - b * move) / c * (n / (n + _DAMPING))
        self.slope += float(move)
        self.intercepts = self.intercepts + np.where(np.isfinite(moves), moves, 0.0)
        self.sums = np.zeros_like(self.sums)
