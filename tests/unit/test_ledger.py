"""What the ledger submits, and when: a recording writer in place of the thread."""

from __future__ import annotations

import numpy as np
import pytest

from acceptd.codec import UNKNOWN_SEGMENT, Observations, encode_batch
from acceptd.types import PairKey
from estimator_service.config import load_settings
from estimator_service.pair import Pair
from estimator_service.storage.delivery import RETRY_SECONDS
from estimator_service.storage.ledger import Ledger
from estimator_service.storage.records import EpochRecord, ForgetRecord, JournalRecord, PairRecord, SnapshotRecord
from estimator_service.worker import Roster


class ManualClock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1.7e9


class RecordingWriter:
    """Takes submissions and commits nothing by itself."""

    pending = 0

    def __init__(self) -> None:
        self.submissions = []

    def start(self) -> None:
        pass

    def submit(self, records, ticket, *, whole=False) -> None:
        self.submissions.append((list(records), ticket, whole))


class Bench:
    def __init__(self, **flags) -> None:
        self.clock = ManualClock()
        self.settings = load_settings({"snapshot_seconds": 10, "commit_seconds": 0.5, **flags}, environ={})
        self.ledger = Ledger(self.settings, self.clock, epoch=3, ticket=7, trouble=None)
        self.writer, self.roster = RecordingWriter(), Roster()
        self.ledger.attach(self.writer, self.roster, lambda: None)
        self.sequence = 0

    def pair(self, draft="draft") -> Pair:
        pair = Pair(PairKey("target", draft, 4), self.settings, self.clock, 3)
        self.ledger.pair(pair)
        return pair

    def batch(self, pair, rows=100) -> int:
        self.sequence += 1
        accepted = np.ones(rows, np.uint8)
        columns = Observations(
            accepted,
            np.full(rows, 4, np.uint8),
            np.zeros(2 * rows, np.float32),
            np.full(rows, UNKNOWN_SEGMENT, np.uint8),
            np.zeros(rows, np.uint8),
            np.zeros(rows, np.float32),
        )
        worker = self.roster.get("w", 1, pair.id)
        worker.last_sequence = self.sequence
        return self.ledger.batch(pair, worker, "", encode_batch(self.sequence, None, columns))

    def tick(self, seconds=0.5):
        """What is submitted by a tick after `seconds`."""
        self.clock.now += seconds
        del self.writer.submissions[:]
        self.ledger.tick()
        return [record for records, _, _ in self.writer.submissions for record in records]


@pytest.fixture
async def bench():
    return Bench


async def test_relaxed_submits_events_together(bench):
    it = bench()
    pair = it.pair()
    assert it.batch(pair) == 0, "the answer waits for nothing"
    assert it.batch(pair) == 0
    assert not it.writer.submissions
    records = it.tick()
    assert [type(record) for record in records] == [PairRecord, JournalRecord, JournalRecord]
    assert [record.ticket for record in records[1:]] == [8, 9]
    assert it.tick() == []


async def test_strict_submits_each_event_and_answers_wait_for_it(bench):
    it = bench(durability="strict")
    pair = it.pair()
    assert it.batch(pair) == it.writer.submissions[-1][1] == 8
    assert it.batch(pair) == it.writer.submissions[-1][1] == 9
    assert not await it.ledger.settled(0) or it.ledger.delivery.committed == 7
    it.ledger.delivery.trouble = "full"
    assert it.ledger.postpone == "full"
    assert not await it.ledger.settled(9)


async def test_far_more_events_than_a_snapshot_become_one(bench):
    it = bench()
    pair = it.pair()
    for _ in range(400):
        it.batch(pair, rows=1000)
    records = [record for record in it.tick() if not isinstance(record, PairRecord)]
    assert [type(record).__name__ for record in records] == ["MarkRecord", "SnapshotRecord"]
    assert records[0].sequence == 400
    assert records[1].ticket == it.ledger.ticket == 407
    it.batch(pair)
    assert [type(record) for record in it.tick()] == [JournalRecord]


async def test_a_busy_pair_is_snapshotted_by_age_and_an_idle_one_never(bench):
    it = bench()
    busy, _idle = it.pair("busy"), it.pair("idle")
    snapshots = []
    for _ in range(100):
        it.batch(busy)
        snapshots += [record.pair for record in it.tick() if isinstance(record, SnapshotRecord)]
    assert snapshots == [busy.id] * 5


async def test_idle_pairs_do_not_keep_busy_ones_from_their_turn(bench):
    it = bench(max_pairs=200)
    for i in range(100):
        it.pair(f"idle{i}")
    busy = [it.pair(f"busy{i}") for i in range(40)]
    for pair in busy:
        it.batch(pair)
    it.tick(11)
    made = [record.pair for record in it.writer.submissions[0][0] if isinstance(record, SnapshotRecord)]
    assert len(made) == 16, "not all at one tick"
    for _ in range(2):
        made += [record.pair for record in it.tick() if isinstance(record, SnapshotRecord)]
    assert sorted(made) == sorted(pair.id for pair in busy)


async def test_trouble_is_answered_with_the_whole_state_at_growing_intervals(bench):
    it = bench()
    pair = it.pair()
    it.batch(pair)
    it.ledger.delivery._troubled("full")
    assert it.tick(0.9 * RETRY_SECONDS) == []
    records = it.tick(0.2 * RETRY_SECONDS)
    assert it.writer.submissions[0][2], "whole"
    kinds = {type(record).__name__ for record in records}
    assert kinds == {"EpochRecord", "MarkRecord", "PairRecord", "HistoryRecord", "SnapshotRecord"}
    assert EpochRecord(3) in records
    assert it.tick(RETRY_SECONDS) == []
    assert it.tick(1.1 * RETRY_SECONDS)
    for _ in range(10):
        it.tick(40)
    assert it.tick(29) == []
    assert it.tick(2)
    it.ledger.delivery._committed(it.ledger.ticket)
    assert it.ledger.delivery.trouble is None
    it.batch(pair)
    assert [type(record) for record in it.tick()] == [JournalRecord]


async def test_what_waits_for_a_writer_that_hangs_is_bounded(bench):
    it = bench()
    pair = it.pair()
    it.writer.pending = 1
    for i in range(3000):
        it.batch(pair, rows=100)
        it.ledger.published(pair, pair.publication)
        if i % 100 == 0:
            assert it.tick() == []
    account = it.ledger._accounts[pair.id]
    assert len(account.others) <= 256
    assert sum(len(event.payload) for event in account.events) < 1024 * 1024


async def test_forgetting_a_pair_forgets_what_waits_for_it(bench):
    it = bench()
    pair = it.pair()
    it.batch(pair)
    it.ledger.forget(pair)
    assert it.writer.submissions[-1][0] == [ForgetRecord(pair.id)]
    assert it.tick() == []
