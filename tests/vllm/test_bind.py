"""Binding after load: what fails on one rank alone must not leave the others waiting in a broadcast."""

import threading
from types import SimpleNamespace

import pytest
import torch
from fakes import MemoryStore, on_each_rank

from vllm_client_hook import binding, reference
from vllm_client_hook import estimator as estimator_module
from vllm_client_hook.apply import INTERVAL
from vllm_client_hook.estimator import AcceptanceEstimator
from vllm_client_hook.fallback import ROUND_STEPS
from vllm_client_hook.link import link_of

R, K = 4, 2


class Uplink:
    """Enough of one for a worker that is not served yet."""

    def __init__(self):
        self.started = False

    def start(self):
        self.started = True

    def latest(self):
        return None

    def offer(self, rows):
        pass


class RejectionSampler:
    pass


def worker_of(estimator):
    sampler = SimpleNamespace(add_request=lambda req_idx, sampling_params: None, logits_processors=[])
    runner = SimpleNamespace(
        speculator=SimpleNamespace(acceptance_estimator=estimator),
        adaptive_verification=SimpleNamespace(cost_tables=(1, 2)),
        req_states=SimpleNamespace(draft_tokens=torch.ones(R, K, dtype=torch.int64)),
        rejection_sampler=RejectionSampler(),
        speculative_config=SimpleNamespace(rejection_sample_method="standard"),
        sampler=sampler,
    )
    return SimpleNamespace(model_runner=runner, vllm_config=None)


def bound(monkeypatch, *, uplink=Uplink, broken_rank=None, steps=2 * INTERVAL):
    """Two ranks after `steps` steps: (estimator, link) of each."""
    store, local = MemoryStore(), {}
    monkeypatch.setattr(estimator_module, "numerics_of", lambda device: reference)
    monkeypatch.setattr(binding, "own_group", lambda: local[threading.current_thread()])
    monkeypatch.setattr(binding, "_uplink", lambda *_: uplink())
    monkeypatch.setattr(binding, "pair_key", lambda *_: SimpleNamespace(id="pair"))
    effective = SimpleNamespace(agreement_timeout=10.0, address="here")
    monkeypatch.setattr(binding, "current_factory", lambda: SimpleNamespace(effective=effective))

    def body(rank, ranks):
        local[threading.current_thread()] = (ranks, store, "0-1")
        estimator = AcceptanceEstimator(R, K, torch.device("cpu"))
        worker = worker_of(estimator)
        if rank == broken_rank:
            del worker.model_runner.req_states
        binding.bind(worker)
        idx, column = torch.tensor([0], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
        for _ in range(steps):
            estimator.step(idx, column, column - 1)
            for k in range(K):
                logits = torch.tensor([[2.0, 0.0, 0.5]])
                estimator.predict(logits, idx, torch.tensor(k), torch.zeros(R, K), torch.ones(R))
        return estimator, link_of(worker)

    return on_each_rank(2, body)


def test_both_ranks_bind(monkeypatch):
    (first, link), (second, other) = bound(monkeypatch)
    assert first.frozen == second.frozen == ""
    assert first.apply.steps == second.apply.steps == 2 * INTERVAL
    assert link.uplink.started
    assert other.uplink is None


@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_that_cannot_bind_leaves_none_in_a_broadcast(monkeypatch, broken):
    results = bound(monkeypatch, broken_rank=broken)
    for estimator, link in results:
        assert link is None
        assert estimator.frozen == ""
        assert estimator.apply.steps == 0
        assert estimator.slope.tolist() == [0.5]


def test_a_rank_0_without_an_uplink_goes_on_with_its_own_rounds_on_all_ranks(monkeypatch):
    def refuse():
        raise OSError("no such token file")

    (first, _), (second, _) = bound(monkeypatch, uplink=refuse, steps=ROUND_STEPS + 2 * INTERVAL)
    assert first.in_force.local
    assert torch.equal(first.apply.words, second.apply.words)
