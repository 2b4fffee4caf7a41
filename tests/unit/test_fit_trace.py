"""On recorded traffic: what link and segments gain over the original round, and how well they are calibrated."""

from pathlib import Path

import pytest

from estimator_service.lab.estimators.registry import build
from estimator_service.lab.replay import replay
from estimator_service.lab.trace import Trace

TRACE = Path(__file__).parents[2] / "examples" / "smollm2-skip3.parquet"


@pytest.fixture(scope="module")
def outcome():
    trace = Trace(TRACE)
    return replay(trace, build(trace, ["round", "line", "link", "link+segments", "oracle"]), round_size=640)


def cells(outcome, name):
    workloads = outcome.as_json()["estimators"][name]["by_workload"]
    return {(w, t): cell for w, values in workloads.items() for t, cell in values["by_temperature"].items()}


def test_link_and_segments_close_a_share_of_the_gap_to_the_oracle(outcome):
    assert outcome.gap_closed("link+segments") > 0.11
    assert outcome.gap_closed("link") > outcome.gap_closed("line")


def test_calibrated_overall(outcome):
    assert outcome.scores["link+segments"].overall().ece <= 0.01


def test_link_alone_is_better_calibrated_than_the_line_in_every_workload(outcome):
    line, link = cells(outcome, "line"), cells(outcome, "link")
    at_one = [cell for cell in line if float(cell[1]) == 1.0]
    assert len(at_one) == 5
    for cell in at_one:
        assert link[cell]["ece"] < line[cell]["ece"]
