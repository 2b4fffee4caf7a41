"""The loss to trimming on the device is that of the numpy twin, and its totals travel with the rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import FakeUplink
from managers import Batch, manager_of, random_table

from acceptd.modes import Mode
from acceptd.types import Version
from vllm_client_hook import patch_budget, rows, trimming_device
from vllm_client_hook.estimator import AcceptanceEstimator
from vllm_client_hook.ranks import SingleRank
from vllm_client_hook.slots import PREDICTED, Slots
from vllm_client_hook.streams import HostStreams
from vllm_client_hook.trimming_cost import UNITS, Judgement, lost

K, R = 5, 12


def scene(seed):
    """Random slots, of which 7 are in the batch in one order and get their verdicts in another."""
    rng = np.random.default_rng(seed)
    state = Slots(R, K, "cpu", full=False)
    state.predictions.copy_(torch.from_numpy(rng.random((R + 1, K)).astype(np.float32)))
    state.valid.fill_(PREDICTED)
    where = rng.permutation(R)[:7]
    scheduled = rng.integers(0, K + 1, 7)
    accepted = rng.integers(0, scheduled + 1)
    return rng, state, where, scheduled, accepted


def verdicts(rng, where, scheduled, accepted):
    """idx_mapping, num_sampled, num_rejected, permuted and padded as a captured graph pads."""
    order = rng.permutation(len(where))
    idx = np.r_[where[order], -1, -1]
    sampled = np.r_[accepted[order] + 1, 9, 9]
    rejected = np.r_[(scheduled - accepted)[order], 9, 9]
    return [torch.from_numpy(column.astype(np.int32)) for column in (idx, sampled, rejected)]


@pytest.mark.parametrize("seed", range(50))
def test_it_is_the_numpy_twins(seed):
    rng, state, where, scheduled, accepted = scene(seed)
    alone = int(rng.integers(0, scheduled.sum() + 1))
    chosen = rng.integers(0, 2, 7)
    totals = torch.zeros(rows.NUM_COUNTERS, dtype=torch.int64)
    judged = Judgement(np.stack([where, scheduled, chosen]), alone, 300)
    trimming_device.judge(state, totals, *verdicts(rng, where, scheduled, accepted), judged=judged)
    each = lost(state.predictions[where].numpy(), scheduled, accepted, alone)
    assert int(totals[rows.JUDGED_LOST]) == 300 * int((each * chosen).sum())
    assert int(totals[rows.JUDGED_BLOCKS]) == 300 * int(chosen.sum())
    assert int(totals.sum()) == int(totals[rows.JUDGED_LOST] + totals[rows.JUDGED_BLOCKS])


def test_blocks_cut_short_or_without_predictions_are_left_out():
    rng, state, where, scheduled, accepted = scene(3)
    scheduled[:], accepted[:] = K, 2
    state.valid[where[0], 1] = 0
    columns = verdicts(rng, where, np.r_[K, K - 1, scheduled[2:]], accepted)
    totals = torch.zeros(rows.NUM_COUNTERS, dtype=torch.int64)
    judged = Judgement(np.stack([where, scheduled, np.ones(7, np.int64)]), 0, 1)
    trimming_device.judge(state, totals, *columns, judged=judged)
    assert int(totals[rows.JUDGED_BLOCKS]) == 5
    assert int(totals[rows.JUDGED_LOST]) == 10


class Reporting(FakeUplink):
    def report(self, **totals):
        self.totals = totals

    def report_costs(self, costs):
        self.costs = costs


@pytest.mark.parametrize(("mode", "least"), [(Mode.SHADOW, 32 * 64), (Mode.TRIM, 1), (Mode.OFF, 0)])
def test_from_the_decision_to_the_counters(mode, least):
    """64 steps of 32 requests whose drafts all pass; `least` blocks are stood for."""
    rng = np.random.default_rng(1)
    batch = Batch(rng, 32, K)
    batch.confidences[:] = 0.4
    batch.scheduled[:], batch.context[:] = K, 1
    manager = manager_of(batch, random_table(rng, 32, K), 10**6)
    estimator, uplink = AcceptanceEstimator(32, K, "cpu"), Reporting()
    estimator.bind(ranks=SingleRank(), uplink=uplink, live=lambda: True)
    estimator.apply.in_force = replace(estimator.apply.in_force, mode=mode, exploration_rate=0.1, version=Version(1, 1))
    budget = patch_budget.attach(
        manager, estimator, SingleRank(), HostStreams(), uplink=uplink, seed=5, rank0_confidences=False
    )
    index = torch.arange(32, dtype=torch.int32)
    for _ in range(64):
        manager.get_num_tokens(batch.tokens, batch.drafts)
        capacities = torch.full((32,), K, dtype=torch.int32)
        budget.assign(estimator.slots.predictions, index.long(), capacities, manager._batch_budget[2])
        estimator.slots.valid.fill_(PREDICTED)
        estimator.step(index, capacities + 1, torch.zeros(32, dtype=torch.int32))
    estimator.flush()
    assert estimator.frozen == budget.failed == ""
    stood, tokens = (int(uplink.rows[-1].counters[at]) / UNITS for at in (rows.JUDGED_BLOCKS, rows.JUDGED_LOST))
    assert stood >= least
    assert (stood > 0) == (tokens > 0) == bool(least)
    if mode is Mode.SHADOW:
        assert stood == least
