"""The likelihood of binned rows: log-odds, log-loss, and the normal equations of one pass over the bins.

    logit P = g(x) + β_k,   g'(x) = slope of the piece x lies in,   P = 1 + J pieces

The design is an arrowhead: P slopes shared by all positions, one intercept each. In terms of the *piece slopes* the
basis is ψ_0 = min(x, κ_1), ψ_p = clip(x − κ_p, 0, κ_{p+1} − κ_p), so bounds on slopes are a box, and since knots lie on
bin edges, Hessian and gradient follow from sums over each piece (of w, w·x, w·x² and of the residuals).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import EDGES

Floats = NDArray[np.float64]

#: Log-odds below its negative count as that, so that their odds are finite. Within the bounds, |x| <= 40 gives 172.
_LARGEST: Final = 700.0

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
        x = np.divide(sum_x, n, out=np.zeros_like(sum_x), where=n > 0)
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
    eta, odds = _log_odds(cells, point)
    return _losses(cells, eta, odds)


def _log_odds(cells: Cells, point: Point) -> tuple[Floats, Floats]:
    """η, and the odds of a rejection, exp(−η): float64[S, K, B] each."""
    eta = linear_predictor(cells, point)
    np.maximum(eta, -_LARGEST, out=eta)
    odds = -eta
    return eta, np.exp(odds, out=odds)


def _losses(cells: Cells, eta: Floats, odds: Floats) -> Floats:
    """−log P is log1p(odds) for what was accepted, and η more for what was rejected. float64[S]."""
    total: Floats = (np.vecdot(cells.n, np.log1p(odds)) + np.vecdot(cells.n - cells.accepted, eta)).sum(axis=1)
    return total


def normal_equations(cells: Cells, point: Point) -> Normal:
    """One pass over the bins; see `Normal`."""
    eta, odds = _log_odds(cells, point)
    p = 1.0 / (1.0 + odds)
    expected = cells.n * p
    weight = odds * p
    weight *= expected
    residual = cells.accepted - expected
    total = _losses(cells, eta, odds)
    weight_x = weight * cells.x
    if len(cells.knots) == 0:
        segments, positions, bins = cells.x.shape
        flat = segments, positions * bins
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
