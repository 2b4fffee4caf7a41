"""The draft's largest probability itself, as EAGLE-2 and most early-exit drafting take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_service.lab.features import trimming_feature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks


class Raw:
    """P(accept) = q_max."""

    def __init__(self) -> None:
        self._feature = trimming_feature("raw q_max")

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """q_max, float64[B, K]."""
        return self._feature.compute(blocks.positions[self._feature.column].astype("float64"))

    def learn(self, blocks: Blocks) -> None:
        """Nothing: q_max is what it is."""

    def coefficients(self) -> None:
        """None."""
        return
