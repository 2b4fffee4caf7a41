"""A pair over time, for `acceptd watch` in a terminal: what moved, how far, and whether the estimates are right."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.cli.output import NONE, ago, count, facts, number, share, table

#: Looks that a sparkline shows. With them the view is 80 columns wide.
LOOKS: Final = 32

#: Shortest time over which a rate is taken, seconds: two looks in a row can be a millisecond apart.
RATE_SECONDS: Final = 0.1

#: Characters of an intercept's bar; the middle one is 0. Odd.
BAR: Final = 33

#: Observations below which a bin shows noise and is left out.
_FEW: Final = 10

_LEVELS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], low: float | None = None, high: float | None = None) -> str:
    """One character a value, from `low` to `high`: their own lowest and highest if not given. NaN leaves a gap.

    Level where they are all alike and no scale is given.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    >>> sparkline([2.0, 2.0])
    '▄▄'
    >>> sparkline([0.5, 0.5], 0.0, 1.0)
    '▅▅'
    """
    shown = list(values)
    known = [value for value in shown if not math.isnan(value)]
    low = min(known, default=0.0) if low is None else low
    high = max(known, default=0.0) if high is None else high
    out = []
    for value in shown:
        if math.isnan(value):
            out.append(" ")
        elif high == low:
            out.append(_LEVELS[3])
        else:
            place = (min(max(value, low), high) - low) / (high - low)
            out.append(_LEVELS[round(place * (len(_LEVELS) - 1))])
    return "".join(out)


def bar(value: float, error: float, reach: float, width: int = BAR) -> str:
    """`value` as a bar from 0 (the middle) with `error` to both sides, on a scale of ±reach.

    >>> bar(0.5, 0.25, 1.0, 9)
    '    ┃╺●╸ '
    >>> bar(-1.0, 0.0, 1.0, 9)
    '●━━━┃    '
    """
    middle = width // 2

    def at(x: float) -> int:
        return middle + round(max(-1.0, min(1.0, x / reach)) * middle)

    cells = [" "] * width
    for i in range(min(at(value), middle), max(at(value), middle) + 1):
        cells[i] = "━"
    for i in range(at(value - error), at(value + error) + 1):
        cells[i] = "─"
    if at(value - error) != at(value + error):
        cells[at(value - error)], cells[at(value + error)] = "╺", "╸"
    cells[middle] = "┃"
    cells[at(value)] = "●"
    return "".join(cells)


@dataclass(frozen=True)
class _Look:
    """One look. at: seconds since the epoch. Scores and rate (observations a second) are NaN where not known."""

    at: float
    slope: float
    log_loss: float = math.nan
    ece: float = math.nan
    rate: float = math.nan


class WatchView:
    """Remembers LOOKS looks at a pair and renders them. Feed it with `add`, then show `render()`."""

    def __init__(self, earlier: Sequence[inspect_pb2.HistoryEntry] = ()) -> None:
        """`earlier`: published versions, newest first; they stand for the looks before the first one."""
        self._looks = deque((_earlier(entry) for entry in reversed(earlier[:LOOKS])), maxlen=LOOKS)
        self._state = inspect_pb2.PairState()
        self._now = 0.0

    def add(self, state: inspect_pb2.PairState, now: float) -> None:
        """One more look, at `now` seconds since the epoch."""
        rate = math.nan
        if self._now and now > self._now:
            new = sum(state.observations) - sum(self._state.observations)
            rate = max(new, 0) / (now - self._now)
        slope, scores = state.coefficients.line.slopes[0], state.calibration
        scored = scores.observations > 0
        self._looks.append(
            _Look(now, slope, scores.log_loss if scored else math.nan, scores.ece if scored else math.nan, rate)
        )
        self._state, self._now = state, now

    def render(self) -> Group:
        """The whole view."""
        state = self._state
        parts: list[RenderableType] = [Text(state.summary.id, style="bold")]
        parts += [Text(f"! {notice}", style="yellow") for notice in state.notices]
        if state.HasField("pinned"):
            pinned = jsonable.version_text(state.pinned)
            parts.append(Text(f"! pinned to {pinned}: fits are not published until `acceptd unpin`", style="yellow"))
        parts += [self._status(), self._series(), self._positions()]
        return Group(*parts)

    def _status(self) -> Table:
        state = self._state
        version = jsonable.version_text(state.coefficients.version)
        published = ago(state.summary.published_at_seconds, self._now)
        held = sum(state.refit.held.values())
        refits = f"{count(state.refit.done)} done, {count(held)} held back, {count(state.refit.pending_blocks)} waiting"
        return facts(
            [
                ("version", f"{version}, published {published}, mode {jsonable.mode_name(state.mode)}"),
                ("refits", Text(refits, style="yellow" if state.refit.last_held else "")),
                ("workers", f"{state.summary.workers} connected"),
            ]
        )

    def _series(self) -> Table:
        error = self._state.standard_errors[0] if self._state.standard_errors else None
        out = Table.grid(padding=(0, 2))
        out.add_column(style="dim", no_wrap=True)
        out.add_column(justify="right", no_wrap=True)
        out.add_column(style="cyan", no_wrap=True)
        out.add_column(style="dim", no_wrap=True)
        looks = self._looks
        rows = (
            ("slope", f"{number(looks[-1].slope)} ± {number(error)}", [look.slope for look in looks], 3),
            ("log-loss", number(looks[-1].log_loss, 4), [look.log_loss for look in looks], 3),
            ("ECE", number(looks[-1].ece, 4), [look.ece for look in looks], 4),
            (
                "observations/s",
                NONE if math.isnan(looks[-1].rate) else count(looks[-1].rate),
                [look.rate for look in looks],
                0,
            ),
        )
        for i, (name, value, series, digits) in enumerate(rows):
            known = [v for v in series if not math.isnan(v)]
            span = f"{min(known):,.{digits}f} … {max(known):,.{digits}f}" if known else ""
            out.add_row(name, value, sparkline(series).rjust(LOOKS), span)
            if i == 0 and (marks := self._drift_marks()).strip():
                out.add_row("drift", "w: workload", Text(marks, style="yellow"), "P: pair")
        self._reliability(out)
        return out

    def _drift_marks(self) -> str:
        """Below each look, what was named between it and the one before: P outranks w."""
        marks = [" "] * len(self._looks)
        for drift in self._state.drifts:
            since = [i for i, look in enumerate(self._looks) if look.at >= drift.at_seconds]
            # One from before the first look is not in the picture.
            if since and (since[0] > 0 or self._looks[0].at == drift.at_seconds):
                marks[since[0]] = "P" if drift.kind == "pair" or marks[since[0]] == "P" else "w"
        return "".join(marks).rjust(LOOKS)

    def _reliability(self, out: Table) -> None:
        """Confidence and what came of it, bin by bin on one scale: where the lower line dips, they were too sure."""
        bins = [item if item.observations >= _FEW else None for item in self._state.calibration.reliability]
        gaps = [abs(item.predicted - item.observed) for item in bins if item]
        if not gaps:
            return
        confidence = sparkline([item.predicted if item else math.nan for item in bins], 0.0, 1.0)
        accepted = sparkline([item.observed if item else math.nan for item in bins], 0.0, 1.0)
        out.add_row("confidence", "by bin", confidence, f"apart ≤ {number(max(gaps))}")
        out.add_row("accepted", "", accepted, "")

    def _positions(self) -> Table:
        state = self._state
        intercepts, errors = state.coefficients.line.intercepts, list(state.standard_errors[1:])
        reach = max([1.0, *(abs(b) for b in intercepts)])
        scale = f"{-reach:.1f}".ljust(BAR // 2) + "0".ljust(BAR - BAR // 2 - 4) + f"{reach:+.1f}"
        out = table(">pos", ">intercept", scale, ">accepted", ">gap")
        for k, intercept in enumerate(intercepts):
            error = errors[k] if k < len(errors) else 0.0
            gaps = state.calibration.gap_by_position
            out.add_row(
                str(k),
                number(intercept, 3, sign=True),
                Text(bar(intercept, error, reach), style="cyan"),
                share(state.acceptances[k], state.observations[k]) if k < len(state.observations) else NONE,
                number(gaps[k] if k < len(gaps) else None, 3, sign=True),
            )
        return out


def _earlier(entry: inspect_pb2.HistoryEntry) -> _Look:
    scores = entry.calibration
    scored = scores.observations > 0
    return _Look(
        entry.published_at_seconds,
        entry.coefficients.line.slopes[0],
        scores.log_loss if scored else math.nan,
        scores.ece if scored else math.nan,
    )
