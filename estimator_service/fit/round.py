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
from acceptd.types import Coefficients, Version
from estimator_service.fit.dispersion import sandwich_errors
from estimator_service.fit.histogram import Floats, Ints
from estimator_service.fit.likelihood import Cells, Point, information_matrix, normal_equations
from estimator_service.fit.predict import segment_coefficients, sigmoid
from estimator_service.fit.windows import Windows

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

    def coefficients(self, evidence: Floats) -> Coefficients:
        """Float32-exact, a straight line. evidence: float64[K], effective observations of each position."""
        line = segment_coefficients(np.array([self.slope]), self.intercepts)
        return Coefficients(Version(), line, evidence=tuple(evidence.tolist()))

    def errors(self, windows: Windows) -> Floats:
        """Standard errors [1 + K], slope first, of the line here, by what the long window holds."""
        point = Point(np.array([[self.slope]]), self.intercepts[None])
        normal = normal_equations(Cells.of(windows.long.sum(axis=1, keepdims=True)), point)
        # The identity, so that there is an inverse where a position has no labels.
        information = information_matrix(normal) + np.eye(1 + len(self.intercepts))
        return sandwich_errors(information, windows.dispersion.variance())
