"""Our budget inside vLLM's manager: with the extras off it is vLLM's, with them on it does what they say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import FakeUplink, on_each_rank
from managers import Batch, manager_of, random_table
from vllm.v1.worker.gpu.spec_decode import adaptive_verification

from acceptd.errors import UnsupportedVllm
from acceptd.modes import Mode
from acceptd.types import Version
from vllm_client_hook import patch_budget
from vllm_client_hook.costs import CostTable
from vllm_client_hook.estimator import AcceptanceEstimator
from vllm_client_hook.ranks import SingleRank
from vllm_client_hook.streams import HostStreams

K = 6


@pytest.fixture(autouse=True)
def plain_assignment(monkeypatch):
    """As in a CPU engine: nothing is compiled. Put back after each test."""
    stock = adaptive_verification._assign_draft_token_budget
    monkeypatch.setattr(adaptive_verification, patch_budget.ASSIGN, stock)


def attached(manager, *, estimator=None, ranks=None, uplink=None, rank0_confidences=False, **in_force):
    estimator = estimator or AcceptanceEstimator(manager.req_states.max_num_reqs, K, "cpu")
    estimator.apply.in_force = replace(estimator.apply.in_force, **in_force)
    return patch_budget.attach(
        manager,
        estimator,
        ranks or SingleRank(),
        HostStreams(),
        uplink=uplink,
        seed=5,
        rank0_confidences=rank0_confidences,
    )


SERVED = {"version": Version(1, 1)}


def test_this_vllm_is_supported():
    assert patch_budget.unsupported() == ""


@pytest.mark.parametrize("seed", range(100))
def test_never_served_it_is_vllms_own_budget_and_split(seed):
    rng = np.random.default_rng(seed)
    batch = Batch(rng, int(rng.integers(1, 65)), K)
    batch.confidences *= rng.uniform(0.9, 1.0, batch.confidences.shape).astype(np.float32)  # no ties: vLLM's are open
    table = random_table(rng, batch.requests, K)
    limit = int(rng.integers(batch.requests, batch.requests * (K + 2)))
    stock, ours = manager_of(batch, table, limit), manager_of(batch, table, limit)
    budget = attached(ours)
    order = rng.permutation(batch.requests)
    answers = []
    for manager in (stock, ours):
        tokens = manager.get_num_tokens(batch.tokens, batch.drafts)
        logits, starts, *rest = manager.reallocate_drafts([batch.ids[i] for i in order], torch.from_numpy(order))
        answers.append((tokens, logits.tolist(), starts.tolist(), rest))
    assert not budget.failed
    assert answers[0] == answers[1]


def test_shadow_and_off_verify_everything_and_report_what_trimming_would_do():
    rng = np.random.default_rng(1)
    batch = Batch(rng, 32, K)
    for mode in (Mode.SHADOW, Mode.OFF):
        manager = manager_of(batch, random_table(rng, 32, K), 10**6)
        budget = attached(manager, mode=mode, **SERVED)
        assert manager.get_num_tokens(batch.tokens, batch.drafts) == sum(batch.tokens.values())
        assert budget._estimator.untrimmed
        assert (budget.status()["saved_ms"] > 0) == (mode is Mode.SHADOW)


def test_verifying_everything_is_clamped_to_the_sampler_chunk():
    rng = np.random.default_rng(1)
    batch = Batch(rng, 32, K)
    manager = manager_of(batch, random_table(rng, 32, K), 40)
    budget = attached(manager, mode=Mode.SHADOW, **SERVED)
    assert manager.get_num_tokens(batch.tokens, batch.drafts) == int(batch.context.sum()) + 8
    assert budget.status()["clamped_steps"] == 1
    assert not budget._estimator.untrimmed


def test_without_a_cost_table_everything_is_verified():
    """cases.md 19 (vLLM 55455)."""
    batch = Batch(np.random.default_rng(1), 32, K)
    manager = manager_of(batch, random_table(np.random.default_rng(1), 32, K), 10**6)
    manager.cost_tables = None
    attached(manager, **SERVED)
    assert manager.get_num_tokens(batch.tokens, batch.drafts) == sum(batch.tokens.values())


def test_explored_rows_are_admitted_to_their_depth_and_carry_depth_and_propensity():
    rng = np.random.default_rng(2)
    batch = Batch(rng, 24, K)
    manager = manager_of(batch, random_table(rng, 24, K), 10**6)
    budget = attached(manager, exploration_rate=0.1, **SERVED)
    slots = budget._estimator.slots
    seen = 0
    for _ in range(60):
        manager.get_num_tokens(batch.tokens, batch.drafts)
        manager.reallocate_drafts(batch.ids, torch.arange(24))
        admitted = manager._batch_draft_capacity
        drawn = torch.nonzero(slots.explored[:24]).flatten()
        assert (admitted[drawn] >= slots.explored[drawn]).all()
        assert ((slots.propensity[drawn] > 0) & (slots.propensity[drawn] <= 1)).all()
        seen += len(drawn)
        slots.explored.zero_()  # as grading does
    assert budget.status()["explored"] > 0
    assert seen > 0


def test_a_failure_falls_back_to_vllms_own_and_is_told():
    rng = np.random.default_rng(3)
    batch = Batch(rng, 16, K)
    table = random_table(rng, 16, K)
    stock, ours = manager_of(batch, table, 10**6), manager_of(batch, table, 10**6)
    budget = attached(ours, **SERVED)
    budget.policy.decide = None
    assert ours.get_num_tokens(batch.tokens, batch.drafts) == stock.get_num_tokens(batch.tokens, batch.drafts)
    assert (
        ours.reallocate_drafts(batch.ids, torch.arange(16))[2]
        == stock.reallocate_drafts(batch.ids, torch.arange(16))[2]
    )
    assert "TypeError" in budget.status()["failed"]


class ReportingUplink(FakeUplink):
    """Keeps what the budget reports."""

    def report(self, **totals):
        self.totals = totals

    def report_costs(self, costs):
        self.costs = [*getattr(self, "costs", ()), costs]


def test_totals_reach_the_uplink():
    rng = np.random.default_rng(4)
    batch = Batch(rng, 16, K)
    batch.confidences *= 0.6
    manager = manager_of(batch, CostTable(np.full(17, 0.5), 1.0 + 0.05 * np.arange(800)), 10**6)
    uplink = ReportingUplink()
    attached(manager, uplink=uplink, exploration_rate=0.2, **SERVED)
    for _ in range(64):
        manager.get_num_tokens(batch.tokens, batch.drafts)
    assert uplink.totals["steps"] == 64
    assert uplink.totals["scheduled"] == 64 * int(batch.scheduled.sum())
    assert uplink.totals["verification_saved_seconds"] > 0
    assert uplink.totals["explored_extra"] > 0
    assert 0 < uplink.totals["explored_seconds"] < uplink.totals["verification_saved_seconds"]


def test_a_cost_table_reaches_the_uplink_once_and_again_when_it_is_another():
    batch = Batch(np.random.default_rng(4), 16, K)
    manager = manager_of(batch, random_table(np.random.default_rng(4), 16, K), 10**6)
    uplink = ReportingUplink()
    budget = attached(manager, uplink=uplink, **SERVED)
    for _ in range(130):
        manager.get_num_tokens(batch.tokens, batch.drafts)
    assert len(uplink.costs) == 1
    verify_ms = manager.cost_tables[1]
    # Every size bends here, more than travel: those that do are exact, and the ends are among them.
    sent = uplink.costs[0].verify
    assert list(sent.milliseconds) == pytest.approx(verify_ms[list(sent.sizes)].tolist())
    assert (sent.sizes[0], sent.sizes[-1]) == (0, len(verify_ms) - 1)
    manager.cost_tables = (manager.cost_tables[0], verify_ms + 1.0)
    manager.get_num_tokens(batch.tokens, batch.drafts)
    assert len(uplink.costs) == 2
    assert budget.failed == ""


def last_bit_off(confidences):
    return np.nextafter(confidences, np.float32(0))


@pytest.mark.parametrize("option", [True, False])
def test_ranks_that_differ_in_the_last_bit(option):
    """cases.md 14: with the option all decide with rank 0's confidences; without it the difference is told."""
    steps = 200
    # Made here: Triton's interpreter serves one thread.
    estimators = [AcceptanceEstimator(16, K, "cpu") for _ in range(2)]

    def body(rank, ranks):
        mine = Batch(np.random.default_rng(6), 16, K)
        mine.confidences[:] = 0.7  # ties everywhere, so that a last bit matters
        manager = manager_of(mine, random_table(np.random.default_rng(6), 16, K), 10**6)
        manager.record_confidences = lambda confidences, _: _record(manager, confidences)
        budget = attached(
            manager,
            estimator=estimators[rank],
            ranks=ranks,
            rank0_confidences=option,
            exploration_rate=0.05,
            **SERVED,
        )
        rng = np.random.default_rng(7)
        taken = []
        for _ in range(steps):
            fresh = (rng.integers(10, 20, (16, K)) / 20).astype(np.float32)
            # Rank 1's hardware adds up in another order: about half its values are a last bit lower.
            off = rng.random(fresh.shape) < 0.5
            if rank == 1:
                fresh = np.where(off, last_bit_off(fresh), fresh)
            tokens = manager.get_num_tokens(mine.tokens, mine.drafts)
            manager.record_confidences(torch.from_numpy(fresh), Sized(16))
            manager.reallocate_drafts(mine.ids, torch.arange(16))
            taken.append((tokens, manager._batch_draft_capacity.tolist()))
            budget._estimator.slots.explored.zero_()
        return taken, budget.status()["divergent_checks"]

    (first, _), (second, divergent) = on_each_rank(2, body)
    if option:
        assert first == second
        assert divergent == 0
    else:
        assert first != second
        assert divergent == steps // 64


class Sized:
    def __init__(self, num_reqs):
        self.num_reqs = num_reqs


def _record(manager, confidences):
    """What vLLM's does, without streams: the budget of the next step sees these, the split at once."""
    manager._confidence_probs.copy_(confidences)
    manager._stale_confidences[0].np[:] = confidences.numpy()


def test_a_mode_switch_takes_effect_on_one_step_on_both_ranks():
    estimators = [AcceptanceEstimator(16, K, "cpu") for _ in range(2)]

    def body(rank, ranks):
        rng = np.random.default_rng(8)
        batch = Batch(rng, 16, K)
        batch.confidences *= 0.3
        manager = manager_of(batch, random_table(rng, 16, K), 10**6)
        budget = attached(manager, estimator=estimators[rank], ranks=ranks, **SERVED)
        taken = []
        for step in range(20):
            if step in {7, 14}:
                mode = Mode.SHADOW if step == 7 else Mode.TRIM
                apply = budget._estimator.apply
                apply.in_force = replace(apply.in_force, mode=mode)
            taken.append(manager.get_num_tokens(batch.tokens, batch.drafts))
        return taken, sum(batch.tokens.values())

    (first, everything), (second, _) = on_each_rank(2, body)
    assert first == second
    assert [tokens == everything for tokens in first] == [7 <= step < 14 for step in range(20)]


class Once:
    """Stands for `inner`; raises at call number `at`, before or after it ran, and never again."""

    def __init__(self, inner, at, *, after=False):
        self.inner, self.at, self.after, self.calls = inner, at, after, 0

    def __call__(self, *arguments, **fields):
        self.calls += 1
        if self.calls != self.at:
            return self.inner(*arguments, **fields)
        if self.after:
            self.inner(*arguments, **fields)
        raise MemoryError("this rank alone")


def two_ranks(breaks, steps=40):
    """What two ranks verify in each step, and their status; `breaks(rank, budget, manager)` sabotages."""
    estimators = [AcceptanceEstimator(16, K, "cpu") for _ in range(2)]

    def body(rank, ranks):
        batch = Batch(np.random.default_rng(6), 16, K)
        manager = manager_of(batch, random_table(np.random.default_rng(6), 16, K), 10**6)
        manager.record_confidences = lambda confidences, _: _record(manager, confidences)
        uplink = ReportingUplink() if rank == 0 else None
        estimator = estimators[rank]
        budget = attached(manager, estimator=estimator, ranks=ranks, uplink=uplink, exploration_rate=0.1, **SERVED)
        breaks(rank, budget, manager)
        rng = np.random.default_rng(7)
        taken = []
        for _ in range(steps):
            tokens = manager.get_num_tokens(batch.tokens, batch.drafts)
            manager.record_confidences(torch.from_numpy(rng.beta(2, 1, (16, K)).astype(np.float32)), Sized(16))
            manager.reallocate_drafts(batch.ids, torch.arange(16))
            taken.append((tokens, manager._batch_draft_capacity.tolist()))
            estimator.slots.explored.zero_()
        return taken, budget.status()

    return on_each_rank(2, body)


@pytest.mark.parametrize("part", ["choose", "cost", "draw", "write_explored", "batch"])
def test_a_decision_that_fails_once_on_one_rank_is_the_one_of_the_other_rank(monkeypatch, part):
    """Shapes that differ between ranks hang the next collective; exploration and margin make vLLM's own differ."""

    def breaks(rank, budget, manager):
        if rank == 0:
            return
        if part == "choose":
            budget.policy.decide = Once(budget.policy.decide, 5)
        elif part == "cost":  # after the draw and the argmax
            budget.policy._verify_ms = Once(budget.policy._verify_ms, 30)
        elif part == "draw":
            budget.exploration.draw = Once(budget.exploration.draw, 5, after=True)
        elif part == "write_explored":
            slots = budget._estimator.slots
            slots.write_explored = Once(slots.write_explored, 2, after=True)
        else:
            budget._batch = Once(budget._batch, 5)

    (first, healthy), (second, hurt) = two_ranks(breaks)
    assert first == second
    assert (healthy["repeated"], hurt["repeated"]) == (0, 1)
    assert healthy["failed"] == hurt["failed"] == ""
    assert {**healthy, "repeated": 0} == {**hurt, "repeated": 0}
    assert healthy["explored"] > 0


def test_a_failure_that_inputs_cause_turns_all_ranks_to_vllms_own_on_one_step():
    def breaks(rank, budget, manager):
        decide = budget.policy.decide

        def from_step_20(step, *arguments, **fields):
            if step >= 20:
                raise ValueError("these inputs")
            return decide(step, *arguments, **fields)

        budget.policy.decide = from_step_20

    (first, one), (second, other) = two_ranks(breaks)
    assert first == second
    assert one["failed"] == other["failed"] == "ValueError: these inputs"
    assert one["steps"] == other["steps"] == 19


def test_a_report_that_fails_changes_no_decision():
    """Rank 0 alone reports."""

    def breaks(rank, budget, manager):
        if rank == 0:
            budget._uplink.report = Once(None, 1)

    (first, reporting), (second, _) = two_ranks(breaks, steps=70)
    assert first == second
    assert reporting["failed"] == ""
    assert reporting["steps"] == 70


@pytest.mark.parametrize("name", ["get_num_tokens", "record_confidences", "set_cost_curves"])
def test_another_signature_keeps_vllms_own_budget(monkeypatch, name):
    monkeypatch.setattr(adaptive_verification.AdaptiveVerificationManager, name, lambda self, other: None)
    assert f"{name} takes (self, other)" in patch_budget.unsupported()


def test_a_missing_assignment_keeps_vllms_own_budget(monkeypatch):
    monkeypatch.delattr(adaptive_verification, patch_budget.ASSIGN)
    assert "has no _assign_draft_token_budget_compiled" in patch_budget.unsupported()


@pytest.mark.parametrize("name", ["_stale_confidences", "req_states.num_computed_tokens_np"])
def test_a_manager_without_the_state_we_read_is_left_as_it_was(name):
    batch = Batch(np.random.default_rng(9), 4, K)
    manager = manager_of(batch, random_table(np.random.default_rng(9), 4, K), 10**6)
    owner = manager.req_states if "." in name else manager
    delattr(owner, name.rpartition(".")[2])
    with pytest.raises(UnsupportedVllm, match=f"has no {name}"):
        attached(manager)
    assert "get_num_tokens" not in vars(manager)
