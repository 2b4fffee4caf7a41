"""The budget, the split and the cost tables beside vLLM's own, on the same state."""

import numpy as np
import pytest
import torch
from managers import Batch, manager_of, random_table
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import (
    _assign_draft_token_budget,
    build_cost_tables_from_curves,
)

from vllm_client_hook import budget, budget_device
from vllm_client_hook.costs import build_cost_table

K = 8


@pytest.mark.parametrize("seed", range(300))
def test_the_budget_is_that_of_vllm(seed):
    rng = np.random.default_rng(seed)
    batch = Batch(rng, int(rng.integers(1, 65)), K)
    table = random_table(rng, batch.requests, K)
    max_total_logits = int(rng.integers(batch.requests, batch.requests * (K + 2)))
    tokens = manager_of(batch, table, max_total_logits).get_num_tokens(batch.tokens, batch.drafts)
    context_tokens = int(batch.context.sum())
    choice = budget.choose(
        batch.confidences,
        batch.scheduled,
        table,
        context_tokens=context_tokens,
        sampling_requests=batch.sampling,
        max_drafts=budget.drafts_that_fit(max_total_logits, batch.requests),
    )
    assert context_tokens + choice.drafts == tokens


@pytest.mark.parametrize("seed", range(50))
def test_the_split_is_that_of_vllm_where_nothing_ties(seed):
    rng = np.random.default_rng(seed)
    requests = int(rng.integers(1, 40))
    confidences = torch.from_numpy(rng.random((requests + 5, K), np.float32))
    mapping = torch.from_numpy(rng.permutation(requests + 5)[:requests])
    scheduled = torch.from_numpy(rng.integers(0, K + 1, requests).astype(np.int32))
    for drafts in {1, int(scheduled.sum()) // 2, int(scheduled.sum()) - 1} & set(range(1, requests * K)):
        stock, ours = scheduled.clone(), scheduled.clone()
        _assign_draft_token_budget(confidences, mapping, stock, drafts, K)
        budget_device.split(confidences, mapping, ours, drafts)
        assert ours.tolist() == stock.tolist()
        host = budget.split(confidences[mapping].numpy(), scheduled.numpy(), drafts)
        assert host.tolist() == stock.tolist()


@pytest.mark.parametrize("seed", range(50))
def test_host_and_device_split_agree_with_ties_and_forced_slots(seed):
    rng = np.random.default_rng(seed)
    requests = int(rng.integers(1, 20))
    # Powers of two: products are exact, and many of them are equal.
    confidences = np.exp2(-rng.integers(0, 2, (requests, K))).astype(np.float32)
    scheduled = rng.integers(0, K + 1, requests).astype(np.int32)
    forced = np.where(rng.random(requests) < 0.3, rng.integers(0, K + 1, requests), 0).clip(0, scheduled)
    forced = forced.astype(np.int32)
    for drafts in range(int(forced.sum()), int(scheduled.sum()) + 1):
        admitted = torch.from_numpy(scheduled.copy())
        budget_device.split(
            torch.from_numpy(confidences), torch.arange(requests), admitted, drafts, torch.from_numpy(forced)
        )
        host = budget.split(confidences, scheduled, drafts, forced)
        assert admitted.tolist() == host.tolist()
        assert (host >= forced).all()


def test_the_number_of_drafts_may_stay_on_the_device():
    confidences = torch.rand(6, K)
    for drafts in (0, 7, 6 * K):
        a = torch.full((6,), K, dtype=torch.int32)
        b = a.clone()
        budget_device.split(confidences, torch.arange(6), a, drafts)
        budget_device.split(confidences, torch.arange(6), b, torch.tensor(drafts))
        assert a.tolist() == b.tolist()
        assert int(a.sum()) == drafts


@pytest.mark.parametrize("seed", range(50))
def test_tables_of_a_clean_profile_are_those_of_vllm(seed):
    """A clean profile rises, and at no smaller slope in the end than on the whole."""
    rng = np.random.default_rng(seed)
    sizes = np.unique(rng.integers(1, 600, rng.integers(2, 20)))
    times = np.cumsum(np.sort(rng.random(len(sizes)))) + 1.0
    verify = list(zip(sizes.tolist(), times.tolist(), strict=True))
    draft = [(1, 0.2), (64, 0.9)]
    capture_limit = int(rng.choice([0, sizes[len(sizes) // 2]]))
    stock = build_cost_tables_from_curves(draft, verify, 96, 700, capture_limit)
    ours = build_cost_table(draft, verify, max_requests=96, max_tokens=700, capture_limit=capture_limit)
    np.testing.assert_array_equal(ours.draft_ms, stock[0])
    np.testing.assert_array_equal(ours.verify_ms, stock[1])
    assert ours.notices == ()
