"""The service's own fit with workload labels: each label has its own intercepts, the slope stays the pair's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from acceptd.types import prior
from estimator_service.fit.model import PairModel
from estimator_service.lab.estimators.pair import confidences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from acceptd.types import Coefficients
    from estimator_service.fit.settings import FitSettings
    from estimator_service.lab.blocks import Blocks


class Labelled:
    """One pair whose workers carry the trace's workloads as labels."""

    def __init__(self, num_positions: int, settings: FitSettings) -> None:
        self._model = PairModel(num_positions, settings)
        self._in_force = {"": prior(num_positions)}

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """P(accept) by the coefficients in force for each block's label, float64[B, K]; NaN where x is absent."""
        out = np.empty(blocks.x.shape)
        for label, rows in _by_label(blocks):
            out[rows] = confidences(self._of(label), blocks[rows])
        return out

    def learn(self, blocks: Blocks) -> None:
        """Closes a round, as `Pair` does."""
        for label, rows in _by_label(blocks):
            self._model.observe(blocks[rows].observations(), used=self._of(label), workload=label)
        outcome = self._model.close_round(0.0, in_force=self._in_force)
        if outcome.held is None:
            self._in_force = outcome.coefficients

    def next_round(self, target: int) -> int:
        """A pair's first rounds are shorter."""
        return self._model.round_blocks(target)

    def coefficients(self) -> Coefficients:
        """In force for rows without a label."""
        return self._in_force[""]

    def _of(self, label: str) -> Coefficients:
        return self._in_force.get(label, self._in_force[""])


def _by_label(blocks: Blocks) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for code in np.unique(blocks.workload):
        yield blocks.workloads[int(code)], blocks.workload == code
