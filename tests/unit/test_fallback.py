"""The worker's own round: vLLM's step where that is sane, bounded where it is not."""

import numpy as np
import pytest

from acceptd.limits import MAX_SLOPE
from acceptd.types import Coefficients, SegmentCoefficients, Version, prior
from vllm_client_hook.block import from_coefficients
from vllm_client_hook.fallback import MAX_ROWS, LocalRound
from vllm_client_hook.rows import HEADER_WORDS, Rows, record_words

K = 3


def rows_of(x, accepted, admitted, segments=0):
    records = np.zeros((len(x), record_words(x.shape[1], full=False)), np.int32)
    records[:, 0] = accepted | (admitted << 8) | (np.asarray(segments) << 16)
    observed = np.arange(x.shape[1]) < np.minimum(accepted + 1, admitted)[:, None]
    records[:, HEADER_WORDS:] = np.where(observed, x, 0).astype(np.float32).view(np.int32)
    return Rows(records, x.shape[1], {0: None}, np.zeros(40, np.int64))


def draw(rng, count, x, slope, intercepts):
    p = 1 / (1 + np.exp(-(slope * x + intercepts)))
    passed = np.cumprod(rng.random(x.shape) < p, axis=1)
    return passed.sum(axis=1).astype(np.int64), np.full(count, x.shape[1])


def learn(local, x, accepted, admitted, segments=0):
    for start in range(0, len(x), 100):
        part = slice(start, start + 100)
        chosen = segments if np.isscalar(segments) else segments[part]
        local.learn(rows_of(x[part], accepted[part], admitted[part], chosen))


def test_one_round_is_one_damped_newton_step_of_the_whole_system():
    rng = np.random.default_rng(0)
    x = rng.normal(1, 1.5, (600, K))
    accepted, admitted = draw(rng, 600, x, 0.7, np.array([0.1, 0.0, -0.3]))
    local = LocalRound()
    learn(local, x, accepted, admitted)
    got = local.refit(from_coefficients(prior(K)))
    # The same step from the full matrix, row by row.
    hessian, gradient, n = np.eye(K + 1) * 1e-3, np.zeros(K + 1), np.zeros(K)
    for i in range(600):
        for k in range(min(accepted[i] + 1, admitted[i])):
            row = np.zeros(K + 1)
            row[0], row[1 + k] = np.float32(x[i, k]), 1
            p = 1 / (1 + np.exp(-(0.5 * row[0] + np.float32(-0.2))))
            hessian += p * (1 - p) * np.outer(row, row)
            gradient += (float(k < accepted[i]) - p) * row
            n[k] += 1
    step = np.linalg.solve(hessian, gradient)[0] * n.sum() / (n.sum() + 50)
    intercepts = (gradient[1:] - hessian[0, 1:] * step) / np.diag(hessian)[1:] * n / (n + 50)
    assert got.slopes[0, 0] == pytest.approx(0.5 + step, abs=1e-5)
    assert got.intercepts[0].tolist() == pytest.approx((-0.2 + intercepts).tolist(), abs=1e-5)


def test_rounds_approach_the_truth():
    rng = np.random.default_rng(1)
    truth, local, block = (0.62, np.array([0.4, 0.0, -0.5])), LocalRound(), from_coefficients(prior(K))
    for _ in range(30):
        x = rng.normal(1, 1.5, (1000, K))
        learn(local, x, *draw(rng, 1000, x, *truth))
        block = local.refit(block) or block
    assert block.slopes[0, 0] == pytest.approx(truth[0], abs=0.1)
    assert block.intercepts[0].tolist() == pytest.approx(truth[1].tolist(), abs=0.25)


def saturated(rng, count):
    return np.full((count, K), 40.0)


def cold(rng, count):
    return rng.normal(50, 10, (count, K)).clip(-40, 40)


def mixed(rng, count):
    return np.where(rng.random((count, 1)) < 0.5, rng.normal(1, 1, (count, K)), 40.0)


@pytest.mark.parametrize("features", [saturated, cold, mixed])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_inputs_that_run_away_elsewhere_stay_bounded(features, rate):
    rng = np.random.default_rng(2)
    local, block = LocalRound(), from_coefficients(prior(K))
    for _ in range(20):
        x = features(rng, 400)
        accepted = np.cumprod(rng.random(x.shape) < rate, axis=1).sum(axis=1)
        learn(local, x, accepted, np.full(400, K))
        block = local.refit(block) or block
        assert np.isfinite(block.slopes).all()
        assert 0 <= block.slopes[:, 0].min() <= block.slopes[:, 0].max() <= MAX_SLOPE
        assert np.abs(block.intercepts).max() <= 12


def test_a_round_never_raises_the_log_loss_of_its_rows():
    rng = np.random.default_rng(3)
    block = from_coefficients(prior(K))
    for seed in range(50):
        x = rng.normal(rng.uniform(-5, 30), rng.uniform(0.1, 20), (60, K)).clip(-40, 40)
        accepted = rng.integers(0, K + 1, 60)
        local = LocalRound()
        learn(local, x, accepted, np.full(60, K))
        moved = local.refit(block)
        if moved is None:
            continue
        observed = np.arange(K) < np.minimum(accepted + 1, K)[:, None]
        label = np.arange(K) < accepted[:, None]

        def loss(b, x=x, observed=observed, label=label):
            z = b.log_odds(x.astype(np.float32), np.zeros(60, np.uint8)).astype(np.float64)
            return (np.logaddexp(0, z) - label * z)[observed].sum()

        assert loss(moved) <= loss(block) + 1e-4, seed


def test_a_link_with_segments_keeps_its_shape():
    parts = {1: SegmentCoefficients((0.25, 0.5), (0.0,) * K), 3: SegmentCoefficients((0.75, -0.5), (1.0,) * K)}
    base = from_coefficients(Coefficients(Version(1, 1), SegmentCoefficients((0.5,), (0.0,) * K), (2.0,), parts))
    rng = np.random.default_rng(4)
    x = rng.normal(1, 2, (500, K))
    local = LocalRound()
    learn(local, x, *draw(rng, 500, x, 0.5, np.full(K, 1.5)), rng.choice([1, 3], 500))
    moved = local.refit(base)
    assert np.array_equal(moved.slopes[:, 1:], base.slopes[:, 1:])
    shift = moved.slopes[:, 0] - base.slopes[:, 0]
    assert shift.tolist() == pytest.approx([float(shift[0])] * len(shift), abs=1e-6)
    pieces = np.cumsum(moved.slopes, axis=1)
    assert pieces.min() >= -1e-6
    assert pieces.max() <= MAX_SLOPE


def test_memory_of_a_round_is_bounded_and_an_empty_round_changes_nothing():
    local = LocalRound()
    assert local.refit(from_coefficients(prior(K))) is None
    for _ in range(100):
        local.learn(rows_of(np.zeros((300, K)), np.zeros(300, np.int64), np.full(300, K)))
    assert len(local) == MAX_ROWS
