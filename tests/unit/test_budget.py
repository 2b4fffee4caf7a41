"""The argmax and the split: values by hand, and the same answer as an exhaustive search."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from vllm_client_hook.budget import choose, digest, drafts_that_fit, split
from vllm_client_hook.costs import CostTable
from vllm_client_hook.exploration import Explored


def table(verify: Any, draft: float = 0.0, requests: int = 16) -> CostTable:
    return CostTable(np.full(requests + 1, draft), np.asarray(verify, np.float64))


def confidences(*rows: list[float]) -> Any:
    return np.array(rows, np.float32)


def scheduled(*counts: int) -> Any:
    return np.array(counts, np.int32)


def pick(conf: Any, sched: Any, costs: CostTable, **overrides: Any) -> Any:
    """`choose` for a batch of decodes: one context token and one sure token a request."""
    options: dict[str, Any] = {"context_tokens": len(conf), "sampling_requests": len(conf), "max_drafts": 10**6}
    return choose(conf, sched, costs, **(options | overrides))


def test_values_by_hand() -> None:
    conf = confidences([0.9, 0.5], [0.8, 0.1])
    # Survivals .9, .8, .45, .08 on top of 2 sure tokens; costs of 2 … 6 tokens.
    choice = pick(conf, scheduled(2, 2), table([1, 1, 1.0, 1.2, 1.4, 1.6, 3.0]))
    rates = [2 / 1.0, 2.9 / 1.2, 3.7 / 1.4, 4.15 / 1.6, 4.23 / 3.0]
    assert choice.drafts == int(np.argmax(rates)) == 2
    assert choice.expected == pytest.approx(3.7)
    assert choice.milliseconds == pytest.approx(1.4)
    assert choice.rate == pytest.approx(max(rates))
    assert choice.expected_at_limit == pytest.approx(4.23)
    assert split(conf, scheduled(2, 2), 2).tolist() == [1, 1]
    assert split(conf, scheduled(2, 2), 3).tolist() == [2, 1]


def test_zero_is_a_legal_answer() -> None:
    """cases.md 19: at these costs no draft token is worth its time."""
    conf = confidences([0.1, 0.1], [0.05, 0.05])
    choice = pick(conf, scheduled(2, 2), table([1, 1, 1, 2, 3, 4, 5]))
    assert choice.drafts == 0
    assert split(conf, scheduled(2, 2), 0).tolist() == [0, 0]


def test_of_equal_counts_the_smallest_wins() -> None:
    assert pick(confidences([1.0, 1.0]), scheduled(2), table([1.0, 1.0, 2.0, 3.0])).drafts == 0


def test_drafting_costs_only_shift_the_balance() -> None:
    """A dear draft makes more of its tokens worth verifying, as its cost is sunk by then."""
    conf, verify = confidences([0.6, 0.6]), [1.0, 1.0, 1.7, 2.4]
    assert pick(conf, scheduled(2), table(verify, draft=0.0)).drafts == 0
    assert pick(conf, scheduled(2), table(verify, draft=5.0)).drafts == 2


def test_the_sampler_chunk_and_the_table_bound_the_count() -> None:
    conf, sched = np.ones((4, 4), np.float32), scheduled(4, 4, 4, 4)
    flat = table(np.ones(100))
    assert pick(conf, sched, flat).drafts == 16
    assert pick(conf, sched, flat, max_drafts=drafts_that_fit(10, 4)).drafts == 6
    assert drafts_that_fit(3, 4) == 0
    assert pick(conf, sched, table(np.ones(10))).drafts == 9 - 4
    assert pick(conf, sched, table(np.ones(3))).drafts == 0


def test_only_scheduled_slots_count() -> None:
    conf = np.ones((3, 4), np.float32)
    assert pick(conf, scheduled(0, 2, 1), table(np.ones(50))).drafts == 3
    assert split(conf, scheduled(0, 2, 1), 2).tolist() == [0, 2, 0]
    assert split(conf, scheduled(0, 2, 1), 9).tolist() == [0, 2, 1]


def test_ties_go_to_the_lower_request_then_the_lower_position() -> None:
    conf = np.ones((3, 3), np.float32)
    assert split(conf, scheduled(3, 3, 3), 4).tolist() == [3, 1, 0]
    assert split(conf[:, :1], scheduled(1, 1, 1), 2).tolist() == [1, 1, 0]


def test_rows_stay_aligned_when_trimmed() -> None:
    """cases.md 21: a request's count is its own, whatever the order of the batch."""
    rng = np.random.default_rng(5)
    conf = rng.random((12, 5), np.float32)
    sched = rng.integers(0, 6, 12).astype(np.int32)
    order = rng.permutation(12)
    for drafts in range(int(sched.sum()) + 1):
        admitted = split(conf, sched, drafts)
        assert admitted.sum() == drafts
        assert (admitted <= sched).all()
        assert (split(conf[order], sched[order], drafts) == admitted[order]).all()


def test_forced_slots_are_verified_and_paid_for() -> None:
    conf = confidences([0.9, 0.9, 0.9], [0.2, 0.01, 0.01])
    explored = Explored((1,), 3, 0.5)
    costs = table([1, 1, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2])
    choice = pick(conf, scheduled(3, 3), costs, explored=explored)
    survival = [0.9, 0.81, 0.729]
    base = 2 + 0.2 + 0.002 + 0.00002
    rates = [(base + sum(survival[:n])) / (1.6 + 0.2 * n) for n in range(4)]
    assert choice.drafts == 3 + int(np.argmax(rates))
    assert choice.rate == pytest.approx(max(rates), rel=1e-6)
    assert choice.extra == 3
    assert split(conf, scheduled(3, 3), 4, explored.forced(2)).tolist() == [1, 3]


def test_forced_slots_that_would_be_chosen_anyway_are_not_extra() -> None:
    conf = confidences([0.9, 0.9], [0.1, 0.1])
    choice = pick(conf, scheduled(2, 2), table(np.r_[1, 1, 1 + 0.1 * np.arange(5)]), explored=Explored((0,), 2, 0.5))
    assert choice.extra == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_no_probability_neither_raises_nor_leaves_the_range(bad: float) -> None:
    conf = confidences([0.9, bad], [0.8, 0.7])
    choice = pick(conf, scheduled(2, 2), table(1 + 0.01 * np.arange(9)))
    assert 0 <= choice.drafts <= 4
    assert split(conf, scheduled(2, 2), 3).sum() == 3


def test_two_counts_of_equal_value_do_not_alternate() -> None:
    """cases.md 22: without the margin the answer flips with the last digit, with it it stays."""
    costs = table([1, 1.0, 1.5, 2.0])
    previous = None
    without, kept = set(), set()
    for step in range(20):
        wiggle = 1e-4 if step % 2 else -1e-4
        conf = confidences([0.5 + wiggle, 0.99])
        without.add(pick(conf, scheduled(2), costs).drafts)
        choice = pick(conf, scheduled(2), costs, previous=previous, margin=0.005)
        kept.add(choice.drafts)
        previous = choice.drafts
    assert without == {0, 1}
    assert len(kept) == 1


def test_the_margin_never_costs_more_than_itself() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        conf = rng.random((5, 4), np.float32)
        sched = rng.integers(0, 5, 5).astype(np.int32)
        costs = table(1 + np.cumsum(rng.random(40)), draft=rng.random())
        best = pick(conf, sched, costs)
        kept = pick(conf, sched, costs, previous=int(rng.integers(0, 25)), margin=0.005)
        assert kept.rate >= best.rate / 1.005 * (1 - 1e-12)


def test_digest_sees_the_last_bit() -> None:
    conf = np.full((4, 3), 0.3, np.float32)
    other = conf.copy()
    other[2, 1] = np.nextafter(other[2, 1], np.float32(1))
    assert digest(conf) == digest(conf.copy())
    assert digest(conf) != digest(other)


def enumerated_optimum(conf: Any, sched: Any, costs: CostTable) -> float:
    """Best expected tokens a millisecond over every choice of a prefix for each request."""
    survival = np.cumprod(conf.astype(np.float64), axis=1)
    requests = len(conf)
    best = 0.0
    for admitted in itertools.product(*(range(int(s) + 1) for s in sched)):
        expected = requests + sum(survival[r, :n].sum() for r, n in enumerate(admitted))
        best = max(best, expected / costs.step_ms(requests, requests + sum(admitted)))
    return best


def random_costs(rng: np.random.Generator, requests: int) -> CostTable:
    size = requests * 5 + 1
    if rng.random() < 0.5:  # convex
        verify = rng.random() + np.cumsum(np.sort(rng.random(size)))
    else:  # steps of a captured graph
        bucket = int(rng.integers(1, 6))
        verify = 0.2 + np.cumsum(rng.random(size))[(np.arange(size) // bucket) * bucket]
    return table(verify, draft=rng.random() * 2, requests=requests)


@pytest.mark.parametrize("seed", range(10))
def test_budget_and_split_reach_the_enumerated_optimum(seed: int) -> None:
    """1,000 batches a seed of up to 4 requests with up to 4 positions, convex and step-shaped costs."""
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        requests, positions = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        conf = rng.random((requests, positions), np.float32)
        sched = rng.integers(0, positions + 1, requests).astype(np.int32)
        costs = random_costs(rng, requests)
        choice = pick(conf, sched, costs)
        admitted = split(conf, sched, choice.drafts)
        survival = np.cumprod(conf.astype(np.float64), axis=1)
        expected = requests + sum(survival[r, :n].sum() for r, n in enumerate(admitted))
        assert admitted.sum() == choice.drafts
        assert expected / costs.step_ms(requests, requests + choice.drafts) == pytest.approx(
            enumerated_optimum(conf, sched, costs), rel=1e-9
        )
