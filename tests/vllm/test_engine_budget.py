"""The budget in real vLLM on the CPU: vLLM's own where nothing was asked for, and what the modes promise."""

from __future__ import annotations

import os

import pytest
from engine import run

#: Two ranks under an interpreter on two cores; `engine.run` gives up before.
pytestmark = pytest.mark.timeout(600)

#: Steps that two ranks take together, and how often that needs the same requests.
STEPS, TIMES = (200, 5) if os.environ.get("ACCEPTD_TEST_LONG") == "1" else (50, 1)

STEEP = {"ACCEPTD_TEST_COSTS": "steep", "ACCEPTD_TEST_BUDGET": "watch"}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    return run("budget", tmp_path_factory.mktemp("budget"), environment=STEEP)


def test_never_served_budgets_and_splits_are_vllms(watched):
    found = watched["never_served"]
    assert found["status"]["failed"] == ""
    assert len(found["tokens"]) > 10
    assert all(theirs == ours for theirs, ours in found["tokens"])
    assert len(found["splits"]) > 5
    assert all(theirs == ours or tied for theirs, ours, tied in found["splits"])
    assert all(sum(theirs) == sum(ours) for theirs, ours, _ in found["splits"])
    assert found["status"]["saved_ms"] > 0


def test_shadow_mode_gives_the_tokens_of_adaptive_verification_off(watched, tmp_path):
    plain = run("plain", tmp_path)
    assert watched["shadow_tokens"] == plain["tokens"]
    before, after = watched["never_served"], watched["shadow"]
    steps = slice(len(before["tokens"]), None)
    assert set(after["modes"][steps]) == {"shadow"}
    # It decided what trimming would do, and verified everything.
    assert any(theirs < ours for theirs, ours in after["tokens"][steps])
    assert len(after["splits"]) == len(before["splits"])
    assert after["status"]["saved_ms"] > before["status"]["saved_ms"]
    assert after["status"]["clamped_steps"] == 0
    # The verdicts of every 8th step of 3 requests say what trimming would have lost, for the 8: one such step more or
    # less than there were blocks.
    judged = after["judged_blocks"] - before["judged_blocks"]
    blocks = (after["status"]["scheduled"] - before["status"]["scheduled"]) / 4
    assert before["judged_blocks"] == 0
    assert judged > 0
    assert abs(judged - blocks) <= 8 * 3


def test_trimming_explores(watched):
    found = watched["trim"]["status"]
    assert found["mode"] == "trim"
    assert found["failed"] == ""
    assert found["explored"] > watched["shadow"]["status"]["explored"]
    assert watched["trim"]["judged_blocks"] > watched["shadow"]["judged_blocks"]


def test_ranks_that_differ_in_the_last_bit_agree_with_the_option_and_switch_modes_together(tmp_path):
    """cases.md 14: 50 steps and more in which rank 1's features are a last bit off; no hang, no divergence."""
    environment = {**STEEP, "ACCEPTD_TEST_BUDGET": "perturb", "ACCEPTD_RANK0_CONFIDENCES": "1"}
    answer = run(
        "budget_ranks", tmp_path, environment=environment, tensor_parallel=2, length=90, switch=True, times=TIMES
    )
    first, second = answer["watched"]
    assert len(first["tokens"]) >= STEPS
    assert [ours for _, ours in first["tokens"]] == [ours for _, ours in second["tokens"]]
    assert [ours for _, ours, _ in first["splits"]] == [ours for _, ours, _ in second["splits"]]
    assert first["status"]["divergent_checks"] == second["status"]["divergent_checks"] == 0
    assert first["modes"] == second["modes"]
    assert first["modes"][0] == "trim"
    assert first["modes"][-1] == "shadow"


def test_without_the_option_ranks_that_differ_are_reported(tmp_path):
    """Flat costs: everything is verified, so that the difference cannot change a shape."""
    environment = {"ACCEPTD_TEST_BUDGET": "perturb", "ACCEPTD_TEST_COSTS": "flat"}
    answer = run("budget_ranks", tmp_path, environment=environment, tensor_parallel=2, length=220, switch=False)
    first, second = answer["watched"]
    assert len(first["tokens"]) > 66
    assert first["status"]["divergent_checks"] == 0
    assert second["status"]["divergent_checks"] > 0
    assert "tensor-parallel rank 1 has other confidences than rank 0" in answer["log"]
