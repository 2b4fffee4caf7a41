"""A bad worker does not spoil the pool, and is named; an honest one with another workload is kept."""

import numpy as np
import pytest
from fit_streams import blocks_of, close, features, log_loss, observations

from acceptd.types import prior
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import sigmoid

K, SLOPE, INTERCEPTS = 5, 0.6, [0.4, 0.2, 0.0, -0.2, -0.4]
NAMES = [f"w{i}" for i in range(8)]


def honest(rng, blocks=80):
    return blocks_of(rng, blocks, SLOPE, INTERCEPTS)


def with_inverted_labels(rng, blocks=80):
    x = features(rng, blocks, K)
    return observations(x, rng.random(x.shape) >= sigmoid(SLOPE * x + np.array(INTERCEPTS)))


def with_features_times_ten(rng, blocks=80):
    x = features(rng, blocks, K)
    return observations(x * 10, rng.random(x.shape) < sigmoid(SLOPE * x + np.array(INTERCEPTS)))


def run(last, rounds=10, seed=0, model=None):
    rng = np.random.default_rng(seed)
    model, in_force = model or PairModel(K), prior(K)
    outcomes = []
    for _ in range(rounds):
        batches = [honest(rng) for _ in NAMES[:-1]] + ([last(rng)] if last else [])
        outcome, in_force = close(model, batches, in_force, worker=NAMES)
        outcomes.append(outcome)
    return outcomes, in_force


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", [with_inverted_labels, with_features_times_ten])
def test_bad_worker_is_named_and_the_pool_stays_clean(fault, seed):
    outcomes, in_force = run(fault, seed=seed)
    _, clean = run(None, seed=seed)
    assert set(outcomes[-1].quarantined) == {"w7"}
    assert log_loss(in_force, SLOPE, INTERCEPTS)[0] <= log_loss(clean, SLOPE, INTERCEPTS)[0] * 1.01


@pytest.mark.parametrize("seed", range(5))
def test_honest_workers_are_left_alone(seed):
    outcomes, _ = run(honest, rounds=20, seed=seed)
    assert all(not outcome.quarantined for outcome in outcomes)


def test_shift_of_intercepts_is_a_notice_and_is_learned_from():
    def other_workload(rng):
        return blocks_of(rng, 80, SLOPE, [b - 1.2 for b in INTERCEPTS])

    outcomes, _ = run(other_workload)
    assert not outcomes[-1].quarantined
    assert any("w7" in notice and "set a workload label" in notice for notice in outcomes[-1].notices)
    assert outcomes[-1].blocks == 8 * 80


def test_quarantined_worker_is_released_when_it_behaves():
    model = PairModel(K)
    outcomes, _ = run(with_inverted_labels, rounds=5, model=model)
    assert "w7" in outcomes[-1].quarantined
    assert outcomes[-1].blocks == 7 * 80
    outcomes, _ = run(honest, rounds=15, seed=1, model=model)
    assert not outcomes[-1].quarantined


def test_one_worker_alone_is_never_quarantined():
    rng = np.random.default_rng(0)
    model, in_force = PairModel(K), prior(K)
    for _ in range(5):
        outcome, in_force = close(model, [with_inverted_labels(rng, 500)], in_force, worker=["only"])
    assert not outcome.quarantined
    assert in_force.line.slopes[0] == 0.0


def test_a_flood_from_one_worker_weighs_at_most_four_medians():
    rng = np.random.default_rng(0)
    model = PairModel(K)
    batches = [honest(rng, 100) for _ in range(4)] + [blocks_of(rng, 4_000, SLOPE, [b - 0.8 for b in INTERCEPTS])]
    outcome, _ = close(model, batches, prior(K), worker=NAMES[:5])
    own = sorted(int(batch.observed.sum()) for batch in batches)
    evidence = sum(outcome.coefficients[""].evidence)
    assert evidence == pytest.approx(sum(own[:4]) + 4 * own[2], rel=1e-6)


def test_records_are_bounded_and_the_longest_unheard_of_goes():
    from estimator_service.fit.workers import MAX_WORKERS, Judge, Recalibration

    judge = Judge()
    for start in range(0, MAX_WORKERS + 500, 500):
        names = tuple(f"w{i}" for i in range(start, start + 500))
        ones = np.ones(500)
        judge.judge(names, Recalibration(ones, ones, ones, ones, ones, ones, ones, ones), 1.0)
    assert len(judge.records) == MAX_WORKERS
    assert "w0" not in judge.records
    assert f"w{start + 499}" in judge.records
