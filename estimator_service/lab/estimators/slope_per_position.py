"""The sharing ablation: a straight line of its own for every position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.limits import PRIOR_INTERCEPT, PRIOR_SLOPE
from estimator_service.fit.hierarchy import RECENT, fit_groups
from estimator_service.fit.histogram import bins_of, histogram
from estimator_service.fit.likelihood import Cells, Point
from estimator_service.fit.newton import Prior, fit
from estimator_service.fit.predict import sigmoid
from estimator_service.fit.ramp import ramped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.fit.settings import FitSettings
    from estimator_service.lab.blocks import Blocks


class SlopePerPosition:
    """K lines fitted by the code, with the prior and the two windows, of the shared one. Refits whenever it learns.

    Windows are sums of n, accepted, x: float64[3, K, 1, NUM_BINS], positions taking the place of segments.
    """

    def __init__(self, num_positions: int, settings: FitSettings) -> None:
        self._settings = settings
        self._long = np.zeros((3, num_positions, 1, NUM_BINS))
        self._recent = np.zeros_like(self._long)
        start = Point(np.full((num_positions, 1), PRIOR_SLOPE), np.full((num_positions, 1), PRIOR_INTERCEPT))
        self._prior = Prior.about(start, slope=settings.slope_deviation**-2, intercept=settings.intercept_deviation**-2)
        self._rounds = 0
        self._base = self._point = start

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """float64[B, K]; NaN where x was not recorded."""
        return sigmoid(self._point.slopes[:, 0] * blocks.x.astype(np.float64) + self._point.intercepts[:, 0])

    def learn(self, blocks: Blocks) -> None:
        """Each position from the blocks that reached it."""
        row, position = np.nonzero(blocks.observed)
        x = blocks.x[row, position].astype(np.float64)
        accepted = blocks.label[row, position]
        cell = position * NUM_BINS + bins_of(x)
        sums = histogram(cell, x, accepted, self._long[0].size).reshape(self._long.shape)
        settings = self._settings
        self._long = self._long * 0.5 ** (len(x) / settings.half_life_observations) + sums
        self._recent = self._recent * 0.5 ** (len(x) / settings.recent_half_life_observations) + sums
        self._base = fit(Cells.of(self._long), self._prior, self._base)
        self._point = fit_groups(Cells.of(self._recent), self._base, RECENT)
        self._rounds += 1

    def next_round(self, target: int) -> int:
        """As a pair's."""
        return ramped(target, self._rounds)

    def coefficients(self) -> None:
        """None: there is no one slope to show."""
        return
