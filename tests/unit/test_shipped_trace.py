"""What the estimates must reach on recorded traffic, on the trace that ships with the repository."""

from pathlib import Path

import pytest

from estimator_service.lab.estimators.registry import build
from estimator_service.lab.replay import replay
from estimator_service.lab.trace import Trace

TRACE = Path(__file__).parents[2] / "examples" / "smollm2-skip3.parquet"


@pytest.fixture(scope="module")
def estimators():
    trace = Trace(TRACE)
    names = ["round", "line", "link", "link+segments", "oracle"]
    return replay(trace, build(trace, names), round_size=640).as_json()["estimators"]


def at_one(estimator):
    """Scores at temperature 1 by workload."""
    return {name: entry["by_temperature"]["1"] for name, entry in estimator["by_workload"].items()}


def test_link_and_segments_close_the_gap_between_round_and_oracle(estimators):
    assert estimators["link+segments"]["gap_closed"] >= 0.11
    assert estimators["link+segments"]["ece"] <= 0.01


def test_no_form_is_worse_than_the_original_round(estimators):
    for name in ("line", "link", "link+segments"):
        assert estimators[name]["log_loss"] < estimators["round"]["log_loss"]
        assert estimators[name]["ece"] < estimators["round"]["ece"]


def test_the_link_is_better_calibrated_than_the_line_in_every_workload(estimators):
    line, link = at_one(estimators["line"]), at_one(estimators["link"])
    assert set(link) == {"code", "prose", "chat", "math", "chat_mixed_t"}
    for workload, scores in link.items():
        assert scores["ece"] < line[workload]["ece"], workload


def test_segments_calibrate_every_temperature_better_than_one_line(estimators):
    mixed = {
        name: estimators[name]["by_workload"]["chat_mixed_t"]["by_temperature"] for name in ("round", "link+segments")
    }
    assert set(mixed["round"]) == {"0", "0.3", "0.7", "1"}
    for temperature, scores in mixed["link+segments"].items():
        assert scores["log_loss"] < mixed["round"][temperature]["log_loss"]
        assert scores["ece"] < mixed["round"][temperature]["ece"]
