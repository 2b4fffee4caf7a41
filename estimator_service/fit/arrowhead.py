"""Linear systems whose matrix is an arrowhead: a few unknowns tied to all, and many tied to those few alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def solve_arrowhead(
    a: Floats, b: Floats, c: Floats, g: Floats, h: Floats, *, tie: tuple[Floats, Floats | float] | None = None
) -> tuple[Floats, Floats]:
    """Solve [[a, bᵀ], [b, C]] (u, v) = (g, h) for each of S systems: O(P³ + K·P²).

    C = diag c, or diag c − t tᵀ/d with tie = (t, d). a: [S, P, P], b: [S, K, P], c, t: [S, K], g: [S, P], h: [S, K],
    d: [S] or one for all → u [S, P], v [S, K]. c > 0, Σ t²/c < d.
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
