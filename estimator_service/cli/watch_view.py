"""A pair over time, for `acceptd watch` in a terminal: what moved, how far, and whether the estimates are right."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
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

_LEVELS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float]) -> str:
    """One character a value, from its lowest to its highest; level where they are all alike. NaN leaves a gap.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    >>> sparkline([2.0, 2.0])
    '▄▄'
    """
    shown = list(values)
    known = [value for value in shown if not math.isnan(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    out = []
    for value in shown:
        if math.isnan(value):
            out.append(" ")
        elif high == low:
            out.append(_LEVELS[3])
        else:
            out.append(_LEVELS[round((value - low) / (high - low) * (len(_LEVELS) - 1))])
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


class WatchView:
    """Remembers LOOKS looks at a pair and renders them. Feed it with `add`, then show `render()`."""

    def __init__(self, earlier: Sequence[inspect_pb2.HistoryEntry] = ()) -> None:
        """`earlier`: published versions, newest first; they fill the sparkline of the slope before the first look."""
        newest = list(earlier)[:LOOKS]
        self._slopes = deque([e.coefficients.line.slopes[0] for e in reversed(newest)], maxlen=LOOKS)
        self._losses: deque[float] = deque(maxlen=LOOKS)
        self._errors: deque[float] = deque(maxlen=LOOKS)
        self._rates: deque[float] = deque(maxlen=LOOKS)
        self._state = inspect_pb2.PairState()
        self._now = 0.0
        self._counted: tuple[int, float] | None = None

    def add(self, state: inspect_pb2.PairState, now: float) -> None:
        """One more look, at `now` seconds since the epoch."""
        total = sum(state.observations)
        if self._counted is None:
            self._counted = (total, now)
        elif now - self._counted[1] >= RATE_SECONDS:
            self._rates.append(max(total - self._counted[0], 0) / (now - self._counted[1]))
            self._counted = (total, now)
        scored = state.calibration.observations > 0
        self._slopes.append(state.coefficients.line.slopes[0])
        self._losses.append(state.calibration.log_loss if scored else float("nan"))
        self._errors.append(state.calibration.ece if scored else float("nan"))
        self._state, self._now = state, now

    def render(self) -> Group:
        """The whole view."""
        state = self._state
        parts: list[RenderableType] = [Text(state.summary.id, style="bold")]
        parts += [Text(f"! {notice}", style="yellow") for notice in state.notices]
        return Group(*parts, self._status(), self._series(), self._positions())

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
        rows = (
            ("slope", f"{number(self._slopes[-1])} ± {number(error)}", self._slopes, 3),
            ("log-loss", number(self._losses[-1], 4), self._losses, 3),
            ("ECE", number(self._errors[-1], 4), self._errors, 4),
            ("observations/s", count(self._rates[-1]) if self._rates else NONE, self._rates, 0),
        )
        for name, value, series, digits in rows:
            known = [v for v in series if not math.isnan(v)]
            span = f"{min(known):,.{digits}f} … {max(known):,.{digits}f}" if known else ""
            out.add_row(name, value, sparkline(series), span)
        return out

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
