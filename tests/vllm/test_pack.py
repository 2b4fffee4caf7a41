"""step's packing: rows and counters against a hand count in plain Python, for the kernel and the torch reference."""

from collections import Counter

import numpy as np
import pytest
import torch
from blocks import random_block, views

from vllm_client_hook import kernels, labels, reference, rows
from vllm_client_hook.rows import NUM_COUNTERS, Rows
from vllm_client_hook.slots import Page, Slots

BACKENDS = pytest.mark.parametrize("backend", [kernels, reference], ids=["triton", "torch"])
R, K = 7, 3


class Engine:
    """The tensors that vLLM would hold, and the calls it would make."""

    def __init__(self, backend, *, capacity=4096, full=False, max_num_reqs=R):
        self.backend = backend
        self.slots = Slots(max_num_reqs, K, "cpu", full=full)
        self.page = Page(capacity, K, "cpu", full=full)
        self.totals = torch.zeros(NUM_COUNTERS, dtype=torch.int64)
        self.drafts = torch.zeros(max_num_reqs, K, dtype=torch.int64)
        self.temperature = torch.ones(max_num_reqs)
        self.words, self.floats = views(random_block(np.random.default_rng(1), K, index=3))
        self.rng = np.random.default_rng(2)

    def draft(self, idx, steps=range(K)):
        confidence = torch.zeros(max(len(idx), 1), K)
        for step in steps:
            logits = torch.from_numpy(self.rng.normal(0, 3, (len(idx), 40)).astype(np.float32))
            self.backend.predict(
                self.slots,
                self.words,
                self.floats,
                logits,
                torch.tensor(idx),
                torch.tensor(step),
                confidence,
                self.temperature,
            )

    def verdict(self, idx, accepted, admitted, *, sampled=None, gate=0, untrimmed=False, drafts=True):
        """accepted, admitted: int a row; sampled defaults to accepted + 1 (the bonus or corrected token)."""
        accepted, admitted = np.array(accepted, np.int32), np.array(admitted, np.int32)
        sampled = accepted + 1 if sampled is None else np.array(sampled, np.int32)
        self.slots.write_admissions()
        self.backend.pack(
            self.slots,
            self.page,
            self.totals,
            torch.tensor(idx, dtype=torch.int32),
            torch.from_numpy(sampled),
            torch.from_numpy(admitted - accepted),
            self.drafts if drafts else None,
            gate=gate,
            untrimmed=untrimmed,
        )

    @property
    def rows(self):
        records = self.page.records[: int(self.page.head)].numpy()
        return Rows(records, K, {3: None}, self.totals.numpy(), full=self.slots.full)

    def excluded(self):
        return {r: int(n) for r, n in enumerate(self.totals[: rows.NUM_REASONS]) if n}


@BACKENDS
def test_a_row_holds_its_labels_and_the_features_they_belong_to(backend):
    engine = Engine(backend, full=True)
    engine.temperature[:] = torch.tensor([1.0, 0.0, 0.3, 0.8, 1.0, 1.0, 1.0])
    engine.slots.admit(0, labels.NARROW_BIT)
    engine.slots.write_admissions()
    engine.draft([2, 0, 1])
    expected = engine.slots.features.clone(), engine.slots.entropies.clone()
    engine.verdict([2, 0, 1], accepted=[1, 3, 0], admitted=[2, 3, 3])
    got = engine.rows
    assert got.accepted.tolist() == [1, 3, 0]
    assert got.admitted.tolist() == [2, 3, 3]
    assert got.segments.tolist() == [1, 4, 0]
    assert got.explored.tolist() == [0, 0, 0]
    assert got.observed.tolist() == [[True, True, False], [True] * 3, [True, False, False]]
    for row, slot in enumerate([2, 0, 1]):
        seen = torch.from_numpy(got.observed[row])
        assert torch.equal(torch.from_numpy(got.features[row])[seen], expected[0][slot][seen])
        assert (got.features[row][~got.observed[row]] == 0).all()
    [(version, columns)] = got.by_version()
    assert version is None
    assert len(columns.features) == len(columns.entropies) == len(columns.margins) == 2 + 3 + 1
    assert columns.entropies[0] == expected[1][2, 0].item()
    assert engine.excluded() == {}
    assert engine.totals[rows.VERIFIED] == 8
    assert engine.totals[rows.ACCEPTED] == 4


@BACKENDS
@pytest.mark.parametrize("seed", range(4))
def test_random_sequences_equal_a_hand_count(backend, seed):
    rng = np.random.default_rng(seed)
    engine = Engine(backend)
    predicted = np.zeros((R, K), bool)
    flags = np.zeros(R, int)
    counts, labelled, wanted = Counter(), Counter(), []
    for _ in range(40):
        for slot in rng.choice(R, rng.integers(0, 2), replace=False):
            flags[slot] = rng.choice([0, 0, 0, labels.PENALTIES, labels.GRAMMAR])
            engine.slots.admit(int(slot), int(flags[slot]) | (labels.NARROW_BIT if rng.random() < 0.5 else 0))
            predicted[slot] = False
        size = int(rng.integers(1, R + 1))
        idx = rng.permutation(R)[:size]
        idx[rng.random(size) < 0.15] = -1
        engine.drafts = torch.from_numpy(np.where(rng.random((R, K)) < 0.04, -1, 5))
        admitted = rng.integers(0, K + 1, size)
        accepted = np.array([rng.integers(0, n + 1) for n in admitted])
        prefill = rng.random(size) < 0.1
        admitted[prefill] = accepted[prefill] = 0
        sampled = np.where(prefill, 0, accepted + 1)
        gate = rows.WARMUP if rng.random() < 0.1 else 0
        engine.verdict(idx.tolist(), accepted, admitted, sampled=sampled, gate=gate)
        for i, slot in enumerate(idx):
            if slot < 0:
                counts[rows.PADDED] += 1
                continue
            n, depth = min(accepted[i] + 1, admitted[i]), admitted[i]
            if prefill[i]:
                counts[rows.PREFILL] += 1
            elif depth and gate:
                counts[gate] += 1
            elif depth and flags[slot]:
                counts[flags[slot]] += 1
            elif depth and (engine.drafts[slot, :depth] < 0).any():
                counts[rows.INVALID_DRAFT] += 1
            elif depth and not predicted[slot, :depth].all():
                counts[rows.STALE_PREDICTION] += 1
            elif depth:
                wanted.append((accepted[i], depth))
                for k in range(n):
                    labelled[k, int(k < accepted[i])] += 1
            predicted[slot] = False
        if rng.random() < 0.85:
            steps = range(K) if rng.random() < 0.8 else range(int(rng.integers(0, K)))
            engine.draft(idx.tolist(), steps)
            for slot in idx[idx >= 0]:
                predicted[slot, list(steps)] = True
    assert len(wanted) > 20
    got = engine.rows
    assert list(zip(got.accepted, got.admitted, strict=True)) == wanted
    assert engine.excluded() == dict(counts)
    assert engine.totals[rows.PACKED] == len(wanted)
    seen = Counter()
    for row in range(len(got)):
        for k in np.flatnonzero(got.observed[row]):
            seen[int(k), int(k < got.accepted[row])] += 1
    assert seen == labelled


@BACKENDS
def test_a_reused_slot_never_grades_the_new_requests_features(backend):
    engine = Engine(backend)
    engine.draft([4])
    engine.slots.admit(4, 0)  # preempted and given away before the verdict
    engine.verdict([4], accepted=[2], admitted=[3])
    assert len(engine.rows) == 0
    assert engine.excluded() == {rows.STALE_PREDICTION: 1}


@BACKENDS
def test_a_verdict_uses_a_prediction_once(backend):
    engine = Engine(backend)
    engine.draft([0, 1])
    engine.verdict([0, 1], accepted=[0, 0], admitted=[0, 0])  # K = 0 in this step
    engine.verdict([0, 1], accepted=[1, 1], admitted=[2, 2])  # and K again, nothing predicted in between
    assert len(engine.rows) == 0
    assert engine.excluded() == {rows.STALE_PREDICTION: 2}


@BACKENDS
def test_another_order_of_the_batch_gives_the_same_statistics(backend):
    results = []
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        engine = Engine(backend)
        engine.draft([0, 1, 2, 3, 4])
        accepted, admitted = np.array([0, 1, 2, 3, 1]), np.array([1, 3, 3, 3, 1])
        engine.verdict(order, accepted[order], admitted[order])
        results.append(sorted(map(tuple, engine.rows.records.tolist())))
    assert results[0] == results[1]


@BACKENDS
def test_the_bonus_token_is_no_draft(backend):
    engine = Engine(backend)
    engine.draft([0, 1])
    # Everything accepted (K + 1 tokens out), and everything rejected (the corrected token out).
    engine.verdict([0, 1], accepted=[K, 0], admitted=[K, K], sampled=[K + 1, 1])
    assert engine.rows.accepted.tolist() == [K, 0]
    assert engine.totals[rows.VERIFIED] == 2 * K
    assert engine.totals[rows.ACCEPTED] == K


@BACKENDS
def test_exploration_marks_its_depth_once_and_untrimmed_steps_all_of_it(backend):
    engine = Engine(backend)
    engine.draft([0, 1, 2])
    engine.slots.write_explored(np.array([1]), 2, 0.25)
    engine.slots.write_explored(np.array([2]), 3, 0.5)
    engine.verdict([0, 1, 2], accepted=[0, 1, 0], admitted=[1, 3, 1])
    assert engine.rows.explored.tolist() == [0, 2, 1]
    assert engine.rows.propensities.tolist() == [0, 0.25, 0.5]
    engine.draft([0, 1, 2])
    engine.verdict([0, 1, 2], accepted=[0, 1, 0], admitted=[1, 3, 1])
    assert engine.rows.explored[3:].tolist() == [0, 0, 0]
    engine.draft([0, 1])
    engine.verdict([0, 1], accepted=[0, 1], admitted=[3, 3], untrimmed=True)
    assert engine.rows.explored[6:].tolist() == [3, 3]
    assert engine.rows.propensities[6:].tolist() == [1, 1]


@BACKENDS
def test_rows_without_a_finite_feature_are_counted(backend):
    engine = Engine(backend)
    engine.draft([0])
    engine.backend.predict(
        engine.slots,
        engine.words,
        engine.floats,
        torch.full((1, 40), float("nan")),
        torch.tensor([0]),
        torch.tensor(1),
        torch.zeros(1, K),
        engine.temperature,
    )
    engine.verdict([0], accepted=[0], admitted=[2])
    assert engine.excluded() == {rows.NON_FINITE: 1}


@BACKENDS
def test_what_does_not_fit_is_dropped_and_counted(backend):
    engine = Engine(backend, capacity=5)
    for _ in range(2):
        engine.draft(range(4))
        engine.verdict(range(4), accepted=[0, 1, 2, 3], admitted=[3] * 4)
    assert engine.rows.accepted.tolist() == [0, 1, 2, 3, 0]
    assert engine.excluded() == {rows.QUEUE_FULL: 3}


@BACKENDS
def test_more_requests_than_the_packing_program_takes_at_once(backend):
    count = 300
    engine = Engine(backend, max_num_reqs=count)
    engine.draft(range(count))
    accepted = np.arange(count) % (K + 1)
    engine.verdict(range(count), accepted, np.full(count, K))
    assert engine.rows.accepted.tolist() == accepted.tolist()
    assert torch.equal(torch.from_numpy(engine.rows.features[K]), engine.slots.features[K])
    assert engine.totals[rows.ACCEPTED] == accepted.sum()


@BACKENDS
def test_without_draft_tokens_at_hand_only_predictions_decide(backend):
    engine = Engine(backend)
    engine.drafts[:] = -1
    engine.draft([0])
    engine.verdict([0], accepted=[1], admitted=[2], drafts=False)
    assert len(engine.rows) == 1


def test_kernel_and_reference_pack_the_same_words():
    packed = []
    for backend in (kernels, reference):
        engine = Engine(backend, full=True)
        engine.draft([5, -1, 3])
        # The same features for both: what is compared here is packing.
        for name in ("features", "entropies", "margins"):
            getattr(engine.slots, name)[:] = torch.arange((R + 1) * K).reshape(R + 1, K) / 7
        engine.verdict([5, -1, 3], accepted=[1, 0, 0], admitted=[3, 0, 2])
        packed.append((engine.page.records[:2], engine.totals, engine.slots.valid[:R]))
    for a, b in zip(*packed, strict=True):
        assert torch.equal(a, b)
