"""Chunks against a plain list of rows: order, versions, limits and counts, however rows are pieced together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acceptd.codec import Observations
from acceptd.types import Version
from vllm_client_hook.chunks import Chunks

VERSIONS = [None, Version(1, 1), Version(1, 2)]
appends = st.tuples(st.just("append"), st.integers(1, 6), st.sampled_from(VERSIONS))
runs = st.tuples(st.just("run"), st.integers(10, 40), st.sampled_from(VERSIONS))
takes = st.tuples(st.just("take"), st.integers(1, 25), st.none())


def piece(serials: list[int]) -> Observations:
    """One row a serial number: two observations each, whose features and entropies name the row."""
    count = len(serials)
    return Observations(
        accepted=np.ones(count, np.uint8),
        admitted=np.full(count, 3, np.uint8),
        features=np.repeat(np.array(serials, np.float32), 2),
        segments=np.array(serials, np.int64).astype(np.uint8),
        explored=np.zeros(count, np.uint8),
        propensities=np.array(serials, np.float32),
        entropies=np.repeat(np.array(serials, np.float32), 2),
    )


@given(st.lists(st.one_of(appends, runs, takes), max_size=25))
def test_rows_leave_in_order_and_every_count_is_that_of_a_list(actions):
    chunks, model, serial = Chunks(), [], 0
    for kind, count, version in actions:
        if kind == "take":
            if model:
                first = model[0][2]
                run = next((i for i, row in enumerate(model) if row[2] != first), len(model))
                expected, model = model[: min(run, count)], model[min(run, count) :]
                taken_version, parts = chunks.take(count)
                assert taken_version == first
                assert [int(x) for part in parts for x in part.propensities] == [row[1] for row in expected]
                for name in ("features", "entropies"):
                    values = np.concatenate([getattr(part, name) for part in parts])
                    assert values.tolist() == [row[1] for row in expected for _ in range(2)]
                assert all(part.margins is None for part in parts)
        else:
            for size in [count] if kind == "append" else [1] * count:
                serials = list(range(serial, serial + size))
                chunks.append(float(serial), version, piece(serials))
                model += [(float(serial), number, version) for number in serials]
                serial += size
        assert chunks.rows == len(model)
        assert bool(chunks) == bool(model)
        assert chunks.mixed == (len({row[2] for row in model}) > 1)
        # The age of merged rows is that of the first of them.
        assert (chunks.oldest is None) == (not model)
        assert chunks.oldest is None or chunks.oldest <= model[0][0]


@given(st.integers(1, 400))
def test_a_batch_of_many_small_pieces_is_few_parts(count):
    chunks = Chunks()
    for serial in range(count):
        chunks.append(0.0, None, piece([serial]))
    _, parts = chunks.take(count)
    assert len(parts) <= 16
    assert chunks.clear() == 0
