"""The streams that drift detection watches: slope, tilt, common intercept, K intercepts, L shares of first drafts.

M = 3 + K + L. Each round gives each stream a gradient and an information at the baseline; information is a number of
drafts for the shares, whose unit is one draft's standard deviation.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator_service.fit.baseline import LEVELS, MIN_SHARE, NUM_LEVELS, Baseline, Score
from estimator_service.fit.cusum import normal_ratio, share_ratio

Floats = NDArray[np.float64]

SLOPE: Final = 0
TILT: Final = 1
#: Streams that tell of the pair come first.
COMMON: Final = 2
#: First of the K intercepts.
FIRST_POSITION: Final = 3

#: Change of slope that matters: within one pair it varies by less (.51 to .55 over workloads). Raising it lets a
#: similar draft pass for the same one.
SLOPE_SIZE: Final = 0.06

#: Change of tilt that matters: another workload's own bends amount to less (.11 at most between the recorded ones of a
#: pair whose link bends strongly). Raising it misses drafts that differ in shape more than in slope.
TILT_SIZE: Final = 0.12

#: Change of an intercept that matters, nats: 2.5 points of acceptance at one half. Raising it ignores milder shifts.
INTERCEPT_SIZE: Final = 0.1

#: Change of a share that matters, in standard deviations of one draft: 5 points at a share of one half, 1 point at a
#: share of 1 %. Raising it ignores milder shifts.
SHARE_SIZE: Final = 0.08

#: Dispersion before there is evidence: labels given x are nearly independent, the features of one request are not.
_LABEL_DISPERSION: Final = 1.5
_SHARE_DISPERSION: Final = 2.5


def num_streams(positions: int) -> int:
    """M."""
    return FIRST_POSITION + positions + NUM_LEVELS


def _of_each(positions: int, slope: float, tilt: float, intercept: float, share: float) -> Floats:
    values = np.full(num_streams(positions), intercept)
    values[SLOPE], values[TILT], values[-NUM_LEVELS:] = slope, tilt, share
    return values


def sizes(positions: int) -> Floats:
    """float64[M]: changes that matter."""
    return _of_each(positions, SLOPE_SIZE, TILT_SIZE, INTERCEPT_SIZE, SHARE_SIZE)


def prior_dispersion(positions: int) -> Floats:
    """float64[M]: dispersion before there is evidence."""
    return _of_each(positions, _LABEL_DISPERSION, _LABEL_DISPERSION, _LABEL_DISPERSION, _SHARE_DISPERSION)


def evidence(baseline: Baseline, score: Score, untrimmed: bool) -> tuple[Floats, Floats, Floats]:
    """Of one round by stream: gradient and information, float64[M], and log-likelihood ratios, float64[2, M]."""
    labels = np.concatenate(([score.slope, score.tilt, score.intercepts.sum()], score.intercepts))
    information = np.concatenate(
        (
            [score.slope_information, score.tilt_information, score.intercept_information.sum()],
            score.intercept_information,
        )
    )
    steps = np.full(len(labels), 2.0 * INTERCEPT_SIZE)
    steps[SLOPE], steps[TILT] = 2.0 * SLOPE_SIZE, 2.0 * TILT_SIZE
    shares = baseline.shares
    above, blocks = (score.above, score.blocks) if untrimmed else (np.zeros(NUM_LEVELS), 0.0)
    moved = share_ratio(above, blocks, shares, 2.0 * SHARE_SIZE, (MIN_SHARE, 1.0 - MIN_SHARE))
    return (
        np.concatenate((labels, (above - blocks * shares) / np.sqrt(shares * (1.0 - shares)))),
        np.concatenate((information, np.full(NUM_LEVELS, blocks))),
        np.concatenate((normal_ratio(labels, information, steps), moved), axis=1),
    )


def known_by(baseline: Baseline) -> Floats:
    """Information that the baseline rests on, by stream: float64[M]."""
    return np.concatenate(
        (
            [baseline.slope_information, baseline.tilt_information, baseline.intercept_information.sum()],
            baseline.intercept_information,
            np.full(NUM_LEVELS, baseline.blocks),
        )
    )


def describe(stream: int, baseline: Baseline, shift: float, error: float) -> str:
    """What `stream` saw, one line."""
    if stream == SLOPE:
        return f"slope {baseline.line_slope:.2f} → {baseline.line_slope + shift:.2f} (±{error:.2f})"
    if stream == TILT:
        return f"slope in x changed by {shift:+.2f} (±{error:.2f}), and the link's bends with it"
    positions = len(baseline.intercept_information)
    if stream == COMMON:
        return f"intercepts moved by {shift:+.2f} (±{error:.2f}) at the old slope"
    if stream < FIRST_POSITION + positions:
        return f"intercept of position {stream - FIRST_POSITION} moved by {shift:+.2f} (±{error:.2f}) at the old slope"
    level = stream - FIRST_POSITION - positions
    share = float(baseline.shares[level])
    now = min(max(share + shift * float(np.sqrt(share * (1.0 - share))), 0.0), 1.0)
    return f"first drafts with x of {LEVELS[level]:g} or more: {share:.1%} → {now:.1%}"
