"""Real vLLM on the CPU, a real service, tiny models: what the loop promises. See engine.py and scenarios.py."""

from __future__ import annotations

import numpy as np
import pytest
from engine import TIMEOUT, run

#: An engine's start and its requests; `run` itself gives up a little before.
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    return run("loop", tmp_path_factory.mktemp("loop"))


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The same engine and requests, without an address."""
    return run("tokens", tmp_path_factory.mktemp("stock"))


PHASES = ["first", "second", "third"]


@pytest.mark.parametrize("phase", PHASES)
def test_counters_equal_a_hand_count_inside_the_engine(loop, phase):
    shown, watch = loop[phase]["shown"], loop[phase]["watch"]
    assert loop[phase]["flushed"] == [{"active": True, "rank": 0, "flushed": True}]
    assert shown["observations_by_position"] == watch["observed"][""]
    assert shown["acceptances_by_position"] == watch["accepted"][""]
    assert shown["blocks"] == watch["blocks"][""]
    assert shown["rejects"] == {}


def test_acceptance_in_the_harness_is_mixed(loop):
    watch = loop["third"]["watch"]
    rates = np.array(watch["accepted"][""]) / np.array(watch["observed"][""])
    assert ((rates > 0.2) & (rates < 0.9)).all()


@pytest.mark.parametrize("phase", PHASES)
def test_coefficients_equal_what_the_service_shows_to_the_bit(loop, phase):
    shown, status = loop[phase]["shown"]["coefficients"], loop[phase]["status"][0]
    assert status["version"] == f"{shown['version']['epoch']}.{shown['version']['counter']}"
    bits = np.array([shown["slope"], *shown["intercepts"]], np.float32).view(np.uint32)
    assert (np.array(status["slope"] + status["intercepts"], np.float32).view(np.uint32) == bits).all()


def test_at_least_three_refits_were_applied(loop):
    applied = {version for version, _ in loop["third"]["watch"]["coefficients"]}
    assert len(applied - {"0.0"}) >= 3
    assert loop["third"]["shown"]["refit"]["done"] >= 3


def test_altered_requests_give_no_observation_and_are_counted_by_reason(loop):
    assert loop["altered_alone"]["offered"] == 0
    assert loop["third"]["watch"]["blocks"]["altered"] > 0
    told = loop["third"]["shown"]["totals"]["exclusions"]
    altered = {name: told.get(name, 0) for name in ("penalties", "bad_words", "allowed_tokens", "min_tokens")}
    assert all(altered.values())
    assert sum(altered.values()) == loop["third"]["watch"]["blocks"]["altered"]


def test_exclusions_reach_the_pair_with_its_batches(loop):
    shown = loop["second"]["shown"]
    assert set(shown["exclusions"]) >= {"penalties", "bad_words", "allowed_tokens", "min_tokens"}
    # Those of the last steps wait for the next batch.
    told = shown["totals"]["exclusions"]
    assert all(blocks <= told[reason] for reason, blocks in shown["exclusions"].items())


def test_totals_equal_a_hand_count(loop):
    totals, watch = loop["third"]["shown"]["totals"], loop["third"]["watch"]
    assert totals["accepted"] == sum(map(sum, watch["accepted"].values()))
    assert totals["verified"] == 4 * sum(watch["blocks"].values())


def test_a_killed_service_is_joined_again_without_counting_twice(loop):
    # Generation went on: requests completed, and steps were taken throughout.
    assert loop["steps_through_outage"] > 10
    uplink = loop["third"]["status"][0]["uplink"]
    assert uplink["connects"] == 2
    assert uplink["dropped"] == 0
    epochs = loop["epochs"]
    assert epochs == sorted(epochs)
    before, after = loop["second"]["shown"]["version"], loop["third"]["shown"]["version"]
    assert (after["epoch"], after["counter"]) > (before["epoch"], before["counter"])
    assert after["epoch"] > before["epoch"]


def test_the_hook_says_once_that_it_is_active(loop):
    lines = [line for line in loop["log"].splitlines() if "acceptd 0" in line or "acceptd:" in line]
    assert sum("active for pair" in line for line in lines) == 1


def test_tokens_do_not_depend_on_the_hook_where_nothing_is_trimmed(loop, stock):
    assert loop["tokens"] == stock["tokens"]


def test_without_an_address_nothing_happens(stock):
    assert stock["estimator"] == "vllm.v1.worker.gpu.spec_decode.acceptance_estimator.OnlineAcceptanceEstimator"
    assert not any("acceptd" in name for name in stock["threads"])
    assert "vllm_client_hook.patch" not in stock["modules"]
    assert "vllm_client_hook.uplink" not in stock["modules"]
    # vLLM's tracing loads gRPC itself where OpenTelemetry is installed; nothing of ours has asked for it.
    assert "grpc" not in stock["modules"] or stock["vllm_imports_grpc"]
    lines = [line for line in stock["log"].splitlines() if "not active" in line]
    assert len(lines) == 1
    assert "no address (set ACCEPTD_ADDRESS)" in lines[0]


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory):
    return run("trimmed", tmp_path_factory.mktemp("trimmed"), environment={"ACCEPTD_TEST_COSTS": "steep"})


def test_counts_stay_exact_while_vllm_trims_and_preempts(trimmed):
    watch, shown = trimmed["watch"], trimmed["shown"]
    assert shown["observations_by_position"] == watch["observed"][""]
    assert shown["acceptances_by_position"] == watch["accepted"][""]
    assert shown["blocks"] == watch["blocks"][""]
    # It did trim: not every block was verified to its end.
    assert watch["verified"] < 4 * watch["blocks"][""]
    # It did preempt: a request came back, to a slot that another may have had in between.
    assert trimmed["lengths"] == [40] * 4
    assert watch["admissions"][""] > 4


def test_the_workload_label_arrives(trimmed):
    assert [worker["workload"] for worker in trimmed["workers"]] == ["unit"]


def test_new_weights_are_another_pair(trimmed):
    graded = sum(trimmed["watch_again"]["observed"][""]) - sum(trimmed["watch"]["observed"][""])
    assert trimmed["flushed_again"][0]["flushed"]
    assert trimmed["pairs"] == {"0": sum(trimmed["watch"]["observed"][""]), "1": graded}
