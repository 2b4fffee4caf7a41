"""What `acceptd show` and `acceptd watch` draw: right numbers, in 80 columns, nothing cut off."""

from __future__ import annotations

import io
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from acceptd.v1 import inspect_pb2, types_pb2
from estimator_service.cli.output import ago, console, counts, number, table
from estimator_service.cli.pair_view import one_line, pair_view
from estimator_service.cli.watch import paced
from estimator_service.cli.watch_view import WatchView, bar, sparkline

NOW = 1_800_000_000.0


def text_of(view: RenderableType, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


def state(slope: float = 0.5, loss: float = 0.4) -> inspect_pb2.PairState:
    version = types_pb2.Version(epoch=3, counter=812)
    line = types_pb2.SegmentCoefficients(slopes=[slope], intercepts=[0.5, -0.25, -1.5])
    return inspect_pb2.PairState(
        summary=inspect_pb2.PairSummary(
            id="target~draft~k3~00000000",
            key=types_pb2.PairKey(target="org/target", draft="org/draft", num_speculative_tokens=3, method="eagle"),
            version=version,
            workers=2,
            published_at_seconds=NOW - 4,
        ),
        coefficients=types_pb2.Coefficients(
            version=version,
            line=line,
            knots=[-1.0],
            segments=[types_pb2.SegmentCoefficients(segment=3, slopes=[0.5, 0.25], intercepts=[0.0, 0.0, 0.0])],
            evidence=[1000, 500, 12],
        ),
        standard_errors=[0.01, 0.02, 0.03, 0.4],
        observations=[4_000_000, 2_000_000, 1_000],
        acceptances=[2_000_000, 1_500_000, 400],
        blocks=4_000_000,
        exclusions=[types_pb2.ExclusionCount(reason=types_pb2.EXCLUSION_REASON_PENALTIES, blocks=7)],
        rejects={"non_finite": 2},
        refit=inspect_pb2.RefitState(done=11, held={"worse": 3}, last_held="log-loss 0.5 against 0.4"),
        calibration=inspect_pb2.Calibration(
            log_loss=loss,
            auc=0.75,
            ece=0.01,
            gap=0.001,
            observations=5000,
            log_loss_by_position=[0.4, 0.4, math.nan],
            auc_by_position=[0.7, 0.7, math.nan],
            gap_by_position=[0.001, 0.08, math.nan],
        ),
        mode=types_pb2.MODE_TRIM,
        notices=["position 2 has 12 effective observations"],
    )


def test_show_says_all_that_matters_in_80_columns() -> None:
    workers = [
        inspect_pb2.WorkerState(worker="w0", connected=True, version_applied=types_pb2.Version(epoch=3, counter=811)),
        inspect_pb2.WorkerState(
            worker="w1",
            connected=True,
            version_applied=types_pb2.Version(epoch=3, counter=812),
            quarantined="inverted labels",
        ),
    ]
    shown = text_of(pair_view(state(), workers, NOW))
    for expected in (
        "target~draft~k3~00000000",
        "! position 2 has 12 effective observations",
        "3.812, published 4 s ago",
        "0.5000 ± 0.0100",
        "worse 3; the latest: log-loss 0.5 against 0.4",
        "1 on another version",
        "w1: inverted labels",
        "penalties 7",
        "non_finite 2",
        "4,000,000",
        "50.0 %",
        "+0.0800",
        "0.50 0.75",
        "pieces meet at x = -1.00",
    ):
        assert expected in shown
    assert "…" not in shown
    assert shown.index("! position 2") < shown.index("version")


def test_one_line_holds_the_numbers() -> None:
    line = one_line(state())
    assert "\n" not in line
    assert "v3.812 slope 0.500 intercepts +0.50 -0.25 -1.50" in line


def test_watch_shows_movement_in_80_columns() -> None:
    view = WatchView()
    for i in range(40):
        later = state(slope=0.3 + 0.01 * i)
        later.observations[0] += 1000 * i
        view.add(later, NOW + i)
    shown = text_of(view.render())
    assert "0.690 ± 0.010" in shown
    assert "0.380 … 0.690" in shown  # of the last 32 looks
    assert "observations/s" in shown
    assert "1,000" in shown
    assert "…" not in shown.replace(" … ", "")


def test_watch_begins_with_the_history() -> None:
    entries = [
        inspect_pb2.HistoryEntry(coefficients=state(slope=value).coefficients) for value in (0.75, 0.5, 0.25)
    ]  # newest first
    view = WatchView(entries)
    view.add(state(slope=1.0), NOW)
    assert sparkline([0.25, 0.5, 0.75, 1.0]) in text_of(view.render())


def test_watch_marks_what_was_named_and_draws_the_bins() -> None:
    view = WatchView()
    for i in range(10):
        now = state(slope=0.5 if i < 6 else 0.3)
        if i >= 6:
            now.drifts.add(kind="pair", at_seconds=NOW + 5.5)
        if i >= 3:
            now.drifts.add(kind="workload", at_seconds=NOW + 2.5)
        now.calibration.reliability.extend(
            inspect_pb2.ReliabilityBin(observations=100 if b != 4 else 3, predicted=b / 7, observed=b / 14)
            for b in range(8)
        )
        view.add(now, NOW + i)
    lines = text_of(view.render()).splitlines()
    slope, drift = (next(line for line in lines if line.startswith(name)) for name in ("slope", "drift"))
    assert slope.index("▁") == drift.index("P"), "below the first look that knows of it"
    assert drift.index("P") - drift.rindex("w") == 3
    confidence, accepted = (next(line for line in lines if line.startswith(name)) for name in ("confid", "accepted"))
    assert "▁▂▃▄ ▆▇█" in confidence
    assert sparkline([b / 14 if b != 4 else math.nan for b in range(8)], 0, 1) in accepted
    assert "apart ≤ 0.500" in confidence
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines).replace(" … ", "")


def test_watch_says_that_a_pair_is_pinned() -> None:
    view, pinned = WatchView(), state()
    pinned.pinned.CopyFrom(types_pb2.Version(epoch=3, counter=800))
    view.add(pinned, NOW)
    assert "! pinned to 3.800" in text_of(view.render())


def test_at_most_one_state_an_interval_passes() -> None:
    times = iter([0.0, 0.2, 0.95, 1.0, 1.8, 1.9, 4.0])
    given_ = [state(slope=float(i)) for i in range(7)]
    passed = [int(s.coefficients.line.slopes[0]) for s in paced(given_, 1.0, lambda: next(times))]
    assert passed == [0, 2, 5, 6]


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", ":smile:"])
def test_names_are_no_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker named [/red] once made `acceptd workers` fail."""
    out = table("worker")
    out.add_row(name)
    console().print(out)
    assert name in capsys.readouterr().out


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=60))
def test_a_sparkline_is_as_long_as_its_series_and_keeps_its_order(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == len(values)
    known = [(value, mark) for value, mark in zip(values, line, strict=True) if not math.isnan(value)]
    for (a, mark_a), (b, mark_b) in itertools.pairwise(known):
        assert (a < b) <= (mark_a <= mark_b)


@given(st.floats(-12, 12), st.floats(0, 5), st.floats(0.1, 12), st.sampled_from([9, 33]))
def test_a_bar_is_as_wide_as_asked_with_its_mark_in_place(value: float, error: float, reach: float, width: int) -> None:
    drawn = bar(value, error, reach, width)
    assert len(drawn) == width
    assert drawn.count("●") == 1
    offset = drawn.index("●") - width // 2
    assert offset == 0 or (offset > 0) == (value > 0)
    if abs(value) >= reach:
        assert abs(offset) == width // 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s ago"), (59.0, "59 s ago"), (120.0, "2 min ago"), (7200.0, "2 h ago"), (2e5, "2 d ago")],
)
def test_ages(seconds: float, text: str) -> None:
    assert ago(NOW - seconds, NOW) == text
    assert ago(0.0, NOW) == "–"


def test_numbers() -> None:
    assert number(math.nan) == "–"
    assert number(None) == "–"
    assert number(0.12345, 2, sign=True) == "+0.12"
    assert counts({"a": 1, "b": 2000, "c": 0}) == "b 2,000, a 1"
    assert counts({}) == "none"
