"""The sharing ablation: a straight line of its own for every position."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from estimator_service.lab.estimators.pair import Pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.fit.settings import FitSettings
    from estimator_service.lab.blocks import Blocks


class SlopePerPosition:
    """K pairs of one position each, fitted by the same code as the shared slope."""

    def __init__(self, num_positions: int, settings: FitSettings) -> None:
        self._pairs = [Pair(1, settings) for _ in range(num_positions)]

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """float64[B, K]."""
        return np.concatenate([pair.predict(_only(blocks, k)) for k, pair in enumerate(self._pairs)], axis=1)

    def learn(self, blocks: Blocks) -> None:
        """Each position from the blocks that reached it."""
        for k, pair in enumerate(self._pairs):
            reached = _only(blocks, k)[blocks.observed[:, k]]
            if len(reached):
                pair.learn(reached)

    def next_round(self, target: int) -> int:
        """As long as the first position's, which every block reaches."""
        return self._pairs[0].next_round(target)

    def coefficients(self) -> None:
        """None: there is no one slope to show."""
        return


def _only(blocks: Blocks, position: int) -> Blocks:
    """Position k of each block, as a block of one."""
    rows = blocks.observations()
    return replace(
        blocks,
        accepted=(blocks.accepted > position).astype(np.uint8),
        admitted=np.ones(len(blocks), np.uint8),
        explored=(rows.explored > position).astype(np.uint8),
        propensity=np.where(rows.explored > position, rows.propensities, np.float32(0)),
        positions={"logit_qmax": blocks.x[:, position : position + 1]},
    )
