"""How much wider than binomial the scores of rounds scatter: rows of one request correlate, within and across rounds.

Means over blocks of rounds differ by their independent noise alone (batch means: Flegal and Jones, Ann. Statist. 38(2),
2010). Differences of consecutive blocks do not feel a constant offset. A real shift enters one of them: it is clipped,
and a stream under suspicion teaches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Rounds in a block, for each of the estimates; the largest counts. A block must outlast most of a request; longer ones
#: take longer to say anything.
SCALES: Final = (4, 16)

#: Weight of the prior value, in blocks. Raising it trusts the start value longer.
_PRIOR_BLOCKS: Final = 4.0

#: Blocks after which an estimate stops growing firmer and starts to forget.
_MEMORY_BLOCKS: Final = 256.0

#: Squared difference, in units of the present estimate, above which it is clipped: one shift must not read as noise.
_CLIP: Final = 9.0


@dataclass
class RoundNoise:
    """Running estimate for M streams. `prior`: float64[M], value before there is evidence, at least 1."""

    prior: Floats
    #: [scale, 2, M]: gradient and information of the block that fills, of the one before.
    filling: Floats
    previous: Floats
    #: [scale, M]: sum and count of squared differences.
    squares: Floats
    counts: Floats
    rounds: int = 0

    @staticmethod
    def start(prior: Floats) -> RoundNoise:
        """No evidence yet."""
        shape = (len(SCALES), len(prior))
        empty = np.zeros((len(SCALES), 2, len(prior)))
        return RoundNoise(prior, empty, empty.copy(), np.zeros(shape), np.zeros(shape))

    @property
    def value(self) -> Floats:
        """float64[M], at least 1."""
        estimates = (self.squares + _PRIOR_BLOCKS * self.prior) / (self.counts + _PRIOR_BLOCKS)
        largest: Floats = np.maximum(estimates.max(axis=0), 1.0)
        return largest

    def restart(self) -> None:
        """Before rounds that are scored at another baseline: what is estimated stays, open blocks go."""
        self.rounds = 0
        self.filling[:] = self.previous[:] = 0.0

    def update(self, gradient: Floats, information: Floats, calm: NDArray[np.bool_]) -> None:
        """Add one round. gradient, information: float64[M]; calm: bool[M], streams not under suspicion of a shift."""
        self.rounds += 1
        self.filling[:, 0] += gradient
        self.filling[:, 1] += information
        limit = _CLIP * self.value
        for scale, length in enumerate(SCALES):
            if self.rounds % length:
                continue
            (u1, a1), (u0, a0) = self.filling[scale], self.previous[scale]
            usable = (a1 > 0) & (a0 > 0) & calm
            a1, a0 = np.where(usable, a1, 1.0), np.where(usable, a0, 1.0)
            square = np.minimum((u1 / a1 - u0 / a0) ** 2 / (1.0 / a1 + 1.0 / a0), limit)
            keep = np.where(self.counts[scale] >= _MEMORY_BLOCKS, 1.0 - 1.0 / _MEMORY_BLOCKS, 1.0)
            self.squares[scale] = keep * self.squares[scale] + usable * square
            self.counts[scale] = keep * self.counts[scale] + usable
            self.previous[scale] = self.filling[scale]
            self.filling[scale] = 0.0
