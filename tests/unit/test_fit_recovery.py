"""Known coefficients come back within their stated errors."""

import numpy as np
import pytest
from fit_streams import blocks_of

from acceptd.codec import Observations
from acceptd.types import prior
from estimator_service.fit.model import PairModel
from estimator_service.fit.settings import FitSettings

K = 4

#: Maximum likelihood on everything seen.
PLAIN = FitSettings(
    method="line",
    half_life_observations=float("inf"),
    recent_half_life_observations=float("inf"),
    slope_deviation=float("inf"),
    intercept_deviation=float("inf"),
    neighbour_deviation=float("inf"),
)


def distances(seed, copies=1):
    """(fitted - true) / standard error of slope and intercepts. Each block is sent `copies` times, in one batch."""
    rng = np.random.default_rng(seed)
    slope, intercepts = rng.uniform(0.44, 0.83), rng.uniform(-1.0, 0.6, K)
    model = PairModel(K, PLAIN)
    for _ in range(25):
        rows = blocks_of(rng, 100 // copies, slope, intercepts)
        model.observe(repeated(rows, copies), used=prior(K))
    outcome = model.close_round(0.0)
    line = outcome.coefficients[""].line
    return (np.array((line.slopes[0] - slope, *(np.array(line.intercepts) - intercepts)))) / outcome.standard_errors


def repeated(rows, copies):
    starts = np.concatenate(([0], np.cumsum(rows.observed)))
    order = np.tile(np.arange(len(rows)), copies)
    features = np.concatenate([rows.features[starts[i] : starts[i + 1]] for i in order])
    return Observations(
        rows.accepted[order],
        rows.admitted[order],
        features,
        rows.segments[order],
        rows.explored[order],
        rows.propensities[order],
    )


@pytest.fixture(scope="module")
def independent():
    return np.array([distances(seed) for seed in range(200)])


def test_independent_rows_are_covered(independent):
    assert (np.abs(independent) <= 3).mean() >= 0.99


def test_errors_of_independent_rows_are_not_too_wide(independent):
    assert np.std(independent) == pytest.approx(1.0, abs=0.2)


def test_correlated_rows_are_covered():
    within = np.abs(np.array([distances(seed, copies=10) for seed in range(100)])) <= 3
    assert within.mean() >= 0.99
