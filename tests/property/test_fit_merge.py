"""Statistics add: any split of the rows over workers and replicas, in any order, gives the same sums."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptd.codec import Observations
from acceptd.types import prior
from estimator_service.fit.model import PairModel

K = 4


@st.composite
def blocks(draw):
    count = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    admitted = rng.integers(1, K + 1, count)
    accepted = rng.integers(0, admitted + 1)
    observed = np.minimum(accepted + 1, admitted)
    x = rng.normal(0, draw(st.sampled_from([0.1, 3.0, 30.0])), observed.sum()).clip(-40, 40)
    return accepted.astype(np.uint8), admitted.astype(np.uint8), x.astype(np.float32), rng.integers(0, 7, count)


def chosen(columns, index):
    accepted, admitted, x, segments = columns
    observed = np.minimum(accepted.astype(int) + 1, admitted)
    ends = np.cumsum(observed)
    features = [x[ends[i] - observed[i] : ends[i]] for i in index]
    count = len(index)
    return Observations(
        accepted[index],
        admitted[index],
        np.concatenate(features) if features else np.zeros(0, np.float32),
        segments[index].astype(np.uint8),
        np.zeros(count, np.uint8),
        np.zeros(count, np.float32),
    )


@settings(max_examples=60, deadline=None)
@given(blocks(), st.randoms(use_true_random=False), st.booleans())
def test_merged_parts_equal_the_whole(columns, random, close):
    count = len(columns[0])
    order = list(range(count))
    whole = PairModel(K)
    whole.observe(chosen(columns, np.array(order)), used=prior(K))
    random.shuffle(order)
    cut = random.randint(0, count)
    parts = [PairModel(K), PairModel(K)]
    for part, index in zip(parts, (order[:cut], order[cut:]), strict=True):
        if index:
            part.observe(chosen(columns, np.array(index)), used=prior(K))
    if close:  # merged as windows rather than as open rounds
        whole.close_round(0.0)
        for part in parts:
            part.close_round(0.0)
    first, second = parts if random.random() < 0.5 else reversed(parts)
    first.merge(second)
    np.testing.assert_allclose(first.statistics(), whole.statistics(), rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(blocks())
def test_what_is_published_is_always_valid(columns):
    model = PairModel(K)
    model.observe(chosen(columns, np.arange(len(columns[0]))), used=prior(K))
    for value in model.close_round(1.0).coefficients.values():
        value.validate(K)
