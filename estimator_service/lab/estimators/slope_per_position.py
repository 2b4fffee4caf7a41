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
            reached = _rows(_only(blocks, k), blocks.observed[:, k])
            if len(reached):
                pair.learn(reached)

    def coefficients(self) -> None:
        """None: there is no one slope to show."""
        return


def _only(blocks: Blocks, position: int) -> Blocks:
    """Position k of each block, as a block of one."""
    return replace(
        blocks,
        accepted=(blocks.accepted > position).astype(np.uint8),
        admitted=np.ones(len(blocks), np.uint8),
        positions={"logit_qmax": blocks.x[:, position : position + 1]},
    )


def _rows(blocks: Blocks, chosen: NDArray[np.bool_]) -> Blocks:
    return replace(
        blocks,
        accepted=blocks.accepted[chosen],
        admitted=blocks.admitted[chosen],
        positions={name: values[chosen] for name, values in blocks.positions.items()},
        workload=blocks.workload[chosen],
        temperature=blocks.temperature[chosen],
        segment=blocks.segment[chosen],
        step=None,
        request=None,
    )
