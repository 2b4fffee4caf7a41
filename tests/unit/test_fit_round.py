"""The original round against a row-level reference written from its definition, and through the model."""

import numpy as np
import pytest
from fit_streams import blocks_of, close

from acceptd.types import prior
from estimator_service.fit.histogram import grade
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import sigmoid
from estimator_service.fit.round import RoundNewton
from estimator_service.fit.settings import FitSettings

K = 5


def reference(slope, intercepts, rows):
    """One round by the dense normal equations over all rows: (XᵀWX + λI) Δ = Xᵀ(y − p), then damped."""
    k = len(intercepts)
    design = np.column_stack((rows.x, np.eye(k)[rows.position]))
    p = sigmoid(slope * rows.x + intercepts[rows.position])
    hessian = design.T @ (design * (p * (1 - p))[:, None]) + 1e-3 * np.eye(1 + k)
    gradient = design.T @ (rows.accepted - p)
    n = np.bincount(rows.position, minlength=k)
    step = np.linalg.solve(hessian, gradient)[0] * n.sum() / (n.sum() + 50)
    step = step if slope + step >= 0 else 0.0
    move = (gradient[1:] - hessian[1:, 0] * step) / np.diag(hessian)[1:] * n / (n + 50)
    return slope + step, intercepts + move


@pytest.mark.parametrize("blocks", [20, 640])
def test_ten_refits_equal_the_dense_reference(blocks):
    rng = np.random.default_rng(0)
    state, slope, intercepts = RoundNewton.initial(K), 0.5, np.full(K, -0.2)
    for _ in range(10):
        rows = grade(blocks_of(rng, blocks, 0.7, [0.4, 0.1, 0.0, -0.3, -0.6]), K)
        state.add(rows.position, rows.x, rows.accepted)
        state.step()
        slope, intercepts = reference(slope, intercepts, rows)
        assert state.slope == pytest.approx(slope, abs=1e-9)
        assert state.intercepts == pytest.approx(intercepts, abs=1e-9)


def test_the_model_publishes_the_same_numbers():
    rng = np.random.default_rng(1)
    model, in_force = PairModel(K, FitSettings(method="round")), prior(K)
    slope, intercepts = 0.5, np.full(K, -0.2)
    for _ in range(10):
        rows = blocks_of(rng, 640, 0.7, [0.4, 0.1, 0.0, -0.3, -0.6])
        outcome, in_force = close(model, [rows], in_force)
        slope, intercepts = reference(slope, intercepts, grade(rows, K))
        assert outcome.link == "round"
        assert in_force.line.slopes == pytest.approx((slope,), abs=1e-5)
        assert in_force.line.intercepts == pytest.approx(tuple(intercepts), abs=1e-5)


def test_a_step_below_zero_is_dropped():
    rng = np.random.default_rng(2)
    state = RoundNewton.initial(K)
    x = rng.normal(0, 3, 2_000)
    state.add(rng.integers(0, K, 2_000), x, (x < 0).astype(float))
    state.step()
    assert state.slope == 0.5


def test_a_round_without_rows_moves_nothing():
    state = RoundNewton.initial(K)
    state.step()
    assert (state.slope, state.intercepts.tolist()) == (0.5, [-0.2] * K)
