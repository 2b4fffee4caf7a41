"""Penalised logistic regression on binned rows: projected Newton with step halving, batched over segments.

    logit P = g(x) + β_k,   g'(x) = slope of the piece x lies in,   P = 1 + J pieces

The design is an arrowhead: P slopes shared by all positions, one intercept each. In terms of the *piece slopes* the
basis is ψ_0 = min(x, κ_1), ψ_p = clip(x − κ_p, 0, κ_{p+1} − κ_p), so the bounds are a box, and since knots lie on bin
edges, Hessian and gradient follow from sums over each piece (of w, w·x, w·x² and of the residuals): after one pass over
the bins a step costs O(K·P) and one solve of P unknowns, O(P³).

Newton's method for logistic regression (IRLS): McCullagh and Nelder, Generalized Linear Models, 2nd ed., 1989, §4.4.
Projection onto the box: Bertsekas, SIAM J. Control Optim. 20(2), 1982.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import EDGES
from acceptd.limits import MAX_INTERCEPT, MAX_SLOPE

Floats = NDArray[np.float64]

#: Newton steps at most. From a warm start two or three suffice; raising it only costs time on separable data.
MAX_STEPS: Final = 30

#: Halvings of one step before it is given up.
MAX_HALVINGS: Final = 12

#: Converged when a full step would lower the loss (nats, summed) by less than half this share of it: coefficients then
#: lie within a fifth of their standard error at 10,000 rows, and the step taken last makes that quadratically less.
TOLERANCE: Final = 1e-6

#: Precision that stands for "held": no data moves a value against it by more than 1e-6.
HELD: Final = 1e12

#: Log-odds beyond this count as this in exp: far outside the bounds, and finite.
_LARGEST: Final = 700.0

#: Divides what is 0 where there are no rows; the smallest normal number, so it is no count of any.
_NO_ROWS: Final = float(np.finfo(np.float64).tiny)

_EDGES: Final = np.asarray(EDGES)


@dataclass(frozen=True)
class Cells:
    """Binned rows of S segments. n, accepted, x: float64[S, K, B]; x is the mean in the bin, 0 where n is 0.

    piece: int64[B], the piece a bin lies in. member: float64[B, P], 1 there. knots: float64[P − 1], nats.
    """

    n: Floats
    accepted: Floats
    x: Floats
    piece: NDArray[np.int64]
    member: Floats
    knots: Floats

    @staticmethod
    def of(sums: Floats, knots: tuple[float, ...] = ()) -> Cells:
        """From sums of n, accepted, x: [3, S, K, NUM_BINS]. Bins beyond the data are cut off."""
        n, accepted, sum_x = sums
        used = n.any(axis=(0, 1)).nonzero()[0]
        low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        n, accepted, sum_x = n[..., low:high], accepted[..., low:high], sum_x[..., low:high]
        x = sum_x / np.maximum(n, _NO_ROWS)
        if not knots:
            return Cells.straight(n, accepted, x)
        piece = np.searchsorted(np.asarray(knots, np.float64), _EDGES[low:high], side="right")
        return Cells(n, accepted, x, piece, np.eye(1 + len(knots))[piece], np.asarray(knots, np.float64))

    @staticmethod
    def straight(n: Floats, accepted: Floats, x: Floats) -> Cells:
        """Counts over any bins, [S, K, B], with their means x, for a straight line."""
        bins = n.shape[-1]
        return Cells(n, accepted, x, np.zeros(bins, np.int64), np.ones((bins, 1)), np.zeros(0))

    @property
    def total(self) -> Floats:
        """float64[S]: observations."""
        total: Floats = self.n.sum(axis=(1, 2))
        return total


@dataclass(frozen=True)
class Point:
    """Piece slopes [S, P] and intercepts [S, K]."""

    slopes: Floats
    intercepts: Floats

    @property
    def values(self) -> Floats:
        """Both side by side, slopes first: float64[S, P + K]."""
        return np.concatenate((self.slopes, self.intercepts), axis=1)


class Prior(NamedTuple):
    """Normal priors. mean: float64[S, P + K], slopes first; precision: 1/variance, of the same shape.

    smoothness: precision of the difference of adjacent piece slopes. tie: where all intercepts of a segment share a
    shift δ, β_k ~ N(mean_k + δ, 1/precision_k), its precision given them, [S]; None for no such shift.
    """

    mean: Floats
    precision: Floats
    smoothness: float = 0.0
    tie: Floats | None = None

    @staticmethod
    def about(
        point: Point, *, slope: float, intercept: float, smoothness: float = 0.0, shift: float | None = None
    ) -> Prior:
        """About a point, with one precision for all slopes and one for all intercepts; shift: δ ~ N(0, 1/shift)."""
        groups, positions = point.intercepts.shape
        precision = _precision(groups, point.slopes.shape[1], positions, slope, intercept)
        tie = None if shift is None else _constant(groups, positions * intercept + shift)
        return Prior(point.values, precision, smoothness, tie)


@lru_cache(maxsize=128)
def _precision(groups: int, pieces: int, positions: int, slope: float, intercept: float) -> Floats:
    row = np.repeat((slope, intercept), (pieces, positions))
    table: Floats = np.tile(row, (groups, 1))
    table.flags.writeable = False
    return table


@lru_cache(maxsize=128)
def _constant(size: int, value: float) -> Floats:
    table: Floats = np.full(size, value)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=128)
def _bounds(pieces: int, positions: int) -> Floats:
    """Lowest and highest values of slopes and intercepts: float64[2, P + K]."""
    lowest, highest = (0.0, -MAX_INTERCEPT), (MAX_SLOPE, MAX_INTERCEPT)
    table: Floats = np.repeat((lowest, highest), (pieces, positions), axis=1)
    table.flags.writeable = False
    return table


class Normal(NamedTuple):
    """Gradient and information of the likelihood (prior left out) at a point: the arrowhead's blocks.

    a: [S, P, P], b: [S, K, P], c: [S, K], slope_gradient: [S, P], intercept_gradient: [S, K], loss: [S] nats, summed.
    """

    a: Floats
    b: Floats
    c: Floats
    slope_gradient: Floats
    intercept_gradient: Floats
    loss: Floats


def linear_predictor(cells: Cells, point: Point) -> Floats:
    """η = g(x) + β: float64[S, K, B]."""
    if len(cells.knots) == 0:
        eta = point.slopes[:, :, None] * cells.x
        eta += point.intercepts[:, :, None]
        return eta
    # Change of slope at each knot times the knot, summed: where each piece's line meets x = 0.
    offsets = np.zeros_like(point.slopes)
    offsets[:, 1:] = -np.cumsum(np.diff(point.slopes, axis=1) * cells.knots, axis=1)
    eta = point.slopes[:, None, cells.piece] * cells.x
    eta += offsets[:, None, cells.piece]
    eta += point.intercepts[:, :, None]
    return eta


def loss(cells: Cells, point: Point) -> Floats:
    """Log-loss of `point`, float64[S], nats, summed over observations."""
    eta = linear_predictor(cells, point)
    return _losses(cells, eta, _odds_of_rejection(eta))


def _odds_of_rejection(eta: Floats) -> Floats:
    odds = np.minimum(-eta, _LARGEST)
    return np.exp(odds, out=odds)


def _losses(cells: Cells, eta: Floats, odds: Floats) -> Floats:
    """−log P is log1p(odds) for what was accepted, and η more for what was rejected. float64[S]."""
    total: Floats = (np.vecdot(cells.n, np.log1p(odds)) + np.vecdot(cells.n - cells.accepted, eta)).sum(axis=1)
    return total


def normal_equations(cells: Cells, point: Point) -> Normal:
    """One pass over the bins; see `Normal`."""
    eta = linear_predictor(cells, point)
    odds = _odds_of_rejection(eta)
    p = 1.0 / (1.0 + odds)
    expected = cells.n * p
    weight = odds * p
    weight *= expected
    residual = cells.accepted - expected
    total = _losses(cells, eta, odds)
    weight_x = weight * cells.x
    if len(cells.knots) == 0:
        flat = len(cells.x), -1
        x = cells.x.reshape(flat)
        a = np.vecdot(weight_x.reshape(flat), x)[:, None, None]
        b = np.vecdot(weight, cells.x)[:, :, None]
        g = np.vecdot(residual.reshape(flat), x)[:, None]
        return Normal(a, b, weight.sum(axis=2), g, residual.sum(axis=2), total)
    w0, w1, w2 = (_sums(values, cells) for values in (weight, weight_x, weight_x * cells.x))
    r0, r1 = (_sums(values, cells) for values in (residual, residual * cells.x))
    start = np.concatenate(([0.0], cells.knots))
    width = np.concatenate((cells.knots[:1], np.diff(cells.knots), [0.0]))
    w0_after, r0_after = _after(w0), _after(r0)
    b = w1 - start * w0 + width * w0_after
    g = (r1 - start * r0 + width * r0_after).sum(axis=1)
    b_total = b.sum(axis=1)
    # Where two pieces meet in one row the lower one is full: ψ_p ψ_q = width_p ψ_q for p < q.
    a = np.triu(width[:, None] * b_total[:, None, :], 1)
    a = a + np.swapaxes(a, 1, 2)
    diagonal = (w2 - 2.0 * start * w1 + start**2 * w0 + width**2 * w0_after).sum(axis=1)
    index = np.arange(len(start))
    a[:, index, index] = diagonal
    return Normal(a, b, w0.sum(axis=2), g, r0.sum(axis=2), total)


def _sums(values: Floats, cells: Cells) -> Floats:
    """[S, K, B] → sums over each piece [S, K, P]; a piece without bins has 0."""
    sums: Floats = np.matmul(values, cells.member)
    return sums


def information_matrix(normal: Normal) -> Floats:
    """Information [1 + K, 1 + K] of independent rows about a straight line of S = 1, slope first."""
    k = normal.c.shape[1]
    matrix = np.zeros((1 + k, 1 + k))
    matrix[0, 0] = normal.a[0, 0, 0]
    matrix[0, 1:] = matrix[1:, 0] = normal.b[0, :, 0]
    matrix[np.arange(1, 1 + k), np.arange(1, 1 + k)] = normal.c[0]
    return matrix


def _after(values: Floats) -> Floats:
    """Sums over the pieces above each piece."""
    above: Floats = np.cumsum(values[:, :, ::-1], axis=2)[:, :, ::-1] - values
    return above


def solve_arrowhead(
    a: Floats, b: Floats, c: Floats, g: Floats, h: Floats, *, tie: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats]:
    """Solve [[a, bᵀ], [b, C]] (u, v) = (g, h) for each of S systems: O(P³ + K·P²).

    C = diag c, or diag c − t tᵀ/d with tie = (t, d). a: [S, P, P], b: [S, K, P], c, t: [S, K], g: [S, P], h: [S, K],
    d: [S] → u [S, P], v [S, K]. c > 0, Σ t²/c < d.
    """
    size = a.shape[1]
    columns = np.concatenate((b, h[:, :, None]), axis=2)
    solved = columns / c[:, :, None]
    if tie is not None:
        # Sherman and Morrison, Annals of Mathematical Statistics 21(1), 1950.
        t, d = tie
        ratio = t / c
        pulled = np.matmul(t[:, None, :], solved)
        pulled /= (d - np.vecdot(ratio, t))[:, None, None]
        solved += ratio[:, :, None] * pulled
    taken = np.matmul(np.swapaxes(b, 1, 2), solved)
    schur, right = a - taken[:, :, :size], g - taken[:, :, size]
    u: Floats = right / schur[:, :, 0] if size == 1 else np.linalg.solve(schur, right[:, :, None])[:, :, 0]
    v: Floats = solved[:, :, size] - np.matmul(solved[:, :, :size], u[:, :, None])[:, :, 0]
    return u, v


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
            bend = point.slopes @ _second_difference(point.slopes.shape[1])
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
        a += _second_difference(size) * prior.smoothness
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


@lru_cache(maxsize=16)
def _second_difference(size: int) -> Floats:
    """Matrix D'D of the differences of adjacent values, [size, size]."""
    d = np.diff(np.eye(size), axis=0)
    product: Floats = d.T @ d
    return product
