"""Traces: what is written is read back, and what is wrong is named in one line."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptd.codec import UNKNOWN_SEGMENT
from acceptd.segments import Segment
from estimator_service.lab.blocks import Blocks
from estimator_service.lab.trace import Trace, TraceError
from estimator_service.lab.trace_writer import TraceWriter

K = 3


def table(rows=10, metadata=None, **replaced):
    """A valid trace as a table, with some columns replaced (None: left out)."""
    rng = np.random.default_rng(0)
    columns = {
        "workload": pa.array(["code", "chat"] * (rows // 2)).dictionary_encode(),
        "temperature": pa.array(np.tile([1.0, 0.3], rows // 2), pa.float32()),
        "admitted": pa.array(np.full(rows, K), pa.uint8()),
        "accepted": pa.array(rng.integers(0, K + 1, rows), pa.uint8()),
        "logit_qmax": lists(rng.normal(size=(rows, K))),
        "oracle": lists(rng.random((rows, K))),
    } | replaced
    columns = {name: values for name, values in columns.items() if values is not None}
    description = {"format": "acceptd-trace/1", "K": K, "pair": "t"} | (metadata or {})
    return pa.table(columns).replace_schema_metadata({"acceptd": json.dumps(description)})


def lists(values):
    return pa.array(np.asarray(values, np.float32).tolist(), pa.list_(pa.float32(), K))


def write(tmp_path, content):
    path = tmp_path / "t.parquet"
    pq.write_table(content, path)
    return path


def read(path):
    return list(Trace(path).chunks(["oracle", "entropy"]))


def test_columns_come_back_as_written(tmp_path):
    path = write(tmp_path, table())
    trace = Trace(path)
    (blocks,) = trace.chunks(["oracle", "confidence"])
    assert (trace.num_positions, trace.num_blocks, trace.pair) == (K, 10, "t")
    assert trace.names == {"workload", "temperature", "admitted", "accepted", "logit_qmax", "oracle"}
    assert [blocks.workloads[w] for w in blocks.workload] == ["code", "chat"] * 5
    assert list(blocks.segment) == [Segment.HIGH, Segment.LOW] * 5
    assert set(blocks.positions) == {"logit_qmax", "oracle"}
    np.testing.assert_array_equal(blocks.x, np.array(table()["logit_qmax"].to_pylist(), np.float32))


def test_workloads_count_in_order_of_appearance_and_only_if_a_row_has_them(tmp_path):
    codes = pa.array([2, 2, 0, 0, 0, 2, 2, 2, 2, 2], pa.int32())
    path = write(tmp_path, table(workload=pa.DictionaryArray.from_arrays(codes, pa.array(["a", "unused", "c"]))))
    trace = Trace(path)
    (blocks,) = trace.chunks()
    assert trace.workloads == ["c", "a"]
    assert blocks.workload.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]


def test_too_many_workloads_are_named(tmp_path):
    path = write(tmp_path, table(300, workload=pa.array([f"w{i}" for i in range(300)])))
    with pytest.raises(TraceError, match=r"column workload, row 256 is 'w256', one too many; accepted: 256"):
        read(path)


def test_labels_stop_at_the_first_rejection(tmp_path):
    path = write(
        tmp_path,
        table(4, accepted=pa.array([0, 1, 3, 1], pa.uint8()), admitted=pa.array([3, 3, 3, 1], pa.uint8())),
    )
    (blocks,) = read(path)
    assert blocks.observed.tolist() == [[True, False, False], [True, True, False], [True] * 3, [True, False, False]]
    assert blocks.label[blocks.observed].tolist() == [False, True, False, True, True, True, True]
    rows = blocks.observations()
    assert rows.explored.tolist() == [3, 3, 3, 0]
    assert rows.propensities.tolist() == [1, 1, 1, 0]
    assert rows.features.tolist() == blocks.x[blocks.observed].tolist()
    assert rows.observed.tolist() == [1, 2, 3, 1]


@pytest.mark.parametrize("size", [1, 3, 4, 10, 100])
def test_rounds_cut_any_chunks_into_equal_parts(tmp_path, size):
    path = tmp_path / "t.parquet"
    with pq.ParquetWriter(path, table().schema) as writer:
        for start in range(0, 10, 4):
            writer.write_table(table().slice(start, 4))
    whole = np.concatenate([b.x for b in read(path)])
    rounds = list(Trace(path).rounds(size))
    assert [len(r) for r in rounds] == [size] * (10 // size) + [10 % size] * (10 % size > 0)
    np.testing.assert_array_equal(np.concatenate([r.x for r in rounds]), whole)
    assert [r.workloads[w] for r in rounds for w in r.workload] == ["code", "chat"] * 5


def test_variable_lists_and_doubles_are_read_too(tmp_path):
    values = np.random.default_rng(1).normal(size=(10, K))
    path = write(tmp_path, table(logit_qmax=pa.array(values.tolist(), pa.list_(pa.float64()))))
    np.testing.assert_allclose(read(path)[0].x, values, rtol=1e-6)


def test_temperature_and_workload_are_optional(tmp_path):
    (blocks,) = read(write(tmp_path, table(workload=None, temperature=None)))
    assert np.isnan(blocks.temperature).all()
    assert set(blocks.segment) == {UNKNOWN_SEGMENT}
    assert blocks.workloads == [""]


def test_what_misses_the_range_by_rounding_is_clamped(tmp_path):
    oracle = np.full((10, K), 1.0000002)
    (blocks,) = read(write(tmp_path, table(oracle=lists(oracle), entropy=lists(np.full((10, K), -4e-6)))))
    assert (blocks.positions["oracle"] == 1).all()
    assert (blocks.positions["entropy"] == 0).all()


def test_positions_without_a_label_may_be_null(tmp_path):
    values = [[0.5, None, None], [0.5, 0.25, None]]
    path = write(
        tmp_path,
        table(2, accepted=pa.array([0, 1], pa.uint8()), logit_qmax=pa.array(values, pa.list_(pa.float32(), K))),
    )
    (blocks,) = read(path)
    assert blocks.x[blocks.observed].tolist() == [0.5, 0.5, 0.25]
    assert np.isnan(blocks.x[~blocks.observed]).all()


def with_value(name, row, position, value):
    values = np.array(table()[name].to_pylist(), np.float32).tolist()
    values[row][position] = value
    return {name: pa.array(values, pa.list_(pa.float32(), K))}


def counts(name, row, value):
    values = [K if name == "admitted" else 0] * 10
    values[row] = value
    return {name: pa.array(values, pa.int32()), "accepted": pa.array([0] * 10, pa.uint8())} | {
        name: pa.array(values, pa.int32())
    }


BROKEN = {
    "missing column": ({"accepted": None}, "column accepted is missing; accepted: acceptd-trace/1"),
    "missing feature": ({"logit_qmax": None}, "column logit_qmax is missing; accepted: acceptd-trace/1"),
    "label above admitted": (counts("accepted", 4, 4), "column accepted, row 4 is 4; accepted: at most the row's"),
    "negative label": (counts("accepted", 3, -1), "column accepted, row 3 is -1; accepted: finite, at least 0"),
    "nothing admitted": (counts("admitted", 9, 0), "column admitted, row 9 is 0; accepted: finite, at least 1"),
    "admitted above K": (counts("admitted", 2, 4), "column admitted, row 2 is 4; accepted: 1 to K = 3"),
    "not a number": (
        with_value("logit_qmax", 6, 0, float("nan")),
        "column logit_qmax, row 6, position 0 is nan; accepted: -40 to 40",
    ),
    "null with a label": (
        with_value("logit_qmax", 6, 0, None),
        "column logit_qmax, row 6, position 0 is null where a label stands; accepted: -40 to 40",
    ),
    "infinite": (
        with_value("logit_qmax", 1, 2, float("inf")),
        "column logit_qmax, row 1, position 2 is inf; accepted: -40 to 40",
    ),
    "negative entropy": (
        {"entropy": lists(np.full((10, K), -0.5))},
        "column entropy, row 0, position 0 is -0.5; accepted: finite, at least 0",
    ),
    "oracle above 1": (with_value("oracle", 0, 1, 1.5), "column oracle, row 0, position 1 is 1.5; accepted: 0 to 1"),
    "text for numbers": ({"accepted": pa.array(["x"] * 10)}, "column accepted is string; accepted: whole numbers"),
    "numbers for lists": (
        {"logit_qmax": pa.array([0.5] * 10)},
        "column logit_qmax is double; accepted: float32 lists of K values",
    ),
    "negative temperature": (
        {"temperature": pa.array([-1.0] * 10, pa.float32())},
        "column temperature, row 0 is -1.0; accepted: finite, at least 0",
    ),
    "null workload": (
        {"workload": pa.array(["a"] * 9 + [None])},
        "column workload, row 9 is null; accepted: a value in every row",
    ),
    "explored beyond admitted": (
        {"explored": pa.array([0] * 5 + [4] + [0] * 4)},
        "column explored, row 5 is 4; accepted: at most the row's admitted",
    ),
    "propensity above 1": (
        {"propensity": pa.array([1.5] * 10, pa.float32())},
        "column propensity, row 0 is 1.5; accepted: 0 to 1",
    ),
    "other K": ({"metadata": {"K": 5}}, "column logit_qmax has 3 values a row; accepted: K = 5, as the metadata says"),
    "K is text": ({"metadata": {"K": "7"}}, "K in the metadata is '7'; accepted: 1 to 64"),
    "other format": ({"metadata": {"format": "acceptd-trace/9"}}, "format is 'acceptd-trace/9'; accepted: metadata"),
    "short list": (
        {"logit_qmax": pa.array([[0.0] * K] * 7 + [[0.0]] + [[0.0] * K] * 2, pa.list_(pa.float32()))},
        "column logit_qmax, row 7 has length 1; accepted: K = 3 values a row",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_is_named_in_one_line(tmp_path, kind):
    replaced, message = BROKEN[kind]
    path = write(tmp_path, table(**replaced))
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_the_row_is_counted_from_the_start_of_the_file(tmp_path):
    path = write(tmp_path, table(**with_value("logit_qmax", 8, 0, float("nan"))))
    with pytest.raises(TraceError, match="row 8, position 0"):
        list(Trace(path).chunks(rows=3))


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "no such file"), (b"", "accepted: a Parquet file"), (b"PAR1 not really PAR1", "accepted: a Parquet file")],
)
def test_files_that_are_no_parquet(tmp_path, content, part):
    path = tmp_path / "t.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=part) as caught:
        Trace(path)
    assert "\n" not in str(caught.value)


def test_damaged_files_end_in_one_clear_line(tmp_path):
    raw = write(tmp_path, table(100)).read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.parquet"
    refused = 0
    for _ in range(500):
        damaged = bytearray(raw)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(len(damaged))] if rng.random() < 0.2 else damaged)
        message = None
        try:
            for blocks in Trace(path).rounds(7, ["oracle"]):
                assert np.isfinite(blocks.x[blocks.observed]).all()
        except TraceError as error:
            message = str(error)
        if message is not None:
            refused += 1
            assert message.startswith(f"{path}: ")
            assert "\n" not in message
    assert refused > 200


def test_a_parquet_file_without_description(tmp_path):
    path = write(tmp_path, table().replace_schema_metadata(None))
    with pytest.raises(TraceError, match="no readable description; accepted: metadata"):
        Trace(path)


def test_a_truncated_file(tmp_path):
    path = write(tmp_path, table())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TraceError, match="accepted: a Parquet file"):
        Trace(path)


def blocks_of(rows=6):
    rng = np.random.default_rng(3)
    accepted = rng.integers(0, K + 1, rows).astype(np.uint8)
    x = rng.normal(size=(rows, K)).astype(np.float32)
    observed = np.arange(K) < np.minimum(accepted + 1, K)[:, None]
    return Blocks(
        accepted,
        np.full(rows, K, np.uint8),
        {"logit_qmax": np.where(observed, x, np.float32(np.nan))},
        np.array([0, 1] * (rows // 2), np.int32),
        np.full(rows, np.nan, np.float32),
        np.array([3, 255] * (rows // 2), np.uint8),
        ["code", "chat"],
        np.arange(rows),
        explored=np.full(rows, 2, np.uint8),
        propensity=np.full(rows, 0.25, np.float32),
    )


def test_the_writer_leaves_out_what_was_not_recorded(tmp_path):
    path = tmp_path / "w.parquet"
    written = blocks_of()
    with TraceWriter(
        path, K, counts=("step", "segment", "explored"), numbers=("propensity",), metadata={"pair": "p"}
    ) as writer:
        writer.write(written)
        writer.write(written)
    assert writer.blocks == 12
    trace = Trace(path)
    assert (trace.pair, trace.num_blocks) == ("p", 12)
    (back,) = trace.rounds(100)
    np.testing.assert_array_equal(back.x, np.concatenate([written.x, written.x]))
    assert back.segment.tolist() == [3, 255] * 6
    assert back.explored.tolist() == [2] * 12
    assert back.propensity.tolist() == [0.25] * 12
    assert np.isnan(back.temperature).all()
    assert back.step.tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_a_failed_recording_leaves_no_file(tmp_path):
    path = tmp_path / "w.parquet"

    def interrupted():
        with TraceWriter(path, K, numbers=()) as writer:
            writer.write(blocks_of())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
