"""The service's own fit: the same `PairModel` that a live pair runs, driven round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from acceptd.types import prior
from estimator_service.fit.histogram import UNKNOWN
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import Predictor, sigmoid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from acceptd.types import Coefficients
    from estimator_service.fit.settings import FitSettings
    from estimator_service.lab.blocks import Blocks


class Pair:
    """One pair without workload labels. What a refit holds back is not taken, as in the service."""

    def __init__(self, num_positions: int, settings: FitSettings) -> None:
        self._model = PairModel(num_positions, settings)
        self._in_force = prior(num_positions)

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """P(accept) by the coefficients in force, float64[B, K]; NaN where x was not recorded."""
        return confidences(self._in_force, blocks)

    def learn(self, blocks: Blocks) -> None:
        """Closes a round. A trace has no clock, so statistics are forgotten by observations alone."""
        self._model.observe(blocks.observations(), used=self._in_force)
        outcome = self._model.close_round(0.0, in_force={"": self._in_force})
        if outcome.held is None:
            self._in_force = outcome.coefficients[""]

    def next_round(self, target: int) -> int:
        """A pair's first rounds are shorter."""
        return self._model.round_blocks(target)

    def coefficients(self) -> Coefficients:
        """In force."""
        return self._in_force


def confidences(coefficients: Coefficients, blocks: Blocks) -> NDArray[np.float64]:
    """P(accept) by these coefficients, float64[B, K]; NaN where x was not recorded."""
    shape = blocks.x.shape
    segment = np.broadcast_to(np.minimum(blocks.segment, UNKNOWN).astype(np.int64)[:, None], shape).ravel()
    position = np.broadcast_to(np.arange(shape[1]), shape).ravel()
    log_odds = Predictor.of(coefficients).log_odds(segment, position, blocks.x.ravel().astype(np.float64))
    return sigmoid(log_odds).reshape(shape)
