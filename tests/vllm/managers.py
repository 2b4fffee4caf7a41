"""vLLM's AdaptiveVerificationManager around given state, without the streams that a CPU has not."""

from types import SimpleNamespace

import numpy as np
import torch
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager

from vllm_client_hook.costs import CostTable


def random_table(rng, requests, positions):
    """Costs that rise, in half the cases in steps of 16 tokens."""
    size = requests * (positions + 40) + 64
    verify = 0.5 + np.cumsum(rng.random(size))
    if rng.random() < 0.5:
        verify = verify[(np.arange(size) // 16) * 16]
    return CostTable(np.cumsum(rng.random(requests + 1)), verify)


class Batch:
    """A random step: decodes with up to K drafts, and some requests that are still in their prompt."""

    def __init__(self, rng, requests, positions):
        self.requests, self.positions = requests, positions
        self.confidences = rng.beta(3, 1, (requests, positions)).astype(np.float32)
        self.confidences[rng.random(requests) < 0.2] = 1.0  # no prediction yet
        self.scheduled = rng.integers(0, positions + 1, requests).astype(np.int32)
        self.context = np.where(rng.random(requests) < 0.2, rng.integers(1, 40, requests), 1).astype(np.int32)
        self.scheduled[self.context > 1] = 0
        self.prefill_len = np.full(requests, 30, np.int32)
        self.num_computed = np.where(self.context > 1, 0, 100).astype(np.int32)
        self.ids = [f"r{i}" for i in range(requests)]

    @property
    def sampling(self):
        return int(np.count_nonzero(self.num_computed + self.context >= self.prefill_len))

    @property
    def tokens(self):
        return {r: int(c + s) for r, c, s in zip(self.ids, self.context, self.scheduled, strict=True)}

    @property
    def drafts(self):
        return {r: [0] * int(s) for r, s in zip(self.ids, self.scheduled, strict=True) if s}


def manager_of(batch, table, max_total_logits):
    """The stock manager, holding the batch's confidences as both this step's and the step before's."""
    manager = object.__new__(AdaptiveVerificationManager)
    manager.req_states = SimpleNamespace(
        req_id_to_index={r: i for i, r in enumerate(batch.ids)},
        num_computed_tokens_np=batch.num_computed,
        prefill_len=SimpleNamespace(np=batch.prefill_len),
        max_num_reqs=batch.requests,
        max_num_batched_tokens=len(table.verify_ms) - 1,
    )
    manager.num_speculative_steps = batch.positions
    manager.num_bonus_tokens = 1
    manager.query_start_loc = torch.zeros(batch.requests + 1, dtype=torch.int32)
    manager.cost_tables = (table.draft_ms, table.verify_ms)
    manager._cudagraph_limit = 0
    manager._max_total_logits = max_total_logits
    manager._stale_idx = 0
    manager._stale_confidences = [SimpleNamespace(np=batch.confidences.copy())]
    manager._confidence_probs = torch.from_numpy(batch.confidences.copy())
    manager._batch_budget = None
    manager._batch_draft_capacity = torch.zeros(batch.requests, dtype=torch.int32)
    manager._num_non_draft_tokens = torch.zeros(batch.requests, dtype=torch.int32)
    manager._cu_num_logits = torch.zeros(batch.requests + 1, dtype=torch.int32)
    return manager
