"""Logistic regression without a prior on binned labels: the production Newton, and what it says about its own error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from estimator_service.fit import likelihood, newton

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Regression:
    """logit P = slope·value + intercept of the position, for each of S groups.

    slope: float64[S]. intercepts: float64[S, K], NaN at positions without labels. covariance: float64[S, 1 + K, 1 + K],
    the inverse information, slope first, NaN where the intercept is. log_loss: float64[S], nats an observation.
    """

    slope: NDArray[np.float64]
    intercepts: NDArray[np.float64]
    covariance: NDArray[np.float64]
    log_loss: NDArray[np.float64]


def regress(cells: likelihood.Cells) -> Regression:
    """The maximum-likelihood fit within the bounds of `fit.newton` (slopes 0 to MAX_SLOPE)."""
    groups, positions, _ = cells.n.shape
    start = likelihood.Point(np.full((groups, 1), 0.5), np.zeros((groups, positions)))
    none = newton.Prior.about(start, slope=0.0, intercept=0.0)
    point = newton.fit(cells, none, start)
    normal = likelihood.normal_equations(cells, point)
    labelled = cells.n.sum(axis=2) > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        log_loss = normal.loss / cells.total
    return Regression(
        point.slopes[:, 0],
        np.where(labelled, point.intercepts, np.nan),
        np.stack([_inverse(normal, s, labelled[s]) for s in range(groups)]),
        log_loss,
    )


def _inverse(normal: likelihood.Normal, group: int, labelled: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The arrowhead's inverse over the positions with labels, NaN elsewhere. float64[1 + K, 1 + K]."""
    size = 1 + len(labelled)
    information = np.zeros((size, size))
    information[0, 0] = normal.a[group, 0, 0]
    information[0, 1:] = information[1:, 0] = normal.b[group, :, 0]
    information[np.arange(1, size), np.arange(1, size)] = normal.c[group]
    kept = np.flatnonzero(np.concatenate(([True], labelled)))
    inverse = np.full((size, size), np.nan)
    inverse[np.ix_(kept, kept)] = np.linalg.pinv(information[np.ix_(kept, kept)])
    return inverse
