"""Real vLLM on the CPU beside a service that dies twenty times: not a token changes, and nothing counts twice."""

from __future__ import annotations

import pytest
from engine import TIMEOUT, run

#: `run` gives up a little before.
pytestmark = pytest.mark.timeout(TIMEOUT + 60)

OUTAGES = 20


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    # Costs under which trimming would pay: a mode that slipped would show.
    environment = {"ACCEPTD_TEST_COSTS": "steep", "ACCEPTD_TEST_BUDGET": "watch"}
    return run("outages", tmp_path_factory.mktemp("outages"), environment=environment, times=OUTAGES)


def test_the_engine_decodes_through_every_outage(killed):
    assert killed["failure"] == ""
    assert len(killed["graded"]) == OUTAGES
    assert all(blocks > 0 for blocks in killed["graded"])


def test_every_request_completes_with_the_tokens_of_the_run_without_faults(killed):
    assert [len(tokens) for tokens in killed["undisturbed"]] == [40] * 4
    assert killed["disturbed"]
    assert all(tokens == killed["undisturbed"] for tokens in killed["disturbed"])


def test_shadow_mode_outlives_the_service(killed):
    assert set(killed["modes"]) == {"shadow"}
    budget = killed["status"]["budget"]
    assert budget["failed"] == ""
    # Trimming would have paid: it is the mode that kept every block whole.
    assert budget["saved_ms"] > 0


def test_the_services_totals_equal_a_hand_count_inside_the_engine(killed):
    shown, watch, uplink = killed["shown"], killed["watch"], killed["status"]["uplink"]
    assert killed["flushed"] == [{"active": True, "rank": 0, "flushed": True}]
    assert shown["observations_by_position"] == watch["observed"][""]
    assert shown["acceptances_by_position"] == watch["accepted"][""]
    assert shown["blocks"] == watch["blocks"][""]
    assert shown["totals"]["accepted"] == sum(watch["accepted"][""])
    assert shown["totals"]["verified"] == watch["verified"]
    assert uplink["connects"] == OUTAGES + 1
    assert uplink["acknowledged"] == uplink["offered"] == watch["blocks"][""]
    assert uplink["dropped"] == uplink["refused"] == 0


def test_versions_never_go_backwards_at_the_worker(killed):
    applied = [tuple(map(int, version.split("."))) for version, _ in killed["watch"]["coefficients"]]
    assert applied == sorted(applied)
    # Each service that comes back begins an epoch; every third lives until it has published.
    assert len({epoch for epoch, _ in applied}) >= OUTAGES // 3
