"""The fits of a pair: straight line, link, and both by segment, each shrunk to the one before it by its evidence.

    pair's line     towards (.5, −.2); a thin intercept towards its neighbours
    pair's link     slopes of all pieces towards the line's and each other
    a segment's     towards the pair's: slopes, and intercepts up to a shift that all positions of the segment share
    a workload's    intercepts alone, towards the pair's up to a shift of its own

A prior's precision is in units of information, so one with deviation d weighs as much as 1/(d²·p(1−p)) rows: .3 nats
are about 50 rows, the role that n/(n + 50) has in vLLM's estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import numpy as np

from acceptd.limits import PRIOR_INTERCEPT, PRIOR_SLOPE
from estimator_service.fit.likelihood import Cells, Floats, Normal, Point, information_matrix
from estimator_service.fit.newton import HELD, Prior, fit, second_difference, solve
from estimator_service.fit.settings import FitSettings

#: Deviation of a link piece's slope from the line's, and of adjacent pieces from each other. Raising them lets the
#: link bend on thinner evidence.
_PIECE_DEVIATION: Final = 0.3
_BEND_DEVIATION: Final = 0.3

#: Deviation of the link's intercepts from the line's, nats: bending moves the level of all. Raising it lets a thin
#: position leave the line's.
_LINK_INTERCEPT: Final = 0.5

#: Keeps a chain solvable that has neither prior nor data.
_RIDGE: Final = 1e-9

#: Passes over the neighbours' trend: the second one moves it by less than a tenth of its error.
_PASSES: Final = 2


def fit_line(cells: Cells, settings: FitSettings, start: Point | None = None) -> tuple[Point, Floats]:
    """The pair's straight line, cells with S = 1, and the likelihood's information there, [1 + K, 1 + K].

    `start`: the previous fit, from which one pass over the neighbours' trend is enough.
    """
    k = cells.n.shape[1]
    smooth, own = settings.neighbour_deviation**-2, settings.intercept_deviation**-2
    precision = line_precision(k, settings)[None]
    point = start or Point(np.full((1, 1), PRIOR_SLOPE), np.full((1, k), PRIOR_INTERCEPT))
    labelled = 0.2 * cells.n.sum(axis=2)[0]
    mean = np.full((1, 1 + k), PRIOR_SLOPE)
    for _ in range(_PASSES if start is None else 1):
        mean[0, 1:] = _trend(point.intercepts[0], labelled, own, smooth, precision[0, 1:])
        point, normal = solve(cells, Prior(mean, precision), point)
    return point, information_matrix(normal)


@lru_cache(maxsize=128)
def line_precision(num_positions: int, settings: FitSettings) -> Floats:
    """Precision of the line's prior: float64[1 + K], slope first. Intercepts hang on the prior and their neighbours."""
    own = settings.intercept_deviation**-2 + _neighbours(num_positions) * settings.neighbour_deviation**-2
    precision: Floats = np.concatenate(([settings.slope_deviation**-2], own))
    precision.flags.writeable = False
    return precision


@cache
def _neighbours(k: int) -> Floats:
    """How many each of K positions has, float64[K]. One for each K: at most 64."""
    count = np.zeros(k)
    count[1:] += 1.0
    count[:-1] += 1.0
    count.flags.writeable = False
    return count


def _trend(intercepts: Floats, information: Floats, own: float, smooth: float, precision: Floats) -> Floats:
    """Expected intercept of each position given the others: float64[K].

    A chain in which each intercept has precision `own` about the prior and `smooth` about each neighbour, `precision`
    [K] in all. The result is a weighted mean of prior and neighbours, so a position without labels stays between them.
    """
    k = len(intercepts)
    if k == 1:
        return np.full(1, PRIOR_INTERCEPT)
    chain = smooth * second_difference(k)
    chain.flat[:: k + 1] += information + (own + _RIDGE)
    smoothed = np.linalg.solve(chain, information * intercepts + own * PRIOR_INTERCEPT)
    beside = np.zeros(k)
    beside[1:] += smoothed[:-1]
    beside[:-1] += smoothed[1:]
    mean: Floats = (smooth * beside + own * PRIOR_INTERCEPT) / np.maximum(precision, _RIDGE)
    return mean


def fit_link(cells: Cells, line: Point, start: Point | None = None) -> Point:
    """The pair's link on cells with knots, S = 1, shrunk to its line."""
    pieces = cells.member.shape[1]
    slopes = np.repeat(line.slopes, pieces, axis=1)
    straight = Point(slopes, line.intercepts)
    prior = Prior.about(
        straight,
        slope=_PIECE_DEVIATION**-2,
        intercept=_LINK_INTERCEPT**-2,
        smoothness=_BEND_DEVIATION**-2,
    )
    return fit(cells, prior, start or straight)


@dataclass(frozen=True)
class Shrinkage:
    """How far S groups may lie from what they are shrunk to, as deviations of normal priors.

    slope: of each piece's slope; 0 holds the slopes. shift: of what all intercepts of a group share, nats. intercept:
    of one intercept beyond the shift, nats. Raising one lets thin groups go their own way sooner.
    """

    slope: float
    shift: float
    intercept: float


#: Segments: temperatures differ by a factor in slope and by some tenths of a nat in level.
SEGMENT: Final = Shrinkage(slope=0.15, shift=0.3, intercept=0.1)

#: The recent window about the long one: a workload moves the common level, and little else.
RECENT: Final = Shrinkage(slope=0.1, shift=0.3, intercept=0.1)

#: A workload label about the pair: the slope is the pair's.
WORKLOAD: Final = Shrinkage(slope=0.0, shift=0.5, intercept=0.2)


def fit_groups(cells: Cells, parent: Point, shrinkage: Shrinkage, start: Point | None = None) -> Point:
    """Slopes and intercepts of S groups, shrunk by their evidence to `parent` (of S = 1 for all, or one each)."""
    return solve_groups(cells, parent, shrinkage, start)[0]


def solve_groups(cells: Cells, parent: Point, shrinkage: Shrinkage, start: Point | None = None) -> tuple[Point, Normal]:
    """`fit_groups`, and the normal equations there; see `newton.solve`."""
    size = len(cells.n)
    if len(parent.slopes) != size:
        parent = Point(np.repeat(parent.slopes, size, axis=0), np.repeat(parent.intercepts, size, axis=0))
    prior = Prior.about(
        parent,
        slope=shrinkage.slope**-2 if shrinkage.slope else HELD,
        intercept=shrinkage.intercept**-2,
        shift=shrinkage.shift**-2,
    )
    return solve(cells, prior, start or parent)
