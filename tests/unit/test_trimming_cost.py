"""The loss to trimming, estimated from blocks verified whole, against the loss that the simulation knows."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from acceptd.modes import Mode
from vllm_client_hook.budget import split
from vllm_client_hook.costs import CostTable
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import BudgetPolicy
from vllm_client_hook.trimming_cost import SHADOW_STEPS, UNITS, judgement, lost

K = 4


def run(seed: int, requests: int, steps: int, mode: Mode) -> tuple[float, float, float, float]:
    """(tokens lost a block by the estimate, its standard error, the true loss, blocks stood for a block there was).

    The truth is a second policy's that explores nothing: what it would not have verified and would have passed.
    """
    rng = np.random.default_rng(seed)
    scheduled = np.full(requests, K, np.int32)
    costs = CostTable(np.full(requests + 1, 0.5), 1.0 + 0.05 * np.arange(requests * (K + 1) + 1))
    policy = BudgetPolicy(10**6, costs=costs, mode=mode, exploration=Exploration(seed, share=0.05), margin=0.0)
    alone = BudgetPolicy(10**6, costs=costs, margin=0.0)
    batch = {"slots": np.arange(requests), "scheduled": scheduled, "num_positions": K}
    by_step, true, stood, evidence = np.zeros(steps), 0, 0.0, [0.0] * K
    for step in range(steps):
        # The budget sees confidences of the step before; here of the same mean.
        stale, fresh = (rng.beta(2, 1, (requests, K)).astype(np.float32) for _ in range(2))
        accepted = np.minimum.accumulate(rng.random((requests, K)) < fresh, axis=1).sum(axis=1)
        sizes = {"context_tokens": requests, "sampling_requests": requests}
        decision = policy.decide(step, stale, scheduled, evidence, **sizes)
        would = split(fresh, scheduled, alone.decide(step, stale, scheduled, evidence, **sizes).drafts)
        true += int(np.maximum(accepted - would, 0).sum())
        if decision.explored:
            for k in range(decision.explored.depth):
                evidence[k] += len(decision.explored.rows)
        budget = functools.partial(policy.alone, stale, scheduled, **sizes)
        judged = judgement(step, decision, mode, **batch, alone=budget)
        if judged is None:
            continue
        admitted = split(fresh, scheduled, decision.drafts, decision.forced)
        rows = np.flatnonzero(judged.blocks[2])
        assert (admitted[rows] == K).all()
        found = lost(fresh, scheduled, np.minimum(accepted, admitted), judged.alone)[rows]
        by_step[step] = found.sum() * judged.weight / UNITS
        stood += len(rows) * judged.weight / UNITS
    blocks = requests * steps
    return by_step.sum() / blocks, by_step.std() * steps**0.5 / blocks, true / blocks, stood / blocks


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("requests", "steps"), [(1, 20_000), (32, 4000)])
def test_blocks_that_exploration_verified_whole_tell_what_trimming_lost(seed: int, requests: int, steps: int) -> None:
    estimate, error, true, stood = run(seed, requests, steps, Mode.TRIM)
    assert true > 0.05
    assert error < 0.35 * true
    assert abs(estimate - true) < 4 * error
    assert stood == pytest.approx(1.0, abs=0.15)


def test_shadow_mode_tells_what_trimming_would_lose() -> None:
    estimate, error, true, stood = run(1, 32, 4000, Mode.SHADOW)
    assert abs(estimate - true) < 4 * error
    assert stood == 1.0


def test_loss_by_hand() -> None:
    confidences = np.array([[0.9, 0.9, 0.1], [0.5, 0.5, 0.5]], np.float32)
    # Survivals .9 .81 .081 and .5 .25 .125.
    scheduled, accepted = np.array([3, 3]), np.array([3, 2])
    found = [lost(confidences, scheduled, accepted, alone).tolist() for alone in range(7)]
    assert found == [[3, 2], [2, 2], [1, 2], [1, 1], [1, 0], [1, 0], [0, 0]]
    # What was not scheduled is no slot: the second best is then the second request's first.
    assert lost(confidences, np.array([1, 3]), np.array([1, 2]), 2).tolist() == [0, 1]


def test_steps_that_say_nothing_are_not_judged() -> None:
    scheduled = np.full(2, K, np.int32)
    batch = {"slots": np.arange(2), "scheduled": scheduled, "num_positions": K}
    confidences = np.full((2, K), 0.5, np.float32)
    sizes = {"context_tokens": 2, "sampling_requests": 2}
    costs = CostTable(np.full(3, 0.5), 1.0 + 0.05 * np.arange(11))
    for mode, limit in ((Mode.OFF, 10**6), (Mode.TRIM, 10**6), (Mode.SHADOW, 5)):
        policy = BudgetPolicy(limit, costs=costs, mode=mode)
        decision = policy.decide(SHADOW_STEPS, confidences, scheduled, [0.0] * K, **sizes)
        assert judgement(SHADOW_STEPS, decision, mode, **batch, alone=lambda: 0) is None
