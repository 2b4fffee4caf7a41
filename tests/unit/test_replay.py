"""Replay: prequential, of the known truth, and in the shape that other tools read."""

import numpy as np
import pytest
from sklearn import metrics
from synthetic_trace import INTERCEPTS, SLOPE, columns, observed, sigmoid, write

from acceptd.errors import ConfigError
from estimator_service.lab.estimators.registry import ESTIMATORS, build
from estimator_service.lab.replay import default_round, replay
from estimator_service.lab.trace import Trace

ROUND = 500


def run(path, *names, round_size=ROUND):
    trace = Trace(path)
    return replay(trace, build(trace, names), round_size=round_size)


def test_known_coefficients_are_found_and_come_close_to_the_oracle(tmp_path):
    path, _ = write(tmp_path / "t.parquet", [columns(20_000)])
    outcome = run(path, "line", "oracle")
    line, oracle = (outcome.scores[name].overall() for name in ("line", "oracle"))
    last = outcome.courses["line"].coefficients[-1].line
    assert last.slopes[0] == pytest.approx(SLOPE, abs=0.06)
    np.testing.assert_allclose(last.intercepts, INTERCEPTS, atol=0.2)
    assert oracle.log_loss < line.log_loss < oracle.log_loss * 1.01
    assert max(line.ece, oracle.ece) < 0.01


def test_the_first_round_is_predicted_by_the_prior_alone(tmp_path):
    path, joined = write(tmp_path / "t.parquet", [columns(2 * ROUND)])
    course = run(path, "round").courses["round"]
    row, position, label = observed(joined)
    first = row < ROUND
    prior = sigmoid(0.5 * joined["logit_qmax"][row, position].astype(float) - 0.2)
    assert course.observations == [first.sum(), (~first).sum()]
    expected = metrics.log_loss(label[first], prior[first])
    assert course.loss[0] / course.observations[0] == pytest.approx(expected, rel=1e-6)
    assert course.loss[1] / course.observations[1] < metrics.log_loss(label[~first], prior[~first])


def test_our_fit_learns_within_its_first_round_as_a_live_pair_does(tmp_path):
    path, _ = write(tmp_path / "t.parquet", [columns(2 * ROUND)])
    courses = run(path, "round", "line").courses
    assert courses["line"].observations == courses["round"].observations
    assert courses["line"].loss[0] < courses["round"].loss[0]


def test_every_estimator_predicts_a_round_before_it_sees_its_labels(tmp_path):
    """The same features with other labels in the last round: predictions must not move."""
    base = columns(4 * ROUND)
    other = {name: values.copy() for name, values in base.items()}
    other["accepted"][-ROUND:] = 0
    predictions = []
    for index, part in enumerate((base, other)):
        trace = Trace(write(tmp_path / f"{index}.parquet", [part])[0])
        estimators = build(trace)
        last = None
        for blocks in trace.rounds(ROUND, ["oracle"]):
            last = {name: estimator.predict(blocks) for name, estimator in estimators.items()}
            for estimator in estimators.values():
                estimator.learn(blocks)
        predictions.append(last)
    assert set(predictions[0]) == set(ESTIMATORS) - {"confidence", "link+segments+labels"}
    for name, expected in predictions[0].items():
        assert expected.shape == (ROUND, len(INTERCEPTS))
        np.testing.assert_array_equal(predictions[1][name], expected, err_msg=name)


def test_a_slope_per_position_follows_positions_that_differ(tmp_path):
    slopes = np.array([1.0, 0.2, 0.2, 0.2])
    path, _ = write(tmp_path / "t.parquet", [columns(20_000, slope=slopes, intercepts=(0.5,) * 4)])
    outcome = run(path, "line", "line+slopes")
    assert outcome.scores["line+slopes"].overall().log_loss < outcome.scores["line"].overall().log_loss - 0.002


def test_labels_separate_workloads_that_come_mixed(tmp_path):
    rng = np.random.default_rng(0)
    parts = [
        columns(8000, 1, workload="easy", intercepts=(0.8,) * 4),
        columns(8000, 2, workload="hard", intercepts=(-0.8,) * 4),
    ]
    mixed = rng.permutation(16_000)
    joined = {name: np.concatenate([part[name] for part in parts])[mixed] for name in parts[0]}
    result = run(write(tmp_path / "t.parquet", [joined])[0], "link+segments", "link+segments+labels").as_json()
    plain, labelled = (result["estimators"][name]["by_workload"] for name in ("link+segments", "link+segments+labels"))
    for workload in ("easy", "hard"):
        assert plain[workload]["ece"] > 0.05
        assert labelled[workload]["ece"] < 0.02


def test_json_has_every_cell_and_position(tmp_path):
    path, joined = write(
        tmp_path / "t.parquet",
        [
            columns(2000, 1, workload="code"),
            columns(1000, 2, workload="chat", temperature=0.3),
            columns(1000, 3, workload="chat", temperature=1.0),
        ],
    )
    result = run(path).as_json()
    assert set(result) == {"trace", "round", "estimators"}
    assert (result["trace"], result["round"]) == (str(path), ROUND)
    assert list(result["estimators"]) == ["raw", "round", "line", "line+slopes", "link", "link+segments", "oracle"]
    row, position, label = observed(joined)
    probability = sigmoid(joined["logit_qmax"][row, position].astype(float))
    raw = result["estimators"]["raw"]
    scores = {"observations", "acceptance", "auc", "log_loss", "ece", "gap"}
    assert set(raw) == scores | {"gap_closed", "without_first", "by_position", "by_workload"}
    assert [entry["observations"] for entry in raw["by_position"]] == np.bincount(position).tolist()
    assert {w: list(entry["by_temperature"]) for w, entry in raw["by_workload"].items()} == {
        "code": ["1"],
        "chat": ["0.3", "1"],
    }

    def check(entry, chosen):
        assert entry["observations"] == chosen.sum()
        assert entry["auc"] == pytest.approx(metrics.roc_auc_score(label[chosen], probability[chosen]), abs=1e-4)
        assert entry["log_loss"] == pytest.approx(metrics.log_loss(label[chosen], probability[chosen]), rel=1e-6)

    chat, cold = joined["workload"][row] == "chat", joined["temperature"][row] < 0.5
    check(raw, np.ones(len(row), bool))
    check(raw["without_first"], position > 0)
    check(raw["by_position"][2], position == 2)
    check(raw["by_workload"]["chat"], chat)
    check(raw["by_workload"]["chat"]["by_temperature"]["0.3"], chat & cold)


def test_the_gap_closed_runs_from_round_to_oracle(tmp_path):
    path, _ = write(tmp_path / "t.parquet", [columns(3000)])
    outcome = run(path, "raw", "round", "line", "oracle")
    assert outcome.gap_closed("round") == 0
    assert outcome.gap_closed("oracle") == 1
    losses = {name: scores.overall().log_loss for name, scores in outcome.scores.items()}
    expected = (losses["round"] - losses["line"]) / (losses["round"] - losses["oracle"])
    assert outcome.gap_closed("line") == pytest.approx(expected)
    assert run(path, "line", "oracle").gap_closed("line") is None


def test_the_round_changes_nothing_but_when_estimators_learn(tmp_path):
    path, _ = write(tmp_path / "t.parquet", [columns(1500)])
    small, large = run(path, "raw", round_size=7), run(path, "raw", round_size=100_000)
    assert small.as_json()["estimators"] == large.as_json()["estimators"]
    assert len(large.courses["raw"].loss) == 1


def test_long_traces_have_longer_rounds():
    class Fake:
        num_blocks = 40_320

    assert default_round(Fake()) == 640
    Fake.num_blocks = 4_000_000
    assert default_round(Fake()) == 4_000


def test_an_attached_confidence_is_scored_where_the_trace_has_one(tmp_path):
    part = columns(1000)
    part["confidence"] = part["oracle"]
    outcome = run(write(tmp_path / "t.parquet", [part])[0])
    assert outcome.scores["confidence"].overall() == outcome.scores["oracle"].overall()


def test_names_are_checked(tmp_path):
    path, _ = write(tmp_path / "t.parquet", [columns(100)], leave_out=("oracle",))
    trace = Trace(path)
    assert "oracle" not in build(trace)
    with pytest.raises(ConfigError, match="'oracle' needs column oracle, which this trace lacks"):
        build(trace, ["oracle"])
    with pytest.raises(ConfigError, match="'magic' is unknown; accepted: raw, round, line"):
        build(trace, ["magic"])
