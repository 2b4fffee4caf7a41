"""The published straight line: its standard errors, and the one that stands in where it fails the newest round."""

from __future__ import annotations

from typing import Final

import numpy as np

from estimator_service.fit.dispersion import sandwich_errors
from estimator_service.fit.forms import LINE, Points, to_coefficients
from estimator_service.fit.guard import MIN_COMPARED, Sample, first_adequate
from estimator_service.fit.hierarchy import RECENT, fit_line, line_precision
from estimator_service.fit.histogram import Floats
from estimator_service.fit.likelihood import Cells, Point
from estimator_service.fit.settings import FitSettings
from estimator_service.fit.windows import Windows

#: Priors a hundredth as strong: enough to keep a fit to one round finite.
_LOOSE: Final = FitSettings(slope_deviation=20.0, intercept_deviation=100.0, neighbour_deviation=30.0)


def adequate_line(points: Points, sample: Sample, newest: Floats, settings: FitSettings) -> Point:
    """The fitted line, or one that follows the newest round alone where it is worse than that round's own rate.

    newest: sums of the round over all segments, float64[3, 1, K, NUM_BINS].
    """
    if sample.total < MIN_COMPARED:
        return points.line
    cells = Cells.of(newest)
    zeros = np.zeros(newest.shape[2])
    return first_adequate(
        sample,
        (
            lambda: points.line,
            lambda: fit_line(cells, settings)[0],
            lambda: fit_line(cells, _LOOSE)[0],
        ),
        lambda point: to_coefficients(Points(point, points.information), LINE, zeros),
    )


def line_errors(base: Points, points: Points, windows: Windows, settings: FitSettings) -> Floats:
    """Standard errors [1 + K], slope first: of the long fit `base`, and of what the recent window moved to `points`.

    The prior counts as one noisy observation, so that a position without labels has the prior's deviation, not 0.
    """
    size = 1 + windows.num_positions
    prior = line_precision(windows.num_positions, settings)
    information, variance = base.information.copy(), windows.dispersion.variance()
    for matrix in (information, variance):
        matrix.flat[:: size + 1] += prior
    errors = sandwich_errors(information, variance)
    if points is base:
        return errors
    own = np.full(size, RECENT.intercept**-2)
    own[0] = RECENT.slope**-2
    recent, information = points.information.diagonal(), points.information.copy()
    information.flat[:: size + 1] += own
    moved = sandwich_errors(information, windows.recent_dispersion.variance())
    combined: Floats = own / (recent + own) * errors + moved
    return combined
