"""Two tensor-parallel ranks act as one: the same coefficients from the same step on, or both stock."""

from __future__ import annotations

import pytest
from engine import TIMEOUT, run

#: An engine's start and its requests; `run` itself gives up a little before.
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


def test_ranks_hold_the_same_coefficients_after_every_step(tmp_path):
    answer = run("ranks", tmp_path, environment={"ACCEPTD_TEST_RANK1": "late"}, tensor_parallel=2)
    first, second = (watched["coefficients"] for watched in answer["watched"])
    assert [status["active"] for status in answer["status"]] == [True, True]
    assert first == second
    changes = [step for step in range(1, len(first)) if first[step] != first[step - 1]]
    # On time, and with copies that finish late on rank 1 alone.
    late = answer["steps_before_late"]
    assert sum(step < late for step in changes) >= 5
    assert sum(step >= late for step in changes) >= 5
    assert [status["frozen"] for status in answer["status"]] == ["", ""]
    # Rank 0 alone speaks.
    assert [status["uplink"] is not None for status in answer["status"]] == [True, False]


@pytest.mark.parametrize(("rank1", "why"), [("missing", "did not answer within"), ("option", "differs")])
def test_ranks_that_disagree_are_both_stock(tmp_path, rank1, why):
    answer = run("ranks", tmp_path, environment={"ACCEPTD_TEST_RANK1": rank1}, tensor_parallel=2, length=8)
    assert answer["generated"] == [8, 8]
    assert [status["active"] for status in answer["status"]] == [False, False]
    for watched in answer["watched"]:
        assert watched["estimator"].endswith("OnlineAcceptanceEstimator")
        assert not any("acceptd" in name for name in watched["threads"])
    lines = [line for line in answer["log"].splitlines() if "not active" in line]
    assert len(lines) == 1, lines
    assert why in lines[0]
