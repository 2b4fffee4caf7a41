"""When a pair is refitted, what is published, and which clock decides."""

from __future__ import annotations

import numpy as np
import pytest

from acceptd.codec import UNKNOWN_SEGMENT, Observations
from acceptd.types import PairKey, Version
from estimator_service.config import load_settings
from estimator_service.pair import Pair
from estimator_service.publication import Publication
from estimator_service.publications import MAX_RECENT
from estimator_service.rate import RowRate
from estimator_service.worker import MAX_INCARNATIONS, Roster

K = 3
KEY = PairKey("target", "draft", K)


class ManualClock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now, self.date = 1000.0, 1.7e9

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.date


def make_pair(clock, epoch=1, **flags):
    settings = load_settings({"method": "line", "round_min_seconds": 0, "hold_tolerance": 100, **flags}, environ={})
    return Pair(KEY, settings, clock, epoch)


def rows(count, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    accepted = rng.integers(0, K + 1, count).astype(np.uint8)
    admitted = np.full(count, K, np.uint8)
    total = int(np.minimum(accepted.astype(int) + 1, admitted).sum())
    return Observations(
        accepted,
        admitted,
        rng.normal(shift, 1, total).astype(np.float32),
        np.full(count, UNKNOWN_SEGMENT, np.uint8),
        admitted,
        np.ones(count, np.float32),
    )


def feed(pair, count, seed=0, shift=0.0):
    pair.apply(rows(count, seed, shift), (), None, "", "w")


def test_a_round_is_closed_by_blocks_or_by_seconds_and_never_without_blocks():
    clock = ManualClock()
    pair = make_pair(clock, method="round", round_blocks=100, round_seconds=10)
    assert not pair.due()
    clock.now += 1e6
    assert not pair.due(), "no observations"
    feed(pair, 60)
    assert not pair.due()
    feed(pair, 40)
    assert pair.due()
    pair.close_round()
    assert not pair.due()
    clock.now += 100
    assert not pair.due(), "no new observations"
    feed(pair, 1)
    clock.now += 9.9
    assert not pair.due()
    clock.now += 0.2
    assert pair.due()


def test_refits_keep_a_distance():
    clock = ManualClock()
    pair = make_pair(clock, method="round", round_blocks=10, round_min_seconds=1)
    feed(pair, 10)
    assert not pair.due()
    clock.now += 1
    assert pair.due()


def test_wall_clock_jumps_move_nothing():
    """Two pairs, one of them under a clock that jumps about: same rounds, same bits."""
    states = []
    for jumps in (False, True):
        clock = ManualClock()
        pair = make_pair(clock, round_blocks=50, round_seconds=10)
        for i in range(20):
            clock.now += 1.7
            if jumps:
                clock.date += (-1) ** i * 1e8
            feed(pair, 30, i, shift=i / 10)
            if pair.due():
                pair.close_round()
        states.append(pair)
    steady, jumpy = states
    assert steady.publication.version == jumpy.publication.version
    assert steady.publication.pooled == jumpy.publication.pooled
    assert steady.state() == jumpy.state()


def test_what_does_not_change_is_not_published_until_it_is_old():
    clock = ManualClock()
    pair = make_pair(clock, publish_min_change=1, publish_max_age_seconds=60)
    feed(pair, 100)
    assert pair.close_round().publication.version == Version(1, 1), "the prior is always replaced"
    feed(pair, 100)
    decision = pair.close_round()
    assert decision.publication is None
    assert decision.held == pair.last_held == "unchanged"
    assert pair.refits_held == {"unchanged": 1}
    clock.now += 61
    feed(pair, 100)
    assert pair.close_round().publication.version == Version(1, 2)
    assert pair.refits_done == 3


def test_publications_in_memory_are_bounded():
    clock = ManualClock()
    pair = make_pair(clock, publish_min_change=0)
    for i in range(MAX_RECENT + 50):
        feed(pair, 5, i, shift=i % 7)
        pair.close_round()
    assert len(pair.publications.recent()) == MAX_RECENT
    versions = [publication.version for publication in pair.publications.recent()]
    assert versions == sorted(versions, reverse=True)


def test_which_versions_are_known():
    pair = make_pair(ManualClock(), epoch=3)
    none = Version()
    feed(pair, 50)
    pair.close_round()
    knows = pair.publications.knows
    assert knows(None, none)
    assert knows(Version(3, 0), none)
    assert knows(Version(3, 1), none)
    assert not knows(Version(3, 2), none)
    assert not knows(Version(4, 1), Version(4, 1)), "an epoch that is not begun"
    assert not knows(Version(2, 5), none)
    assert knows(Version(2, 5), Version(2, 9)), "lost with the last second, or another replica's"
    assert not knows(Version(2, 10), Version(2, 9))


def test_versions_go_on_in_a_new_epoch():
    clock = ManualClock()
    old = make_pair(clock)
    for i in range(3):
        feed(old, 50, i, shift=i)
        old.close_round()
    pair = make_pair(clock, epoch=2)
    pair.publications.restore(list(reversed(old.publications.recent())))
    pair.restore(*old.state())
    assert pair.publication.version == Version(1, 3)
    assert pair.publications.outrank(Version(1, 3)) is None
    assert pair.publications.outrank(Version(1, 2)) is None
    again = pair.publications.outrank(Version(1, 4))
    assert again.version == Version(2, 1)
    assert again.pooled.line == old.publication.pooled.line
    feed(pair, 50, 9, shift=3)
    assert pair.close_round().publication.version == Version(2, 2)


def test_the_prior_is_never_published_over_what_a_worker_holds():
    pair = make_pair(ManualClock(), epoch=2)
    assert pair.publications.outrank(Version(1, 7)) is None


def test_a_publication_survives_json_to_the_bit():
    clock = ManualClock()
    pair = make_pair(clock, method="auto")
    for label in ("code", "chat"):
        pair.apply(rows(500, 1), (), None, label, "w")
    publication = pair.close_round().publication
    import json

    again = Publication.from_json(json.loads(json.dumps(publication.to_json())), published=publication.published)
    # NaN is not equal to itself.
    assert repr(again) == repr(publication)


def test_state_replayed_from_a_snapshot_and_events_equals_what_was():
    clock = ManualClock()
    pair = make_pair(clock, method="auto", round_blocks=100)
    for i in range(5):
        feed(pair, 70, i)
        clock.now += 1
        if pair.due():
            pair.close_round()
    snapshot, events = pair.state(), []
    for i in range(5, 12):
        feed(pair, 70, i)
        events.append(i)
        clock.now += 1
        if pair.due():
            events.append(pair.close_round())
    again = make_pair(clock, method="auto", round_blocks=100, epoch=2)
    again.publications.restore(list(reversed(pair.publications.recent())))
    again.restore(*snapshot)
    for event in events:
        if isinstance(event, int):
            feed(again, 70, event)
        else:
            again.replay_round(event.elapsed, event.in_force, event.held)
    assert again.state() == pair.state()
    assert again.publication.pooled == pair.publication.pooled


def test_row_rate():
    clock = ManualClock()
    rate = RowRate(100, 50, clock)
    assert rate.take(100) == 0
    assert rate.take(50) == pytest.approx(0.5)
    clock.now += 0.5
    assert rate.take(50) == 0
    assert RowRate(10, 500, clock).take(500) == 0, "a whole batch always fits a full bucket"
    assert all(RowRate(0, 1, clock).take(10**6) == 0 for _ in range(3))


def test_the_roster_never_forgets_a_connected_worker():
    roster = Roster()
    real = roster.get("real", 1, "p")
    real.last_sequence, real.connected = 5, True
    for i in range(2 * MAX_INCARNATIONS):
        roster.get("flood", i, "p").last_sequence = 1
    assert len(roster) == MAX_INCARNATIONS
    assert roster.get("real", 1, "p") is real
    roster.left(real)
    assert roster.get("real", 1, "p") is real


def test_the_roster_remembers_nobody_for_a_hello():
    roster = Roster()
    for i in range(10):
        roster.left(roster.get("flood", i, "p"))
    assert len(roster) == 0


def test_the_roster_is_bounded_and_forgets_the_one_seen_longest_ago():
    roster = Roster()
    for i in range(MAX_INCARNATIONS):
        roster.get("w", i, "p").last_sequence = i
    roster.get("w", 0, "p")
    roster.get("new", 0, "p")
    assert len(roster) == MAX_INCARNATIONS
    assert roster.get("w", 2, "p").last_sequence == 2
    assert roster.get("w", 1, "p").last_sequence == 0, "forgotten"


def test_refused_versions_are_bounded():
    worker = Roster().get("w", 1, "p")
    for i in range(100):
        worker.refuse(Version(1, i), "no")
    assert worker.refused(Version(1, 99))
    assert not worker.refused(Version(1, 50))
    assert len(worker._refused) == 16
