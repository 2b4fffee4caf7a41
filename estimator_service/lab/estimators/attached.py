"""Probabilities that the trace carries: the oracle, or a trained head's confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks


class Attached:
    """P(accept) = the values of a column of the trace."""

    def __init__(self, column: str) -> None:
        self._column = column

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """The column, float64[B, K]."""
        return blocks.positions[self._column].astype(np.float64)

    def learn(self, blocks: Blocks) -> None:
        """Nothing."""

    def coefficients(self) -> None:
        """None."""
        return
