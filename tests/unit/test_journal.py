"""The open round's batches come back in order of arrival, however they were grouped to be graded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_service.fit.journal import Journal, Stretch, journalled_bytes

K = 3


def batch(rng, number):
    size = int(rng.integers(1, 6))
    return {
        "worker": f"w{rng.integers(3)}",
        "workload": ("", "code")[number % 2],
        "code": rng.integers(0, 1000, size).astype(np.uint16),
        "x": rng.random(size).astype(np.float32),
        "weight": rng.random(size).astype(np.float32) if rng.random() < 0.5 else None,
        "scores": rng.random((1, 3 * K + 3)),
    }


def stretch(batches, order, *, weighted):
    chosen = [batches[i] for i in order]
    weights = [np.zeros_like(b["x"]) if b["weight"] is None else b["weight"] for b in chosen]
    return Stretch(
        [b["worker"] for b in chosen],
        [b["workload"] for b in chosen],
        np.array(order),
        np.array([len(b["x"]) for b in chosen]),
        np.concatenate([b["code"] for b in chosen]),
        np.concatenate([b["x"] for b in chosen]),
        np.concatenate(weights) if weighted else None,
        np.concatenate([b["scores"] for b in chosen]),
    )


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=5))
def test_batches_come_back_in_order_of_arrival(seed, turns):
    rng = np.random.default_rng(seed)
    journal, arrived = Journal(K), []
    for turn in turns:
        batches = [batch(rng, i) for i in range(len(turn))]
        orders = [[i for i, kind in enumerate(turn) if kind is which] for which in (True, False)]
        journal.append(
            [
                stretch(batches, order, weighted=any(batches[i]["weight"] is not None for i in order))
                for order in orders
                if order
            ],
            size=100,
        )
        arrived += batches
    assert (journal.batches, journal.size) == (len(arrived), 100 * len(turns))
    assert journal.observations == sum(len(b["x"]) for b in arrived)
    pending = journal.take()
    assert [pending.workers[i] for i in pending.worker] == [b["worker"] for b in arrived]
    assert [pending.workloads[i] for i in pending.workload] == [b["workload"] for b in arrived]
    assert list(pending.workers) == sorted({b["worker"] for b in arrived})
    np.testing.assert_array_equal(pending.sizes, [len(b["x"]) for b in arrived])
    for name in ("code", "x", "scores"):
        np.testing.assert_array_equal(getattr(pending, name), np.concatenate([b[name] for b in arrived]))
    weights = [np.zeros_like(b["x"]) if b["weight"] is None else b["weight"] for b in arrived]
    if pending.weight is None:
        assert not np.concatenate(weights).any()
    else:
        np.testing.assert_array_equal(pending.weight, np.concatenate(weights))
    assert (journal.batches, journal.observations, journal.size, journal.stretches) == (0, 0, 0, [])


def test_another_journal_comes_after_what_there_is():
    rng = np.random.default_rng(1)
    first, second = Journal(K), Journal(K)
    batches = [batch(rng, i) for i in range(4)]
    first.append([stretch(batches, [0, 1], weighted=False)], size=10)
    second.append([stretch(batches[2:], [1], weighted=False), stretch(batches[2:], [0], weighted=False)], size=20)
    first.extend(second)
    assert (first.batches, first.size) == (4, 30)
    np.testing.assert_array_equal(first.peek().x, np.concatenate([b["x"] for b in batches]))


def whole():
    rng = np.random.default_rng(2)
    batches = [batch(rng, i) for i in range(5)]
    journal = Journal(K)
    size = sum(journalled_bytes(len(b["x"]), K, weighted=True) for b in batches)
    journal.append([stretch(batches, [0, 2, 3], weighted=True), stretch(batches, [1, 4], weighted=True)], size)
    return journal


def test_a_journal_that_fits_together_passes():
    whole().check()
    Journal(K).check()


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": lambda s: s.sizes * 2**28},
        {"sizes": lambda s: s.sizes - s.sizes},
        {"sizes": lambda s: s.sizes + np.array([s.sizes[1], -s.sizes[1], 0])},
        {"sizes": lambda s: s.sizes.astype(np.int32)},
        {"sizes": lambda s: s.sizes[:2]},
        {"order": lambda s: s.order + 1},
        {"order": lambda s: s.order * 0},
        {"order": lambda s: s.order.astype(np.float64)},
        {"code": lambda s: s.code[:-1]},
        {"code": lambda s: s.code + np.uint16(60_000)},
        {"code": lambda s: s.code.astype(np.uint32)},
        {"x": lambda s: s.x.astype(np.float64)},
        {"x": lambda s: s.x[None]},
        {"weight": lambda s: s.weight[1:]},
        {"weight": lambda s: 1.0},
        {"scores": lambda s: s.scores[:, 1:]},
        {"scores": lambda s: s.scores[:1]},
        {"workers": lambda s: s.workers[1:]},
        {"workers": lambda s: "abc"},
        {"workloads": lambda s: [1, 2, 3]},
    ],
)
def test_a_journal_from_elsewhere_that_does_not_fit_together_is_refused(change):
    journal = whole()
    first = journal.stretches[0]
    ((name, edit),) = change.items()
    journal.stretches[0] = replace(first, **{name: edit(first)})
    with pytest.raises(ValueError, match="damaged"):
        journal.check()


@pytest.mark.parametrize("name", ["batches", "observations", "size"])
@pytest.mark.parametrize("value", [-(10**18), 0, 10**18])
def test_a_journal_that_says_other_counts_than_it_has_is_refused(name, value):
    journal = whole()
    setattr(journal, name, value)
    with pytest.raises(ValueError, match="damaged"):
        journal.check()
