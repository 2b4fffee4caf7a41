"""New coefficients on two ranks: the same ones on the same step, whatever goes wrong on one of them."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import DelayedStreams, FakeUplink, ThreadRanks, line, on_each_rank

from acceptd.modes import Mode
from acceptd.types import Coefficients, SegmentCoefficients, Version
from vllm_client_hook import block as layout
from vllm_client_hook import estimator, reference
from vllm_client_hook.apply import INTERVAL, LAG
from vllm_client_hook.estimator import AcceptanceEstimator
from vllm_client_hook.fallback import ROUND_STEPS
from vllm_client_hook.ranks import SingleRank
from vllm_client_hook.streams import HostStreams

R, K = 4, 3


@pytest.fixture(autouse=True)
def _reference(monkeypatch):
    # What is tested here is not the kernels, and Triton's interpreter runs in one thread only.
    monkeypatch.setattr(estimator, "numerics_of", lambda device: reference)


class Worker:
    """One rank: an estimator fed with two requests a step. `now` is its clock."""

    def __init__(self, ranks, uplink=None, streams=None):
        self.estimator = AcceptanceEstimator(R, K, torch.device("cpu"))
        self.now = 0.0
        self.estimator.bind(
            ranks=ranks,
            uplink=uplink,
            live=lambda: True,
            streams=streams or HostStreams(),
            clock=lambda: self.now,
        )
        self.confidence = torch.zeros(R, K)
        self.generator = torch.Generator().manual_seed(0)

    def step(self):
        accepted = torch.randint(0, 3, (2,), generator=self.generator, dtype=torch.int32)
        self.estimator.step(torch.tensor([0, 2], dtype=torch.int32), accepted + 1, 3 - accepted)
        for k in range(K):
            logits = torch.randn(2, 30, generator=self.generator)
            arguments = torch.tensor([0, 2]), torch.tensor(k), self.confidence, torch.ones(R)
            self.estimator.predict(logits, *arguments)

    def state(self):
        """What the kernels and the host decide with."""
        words = self.estimator.apply.words.clone()
        words[layout.NONCE : layout.NONCE + 2] = 0
        return words.tolist(), self.estimator.mode, self.estimator.exploration_rate


@pytest.mark.parametrize("slow", [0, 1])
def test_two_ranks_change_on_the_same_step_with_delayed_events_on_one(slow):
    uplink = FakeUplink()
    updates = 6

    def body(rank, ranks):
        streams = DelayedStreams() if rank == slow else HostStreams()
        worker = Worker(ranks, uplink if rank == 0 else None, streams)
        states = []
        for step in range(1, updates * INTERVAL + LAG + 1):
            if rank == 0 and step % INTERVAL == 3:
                n = step // INTERVAL + 1
                mode = Mode.SHADOW if n % 2 else Mode.TRIM
                uplink.push(line((1, n), 0.5 + n / 16, [0.25 * n] * K), n, mode=mode, exploration_rate=n / 64)
            worker.step()
            states.append(worker.state())
        return states

    first, second = on_each_rank(2, body)
    assert first == second
    changed = [i + 1 for i in range(1, len(first)) if first[i] != first[i - 1]]
    assert changed == [INTERVAL * n + LAG for n in range(1, updates + 1)]
    assert [(nonce, why) for nonce, _, why in uplink.answers] == [(n, "") for n in range(1, updates + 1)]
    assert first[-1][1:] == (Mode.TRIM, updates / 64)


def test_a_mode_with_the_version_in_force_reaches_both_ranks_on_one_step():
    """What `acceptd mode` sends: the coefficients that are in force, under another nonce."""
    uplink, same = FakeUplink(), line((1, 1), 0.6, [0.1] * K)

    def body(rank, ranks):
        worker = Worker(ranks, uplink if rank == 0 else None)
        modes = []
        for step in range(1, 4 * INTERVAL):
            if rank == 0 and step in {1, 2 * INTERVAL}:
                mode = Mode.TRIM if step == 1 else Mode.SHADOW
                uplink.push(same, step, mode=mode, exploration_rate=0.25)
            worker.step()
            modes.append(worker.estimator.mode)
        return modes, worker.estimator.apply.rejected

    (first, refused), second = on_each_rank(2, body)
    assert (first, refused) == second
    assert refused == 0
    assert [mode is Mode.SHADOW for mode in first] == [step >= 2 * INTERVAL + LAG for step in range(1, 4 * INTERVAL)]
    assert [why for _, _, why in uplink.answers] == ["", ""]


def run_alone(uplink, steps=INTERVAL + LAG, worker=None):
    worker = worker or Worker(SingleRank(), uplink)
    for _ in range(steps):
        worker.step()
    return worker


def test_coefficients_are_bit_identical_and_written_in_place():
    slope, intercepts = 0.6180340051651001, [0.10000000149011612, -0.30000001192092896, 1.1754943508222875e-38]
    uplink = FakeUplink()
    worker = Worker(SingleRank(), uplink)
    addresses = [t.data_ptr() for t in (worker.estimator.slope, worker.estimator.intercepts)]
    assert worker.estimator.slope.tolist() == [0.5]
    uplink.push(line((3, 9), slope, intercepts), 1)
    run_alone(uplink, worker=worker)
    assert worker.estimator.slope.tolist() == [slope]
    assert worker.estimator.intercepts.tolist() == intercepts
    assert addresses == [t.data_ptr() for t in (worker.estimator.slope, worker.estimator.intercepts)]
    assert uplink.answers == [(1, Version(3, 9), "")]


def test_segments_and_knots_reach_their_places():
    parts = {s: SegmentCoefficients((0.5 + s / 8, 0.125, -0.25), (s / 4,) * K) for s in range(5)}
    uplink = FakeUplink()
    uplink.push(Coefficients(Version(1, 1), SegmentCoefficients((0.75,), (1.0,) * K), (-1.5, 2.5), parts), 1)
    block = run_alone(uplink).estimator.in_force
    assert block.knots.tolist() == [-1.5, 2.5] + [0] * 6
    for s, part in parts.items():
        assert block.slopes[s].tolist() == [*part.slopes] + [0] * 6
        assert block.intercepts[s].tolist() == list(part.intercepts)
    for s in (5, 6, 7):
        assert block.slopes[s].tolist() == [0.75] + [0] * 8
        assert block.intercepts[s].tolist() == [1.0] * K


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (line((1, 2), math.nan, [0] * K), "slopes"),
        (line((1, 2), 0.5, [0, math.inf, 0]), "intercepts"),
        (line((1, 2), 99.0, [0] * K), "slope"),
        (line((1, 2), 0.5, [0] * (K + 1)), "K = 3"),
        (line((0, 9), 0.5, [0] * K), "sorts before"),
        (line((1, 0), 0.5, [0] * K), "sorts before"),
    ],
)
def test_what_must_not_be_applied_is_refused_once_and_leaves_no_trace(bad, why):
    uplink = FakeUplink()
    uplink.push(line((1, 1), 0.75, [0.5] * K), 1)
    worker = run_alone(uplink)
    before = worker.state()
    uplink.push(bad, 2)
    run_alone(uplink, 4 * INTERVAL, worker)
    assert worker.state() == before
    [_, (nonce, version, rejected)] = uplink.answers
    assert (nonce, version) == (2, Version(1, 1))
    assert why in rejected
    uplink.push(line((1, 3), 0.625, [0.5] * K), 3)
    run_alone(uplink, 2 * INTERVAL, worker)
    assert worker.estimator.slope.tolist() == [0.625]


def test_an_exploration_rate_out_of_range_is_refused():
    uplink = FakeUplink()
    uplink.push(line((1, 1), 0.75, [0.5] * K), 5, exploration_rate=math.nan)
    run_alone(uplink)
    [(nonce, version, rejected)] = uplink.answers
    assert (nonce, version) == (5, None)
    assert "exploration_rate" in rejected


def test_a_block_damaged_on_its_way_is_refused_by_all_ranks():
    uplink = FakeUplink()
    uplink.push(line((1, 1), 0.75, [0.5] * K), 4)

    def body(rank, ranks):
        return run_alone(None, worker=Worker(ranks, uplink if rank == 0 else None)).state()

    def corrupt(words):
        words.view(torch.float32)[layout.INTERCEPTS + 1] = math.nan

    first, second = on_each_rank(2, body, corrupt)
    assert first == second
    assert layout.decode(torch.tensor(first[0], dtype=torch.int32).numpy(), K).version == layout.OWN
    [(nonce, _, rejected)] = uplink.answers
    assert nonce == 4
    assert "intercepts[1]" in rejected


def test_a_rank_whose_grading_fails_still_joins_and_decides_like_the_others():
    uplink = FakeUplink()
    parts = {s: SegmentCoefficients((0.25 + s / 8,), (s / 4,) * K) for s in range(5)}
    uplink.push(Coefficients(Version(1, 1), SegmentCoefficients((0.75,), (0.5,) * K), (), parts), 1)

    def body(rank, ranks):
        worker = Worker(ranks, uplink if rank == 0 else None)
        if rank == 1:
            worker.estimator._draft_tokens = "not a tensor"
        run_alone(None, worker=worker)
        # A request of another segment takes a slot, and exploration marks one.
        worker.estimator.admit(2, SimpleNamespace(top_k=3))
        worker.estimator.slots.write_explored(np.array([0]), 2, 0.5)
        run_alone(None, 2, worker)
        slots = worker.estimator.slots
        seen = (worker.confidence.tolist(), slots.flags.tolist(), slots.explored.tolist())
        return worker.estimator.frozen, (worker.state(), seen)

    (ok, first), (frozen, second) = on_each_rank(2, body)
    assert ok == ""
    assert frozen.startswith("grading: ")
    assert first == second
    (words, _, _), (_, flags, explored) = first
    assert words[layout.VERSION] == 1
    assert flags[2] == 0x80
    assert explored == [0] * (R + 1)


def test_a_rank_0_whose_uplink_fails_still_broadcasts():
    class Broken(FakeUplink):
        def latest(self):
            raise RuntimeError("no")

    def body(rank, ranks):
        worker = run_alone(None, 3 * INTERVAL, Worker(ranks, Broken() if rank == 0 else None))
        return worker.state(), worker.estimator.apply.failures

    (first, failures), (second, _) = on_each_rank(2, body)
    assert first == second
    assert failures == 3


def test_reseeding_restores_every_tensor_after_the_memory_was_discarded():
    uplink = FakeUplink()
    uplink.push(line((1, 1), 0.75, [0.5] * K), 1)
    worker = Worker(SingleRank(), uplink)
    worker.estimator.admit(2, SimpleNamespace(bad_words=["x"], top_k=3))
    run_alone(uplink, worker=worker)
    estimator, before = worker.estimator, worker.state()
    flags = estimator.slots.flags.clone()
    assert flags[2] == 0x80 | 8
    for tensor in (estimator.apply.words, estimator.slots.flags, estimator.slots.valid, estimator.slots.version):
        tensor.fill_(77)
    estimator.slots.features.fill_(math.nan)
    estimator.reseed()
    assert worker.state() == before
    assert torch.equal(estimator.slots.flags, flags)
    assert estimator.slots.valid.sum() == 0
    rows = len(uplink.rows)
    run_alone(uplink, INTERVAL, worker)
    estimator.flush()
    assert sum(map(len, uplink.rows[rows:])) == INTERVAL - 1  # one request gives no labels, the first step is stale


def test_new_weights_start_a_new_pair_and_refuse_what_was_under_way():
    uplink = FakeUplink()
    uplink.push(line((1, 7), 0.75, [0.5] * K), 1)
    worker = run_alone(uplink)
    uplink.push(line((1, 8), 0.875, [0.5] * K), 2)
    run_alone(uplink, INTERVAL - 1, worker)  # broadcast, not yet adopted
    worker.estimator.weights_changed()
    run_alone(uplink, LAG, worker)
    assert worker.estimator.slope.tolist() == [0.75]
    assert uplink.generations == [1]
    assert "weights generation" in uplink.answers[-1][2]
    handed = len(uplink.rows)
    run_alone(uplink, INTERVAL, worker)
    worker.estimator.flush()
    assert {rows.generation for rows in uplink.rows[:handed]} == {0}
    assert {rows.generation for rows in uplink.rows[handed:]} == {1}
    # Rows of the new pair predicted with the old pair's coefficients are nobody's version.
    assert {v for rows in uplink.rows[handed:] for v, _ in rows.by_version()} == {None}
    uplink.push(line((1, 1), 0.625, [0.5] * K), 3, generation=1)
    run_alone(uplink, 2 * INTERVAL, worker)
    assert worker.estimator.slope.tolist() == [0.625]


def test_a_rank_that_fails_to_follow_new_weights_still_counts_them():
    class Broken(FakeUplink):
        def weights_changed(self, generation):
            raise RuntimeError("no")

    uplink = Broken()

    def body(rank, ranks):
        worker = Worker(ranks, uplink if rank == 0 else None)
        run_alone(None, worker=worker)
        worker.estimator.weights_changed()
        if rank == 0:
            uplink.push(line((1, 1), 0.75, [0.5] * K), 1, generation=1)
        run_alone(None, INTERVAL, worker)
        return worker.estimator.frozen, worker.state()

    (frozen, first), (_, second) = on_each_rank(2, body)
    assert frozen.startswith("following new weights: ")
    assert first == second
    assert first[0][layout.VERSION] == 1


def test_a_service_that_is_lost_for_too_long_is_replaced_by_the_same_local_round_on_all_ranks():
    uplink = FakeUplink()
    uplink.push(line((2, 5), 0.75, [0.5] * K), 1, max_age_seconds=10.0)

    def body(rank, ranks):
        worker = Worker(ranks, uplink if rank == 0 else None)
        run_alone(None, ROUND_STEPS, worker)
        kept = worker.state()
        worker.now = 11.0
        run_alone(None, 2 * ROUND_STEPS + INTERVAL + LAG, worker)
        local = worker.state()
        return kept, local, worker.estimator.in_force.local, worker

    (kept0, local0, is_local0, worker), (kept1, local1, is_local1, _) = on_each_rank(2, body)
    assert kept0 == kept1
    assert local0 == local1
    assert is_local0
    assert is_local1
    assert kept0 != local0
    assert [version for version, _ in uplink.rows[-1].by_version()] == [None]
    # Back again, with the version it had: it replaces the worker's own round.
    uplink.push(line((2, 5), 0.75, [0.5] * K), 2, renewed_at=11.0)
    worker.estimator.apply._ranks = SingleRank()
    run_alone(uplink, 2 * INTERVAL, worker)
    assert worker.estimator.slope.tolist() == [0.75]
    assert not worker.estimator.in_force.local


def test_a_service_that_never_answers_leaves_the_worker_with_its_own_rounds():
    worker = run_alone(FakeUplink(), 3 * ROUND_STEPS)
    block = worker.estimator.in_force
    assert block.local
    assert block.version == Version()
    assert 0 <= block.slopes[0, 0] <= 4
    assert block.slopes[0, 0] != 0.5


@pytest.mark.parametrize("seed", range(6))
def test_ranks_agree_after_every_step_of_any_history(seed):
    """Pushes good and bad, silences, new weights and wakes, at random; copies late by another amount on each rank."""
    uplink = FakeUplink()
    plan = random.Random(seed)
    events = [
        plan.choices(("push", "bad", "silence", "weights", "wake", ""), (8, 4, 1, 1, 1, 40))[0] for _ in range(400)
    ]

    def body(rank, ranks):
        own = random.Random(100 * seed)  # rank 0 alone draws from it
        worker = Worker(ranks, uplink if rank == 0 else None, DelayedStreams(1 + rank * 3))
        states, generation = [], 0
        for step, event in enumerate(events):
            worker.now = float(step)
            if event == "weights":
                worker.estimator.weights_changed()
                generation += 1
            elif event == "wake":
                worker.estimator.apply.words.fill_(-1)
                worker.estimator.reseed()
            elif rank == 0 and event in ("push", "bad"):
                slope = math.nan if event == "bad" else own.uniform(0.1, 1.0)
                version = own.choice([(1, step), (1, step), (0, step)])
                uplink.push(
                    line(version, slope, [own.uniform(-1, 1) for _ in range(K)]),
                    step + 1,
                    mode=own.choice(list(Mode)),
                    exploration_rate=own.random(),
                    generation=own.choice([generation, generation, generation + 1]),
                    renewed_at=worker.now,
                    max_age_seconds=50.0,
                )
            elif rank == 0 and event == "silence":
                uplink.received = None
            accepted = torch.tensor([step % 3], dtype=torch.int32)
            worker.estimator.step(torch.tensor([1], dtype=torch.int32), accepted + 1, 3 - accepted)
            states.append((worker.state(), worker.estimator.apply.generation, worker.estimator.in_force.version))
        return states, worker.estimator.frozen

    (first, frozen0), (second, frozen1) = on_each_rank(2, body)
    assert frozen0 == frozen1 == ""
    assert first == second
    versions = [version for _, generation, version in first if generation == 0 and version.epoch]
    assert versions == sorted(versions)
    answered = [nonce for nonce, _, _ in uplink.answers]
    assert len(answered) > 5
    assert len({nonce for nonce, _, why in uplink.answers if not why}) >= 3


def test_a_missing_rank_does_not_raise_into_decoding():
    class Alone(ThreadRanks):
        def __init__(self):
            self.rank, self.size = 0, 2

        def broadcast(self, tensor):
            raise TimeoutError("rank 1 is gone")

    worker = run_alone(None, 2 * INTERVAL, Worker(Alone(), FakeUplink()))
    assert worker.estimator.frozen.startswith("applying: ")
