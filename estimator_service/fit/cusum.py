"""Two-sided CUSUMs over M streams of scores, each against a shift of a stated size, with over-dispersed noise.

A stream's log-likelihood ratio of "shifted by ±δ" to "as before" is added up and held at 0 from below (Page, Biometrika
41, 1954). With a threshold h the mean number of rounds to a false alarm is at least e^h a stream and side (Lorden, Ann.
Math. Statist. 42, 1971), so h = log(rounds × streams × 2). A stream whose shift is below δ/2 drifts to 0: size and
significance in one number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Rounds to a false alarm, on average, over all streams of a pair. A hundred times what is promised, since the
#: dispersion is itself estimated and counts have heavier tails than the ratio assumes. Raising it tenfold delays an
#: alarm by 2.3 nats of evidence, a round or less at a busy pair.
ROUNDS_TO_FALSE_ALARM: Final = 1e7

#: Standard errors (the baseline's own included) by which an estimated shift must differ from 0: the CUSUM takes the
#: baseline for exact, this does not. Raising it delays alarms while the baseline is young.
_ERRORS_FROM_ZERO: Final = 5.0

#: Standard errors by which it must exceed the size that matters.
_ERRORS_FROM_SIZE: Final = 2.0


@dataclass
class Cusum:
    """State of M streams, each float64[2, M], up then down; all but the first are sums since its last 0.

    witness_gradient, witness_information: float64[W, 2, M], of the first W streams over the rounds of each stream: what
    they said meanwhile.
    """

    statistic: Floats
    rounds: Floats
    blocks: Floats
    gradient: Floats
    information: Floats
    witness_gradient: Floats
    witness_information: Floats

    @staticmethod
    def start(streams: int, witnesses: int) -> Cusum:
        """All at 0."""
        zeros, witnessed = np.zeros((2, streams)), np.zeros((witnesses, 2, streams))
        return Cusum(zeros, zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy(), witnessed, witnessed.copy())

    @property
    def threshold(self) -> float:
        """h, nats."""
        return float(np.log(ROUNDS_TO_FALSE_ALARM * self.statistic.size))

    def update(self, ratio: Floats, gradient: Floats, information: Floats, blocks: float) -> None:
        """Add a round. ratio: float64[2, M], nats, dispersion included; gradient, information: float64[M]."""
        self.statistic += ratio
        self.rounds += 1.0
        self.blocks += blocks
        self.gradient += gradient
        self.information += information
        witnesses = len(self.witness_gradient)
        self.witness_gradient += gradient[:witnesses, None, None]
        self.witness_information += information[:witnesses, None, None]
        quiet = self.statistic <= 0.0
        for item in fields(self):
            getattr(self, item.name)[..., quiet] = 0.0

    def estimate(self, dispersion: Floats, baseline: Floats) -> tuple[Floats, Floats]:
        """Shift since the last 0 and its standard error, float64[2, M]. baseline: float64[M], its information."""
        return estimate(self.gradient, self.information, dispersion, baseline)

    def alarms(self, dispersion: Floats, baseline: Floats, size: Floats) -> NDArray[np.bool_]:
        """Streams that crossed the threshold by a shift beyond `size` (float64[M]): bool[2, M]."""
        shift, error = self.estimate(dispersion, baseline)
        distance = np.abs(shift)
        crossed: NDArray[np.bool_] = (
            (self.statistic >= self.threshold)
            & (distance > _ERRORS_FROM_ZERO * error)
            & (distance - _ERRORS_FROM_SIZE * error > size)
        )
        return crossed


def estimate(gradient: Floats, information: Floats, dispersion: Floats, baseline: Floats) -> tuple[Floats, Floats]:
    """One Newton step from the baseline, and its standard error with the baseline's own; without information (0, ∞)."""
    known = (information > 0) & (baseline > 0)
    information = np.where(known, information, 1.0)
    variance = dispersion * (1.0 / information + 1.0 / np.where(known, baseline, 1.0))
    return np.where(known, gradient / information, 0.0), np.where(known, np.sqrt(variance), np.inf)


def normal_ratio(gradient: Floats, information: Floats, shift: Floats) -> Floats:
    """Log-likelihood ratio of ±shift to 0 under a quadratic log-likelihood: float64[2, M], dispersion 1."""
    penalty = 0.5 * shift**2 * information
    return np.stack((shift * gradient - penalty, -shift * gradient - penalty))


def share_ratio(counts: Floats, total: float, shares: Floats, shift: float, bounds: tuple[float, float]) -> Floats:
    """Log-likelihood ratio of each share moved by ±shift·sqrt(p(1 − p)) to the share as it was: float64[2, L].

    Exact for the binomial: a rare one's counts are too skewed for the normal form. counts, shares: float64[L]. A share
    moves within `bounds`, inside (0, 1); one that stands at a bound has no ratio beyond it.
    """
    step = shift * np.sqrt(shares * (1.0 - shares))
    moved = np.clip(np.stack((shares + step, shares - step)), *bounds)
    ratio: Floats = counts * np.log(moved / shares) + (total - counts) * np.log((1.0 - moved) / (1.0 - shares))
    return ratio
