"""The loss to trimming, estimated from explored rows, against the loss that the simulation knows."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_client_hook.budget import split
from vllm_client_hook.costs import CostTable
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import BudgetPolicy
from vllm_client_hook.trimming_cost import TrimmingLoss, merit

R, K = 32, 4
SCHEDULED = np.full(R, K, np.int32)
COSTS = CostTable(np.full(R + 1, 0.5), 1.0 + 0.05 * np.arange(R * (K + 1) + 1))


def run(seed: int, share: float, steps: int) -> tuple[TrimmingLoss, float]:
    """The estimate, and the true mean of accepted tokens a block that the budget alone leaves out."""
    rng = np.random.default_rng(seed)
    policy = BudgetPolicy(10**6, costs=COSTS, exploration=Exploration(seed, share=share))
    loss, true = TrimmingLoss(K), 0
    stale = np.ones((R, K), np.float32)
    for step in range(steps):
        fresh = rng.beta(2, 1, (R, K)).astype(np.float32)
        accepted = np.minimum.accumulate(rng.random((R, K)) < fresh, axis=1).sum(axis=1)
        decision = policy.decide(step, stale, SCHEDULED, [0.0] * K, context_tokens=R, sampling_requests=R)
        forced = decision.forced if decision.forced is not None else np.zeros(R, np.int32)
        admitted = split(fresh, SCHEDULED, decision.drafts, forced)
        merited = merit(fresh, SCHEDULED, admitted, forced)
        true += int(np.maximum(accepted - merited, 0).sum())
        if decision.explored:
            propensity = np.full(R, decision.explored.propensity)
            loss.add(forced, propensity, np.minimum(accepted, admitted), merited)
        stale = fresh
    return loss, true / (R * steps)


@pytest.mark.parametrize("seed", range(5))
def test_explored_rows_tell_what_trimming_lost(seed: int) -> None:
    loss, true = run(seed, share=0.05, steps=3000)
    assert true > 0.05
    assert loss.standard_error < 0.2 * true
    assert abs(loss.tokens_a_block - true) < 3 * loss.standard_error


def test_merit_by_hand() -> None:
    confidences = np.array([[0.9, 0.9, 0.1], [0.5, 0.5, 0.5], [0.8, 0.1, 0.1]], np.float32)
    scheduled = np.full(3, 3, np.int32)
    forced = np.array([3, 0, 0], np.int32)
    admitted = split(confidences, scheduled, 5, forced)
    assert admitted.tolist() == [3, 1, 1]
    assert merit(confidences, scheduled, admitted, forced).tolist() == [2, 1, 1]
    nothing_else = split(confidences, scheduled, 3, forced)
    assert merit(confidences, scheduled, nothing_else, forced).tolist() == [0, 0, 0]


def test_shadow_rows_count_exactly() -> None:
    loss = TrimmingLoss(3)
    loss.add(np.array([3, 3]), np.array([1.0, 1.0]), np.array([3, 1]), np.array([1, 1]))
    assert loss.by_position.tolist() == [0.0, 0.5, 0.5]
    assert loss.tokens_a_block == 1.0


def test_without_rows_there_is_no_number() -> None:
    assert np.isnan(TrimmingLoss(2).tokens_a_block)
