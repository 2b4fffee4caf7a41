"""Exact counters against counting by hand, and in plain values and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acceptd.codec import UNKNOWN_SEGMENT, Observations
from estimator_service.counters import Counters

K = 5


@given(st.lists(st.tuples(st.integers(0, K), st.integers(1, K)).filter(lambda row: row[0] <= row[1]), min_size=1))
def test_counts_equal_a_hand_count(blocks):
    accepted, admitted = (np.array(column, np.uint8) for column in zip(*blocks, strict=True))
    total = int(np.minimum(accepted.astype(int) + 1, admitted).sum())
    count = len(blocks)
    rows = Observations(
        accepted,
        admitted,
        np.zeros(total, np.float32),
        np.full(count, UNKNOWN_SEGMENT, np.uint8),
        np.zeros(count, np.uint8),
        np.zeros(count, np.float32),
    )
    counters = Counters.zero(K)
    counters.add(rows)
    observed, passed = [0] * K, [0] * K
    for a, n in blocks:
        for k in range(n):
            if k < a:
                observed[k] += 1
                passed[k] += 1
            elif k == a:
                observed[k] += 1
    assert counters.observations.tolist() == observed
    assert counters.acceptances.tolist() == passed
    assert counters.blocks == count
    assert Counters.from_json(counters.to_json()).to_json() == counters.to_json()


def test_what_workers_left_out_never_leaves_a_uint64():
    """Three claims of 2**63 - 1 in one batch once made the pair unreadable for good."""
    counters = Counters.zero(1)
    for _ in range(3):
        counters.exclude(7, 2**63 - 1)
    counters.exclude(2, 5)
    assert counters.exclusions == {7: 2**64 - 1, 2: 5}
    written = counters.to_json()
    written["exclusions"]["7"] = 3 * 2**63
    assert Counters.from_json(written).exclusions[7] == 2**64 - 1


def test_counters_hold_more_than_53_bits():
    counters = Counters.zero(1)
    counters.observations[:] += np.uint64(2**63 + 1)
    assert counters.to_json()["observations"] == [2**63 + 1]
    assert Counters.from_json(counters.to_json()).observations[0] == 2**63 + 1
