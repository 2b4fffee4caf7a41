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

#: Converged when a full step would lower the loss (nats, summed) by less than this share of it. 1e-9 leaves
#: coefficients within about 1e-5 of the optimum.
TOLERANCE: Final = 1e-9


@dataclass(frozen=True)
class Cells:
    """Binned rows of S segments. n, accepted, x: float64[S, K, B]; x is the mean in the bin, 0 where n is 0.

    pieces: int64[P], first bin of each piece (pieces[0] = 0). knots: float64[P − 1], nats.
    """

    n: Floats
    accepted: Floats
    x: Floats
    pieces: NDArray[np.int64]
    knots: Floats

    @staticmethod
    def of(n: Floats, accepted: Floats, sum_x: Floats, knots: tuple[float, ...] = ()) -> Cells:
        """From sums over the protocol's bins, [S, K, NUM_BINS]; bins outside the data's range are cut off."""
        used = np.flatnonzero(n.reshape(-1, n.shape[-1]).any(axis=0))
        low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        n, accepted, sum_x = n[..., low:high], accepted[..., low:high], sum_x[..., low:high]
        x = np.divide(sum_x, n, out=np.zeros_like(sum_x), where=n > 0)
        starts = np.searchsorted(np.asarray(EDGES), np.asarray(knots, np.float64)) - low
        pieces = np.concatenate(([0], np.clip(starts, 0, high - low))).astype(np.int64)
        return Cells(n, accepted, x, pieces, np.asarray(knots, np.float64))

    @property
    def total(self) -> Floats:
        """float64[S]: observations."""
        total: Floats = self.n.sum(axis=(1, 2))
        return total


@dataclass(frozen=True)
class Prior:
    """Independent normal priors. slopes, intercepts: means [S, P], [S, K]; the others their precisions (1/variance).

    smoothness: precision of the difference of adjacent piece slopes.
    """

    slopes: Floats
    slope_precision: Floats
    intercepts: Floats
    intercept_precision: Floats
    smoothness: float = 0.0


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
    if len(cells.pieces) == 1:
        return point.slopes[:, :, None] * cells.x + point.intercepts[:, :, None]
    bins = cells.n.shape[-1]
    piece = np.searchsorted(cells.pieces[1:], np.arange(bins), side="right")
    # Change of slope at each knot times the knot, summed: where each piece's line meets x = 0.
    offsets = np.zeros_like(point.slopes)
    offsets[:, 1:] = -np.cumsum(np.diff(point.slopes, axis=1) * cells.knots, axis=1)
    eta = point.slopes[:, None, piece] * cells.x
    eta += offsets[:, None, piece]
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
    if len(cells.pieces) == 1:
        total: Floats = values.sum(axis=2, keepdims=True)
        return total
    running = np.zeros((*values.shape[:2], values.shape[2] + 1))
    np.cumsum(values, axis=2, out=running[:, :, 1:])
    ends = np.append(cells.pieces[1:], values.shape[2])
    sums: Floats = running[:, :, ends] - running[:, :, cells.pieces]
    return sums


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


def _penalty(prior: Prior, point: Point) -> Floats:
    total: Floats = 0.5 * (prior.slope_precision * (point.slopes - prior.slopes) ** 2).sum(axis=1)
    total += 0.5 * (prior.intercept_precision * (point.intercepts - prior.intercepts) ** 2).sum(axis=1)
    if prior.smoothness:
        total += 0.5 * prior.smoothness * (np.diff(point.slopes, axis=1) ** 2).sum(axis=1)
    return total


#: Added to every diagonal: keeps a system without data or prior solvable. Far below one observation's information.
_RIDGE: Final = 1e-9


def fit(cells: Cells, prior: Prior, start: Point) -> Point:
    """The posterior mode within the bounds, float64. Finite for any counts: the last point that improved is returned.

    Slopes stay in [0, MAX_SLOPE], intercepts in ±MAX_INTERCEPT. Where one binds, the others are solved given it.
    """
    point = Point(
        np.clip(start.slopes, 0.0, MAX_SLOPE),
        np.clip(start.intercepts, -MAX_INTERCEPT, MAX_INTERCEPT),
    )
    size = point.slopes.shape[1]
    smooth = _second_difference(size) * prior.smoothness
    index = np.arange(size)
    normal = normal_equations(cells, point)
    value = normal.loss + _penalty(prior, point)
    for _ in range(MAX_STEPS):
        g = normal.slope_gradient - prior.slope_precision * (point.slopes - prior.slopes)
        if prior.smoothness:
            g = g - point.slopes @ smooth
        h = normal.intercept_gradient - prior.intercept_precision * (point.intercepts - prior.intercepts)
        fixed_slope = _blocked(point.slopes, g, 0.0, MAX_SLOPE)
        fixed_intercept = _blocked(point.intercepts, h, -MAX_INTERCEPT, MAX_INTERCEPT)
        a = normal.a + smooth
        a[:, index, index] += prior.slope_precision + _RIDGE
        b = normal.b
        if fixed_slope.any() or fixed_intercept.any():
            g, h = np.where(fixed_slope, 0.0, g), np.where(fixed_intercept, 0.0, h)
            b = np.where(fixed_slope[:, None, :] | fixed_intercept[:, :, None], 0.0, b)
            a = np.where(fixed_slope[:, :, None] | fixed_slope[:, None, :], 0.0, a)
            a[:, index, index] += fixed_slope
        u, v = solve_arrowhead(a, b, normal.c + prior.intercept_precision + _RIDGE, g, h)
        gain = (u * g).sum(axis=1) + (v * h).sum(axis=1)
        if not np.any(gain > TOLERANCE * (1.0 + value)):
            break
        scale = np.ones(len(value))
        for _ in range(MAX_HALVINGS):
            trial = Point(
                np.clip(point.slopes + scale[:, None] * u, 0.0, MAX_SLOPE),
                np.clip(point.intercepts + scale[:, None] * v, -MAX_INTERCEPT, MAX_INTERCEPT),
            )
            trial_normal = normal_equations(cells, trial)
            trial_value = trial_normal.loss + _penalty(prior, trial)
            # `not <=` rather than `>`: a NaN counts as worse.
            worse = ~(trial_value <= value + TOLERANCE * (1.0 + value))
            if not worse.any():
                break
            scale = np.where(worse, scale * 0.5, scale)
        else:
            scale = np.where(worse, 0.0, scale)
            if not scale.any():
                break
            trial = Point(
                np.where(worse[:, None], point.slopes, trial.slopes),
                np.where(worse[:, None], point.intercepts, trial.intercepts),
            )
            trial_normal = normal_equations(cells, trial)
            trial_value = trial_normal.loss + _penalty(prior, trial)
        point, normal, value = trial, trial_normal, trial_value
    return point


def _blocked(values: Floats, gradient: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Where a value stands at a bound and the ascent direction points out of the box."""
    blocked: NDArray[np.bool_] = ((values <= low) & (gradient < 0)) | ((values >= high) & (gradient > 0))
    return blocked


def _second_difference(size: int) -> Floats:
    """Matrix D'D of the differences of adjacent values, [size, size]."""
    d = np.diff(np.eye(size), axis=0)
    product: Floats = d.T @ d
    return product
