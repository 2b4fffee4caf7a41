"""What holds for every batch: of the split, the argmax, the tables and the draw."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vllm_client_hook.budget import choose, split
from vllm_client_hook.costs import CostTable, build_cost_table
from vllm_client_hook.exploration import Exploration

PROBABILITY = st.floats(0, 1, width=32)


@st.composite
def batches(draw: Any) -> Any:
    """confidences float32[R, K] and scheduled int32[R]."""
    requests, positions = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    confidences = draw(arrays(np.float32, (requests, positions), elements=PROBABILITY))
    return confidences, draw(arrays(np.int32, requests, elements=st.integers(0, positions)))


@given(batches())
def test_one_more_draft_token_goes_to_one_request(batch: Any) -> None:
    confidences, scheduled = batch
    total = int(scheduled.sum())
    splits = [split(confidences, scheduled, drafts) for drafts in range(total + 1)]
    for drafts, admitted in enumerate(splits):
        assert admitted.sum() == drafts
        assert ((admitted >= 0) & (admitted <= scheduled)).all()
    for fewer, more in itertools.pairwise(splits):
        assert (more >= fewer).all()


@given(batches(), st.integers(0, 60))
def test_what_is_left_out_never_survives_more_probably_than_what_is_admitted(batch: Any, drafts: int) -> None:
    confidences, scheduled = batch
    admitted = split(confidences, scheduled, min(drafts, int(scheduled.sum())))
    survival = np.multiply.accumulate(confidences, axis=1)
    positions = np.arange(confidences.shape[1])
    inside = positions < admitted[:, None]
    outside = (positions < scheduled[:, None]) & ~inside
    assert survival[inside].min(initial=np.inf) >= survival[outside].max(initial=-np.inf)


@given(batches(), st.lists(st.floats(0.01, 10), min_size=60, max_size=60), st.floats(0, 5), st.integers(0, 60))
def test_no_count_within_the_limits_has_a_better_rate(batch: Any, times: list[float], draft: float, limit: int) -> None:
    confidences, scheduled = batch
    requests = len(confidences)
    table = CostTable(np.full(requests + 1, draft), np.maximum.accumulate(times))
    choice = choose(
        confidences, scheduled, table, context_tokens=requests, sampling_requests=requests, max_drafts=limit
    )
    survival = np.multiply.accumulate(confidences.astype(np.float64), axis=1)
    best = np.sort(survival[np.arange(confidences.shape[1]) < scheduled[:, None]])[::-1]
    assert 0 <= choice.drafts <= min(limit, len(best))
    for drafts in range(min(limit, len(best)) + 1):
        rate = (requests + best[:drafts].sum()) / table.step_ms(requests, requests + drafts)
        assert choice.rate >= rate * (1 - 1e-9)


@given(
    st.lists(st.tuples(st.integers(-5, 300), st.floats(0, 1e3)), min_size=1, max_size=30),
    st.sampled_from([0, 16, 64]),
)
def test_a_table_never_falls_whatever_the_profile(samples: list[tuple[int, float]], capture_limit: int) -> None:
    samples = [*samples, (10, 1.0)]
    table = build_cost_table(samples, samples, max_requests=200, max_tokens=256, capture_limit=capture_limit)
    for values in (table.draft_ms, table.verify_ms):
        assert np.isfinite(values).all()
        assert (np.diff(values) >= -1e-9).all()


@given(
    arrays(np.int32, st.integers(1, 20), elements=st.integers(0, 8)),
    st.floats(0.001, 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.integers(0, 100),
)
def test_a_draw_is_scheduled_fits_and_has_its_propensity(
    scheduled: Any, share: float, seed: int, step: int, limit: int
) -> None:
    drawn = Exploration(seed, share=share, max_gap=1).draw(step, scheduled, [0.0] * 8, limit)
    if drawn is None:
        assert limit == 0 or scheduled.max() == 0
        return
    assert len(set(drawn.rows)) == len(drawn.rows)
    assert (scheduled[list(drawn.rows)] >= drawn.depth).all()
    assert drawn.slots <= limit
    assert 0 < drawn.propensity <= 1
