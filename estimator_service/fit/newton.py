"""Penalised logistic regression on binned rows: projected Newton with step halving, batched over segments.

After one pass over the bins (`likelihood`) a step costs O(K·P) and one solve of P unknowns, O(P³).

Newton's method for logistic regression (IRLS): McCullagh and Nelder, Generalized Linear Models, 2nd ed., 1989, §4.4.
Projection onto the box: Bertsekas, SIAM J. Control Optim. 20(2), 1982.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acceptd.limits import MAX_INTERCEPT, MAX_SLOPE
from estimator_service.fit.arrowhead import solve_arrowhead
from estimator_service.fit.likelihood import Cells, Floats, Normal, Point, normal_equations

#: Newton steps at most. From a warm start two or three suffice; raising it only costs time on separable data.
MAX_STEPS: Final = 30

#: Halvings of one step before it is given up.
MAX_HALVINGS: Final = 12

#: Converged when a full step would lower the loss (nats, summed) by less than half this share of it: coefficients then
#: lie within a fifth of their standard error at 10,000 rows, and the step taken last makes that quadratically less.
TOLERANCE: Final = 1e-6

#: Precision that stands for "held": no data moves a value against it by more than 1e-6.
HELD: Final = 1e12


class Prior(NamedTuple):
    """Normal priors. mean: float64[S, P + K], slopes first; precision: 1/variance, of the same shape.

    smoothness: precision of the difference of adjacent piece slopes. tie: where all intercepts of a segment share a
    shift δ, β_k ~ N(mean_k + δ, 1/precision_k), its precision given them; None for no such shift.
    """

    mean: Floats
    precision: Floats
    smoothness: float = 0.0
    tie: float | None = None

    @staticmethod
    def about(
        point: Point, *, slope: float, intercept: float, smoothness: float = 0.0, shift: float | None = None
    ) -> Prior:
        """About a point, with one precision for all slopes and one for all intercepts; shift: δ ~ N(0, 1/shift)."""
        groups, positions = point.intercepts.shape
        precision = _precision(groups, point.slopes.shape[1], positions, slope, intercept)
        tie = None if shift is None else positions * intercept + shift
        return Prior(point.values, precision, smoothness, tie)


@lru_cache(maxsize=128)
def _precision(groups: int, pieces: int, positions: int, slope: float, intercept: float) -> Floats:
    row = np.repeat((slope, intercept), (pieces, positions))
    table: Floats = np.tile(row, (groups, 1))
    table.flags.writeable = False
    return table


@lru_cache(maxsize=128)
def _bounds(pieces: int, positions: int) -> Floats:
    """Lowest and highest values of slopes and intercepts: float64[2, P + K]."""
    lowest, highest = (0.0, -MAX_INTERCEPT), (MAX_SLOPE, MAX_INTERCEPT)
    table: Floats = np.repeat((lowest, highest), (pieces, positions), axis=1)
    table.flags.writeable = False
    return table


#: Added to every diagonal: keeps a system without data or prior solvable. Far below one observation's information.
_RIDGE: Final = 1e-9


class _State(NamedTuple):
    """A point's values [S, P + K], the likelihood's normal equations there, and the penalised loss [S].

    pull: derivative of the prior's penalty, [S, P + K]. A common shift of the intercepts stands at its best for them.
    """

    values: Floats
    normal: Normal
    pull: Floats
    loss: Floats

    @staticmethod
    def at(cells: Cells, prior: Prior, values: Floats) -> _State:
        point = _point(values, cells)
        normal = normal_equations(cells, point)
        away = values - prior.mean
        pull = prior.precision * away
        if prior.tie is not None:
            size = point.slopes.shape[1]
            felt = pull[:, size:]
            shift = felt.sum(axis=1) / prior.tie
            felt -= prior.precision[:, size:] * shift[:, None]
        penalty = np.vecdot(pull, away)
        if prior.smoothness:
            bend = point.slopes @ second_difference(point.slopes.shape[1])
            bend *= prior.smoothness
            penalty += np.vecdot(bend, point.slopes)
            pull[:, : bend.shape[1]] += bend
        return _State(values, normal, pull, normal.loss + 0.5 * penalty)


def _point(values: Floats, cells: Cells) -> Point:
    pieces = cells.member.shape[1]
    return Point(values[:, :pieces], values[:, pieces:])


def fit(cells: Cells, prior: Prior, start: Point) -> Point:
    """The posterior mode within the bounds, float64. Finite for any counts: no step that is worse is taken.

    Slopes stay in [0, MAX_SLOPE], intercepts in ±MAX_INTERCEPT. Where one binds, the others are solved given it.
    """
    return solve(cells, prior, start)[0]


def solve(cells: Cells, prior: Prior, start: Point) -> tuple[Point, Normal]:
    """`fit`, and the normal equations of the last point they were taken at, one step of no consequence before."""
    bounds = _bounds(start.slopes.shape[1], start.intercepts.shape[1])
    state = _State.at(cells, prior, _within(start.values, bounds))
    for _ in range(MAX_STEPS):
        step, gain = _newton_step(state, prior, bounds)
        if not (gain > TOLERANCE * (1.0 + state.loss)).any():
            # A step this small is within Newton's quadratic range: taken without another pass over the bins.
            return _point(_within(state.values + step, bounds), cells), state.normal
        scale = np.ones((len(gain), 1))
        for _ in range(MAX_HALVINGS):
            trial = _State.at(cells, prior, _within(state.values + scale * step, bounds))
            # `not <=` rather than `>`: a NaN counts as worse.
            worse = ~(trial.loss <= state.loss + 1e-9 * (1.0 + state.loss))[:, None]
            if not worse.any():
                break
            scale = np.where(worse, scale * 0.5, scale)
        else:
            if worse.all():
                break
            scale = np.where(worse, 0.0, scale)
            trial = _State.at(cells, prior, _within(state.values + scale * step, bounds))
        state = trial
    return _point(state.values, cells), state.normal


def _within(values: Floats, bounds: Floats) -> Floats:
    inside: Floats = np.minimum(np.maximum(values, bounds[0]), bounds[1])
    return inside


def _newton_step(state: _State, prior: Prior, bounds: Floats) -> tuple[Floats, Floats]:
    """Step of slopes and intercepts [S, P + K], and twice the loss it would take off, [S]."""
    normal, precision = state.normal, prior.precision + _RIDGE
    groups, size = normal.slope_gradient.shape
    g, h = normal.slope_gradient - state.pull[:, :size], normal.intercept_gradient - state.pull[:, size:]
    a, b, shared = normal.a.copy(), normal.b, prior.precision[:, size:]
    diagonal = a.reshape(groups, size * size)[:, :: size + 1]
    diagonal += precision[:, :size]
    if prior.smoothness:
        a += second_difference(size) * prior.smoothness
    if not ((bounds[0] < state.values) & (state.values < bounds[1])).all():
        fixed_slope = _blocked(state.values[:, :size], g, bounds[:, :size])
        fixed_intercept = _blocked(state.values[:, size:], h, bounds[:, size:])
        g, h = np.where(fixed_slope, 0.0, g), np.where(fixed_intercept, 0.0, h)
        b = np.where(fixed_slope[:, None, :] | fixed_intercept[:, :, None], 0.0, b)
        a[fixed_slope[:, :, None] | fixed_slope[:, None, :]] = 0.0
        diagonal += fixed_slope
        shared = np.where(fixed_intercept, 0.0, shared)
    # The common shift, at its best for any intercepts, ties them: all of them move it by their precision.
    tie = None if prior.tie is None else (shared, prior.tie)
    u, v = solve_arrowhead(a, b, normal.c + precision[:, size:], g, h, tie=tie)
    return np.concatenate((u, v), axis=1), np.vecdot(u, g) + np.vecdot(v, h)


def _blocked(values: Floats, ascent: Floats, bounds: Floats) -> NDArray[np.bool_]:
    """Where a value stands at a bound and the ascent direction points out of the box."""
    blocked: NDArray[np.bool_] = ((values <= bounds[0]) & (ascent < 0)) | ((values >= bounds[1]) & (ascent > 0))
    return blocked


@cache
def second_difference(size: int) -> Floats:
    """Sum of squared differences of neighbours as a quadratic form, float64[size, size]. One for each: at most 64."""
    difference = np.diff(np.eye(size), axis=0)
    product: Floats = difference.T @ difference
    product.flags.writeable = False
    return product
