"""The policy around the argmax: modes, limits, steadiness, recovery, totals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from acceptd.modes import Mode
from vllm_client_hook.costs import CostTable
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import BudgetPolicy, Decision

R, K = 16, 4
SCHEDULED = np.full(R, K, np.int32)
COSTS = CostTable(np.full(R + 1, 1.0), 2.0 + 0.05 * np.arange(200))


def policy(**overrides: Any) -> BudgetPolicy:
    return BudgetPolicy(**({"max_total_logits": 10**6, "costs": COSTS} | overrides))


def decide(subject: BudgetPolicy, level: float, step: int = 0) -> Decision:
    confidences = np.full((R, K), level, np.float32)
    return subject.decide(step, confidences, SCHEDULED, [0.0] * K, context_tokens=R, sampling_requests=R)


def test_trim_verifies_what_pays_and_reports_what_it_saves() -> None:
    subject = policy()
    decision = decide(subject, 0.3)
    assert 0 <= decision.drafts < R * K
    assert decision.saved_ms == pytest.approx(0.05 * (R * K - decision.drafts))
    survival = 0.3 ** np.arange(1, K + 1)
    assert decision.lost_tokens == pytest.approx(R * survival.sum() - (decision.choice.expected - R), rel=1e-5)  # type: ignore[union-attr]


def test_shadow_decides_and_verifies_everything() -> None:
    shadow, trim = decide(policy(mode=Mode.SHADOW), 0.3), decide(policy(), 0.3)
    assert shadow.drafts == R * K
    assert shadow.choice == trim.choice
    assert (shadow.saved_ms, shadow.lost_tokens) == (trim.saved_ms, trim.lost_tokens)
    assert shadow.forced is None


@pytest.mark.parametrize("overrides", [{"mode": Mode.OFF}, {"costs": None}])
def test_off_and_no_cost_table_yet_verify_everything(overrides: dict[str, Any]) -> None:
    """cases.md 19 (vLLM 55455)."""
    decision = decide(policy(**overrides), 0.0)
    assert decision == Decision(R * K, R * K, R)


@pytest.mark.parametrize("overrides", [{"mode": Mode.OFF}, {"costs": None}, {"mode": Mode.SHADOW}])
def test_verifying_everything_is_cut_to_one_sampler_chunk_and_counted(overrides: dict[str, Any]) -> None:
    subject = policy(max_total_logits=R + 10, **overrides)
    decision = decide(subject, 0.9)
    assert (decision.drafts, decision.clamped) == (10, True)
    assert subject.totals.clamped_steps == 1


def test_trimming_within_the_chunk_is_no_clamp() -> None:
    decision = decide(policy(max_total_logits=R + 10), 0.99)
    assert (decision.drafts, decision.clamped) == (10, False)


def test_a_mode_switch_takes_effect_on_the_next_decision() -> None:
    subject = policy()
    assert decide(subject, 0.01).drafts == 0
    subject.mode = Mode.SHADOW
    assert decide(subject, 0.01).drafts == R * K
    subject.mode = Mode.TRIM
    assert decide(subject, 0.01).drafts == 0


def test_a_cold_spell_of_any_length_leaves_nothing_behind() -> None:
    """cases.md 23: the first step with good confidences has the budget of a worker that never saw the spell."""
    fresh = decide(policy(), 0.9).drafts
    subject = policy()
    for step in range(1000):
        assert decide(subject, 0.01, step).drafts == 0
    assert decide(subject, 0.9, 1000).drafts == fresh > 0


def test_a_budget_stuck_at_zero_still_gets_labels_at_every_depth() -> None:
    subject = policy(exploration=Exploration(1))
    depths = np.zeros(K + 1, int)
    for step in range(4000):
        decision = decide(subject, 0.001, step)
        if decision.explored:
            depths[decision.explored.depth] += len(decision.explored.rows)
            assert decision.drafts == decision.forced.sum()  # type: ignore[union-attr]
            assert decision.explored_ms == pytest.approx(0.05 * decision.drafts)
    assert (depths[1:] > 0).all()
    assert subject.totals.explored == pytest.approx(0.01 * R * K * 4000, rel=0.1)
    assert subject.totals.verified == subject.totals.explored
    assert subject.totals.zero_budget_steps == 4000


def test_exploration_does_not_read_confidences() -> None:
    a, b = policy(exploration=Exploration(9)), policy(exploration=Exploration(9))
    rng = np.random.default_rng(0)
    for step in range(300):
        explored = [
            s.decide(
                step, rng.random((R, K), np.float32), SCHEDULED, [0.0] * K, context_tokens=R, sampling_requests=R
            ).explored
            for s in (a, b)
        ]
        assert explored[0] == explored[1]


def test_totals_add_up() -> None:
    subject = policy()
    decisions = [decide(subject, level) for level in (0.001, 0.5, 0.9)]
    assert subject.totals.steps == 3
    assert subject.totals.scheduled == 3 * R * K
    assert subject.totals.verified == sum(d.drafts for d in decisions)
    assert subject.totals.zero_budget_steps == sum(d.drafts == 0 for d in decisions)
    assert subject.totals.saved_ms == pytest.approx(sum(d.saved_ms for d in decisions))


def test_a_step_without_drafts_is_no_zero_budget() -> None:
    subject = policy()
    none = np.zeros(R, np.int32)
    decision = subject.decide(0, np.ones((R, K), np.float32), none, [0.0] * K, context_tokens=R, sampling_requests=R)
    assert decision.drafts == 0
    assert subject.totals.zero_budget_steps == 0
