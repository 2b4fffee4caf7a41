"""What trimming does to the sample, and its repair from explored rows.

A position is verified only where the confidences before it, and its own, were high. Requests differ in difficulty
beyond what x tells, so the admitted rows are the easier ones and a fit on them overrates the rest. Explored and shadow
rows were admitted without looking; weighted by 1/propensity (Horvitz and Thompson, JASA 47, 1952) they represent all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from estimator_service.fit.histogram import Floats, Graded, Ints, Rows, histogram_of_codes, sums_by
from estimator_service.fit.likelihood import Cells, Point, normal_equations
from estimator_service.fit.newton import HELD, Prior, fit

#: Deviation of the correction of an intercept, nats. Raising it believes fewer explored rows.
_DEVIATION: Final = 0.5

#: Largest inverse propensity. Rarer rows count as if drawn at this rate: a little bias for a bounded variance.
_MAX_WEIGHT: Final = 1_000.0

#: Share of biased observations at a position from which on it is corrected.
_MIN_BIASED: Final = 0.01


def inverse_propensity(rows: Rows, graded: Graded) -> Floats:
    """float64[N]: 1/propensity of the observations below their row's explored depth, 0 elsewhere."""
    drawn = graded.position < np.repeat(rows.explored, graded.observed)
    propensity = np.repeat(rows.propensities.astype(np.float64), graded.observed)
    return np.where(drawn, 1.0 / np.maximum(propensity, 1.0 / _MAX_WEIGHT), 0.0)


@dataclass
class Unbiased:
    """Decayed, weighted sums of explored rows.

    sums: [3, K, NUM_BINS]. squared, biased, total: [K]: Σ w², number of rows with weight 0, and of all rows.
    """

    sums: Floats
    squared: Floats
    biased: Floats
    total: Floats

    @staticmethod
    def empty(num_positions: int) -> Unbiased:
        """No rows."""
        zeros = np.zeros(num_positions)
        return Unbiased(np.zeros((3, num_positions, NUM_BINS)), zeros, zeros, zeros)

    def merge(self, code: Ints, x: NDArray[np.float32], weight: Floats, *, decay: float) -> None:
        """N rows; code: int64[N], 2·(position·NUM_BINS + bin) + accepted; weight: see `inverse_propensity`."""
        shape = self.sums.shape
        k = shape[1]
        position = code // (2 * NUM_BINS)
        self.age(decay)
        self.total += sums_by(position, None, k)
        self.sums += histogram_of_codes(code, x, k * NUM_BINS, weight).reshape(shape)
        self.squared += sums_by(position, weight**2, k)
        self.biased += sums_by(position[weight == 0], None, k)

    def merge_biased(self, count: Floats, *, decay: float) -> None:
        """Rows of weight 0: float64[K] of them."""
        self.age(decay)
        self.total += count
        self.biased += count

    def age(self, decay: float) -> None:
        """Weigh everything by `decay`."""
        self.sums, self.squared = self.sums * decay, self.squared * decay
        self.biased, self.total = self.biased * decay, self.total * decay

    def add(self, other: Unbiased) -> None:
        """Another window's."""
        self.sums = self.sums + other.sums
        self.squared = self.squared + other.squared
        self.biased = self.biased + other.biased
        self.total = self.total + other.total

    def offsets(self, line: Point) -> Floats:
        """What to add to each intercept, float64[K] nats, so that the line fits explored rows; 0 where none trims."""
        weight = self.sums[0].sum(axis=1)
        needed = (self.biased > _MIN_BIASED * self.total) & (weight > 0)
        if not needed.any():
            return np.zeros(len(weight))
        # Weighted rows count as Kish's effective number, (Σ w)² / Σ w².
        scale = np.divide(weight, self.squared, out=np.zeros_like(weight), where=self.squared > 0)
        sums = (self.sums * scale[None, :, None])[:, None]
        prior = Prior.about(line, slope=HELD, intercept=_DEVIATION**-2)
        cells = Cells.of(sums)
        fitted = fit(cells, prior, line)
        offsets = fitted.intercepts[0] - line.intercepts[0]
        variance = 1.0 / (normal_equations(cells, fitted).c[0] + _DEVIATION**-2)
        # Positive-part James and Stein: a correction no larger than its own error would only add noise.
        kept = np.maximum(0.0, 1.0 - variance / np.maximum(offsets**2, 1e-12))
        return np.where(needed, offsets * kept, 0.0)
