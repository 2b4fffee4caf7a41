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
from typing import Final

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
        used = np.flatnonzero(n.reshape(-1, n.shape[-1]).any(axis=0))
        low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        n, accepted, sum_x = n[..., low:high], accepted[..., low:high], sum_x[..., low:high]
        x = np.divide(sum_x, n, out=np.zeros_like(sum_x), where=n > 0)
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
class Prior:
    """Normal priors. slopes, intercepts: means [S, P], [S, K]; the others their precisions (1/variance).

    smoothness: of the difference of adjacent piece slopes. shift: of a shift δ that all intercepts of a segment share,
    β_k ~ N(mean_k + δ, 1/precision_k), δ ~ N(0, 1/shift); None for no such shift.
    """

    slopes: Floats
    slope_precision: Floats
    intercepts: Floats
    intercept_precision: Floats
    smoothness: float = 0.0
    shift: float | None = None


@dataclass(frozen=True)
class Point:
    """Piece slopes [S, P] and intercepts [S, K]."""

    slopes: Floats
    intercepts: Floats


@dataclass(frozen=True)
class Normal:
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
        return point.slopes[:, :, None] * cells.x + point.intercepts[:, :, None]
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
    softplus = np.log1p(np.exp(-np.abs(eta))) + np.maximum(eta, 0.0)
    total: Floats = (cells.n * softplus - cells.accepted * eta).sum(axis=(1, 2))
    return total


def normal_equations(cells: Cells, point: Point) -> Normal:
    """One pass over the bins; see `Normal`."""
    eta = linear_predictor(cells, point)
    small = np.exp(-np.abs(eta))
    p = np.where(eta > 0, 1.0, small)
    p /= 1.0 + small
    weight = p * (1.0 - p)
    weight *= cells.n
    residual = cells.accepted - cells.n * p
    total = (cells.n * (np.log1p(small) + np.maximum(eta, 0.0)) - cells.accepted * eta).sum(axis=(1, 2))
    weight_x = weight * cells.x
    if len(cells.knots) == 0:
        b = weight_x.sum(axis=2, keepdims=True)
        a = (weight_x * cells.x).sum(axis=(1, 2))[:, None, None]
        g = (residual * cells.x).sum(axis=(1, 2))[:, None]
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


def solve_arrowhead(a: Floats, b: Floats, c: Floats, g: Floats, h: Floats) -> tuple[Floats, Floats]:
    """Solve [[a, bᵀ], [b, diag c]] (u, v) = (g, h) for each of S systems: O(P³ + K·P²). c > 0.

    a: [S, P, P], b: [S, K, P], c: [S, K], g: [S, P], h: [S, K] → u [S, P], v [S, K].
    """
    ratio = b / c[:, :, None]
    schur = a - np.matmul(np.swapaxes(b, 1, 2), ratio)
    right = g - np.matmul(h[:, None, :], ratio)[:, 0, :]
    u: Floats = right / schur[:, :, 0] if a.shape[1] == 1 else np.linalg.solve(schur, right[:, :, None])[:, :, 0]
    v: Floats = h / c - np.matmul(ratio, u[:, :, None])[:, :, 0]
    return u, v


#: Added to every diagonal: keeps a system without data or prior solvable. Far below one observation's information.
_RIDGE: Final = 1e-9


@dataclass(frozen=True)
class _State:
    """A point, its segments' common shifts [S], the likelihood's normal equations there, and the penalised loss [S]."""

    point: Point
    shift: Floats
    normal: Normal
    value: Floats

    @staticmethod
    def at(cells: Cells, prior: Prior, point: Point, shift: Floats) -> _State:
        normal = normal_equations(cells, point)
        value = normal.loss + 0.5 * (prior.slope_precision * (point.slopes - prior.slopes) ** 2).sum(axis=1)
        away = point.intercepts - prior.intercepts
        if prior.shift is not None:
            away -= shift[:, None]
            value += 0.5 * prior.shift * shift**2
        value += 0.5 * (prior.intercept_precision * away**2).sum(axis=1)
        if prior.smoothness:
            value += 0.5 * prior.smoothness * (np.diff(point.slopes, axis=1) ** 2).sum(axis=1)
        return _State(point, shift, normal, value)

    def moved(self, step: tuple[Floats, Floats, Floats], scale: Floats) -> tuple[Point, Floats]:
        """Point and shift after `scale` [S] times a step of (slopes, shift, intercepts), within the bounds."""
        slopes, shift, intercepts = step
        point = Point(
            (self.point.slopes + scale[:, None] * slopes).clip(0.0, MAX_SLOPE),
            (self.point.intercepts + scale[:, None] * intercepts).clip(-MAX_INTERCEPT, MAX_INTERCEPT),
        )
        return point, self.shift + scale * shift


def fit(cells: Cells, prior: Prior, start: Point) -> Point:
    """The posterior mode within the bounds, float64. Finite for any counts: no step that is worse is taken.

    Slopes stay in [0, MAX_SLOPE], intercepts in ±MAX_INTERCEPT. Where one binds, the others are solved given it.
    """
    return solve(cells, prior, start)[0]


def solve(cells: Cells, prior: Prior, start: Point) -> tuple[Point, Normal]:
    """`fit`, and the normal equations of the last point they were taken at, one step of no consequence before."""
    point = Point(
        start.slopes.clip(0.0, MAX_SLOPE),
        start.intercepts.clip(-MAX_INTERCEPT, MAX_INTERCEPT),
    )
    shift = np.zeros(len(point.slopes))
    if prior.shift is not None:
        pull = prior.intercept_precision * (point.intercepts - prior.intercepts)
        shift = pull.sum(axis=1) / (prior.intercept_precision.sum(axis=1) + prior.shift)
    state = _State.at(cells, prior, point, shift)
    for _ in range(MAX_STEPS):
        step, gain = _newton_step(state, prior)
        limit = TOLERANCE * (1.0 + state.value)
        if not np.any(gain > limit):
            # A step this small is within Newton's quadratic range: taken without another pass over the bins.
            return state.moved(step, np.ones(len(gain)))[0], state.normal
        scale = np.ones(len(gain))
        for _ in range(MAX_HALVINGS):
            trial = _State.at(cells, prior, *state.moved(step, scale))
            # `not <=` rather than `>`: a NaN counts as worse.
            worse = ~(trial.value <= state.value + 1e-9 * (1.0 + state.value))
            if not worse.any():
                break
            scale = np.where(worse, scale * 0.5, scale)
        else:
            if worse.all():
                break
            trial = _State.at(cells, prior, *state.moved(step, np.where(worse, 0.0, scale)))
        state = trial
    return state.point, state.normal


def _newton_step(state: _State, prior: Prior) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """Steps of (slopes [S, P], shift [S], intercepts [S, K]), and twice the loss they would take off, [S]."""
    point, normal = state.point, state.normal
    size = point.slopes.shape[1]
    away = prior.intercept_precision * (point.intercepts - prior.intercepts - state.shift[:, None])
    g = normal.slope_gradient - prior.slope_precision * (point.slopes - prior.slopes)
    h = normal.intercept_gradient - away
    a, b = normal.a.copy(), normal.b
    diagonal = a.reshape(len(a), size * size)[:, :: size + 1]
    diagonal += prior.slope_precision + _RIDGE
    if prior.smoothness:
        smooth = _second_difference(size) * prior.smoothness
        g = g - point.slopes @ smooth
        a += smooth
    fixed_slope = _blocked(point.slopes, g, 0.0, MAX_SLOPE)
    fixed_intercept = _blocked(point.intercepts, h, -MAX_INTERCEPT, MAX_INTERCEPT)
    coupling = prior.intercept_precision
    if fixed_slope.any() or fixed_intercept.any():
        g, h = np.where(fixed_slope, 0.0, g), np.where(fixed_intercept, 0.0, h)
        b = np.where(fixed_slope[:, None, :] | fixed_intercept[:, :, None], 0.0, b)
        a = np.where(fixed_slope[:, :, None] | fixed_slope[:, None, :], 0.0, a)
        a.reshape(len(a), size * size)[:, :: size + 1] += fixed_slope
        coupling = np.where(fixed_intercept, 0.0, coupling)
    if prior.shift is not None:
        # The shift is one more parameter that all positions share, tied to the intercepts by the prior alone.
        wide = np.zeros((len(a), size + 1, size + 1))
        wide[:, :size, :size] = a
        wide[:, size, size] = prior.intercept_precision.sum(axis=1) + prior.shift
        a, b = wide, np.concatenate((b, -coupling[:, :, None]), axis=2)
        g = np.concatenate((g, (away.sum(axis=1) - prior.shift * state.shift)[:, None]), axis=1)
    u, v = solve_arrowhead(a, b, normal.c + prior.intercept_precision + _RIDGE, g, h)
    gain = (u * g).sum(axis=1) + (v * h).sum(axis=1)
    moved_shift: Floats = u[:, size] if prior.shift is not None else np.zeros(len(u))
    return (u[:, :size], moved_shift, v), gain


def _blocked(values: Floats, gradient: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Where a value stands at a bound and the ascent direction points out of the box."""
    below, above = values <= low, values >= high
    if not (below.any() or above.any()):
        return below
    blocked: NDArray[np.bool_] = (below & (gradient < 0)) | (above & (gradient > 0))
    return blocked


def _second_difference(size: int) -> Floats:
    """Matrix D'D of the differences of adjacent values, [size, size]."""
    d = np.diff(np.eye(size), axis=0)
    product: Floats = d.T @ d
    return product
