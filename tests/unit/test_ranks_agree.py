"""cases.md 14: ranks whose features differ in the last bit. One set of confidences decides, or the difference shows."""

from __future__ import annotations

import numpy as np

from vllm_client_hook.budget import digest, split
from vllm_client_hook.costs import CostTable
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import BudgetPolicy, Decision

R, K = 24, 5
SCHEDULED = np.full(R, K, np.int32)
COSTS = CostTable(np.full(R + 1, 1.0), 2.0 + 0.02 * (np.arange(R * (K + 1) + 1) // 8 * 8))


def rank() -> BudgetPolicy:
    return BudgetPolicy(10**6, costs=COSTS, exploration=Exploration(3))


def decide(subject: BudgetPolicy, step: int, confidences: np.ndarray) -> Decision:
    return subject.decide(step, confidences, SCHEDULED, [0.0] * K, context_tokens=R, sampling_requests=R)


def last_bit_off(confidences: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(confidences.shape) < 0.5, np.nextafter(confidences, np.float32(0)), confidences)


def test_with_rank_0s_confidences_both_ranks_decide_and_split_alike() -> None:
    rng = np.random.default_rng(0)
    ranks = [rank(), rank()]
    stale = np.ones((R, K), np.float32)
    for step in range(200):
        fresh = (rng.integers(1, 20, (R, K)) / 20).astype(np.float32)  # coarse: many exact ties
        decisions = [decide(subject, step, stale) for subject in ranks]
        assert decisions[0].drafts == decisions[1].drafts
        assert decisions[0].explored == decisions[1].explored
        splits = [split(fresh, SCHEDULED, d.drafts, d.forced).tolist() for d in decisions]
        assert splits[0] == splits[1]
        stale = fresh


def test_a_last_bit_can_change_a_split_and_the_digest_tells() -> None:
    rng = np.random.default_rng(1)
    fresh = np.full((R, K), 0.7, np.float32)
    other = last_bit_off(fresh, rng)
    assert split(fresh, SCHEDULED, 37).tolist() != split(other, SCHEDULED, 37).tolist()
    assert digest(fresh) != digest(other)
