"""The whole policy over sampled speculative decoding: what comes out is distributed as the target's own text.

Target and draft are Markov chains, so each emitted token must follow the target's row of the token before it. Budget,
split, exploration and mode switches are the worker's own code; confidences depend on the prefix through q_max.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from acceptd.modes import Mode
from vllm_client_hook.budget import split
from vllm_client_hook.costs import CostTable
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import BudgetPolicy

V, K, R, STEPS = 4, 3, 48, 300
SCHEDULED = np.full(R, K, np.int32)
COSTS = CostTable(np.full(R + 1, 0.3), 1.0 + 0.04 * (np.arange(R * (K + 1) + 1) // 8 * 8))

Score = Callable[[Any, Any], Any]


def q_max(row: Any, token: Any) -> Any:
    """A function of the prefix: the draft's distribution, not what was drawn from it."""
    return row.max(axis=1)


def q_sampled(row: Any, token: Any) -> Any:
    """Peeks: the probability of the very token that was drawn."""
    return row[np.arange(len(row)), token]


def drawn(rng: np.random.Generator, rows: Any) -> Any:
    """One token of each row's distribution."""
    return (rng.random((len(rows), 1)) > rows.cumsum(axis=1)).sum(axis=1).clip(0, V - 1)


def transitions(seed: int, score: Score) -> tuple[Any, Any]:
    """Counts int[V, V] of emitted pairs (token before, token), and the target's matrix."""
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.full(V, 0.7), V), rng.dirichlet(np.full(V, 0.7), V)
    policy = BudgetPolicy(10**6, costs=COSTS, exploration=Exploration(seed, share=0.05, max_gap=5))
    counts = np.zeros((V, V), np.int64)
    last = rng.integers(0, V, R)
    stale = np.ones((R, K), np.float32)
    for step in range(STEPS):
        policy.mode = (Mode.TRIM, Mode.TRIM, Mode.TRIM, Mode.SHADOW, Mode.OFF)[step // 20 % 5]
        tokens, confidences = np.zeros((R, K), np.int64), np.zeros((R, K), np.float32)
        prefix = last
        for k in range(K):
            tokens[:, k] = drawn(rng, draft[prefix])
            confidences[:, k] = score(draft[prefix], tokens[:, k])
            prefix = tokens[:, k]
        decision = policy.decide(step, stale, SCHEDULED, [0.0] * K, context_tokens=R, sampling_requests=R)
        admitted = split(confidences, SCHEDULED, decision.drafts, decision.forced)
        last = verify(rng, target, draft, last, tokens, admitted, counts)
        stale = confidences
    return counts, target


def verify(
    rng: np.random.Generator, target: Any, draft: Any, last: Any, tokens: Any, admitted: Any, counts: Any
) -> Any:
    """The standard per-token rejection test on the admitted tokens; counts what is emitted, returns the last ones."""
    alive = np.ones(R, bool)
    for k in range(K + 1):
        p, q = target[last], draft[last]
        tried = alive & (admitted > k)
        token = tokens[:, min(k, K - 1)]
        rows = np.arange(R)
        passes = tried & (rng.random(R) * q[rows, token] < p[rows, token])
        residual = np.where(tried[:, None], np.maximum(p - q, 0), p)
        emitted = np.where(passes, token, drawn(rng, residual / residual.sum(axis=1, keepdims=True)))
        np.add.at(counts, (last[alive], emitted[alive]), 1)
        last = np.where(alive, emitted, last)
        alive = passes
    return last


def p_value(counts: Any, target: Any) -> float:
    expected = counts.sum(axis=1, keepdims=True) * target
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(chi2.sf(statistic, V * (V - 1)))


@pytest.mark.parametrize("seed", range(20))
def test_the_output_follows_the_target(seed: int) -> None:
    assert p_value(*transitions(seed, q_max)) > 1e-3


def test_a_policy_that_peeks_at_the_drawn_token_fails_the_same_test() -> None:
    """For most chains: in some, draft and target agree so far that little is left to bias."""
    assert sum(p_value(*transitions(seed, q_sampled)) > 1e-3 for seed in range(20)) < 10
