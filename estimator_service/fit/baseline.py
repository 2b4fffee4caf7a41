"""What a pair looked like when drift detection froze it, and the scores of later rounds against that.

    baseline   logit P = g_s(x) + β_sk          g_s piecewise linear, one a segment
    shifted    logit P = (1 + Δω/ω)·g_s(x) + β'_sk

ω is the slope of the straight line, so that Δω is a change of that slope. The baseline bends where the data do, and the
slope is taken along it: on a straight line, a mere shift of where x lies would pass for another slope. Where another
draft bends elsewhere, the *tilt* sees it: g_s(x) + Δω·x; it answers to a workload a little as well. The shifted
intercepts are solved for anew in each round, so that neither they nor the mix of temperatures enter the score of either
(profile likelihood: Cox and Hinkley, Theoretical Statistics, 1974, ch. 9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import EDGES
from acceptd.limits import PRIOR_INTERCEPT, PRIOR_SLOPE
from estimator_service.fit.likelihood import Cells, Point, linear_predictor
from estimator_service.fit.newton import Prior, fit

Floats = NDArray[np.float64]

#: Knots of the baseline, nats, on bin edges. More follow the link closer and cost evidence.
KNOTS: Final = (-4.0, -2.0, 0.0, 2.0, 4.0, 8.0)

#: The shares of first drafts with x at or above each of these are watched, nats, on bin edges. More levels see finer
#: shifts of the features; each is one more stream that may give a false alarm.
LEVELS: Final = (-4.0, -2.0, 0.0, 2.0, 4.0, 8.0)
NUM_LEVELS: Final = len(LEVELS)

#: Observations below which a segment has no baseline of its own and is left out of the scores. Raising it leaves more
#: traffic unwatched, lowering it compares with coefficients that are mostly prior.
MIN_SEGMENT_OBSERVATIONS: Final = 500.0

#: A share below this is treated as this (and above 1 minus this likewise): what was all but absent must reach a percent
#: or two to matter.
MIN_SHARE: Final = 0.01

#: Standard deviations of the priors about the method's defaults: wide, they only keep thin cells finite.
_SLOPE_DEVIATION: Final = 0.5
_INTERCEPT_DEVIATION: Final = 2.0

#: ω is taken for at least this: where x says nothing, a change of slope is no multiple of what was.
_MIN_SLOPE: Final = 0.05

#: Precision of a round's own intercept about the baseline's, in units of one observation at p = 1/2.
_ROUND_PRECISION: Final = 0.25

#: Newton steps for a round's own intercepts. They start within a nat of the solution: two are near convergence.
_ROUND_STEPS: Final = 4

_LEVEL_BINS: Final = np.searchsorted(np.asarray(EDGES), np.asarray(LEVELS))


@dataclass(frozen=True)
class Score:
    """One round at the baseline. Gradients of the log-likelihood and their information, nats, dispersion 1.

    slope, tilt: along the baseline's own shape, and along x itself; both profiled over the intercepts, their
    information likewise. intercepts, intercept_information: float64[K], at the baseline's slope. blocks: first drafts
    of the round. above: float64[L], how many of them have x at or above each of LEVELS.
    """

    slope: float
    slope_information: float
    tilt: float
    tilt_information: float
    intercepts: Floats
    intercept_information: Floats
    blocks: float
    above: Floats


@dataclass(frozen=True)
class Baseline:
    """Frozen coefficients of S segments and K positions, and how much they rest on.

    slopes: float64[S, 1 + len(KNOTS)], of each piece. intercepts: float64[S, K]. known: bool[S], segments with enough
    observations. line_slope: slope of the straight line over all segments, for people. shares: float64[L], of first
    drafts at or above LEVELS, clipped. *_information (intercepts: [K]), blocks: what it was learned from.
    """

    slopes: Floats
    intercepts: Floats
    known: NDArray[np.bool_]
    line_slope: float
    shares: Floats
    slope_information: float
    tilt_information: float
    intercept_information: Floats
    blocks: float

    @staticmethod
    def learn(sums: Floats) -> Baseline:
        """Fit to sums (n, accepted, x) over the protocol's bins, float64[3, S, K, NUM_BINS], undecayed."""
        cells = Cells.of(sums, KNOTS)
        point = _fit(cells)
        pooled = Cells.of(sums.sum(axis=1, keepdims=True))
        line = _fit(pooled)
        blocks, above = _first_drafts(sums[0])
        baseline = Baseline(
            slopes=point.slopes,
            intercepts=point.intercepts,
            known=cells.total >= MIN_SEGMENT_OBSERVATIONS,
            line_slope=float(line.slopes[0, 0]),
            shares=np.clip(above / max(blocks, 1.0), MIN_SHARE, 1.0 - MIN_SHARE),
            slope_information=0.0,
            tilt_information=0.0,
            intercept_information=np.zeros(sums.shape[2]),
            blocks=blocks,
        )
        score = baseline.score(sums)
        return replace(
            baseline,
            slope_information=score.slope_information,
            tilt_information=score.tilt_information,
            intercept_information=score.intercept_information,
        )

    def score(self, sums: Floats) -> Score:
        """Score of one round's sums (n, accepted, x), float64[3, S, K, NUM_BINS], undecayed."""
        watched = np.flatnonzero(self.known & sums[0].any(axis=(1, 2)))
        cells = Cells.of(sums[:, watched], KNOTS)
        intercepts = self.intercepts[watched]
        eta = linear_predictor(cells, Point(self.slopes[watched], intercepts))
        residual, weight = _moments(cells, eta)
        gradient = residual.sum(axis=(0, 2))
        information = weight.sum(axis=(0, 2))
        shift = np.zeros(cells.n.shape[:2])
        for _ in range(_ROUND_STEPS):
            residual, weight = _moments(cells, eta + shift[:, :, None])
            step = residual.sum(axis=2) - _ROUND_PRECISION * shift
            shift += np.clip(step / (weight.sum(axis=2) + _ROUND_PRECISION), -1.0, 1.0)
        residual, weight = _moments(cells, eta + shift[:, :, None])
        shape = (eta - intercepts[:, :, None]) / max(self.line_slope, _MIN_SLOPE)
        slope, slope_information = _profiled(residual, weight, shape)
        tilt, tilt_information = _profiled(residual, weight, cells.x)
        blocks, above = _first_drafts(sums[0])
        return Score(
            slope=slope,
            slope_information=slope_information,
            tilt=tilt,
            tilt_information=tilt_information,
            intercepts=gradient,
            intercept_information=information,
            blocks=blocks,
            above=above,
        )


def _moments(cells: Cells, eta: Floats) -> tuple[Floats, Floats]:
    """Residuals and binomial variances of the cells at log-odds `eta`, float64[S, K, B] each."""
    small = np.exp(-np.abs(eta))
    p = np.where(eta > 0, 1.0, small) / (1.0 + small)
    expected = cells.n * p
    return cells.accepted - expected, expected * (1.0 - p)


def _profiled(residual: Floats, weight: Floats, direction: Floats) -> tuple[float, float]:
    """Score and information along `direction`, float64[S, K, B] each, with an intercept a segment and position free."""
    total = weight.sum(axis=2)
    mean = np.divide((weight * direction).sum(axis=2), total, out=np.zeros_like(total), where=total > 0)
    centred = direction - mean[:, :, None]
    return float((residual * centred).sum()), float((weight * centred**2).sum())


def _fit(cells: Cells) -> Point:
    """Posterior mode under wide priors, from each position's acceptance: saturated features stop Newton elsewhere."""
    segments, positions, _ = cells.n.shape
    slopes = np.full((segments, 1 + len(cells.knots)), PRIOR_SLOPE)
    intercepts = np.full((segments, positions), PRIOR_INTERCEPT)
    prior = Prior.about(Point(slopes, intercepts), slope=_SLOPE_DEVIATION**-2.0, intercept=_INTERCEPT_DEVIATION**-2.0)
    accepted = cells.accepted.sum(axis=2) + 0.5
    rejected = cells.n.sum(axis=2) + 1.0 - accepted
    return fit(cells, prior, Point(np.zeros_like(slopes), np.log(accepted / rejected)))


def _first_drafts(n: Floats) -> tuple[float, Floats]:
    """First drafts, and float64[L] of them at or above each level, from counts [S, K, NUM_BINS]."""
    above = np.cumsum(n[:, 0, :].sum(axis=0)[::-1])[::-1]
    return float(above[0]), above[_LEVEL_BINS]
