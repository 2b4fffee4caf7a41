"""Records off the device as the wire's columns, from words written by hand."""

import struct

import numpy as np
import pytest

from acceptd.codec import Observations, decode_batch, encode_batch
from acceptd.types import Version
from vllm_client_hook.rows import HEADER_WORDS, NUM_COUNTERS, Rows, record_words

K = 3


def record(accepted, admitted, features, *, segment=0, explored=0, propensity=0.0, index=0, more=()):
    header = [accepted | admitted << 8 | segment << 16 | explored << 24, bits(propensity), index]
    return header + [bits(x) for x in (*features, *more)]


def bits(value):
    return struct.unpack("<i", struct.pack("<f", value))[0]


def rows_of(records, versions=None, **fields):
    return Rows(np.array(records, np.int32), K, versions or {0: None}, np.zeros(NUM_COUNTERS, np.int64), **fields)


def test_columns_hold_observed_positions_only_row_by_row():
    rows = rows_of(
        [
            record(0, 3, (1.5, 0, 0), segment=3),
            record(2, 2, (-2.5, 7.25, 0), segment=4, explored=2, propensity=0.25),
            record(1, 3, (0.5, 40.0, 0), segment=0, explored=64, propensity=1.0),
        ]
    )
    assert rows.observed.sum(axis=1).tolist() == [1, 2, 2]
    [(version, columns)] = rows.by_version()
    assert version is None
    assert columns.features.tolist() == [1.5, -2.5, 7.25, 0.5, 40.0]
    assert columns.segments.tolist() == [3, 4, 0]
    assert columns.explored.tolist() == [0, 2, 64]
    assert columns.propensities.tolist() == [0.0, 0.25, 1.0]
    assert columns.entropies is None


def test_rows_are_cut_where_the_version_changes():
    versions = {4: Version(1, 7), 5: Version(1, 8)}
    rows = rows_of([record(0, 1, (x, 0, 0), index=i) for x, i in ((1, 4), (2, 5), (3, 4))], versions)
    parts = rows.by_version()
    assert [(v, c.features.tolist()) for v, c in parts] == [(Version(1, 7), [1, 3]), (Version(1, 8), [2])]


def test_full_records_bring_entropy_and_margin():
    rows = rows_of([record(0, 2, (1, 0, 0), more=(2, 0, 0, 3, 0, 0))], full=True)
    [(_, columns)] = rows.by_version()
    assert (columns.features.tolist(), columns.entropies.tolist(), columns.margins.tolist()) == ([1], [2], [3])
    assert record_words(K, full=True) == HEADER_WORDS + 3 * K == rows.records.shape[1]


@pytest.mark.parametrize("full", [False, True])
def test_columns_pass_through_the_wire_unchanged(full):
    rng = np.random.default_rng(0)
    records = []
    for _ in range(50):
        admitted = int(rng.integers(1, K + 1))
        explored = int(rng.integers(0, admitted + 1))
        records.append(
            record(
                int(rng.integers(0, admitted + 1)),
                admitted,
                rng.normal(0, 5, K),
                segment=int(rng.integers(0, 5)),
                explored=explored,
                propensity=0.5 if explored else 0.0,
                more=rng.random(2 * K) if full else (),
            )
        )
    [(_, columns)] = rows_of(records, full=full).by_version()
    sent = Observations(**vars(columns))
    got = decode_batch(encode_batch(1, None, sent), K)
    for name, column in vars(columns).items():
        received = getattr(got, name)
        assert (received is None and column is None) or np.array_equal(received, column), name
