"""Trimmed traffic with hidden difficulty: the bias of a fit on admitted rows, and its repair from explored ones."""

import numpy as np
import pytest
from fit_streams import observations

from acceptd.types import prior
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import sigmoid
from estimator_service.fit.settings import FitSettings

K, SLOPE, LEVEL = 4, 0.5, 0.3

#: Bias, not noise, is what these tests are about.
LONG = FitSettings(method="line", half_life_observations=1e6, recent_half_life_observations=1e6)


def traffic(rng, blocks, in_force, *, trim, explore):
    """Blocks of requests whose difficulty shows in the first x alone. Trimming admits while survival stays above .5."""
    difficulty = rng.normal(0, 1, (blocks, 1))
    x = 1.5 + rng.normal(0, 1, (blocks, K))
    x[:, :1] += 1.5 * difficulty
    log_odds = SLOPE * x + LEVEL
    log_odds[:, 1:] += difficulty
    passed = rng.random(x.shape) < sigmoid(log_odds)
    if not trim:
        full = np.full(blocks, K)
        return observations(x, passed, explored=full, propensities=np.ones(blocks)), x, passed
    line = in_force.line
    survival = np.cumprod(sigmoid(line.slopes[0] * x + np.array(line.intercepts)), axis=1)
    budget = np.maximum(np.cumprod(survival > 0.5, axis=1).sum(axis=1), 1)
    drawn = rng.random(blocks) < explore
    admitted = np.where(drawn, K, budget)
    rows = observations(
        x,
        passed,
        admitted=admitted,
        explored=np.where(drawn, K, 0),
        propensities=np.where(drawn, explore, 0.0),
    )
    return rows, x, passed


def gap_of_deep_positions(coefficients, seed=77):
    """Mean predicted minus observed acceptance at positions 2 and 3, over all blocks that reach them untrimmed."""
    rng = np.random.default_rng(seed)
    _, x, passed = traffic(rng, 60_000, coefficients, trim=False, explore=0.0)
    reached = np.cumprod(np.concatenate((np.ones((len(x), 1)), passed[:, :-1]), axis=1), axis=1).astype(bool)
    confidence = sigmoid(coefficients.line.slopes[0] * x + np.array(coefficients.line.intercepts))
    return [float((confidence - passed)[:, k][reached[:, k]].mean()) for k in (2, 3)]


def fitted(*, trim, explore, forget_flags=False):
    rng = np.random.default_rng(3)
    model, in_force = PairModel(K, LONG), prior(K)
    for _ in range(25):
        rows, _, _ = traffic(rng, 4_000, in_force, trim=trim, explore=explore)
        if forget_flags:
            rows = observations_without_flags(rows)
        model.observe(rows, used=in_force)
        outcome = model.close_round(0.0, in_force={"": in_force})
        in_force = outcome.coefficients[""] if outcome.held is None else in_force
    return in_force, outcome


def observations_without_flags(rows):
    from dataclasses import replace

    return replace(rows, explored=np.zeros_like(rows.explored), propensities=np.zeros_like(rows.propensities))


def test_untrimmed_traffic_is_calibrated():
    in_force, _ = fitted(trim=False, explore=0.0)
    assert np.abs(gap_of_deep_positions(in_force)).max() < 0.015


def test_trimmed_traffic_is_overrated_without_the_flags_and_repaired_with_them():
    biased, _ = fitted(trim=True, explore=0.1, forget_flags=True)
    repaired, outcome = fitted(trim=True, explore=0.1)
    before, after = gap_of_deep_positions(biased), gap_of_deep_positions(repaired)
    assert min(before) > 0.03
    assert np.abs(after).max() < 0.02
    assert outcome.unbiased is not None


def test_calibration_on_explored_rows_shows_the_bias():
    biased, _ = fitted(trim=True, explore=0.1, forget_flags=True)
    rng = np.random.default_rng(4)
    model = PairModel(K)
    for _ in range(10):
        rows, _, _ = traffic(rng, 8_000, biased, trim=True, explore=0.2)
        model.observe(rows, used=biased)
    found = model.close_round(0.0)
    assert found.unbiased.gap_by_position[2] == pytest.approx(gap_of_deep_positions(biased)[0], abs=0.02)
    assert found.unbiased.gap_by_position[2] > 0.03
    assert abs(found.calibration.gap_by_position[2]) < 0.02


def test_propensities_weigh_workers_that_explore_differently():
    rng = np.random.default_rng(5)
    model = PairModel(K)
    used = prior(K)
    total = 0
    for explore in (0.02, 0.2):
        rows, _, _ = traffic(rng, 4_000, used, trim=True, explore=explore)
        model.observe(rows, used=used)
        total += 4_000
    # Each worker's explored rows stand for all of its blocks, so their weights at position 0 add up to them.
    unbiased = model.close_round(0.0).unbiased
    assert unbiased.observations >= total * 0.7
