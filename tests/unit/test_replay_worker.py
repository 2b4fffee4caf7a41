"""The worker without vLLM: its shards are the trace, it predicts by the formula, and sends the version it used."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptd.types import Coefficients, SegmentCoefficients, Version, prior
from acceptd.v1 import estimator_pb2
from vllm_client_hook.replay import ReplayError, ReplayWorker, main, predict, read_shard
from vllm_client_hook.seams import Received
from vllm_client_hook.testing import Connection, FakeService

TRACE = Path(__file__).resolve().parents[2] / "examples" / "smollm2-skip3.parquet"


def coefficients(counter: int) -> Coefficients:
    line = SegmentCoefficients((0.5,), (0.25,) * 7)
    greedy = SegmentCoefficients((0.25, 0.5), tuple(0.125 * k for k in range(7)))
    return Coefficients(Version(1, counter), line, (-1.0,), {0: greedy})


class FakeUplink:
    """Answers everything at once; `push` is what the service would send."""

    def __init__(self) -> None:
        self.push: Received | None = None
        self.offered: list[Any] = []
        self.answers: list[tuple[int, Version | None]] = []

    def latest(self) -> Received | None:
        return self.push

    def offer(self, rows: Any) -> None:
        self.offered.append(rows)

    def answer(self, nonce: int, version: Version | None, rejected: str = "") -> None:
        assert not rejected
        self.answers.append((nonce, version))

    def stats(self) -> dict[str, int]:
        sent = sum(map(len, self.offered))
        return {"offered": sent, "acknowledged": sent, "refused": 0, "dropped": 0}


def test_shards_together_are_the_trace() -> None:
    table = pq.read_table(TRACE)
    whole = read_shard(TRACE, 0, 1)
    shards = [read_shard(TRACE, i, 3) for i in range(3)]
    assert len(whole) == table.num_rows == sum(map(len, shards))
    request = np.asarray(table["request"])
    for i, shard in enumerate(shards):
        mine = request % 3 == i
        assert np.array_equal(shard.accepted, np.asarray(table["accepted"])[mine])
        assert np.array_equal(shard.features, whole.features[mine])
        assert np.array_equal(shard.segments, whole.segments[mine])


def test_a_step_is_one_step_of_one_workload() -> None:
    table = pq.read_table(TRACE, columns=["step", "workload"])
    pairs = list(zip(table["workload"].to_pylist(), table["step"].to_pylist(), strict=True))
    slices = list(read_shard(TRACE, 0, 1).steps())
    assert [row for s in slices for row in range(s.start, s.stop)] == list(range(len(pairs)))
    assert len(slices) == len(set(pairs))
    assert all(len(set(pairs[s])) == 1 for s in slices)


@given(
    st.lists(st.lists(st.floats(-40, 40, width=32), min_size=7, max_size=7), min_size=1, max_size=5),
    st.integers(0, 4),
)
def test_predictions_follow_the_formula(rows: Sequence[Sequence[float]], segment: int) -> None:
    value = coefficients(1)
    features = np.array(rows, np.float32)
    got = predict(value, np.full(len(rows), segment, np.uint8), features)
    part = value.segments.get(segment, value.line)
    for i, row in enumerate(rows):
        for k, x in enumerate(row):
            right = part.slopes[0] * x + part.intercepts[k]
            if len(part.slopes) > 1:
                right += part.slopes[1] * max(x + 1.0, 0.0)
            assert math.isclose(got[i, k], right, rel_tol=1e-5, abs_tol=1e-5)


def test_rows_carry_the_version_they_were_predicted_with() -> None:
    shard, uplink = read_shard(TRACE, 0, 8), FakeUplink()
    worker = ReplayWorker(shard, uplink)  # type: ignore[arg-type]
    steps = list(shard.steps())
    worker.step(steps[0])
    uplink.push = Received(coefficients(2), nonce=1)
    worker.step(steps[1])
    uplink.push = Received(coefficients(1), nonce=2)  # sorts before what is in force
    worker.step(steps[2])
    assert [rows.version for rows in uplink.offered] == [None, Version(1, 2), Version(1, 2)]
    assert uplink.answers == [(1, Version(1, 2)), (2, Version(1, 2))]
    own, served = (predict(value, shard.segments, shard.features) for value in (prior(7), coefficients(2)))
    assert np.array_equal(worker.predictions[steps[0]], own[steps[0]])
    assert np.array_equal(worker.predictions[steps[1]], served[steps[1]])
    assert np.array_equal(worker.predictions[steps[2]], served[steps[2]])


def test_one_pass_sends_each_observed_position_once() -> None:
    shard, uplink = read_shard(TRACE, 1, 8), FakeUplink()
    ReplayWorker(shard, uplink).replay(0.0, lambda: True)  # type: ignore[arg-type]
    observed = np.arange(7) < np.minimum(shard.accepted.astype(int) + 1, shard.admitted)[:, None]
    sent = np.concatenate([rows.columns.features for rows in uplink.offered])
    assert np.array_equal(sent, shard.features[observed])
    assert sum(map(len, uplink.offered)) == len(shard)


def test_it_stops_when_told() -> None:
    shard, uplink = read_shard(TRACE, 0, 8), FakeUplink()
    ReplayWorker(shard, uplink).replay(0.0, lambda: len(uplink.offered) < 3)  # type: ignore[arg-type]
    assert len(uplink.offered) == 3


@pytest.mark.parametrize("kind", ["missing", "text", "columns", "format"])
def test_what_is_no_trace_is_one_line(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.parquet"
    if kind == "text":
        path.write_text("no parquet")
    elif kind == "columns":
        pq.write_table(pa.table({"step": [1]}), path)
    elif kind == "format":
        pq.write_table(
            pq.read_table(TRACE).slice(0, 5).replace_schema_metadata({"acceptd": '{"format": "other"}'}), path
        )
    assert main([str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}")
    assert len(error.splitlines()) == 1
    assert "acceptd-trace/1" in error


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"K": 0}, "num_speculative_tokens is 0; accepted: 1 to"),
        ({"K": 999}, "num_speculative_tokens is 999"),
        ({"K": 5}, "logit_qmax has 35 values; accepted: K = 5 for each of 5 blocks"),
        ({"K": "many"}, "its description is not accepted"),
        ({"K": None}, "its description is not accepted"),
        ({"target": "x" * 300}, "pair.target has 300 bytes"),
    ],
)
def test_a_trace_that_contradicts_itself_is_one_line(
    change: dict[str, Any], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.parquet"
    table = pq.read_table(TRACE).slice(0, 5)
    described = {**json.loads(table.schema.metadata[b"acceptd"]), **change}
    pq.write_table(table.replace_schema_metadata({"acceptd": json.dumps(described)}), path)
    assert main([str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}")
    assert part in error
    assert len(error.splitlines()) == 1


def test_blocks_that_were_refused_are_a_failure(tmp_path: Path) -> None:
    """The service learned nothing, and the replay said that all was well."""
    path = tmp_path / "trace.parquet"
    pq.write_table(pq.read_table(TRACE).slice(0, 40), path)

    def refuse(_: Connection, batch: estimator_pb2.ObservationBatch) -> estimator_pb2.BatchResult:
        return estimator_pb2.BatchResult(
            sequence=batch.sequence,
            last_sequence=batch.sequence,
            rows_rejected=len(batch.accepted),
            reason=estimator_pb2.REJECT_REASON_MALFORMED,
        )

    with FakeService() as service:
        service.answer = refuse
        command = [sys.executable, "-m", "vllm_client_hook.replay", str(path), "--address", service.address]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["refused"] == 40
    assert "error: the service refused 40 blocks: {" in done.stderr


def test_pyarrow_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ReplayError, match=r"acceptd\[lab\]"):
        read_shard(TRACE, 0, 1)


@pytest.mark.parametrize("arguments", [["--shard", "4/4"], ["--shard", "x"], ["--speed", "-1"], ["--speed", "nan"]])
def test_misuse_is_exit_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(TRACE), *arguments])
    assert stop.value.code == 2
