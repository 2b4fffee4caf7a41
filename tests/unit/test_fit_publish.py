"""When a new version goes out."""

from dataclasses import replace

import numpy as np

from acceptd.types import Coefficients, SegmentCoefficients, prior
from estimator_service.fit.knots import choose_knots
from estimator_service.fit.publish import largest_change, should_publish


def moved(value, shift):
    return replace(value, line=SegmentCoefficients(value.line.slopes, tuple(b + shift for b in value.line.intercepts)))


def test_a_small_change_waits_for_age():
    old = prior(3)
    new = moved(old, 0.001)
    assert not should_publish(old, new, age_seconds=10, max_age_seconds=60)
    assert should_publish(old, new, age_seconds=60, max_age_seconds=60)
    assert should_publish(old, moved(old, 0.1), age_seconds=0, max_age_seconds=60)


def test_change_is_that_of_a_confidence():
    # d sigmoid / d log-odds is at most 1/4.
    assert 0.0245 < largest_change(prior(3), moved(prior(3), 0.1)) <= 0.025


def test_change_of_one_segment_counts():
    old = prior(2)
    value = SegmentCoefficients((0.5,), (1.0, 1.0))
    assert largest_change(old, Coefficients(old.version, old.line, segments={2: value})) > 0.2


def test_knots_lie_on_bin_edges_and_stay_put_under_noise():
    from acceptd.bins import EDGES

    rng = np.random.default_rng(0)
    knots = ()
    seen = set()
    for _ in range(30):
        n = np.histogram(rng.normal(2, 2.5, 5_000), EDGES)[0].astype(float)
        knots = choose_knots(n, knots)
        seen.add(knots)
    assert len(seen) == 1
    assert set(knots) <= set(EDGES)
    assert list(knots) == sorted(set(knots))
    shifted = choose_knots(np.histogram(rng.normal(6, 2.5, 5_000), EDGES)[0].astype(float), knots)
    assert shifted != knots


def test_narrow_traffic_has_fewer_knots():
    from acceptd.bins import EDGES, NUM_BINS

    n = np.zeros(NUM_BINS)
    n[EDGES.index(2.0)] = 100
    assert len(choose_knots(n)) == 1
    assert choose_knots(np.zeros(NUM_BINS), (1.0,)) == (1.0,)
