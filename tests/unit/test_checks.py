"""`acceptd doctor`: each kind of trouble is named, with advice; a healthy pair gives nothing but good news."""

from __future__ import annotations

import pytest

from acceptd.v1 import inspect_pb2, types_pb2
from estimator_service.cli.checks import Finding, Level, check_pair, check_pairs, check_versions

NOW = 1_800_000_000.0
VERSION = types_pb2.Version(epoch=2, counter=9)
OLDER = types_pb2.Version(epoch=2, counter=8)


def healthy() -> inspect_pb2.PairState:
    return inspect_pb2.PairState(
        summary=inspect_pb2.PairSummary(id="a~b~k2~0", version=VERSION, workers=1, published_at_seconds=NOW - 120),
        coefficients=types_pb2.Coefficients(
            version=VERSION,
            line=types_pb2.SegmentCoefficients(slopes=[0.5], intercepts=[0.1, 0.2]),
            evidence=[1000.0, 500.0],
        ),
        observations=[1000, 500],
        acceptances=[500, 250],
        blocks=1000,
        exclusions=[types_pb2.ExclusionCount(reason=types_pb2.EXCLUSION_REASON_PADDED, blocks=90_000)],
        refit=inspect_pb2.RefitState(done=5),
        mode=types_pb2.MODE_TRIM,
        totals=types_pb2.WorkerTotals(steps=100, scheduled=200, verified=150),
    )


def worker(**changed: object) -> inspect_pb2.WorkerState:
    fields = {
        "worker": "w0",
        "connected": True,
        "version_applied": VERSION,
        "connected_at_seconds": NOW - 600,
        "vllm_version": "0.32.0",
        "hook_version": "0.1.0",
    }
    return inspect_pb2.WorkerState(**{**fields, **changed})  # type: ignore[arg-type]


def troubles(state: inspect_pb2.PairState, workers: list[inspect_pb2.WorkerState] | None = None) -> list[Finding]:
    found = check_pair(state, [worker()] if workers is None else workers, NOW)
    return [finding for finding in found if finding.level is not Level.OK]


def test_a_healthy_pair_has_no_trouble() -> None:
    assert troubles(healthy()) == []


def test_nothing_learned_is_wrong_and_names_the_reason() -> None:
    state = healthy()
    state.blocks = 0
    state.ClearField("exclusions")
    state.exclusions.add(reason=types_pb2.EXCLUSION_REASON_WARMUP, blocks=500)
    (finding,) = troubles(state)
    assert finding.level is Level.WRONG
    assert "warmup 500" in finding.text
    assert "cost tables" in finding.advice


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"exclusions": [types_pb2.ExclusionCount(reason=types_pb2.EXCLUSION_REASON_QUEUE_FULL, blocks=900)]},
            "queue_full",
        ),
        ({"rejects": {"non_finite": 3}}, "non_finite 3"),
        ({"refit": inspect_pb2.RefitState(done=5, held={"worse": 1}, last_held="log-loss 0.5")}, "log-loss 0.5"),
        ({"totals": types_pb2.WorkerTotals(steps=100, clamped_steps=50)}, "sampler chunk"),
        ({"totals": types_pb2.WorkerTotals(steps=100, zero_budget_steps=50)}, "budget was 0"),
        ({"totals": types_pb2.WorkerTotals(steps=100, scheduled=200, verified=200)}, "trimmed"),
        ({"notices": ["the slope moved"]}, "the slope moved"),
    ],
)
def test_each_trouble_of_a_pair_is_named(change: dict[str, object], words: str) -> None:
    state = healthy()
    for name in change:
        state.ClearField(name)  # type: ignore[arg-type]
    state.MergeFrom(inspect_pb2.PairState(**change))  # type: ignore[arg-type]
    (finding,) = troubles(state)
    assert finding.level is Level.NOTE
    assert words in finding.text


def test_a_pin_is_named_in_place_of_the_fits_it_holds() -> None:
    state = healthy()
    state.pinned.CopyFrom(OLDER)
    state.refit.last_held = "pinned"
    (finding,) = troubles(state)
    assert finding.level is Level.NOTE
    assert "2.8" in finding.text
    assert "unpin" in finding.advice


def test_thin_positions_are_named() -> None:
    state = healthy()
    state.coefficients.evidence[1] = 3.0
    (finding,) = troubles(state)
    assert finding.text == "little evidence at position 1"
    assert "exploration" in finding.advice


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"quarantined": "inverted labels"}, Level.WRONG, "inverted labels"),
        ({"last_rejected_update": "K is 5"}, Level.WRONG, "K is 5"),
        ({"version_applied": OLDER}, Level.NOTE, "2.8"),
        ({"vllm_version": "0.34.1"}, Level.WRONG, "0.34.1"),
        ({"vllm_version": "0.29.0"}, Level.WRONG, "0.29.0"),
    ],
)
def test_each_trouble_of_a_worker_is_named(changed: dict[str, object], level: Level, words: str) -> None:
    (finding,) = troubles(healthy(), [worker(**changed)])
    assert finding.level is level
    assert finding.about == "w0"
    assert words in finding.text
    assert finding.advice


def test_a_version_on_its_way_is_no_trouble() -> None:
    state = healthy()
    state.summary.published_at_seconds = NOW - 2
    assert troubles(state, [worker(version_applied=OLDER)]) == []
    assert troubles(healthy(), [worker(version_applied=OLDER, connected_at_seconds=NOW - 1)]) == []


def test_workers_that_are_gone_are_not_judged() -> None:
    found = troubles(healthy(), [worker(connected=False, quarantined="old story")])
    assert [finding.text for finding in found] == ["no worker is connected"]


def test_no_pairs_and_clocks() -> None:
    assert [f.level for f in check_pairs([], NOW)] == [Level.NOTE]
    ahead = inspect_pb2.PairSummary(id="a", published_at_seconds=NOW + 3600)
    assert any(f.about == "clock" and "3600 s ahead" in f.text for f in check_pairs([ahead], NOW))
    assert all(f.level is Level.OK for f in check_pairs([healthy().summary], NOW))


def test_version_skew() -> None:
    assert list(check_versions("0.1.0", [worker()])) == []
    (finding,) = check_versions("0.2.0", [worker()])
    assert "0.1.0" in finding.text
