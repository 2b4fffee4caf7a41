"""Counts of streams: the same metrics as prometheus_client makes of the same events."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram

from estimator_service.stream_counts import StreamCounts

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
#: On a bound, between two, below the first and above the last.
SECONDS = (0.0, 0.0005, 0.001, 0.0010001, 0.02, 0.3, 1.0, 5.0, 5.1, 60.0, 0.02)


def samples(registry):
    """Without the time at which a series was made, which is prometheus_client's own addition."""
    return {
        (item.name, tuple(sorted(item.labels.items()))): item.value
        for family in registry.collect()
        for item in family.samples
        if not item.name.endswith("_created")
    }


def test_acknowledgements_are_the_histogram_that_prometheus_client_makes():
    theirs, ours, counts = CollectorRegistry(), CollectorRegistry(), StreamCounts()
    reference = Histogram("acceptd_update_seconds", "", ["pair"], registry=theirs, buckets=BOUNDS)
    ours.register(counts)
    for pair in ("a/b", "c/d"):
        counts.open(pair)
        reference.labels(pair)
    for seconds in SECONDS:
        counts.applied("a/b", seconds)
        reference.labels("a/b").observe(seconds)
    took = {key: value for key, value in samples(ours).items() if key[0].startswith("acceptd_update_seconds")}
    assert took == pytest.approx(samples(theirs))


def test_answers_and_bytes_are_counted_by_kind_and_a_forgotten_pair_is_gone():
    registry, counts = CollectorRegistry(), StreamCounts()
    registry.register(counts)
    counts.open("a/b")
    counts.received += 7
    counts.sent += 5
    counts.applied("a/b", 0.1)
    counts.applied("a/b", 0.1)
    counts.refused("a/b")
    value = registry.get_sample_value
    assert value("acceptd_stream_bytes_total", {"direction": "received"}) == 7
    assert value("acceptd_stream_bytes_total", {"direction": "sent"}) == 5
    assert value("acceptd_updates_total", {"pair": "a/b", "answer": "applied"}) == 2
    assert value("acceptd_updates_total", {"pair": "a/b", "answer": "refused"}) == 1
    assert value("acceptd_updates_total", {"pair": "a/b", "answer": "unknown"}) is None
    counts.unknown("a/b")
    assert value("acceptd_updates_total", {"pair": "a/b", "answer": "unknown"}) == 1
    counts.forget("a/b")
    assert not [key for key in samples(registry) if ("pair", "a/b") in key[1]]
