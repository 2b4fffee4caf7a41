"""Exploration: who is drawn, how often, and that nothing but counts decides it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from acceptd.errors import ConfigError
from vllm_client_hook.exploration import Exploration

EVEN = [0.0] * 7
ALL = np.full(64, 7, np.int32)


def test_ranks_with_the_same_seed_draw_the_same() -> None:
    a, b, other = Exploration(7), Exploration(7), Exploration(8)
    draws = [(a.draw(s, ALL, EVEN, 10**6), b.draw(s, ALL, EVEN, 10**6)) for s in range(500)]
    assert all(x == y for x, y in draws)
    assert [x for x, _ in draws] != [other.draw(s, ALL, EVEN, 10**6) for s in range(500)]


def test_the_share_of_drafted_slots_is_kept() -> None:
    explore = Exploration(1, share=0.01)
    slots = 0
    for step in range(4000):
        drawn = explore.draw(step, ALL, EVEN, 10**6)
        slots += len(drawn.rows) * drawn.depth if drawn else 0
    assert slots == pytest.approx(0.01 * 64 * 7 * 4000, rel=0.03)


def test_propensity_is_the_frequency_with_which_a_row_is_drawn() -> None:
    explore = Exploration(3, share=0.02)
    inverse, expected_rows = np.zeros(64), 0.0
    counts = np.zeros(64)
    for step in range(20000):
        drawn = explore.draw(step, ALL, EVEN, 10**6)
        if drawn is None:
            continue
        for row in drawn.rows:
            inverse[row] += 1.0 / drawn.propensity
            counts[row] += 1
        expected_rows += drawn.propensity
    # Horvitz-Thompson: each row stands for all steps; by symmetry none is preferred.
    assert inverse.mean() == pytest.approx(20000, rel=0.02)
    assert chisquare(counts).pvalue > 1e-3


def test_off_explores_nothing() -> None:
    explore = Exploration(1, share=0.0)
    assert all(explore.draw(step, ALL, EVEN, 10**6) is None for step in range(500))


@pytest.mark.parametrize("max_gap", [1, 5, 64])
def test_at_least_one_block_within_max_gap_steps(max_gap: int) -> None:
    explore = Exploration(2, share=1e-6, max_gap=max_gap)
    steps = [s for s in range(1000) if explore.draw(s, np.array([4], np.int32), [0.0] * 4, 10**6)]
    assert np.diff([-1, *steps]).max() == max_gap


def test_a_due_row_has_propensity_one_over_the_candidates() -> None:
    explore = Exploration(2, share=1e-9, max_gap=1)
    drawn = explore.draw(0, np.array([4, 4, 0, 4], np.int32), [0.0] * 4, 10**6)
    assert drawn is not None
    assert drawn.propensity == pytest.approx(1 / 3)
    assert drawn.forced(4).sum() == drawn.depth


def test_positions_with_few_labels_are_drawn_more_often_and_none_starves() -> None:
    explore = Exploration(4, share=0.05)
    depths = []
    for step in range(5000):
        drawn = explore.draw(step, ALL, [1e6, 1e6, 1e6, 1e6, 1e6, 10.0, 1e6], 10**6)
        if drawn:
            depths.append(drawn.depth)
    counts = np.bincount(depths, minlength=8)[1:]
    assert counts.argmax() == 5
    assert (counts > 0).all()


def test_nothing_is_drawn_that_was_not_scheduled_or_does_not_fit() -> None:
    rng = np.random.default_rng(0)
    explore = Exploration(5, share=0.5)
    for step in range(500):
        scheduled = rng.integers(0, 8, 12).astype(np.int32)
        limit = int(rng.integers(0, 20))
        drawn = explore.draw(step, scheduled, EVEN, limit)
        if drawn is None:
            continue
        forced = drawn.forced(12)
        assert (forced <= scheduled).all()
        assert forced.sum() <= limit
        assert 0 < drawn.propensity <= 1
    assert explore.draw(0, np.zeros(3, np.int32), EVEN, 99) is None


@pytest.mark.parametrize(("share", "max_gap"), [(-0.1, 5), (1.1, 5), (0.1, 0)])
def test_settings_out_of_range_are_named(share: float, max_gap: int) -> None:
    with pytest.raises(ConfigError, match=r"exploration (share|max_gap) is .*; accepted"):
        Exploration(1, share=share, max_gap=max_gap)
