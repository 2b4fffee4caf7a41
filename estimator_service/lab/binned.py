"""Labels by group, position and narrow bins of a feature: what a regression over a whole trace needs, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimator_service.fit.likelihood import Cells

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Binned:
    """Sums of S groups and K positions over equal bins of one feature in [low, high]. S grows as groups appear.

    Within a bin the feature's mean is kept, so a fit differs from one on the rows by the square of the width. Memory:
    24 bytes a bin, position and group. sums: float64[3, S, K, bins]: number, accepted, sum of the feature.
    """

    def __init__(self, num_positions: int, low: float, high: float, bins: int) -> None:
        self._low, self._scale = low, bins / (high - low)
        self.sums = np.zeros((3, 1, num_positions, bins))

    def add(
        self,
        group: NDArray[np.integer],
        position: NDArray[np.integer],
        value: NDArray[np.float64],
        label: NDArray[np.bool_],
    ) -> None:
        """Counts N observations, each argument [N]."""
        if not len(value):
            return
        self._grow(int(group.max()) + 1)
        _, groups, positions, bins = self.sums.shape
        index = np.clip((value - self._low) * self._scale, 0, bins - 1).astype(np.int64)
        index += (group.astype(np.int64) * positions + position) * bins
        for kind, weights in enumerate((None, label, value)):
            self.sums[kind] += np.bincount(index, weights, groups * positions * bins).reshape(groups, positions, bins)

    def cells(self, shift: float = 0.0, scale: float = 1.0) -> Cells:
        """The counts for `fit.newton`, one slope a group, with the feature as (value − shift) / scale."""
        number, accepted, total = self.sums
        mean = np.divide(total, number, out=np.zeros_like(total), where=number > 0)
        mean = np.where(number > 0, (mean - shift) / scale, 0.0)
        return Cells.straight(number, accepted, mean)

    def _grow(self, groups: int) -> None:
        kind, present, positions, bins = self.sums.shape
        if groups > present:
            more = np.zeros((kind, groups - present, positions, bins))
            self.sums = np.concatenate([self.sums, more], axis=1)
