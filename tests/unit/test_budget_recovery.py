"""cases.md 23: after a cold spell the budget recovers within one round of good data, fit and policy together."""

from __future__ import annotations

import numpy as np

from acceptd.codec import Observations
from acceptd.segments import Segment
from acceptd.types import Coefficients, prior
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import Predictor, sigmoid
from vllm_client_hook.costs import CostTable
from vllm_client_hook.policy import BudgetPolicy

R, K, ROUND = 64, 5, 640
COSTS = CostTable(np.full(R + 1, 1.0), 4.0 + 0.1 * np.arange(R * (K + 1) + 1))


def graded(rng: np.random.Generator, share: float) -> Observations:
    """A round of blocks whose tokens pass with `share` of their usual probability."""
    x = rng.normal(1.5, 1.5, (ROUND, K)).astype(np.float32)
    accepted = np.minimum.accumulate(rng.random((ROUND, K)) < share * sigmoid(0.6 * x + 0.3), axis=1).sum(axis=1)
    observed = np.arange(K) < np.minimum(accepted + 1, K)[:, None]
    whole = np.full(ROUND, K, np.uint8)
    segments = np.full(ROUND, Segment.HIGH, np.uint8)
    return Observations(accepted.astype(np.uint8), whole, x[observed], segments, whole, np.ones(ROUND, np.float32))


def budget(policy: BudgetPolicy, coefficients: Coefficients, rng: np.random.Generator) -> int:
    x = rng.normal(1.5, 1.5, R * K)
    log_odds = Predictor.of(coefficients).log_odds(np.full(R * K, int(Segment.HIGH)), np.tile(np.arange(K), R), x)
    confidences = sigmoid(log_odds).reshape(R, K).astype(np.float32)
    scheduled = np.full(R, K, np.int32)
    return policy.decide(0, confidences, scheduled, [0.0] * K, context_tokens=R, sampling_requests=R).drafts


def test_the_budget_recovers_within_one_round_of_good_data() -> None:
    rng = np.random.default_rng(0)
    model, policy = PairModel(K), BudgetPolicy(10**6, costs=COSTS)
    in_force = prior(K)
    budgets = []
    for share in [1.0] * 5 + [0.02] * 20 + [1.0]:
        model.observe(graded(rng, share), used=in_force)
        outcome = model.close_round(1.0, in_force={"": in_force})
        if outcome.held is None:
            in_force = outcome.coefficients[""]
        budgets.append(budget(policy, in_force, rng))
    warm, cold, after = budgets[4], budgets[5:25], budgets[25]
    assert set(cold) == {0}
    assert after > 0.9 * warm > 0
