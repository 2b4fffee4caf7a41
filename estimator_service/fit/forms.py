"""The forms coefficients can take, fitted side by side, and the choice of the one that is published.

line            K + 1 parameters; every worker evaluates it, so every version holds it
link            K + 1 + J, for all segments
link+segments   the same for each segment of its own
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from acceptd.segments import NUM_SEGMENTS
from acceptd.types import Coefficients, Version
from estimator_service.fit.hierarchy import RECENT, SEGMENT, Shrinkage, fit_groups, fit_line, fit_link, solve_groups
from estimator_service.fit.histogram import Floats
from estimator_service.fit.likelihood import Cells, Point, information_matrix
from estimator_service.fit.predict import segment_coefficients
from estimator_service.fit.settings import FitSettings

LINE, LINK, SEGMENTED = "line", "link", "link+segments"

#: Relative gain in prequential log-loss for which the published form changes. Below it two forms are as good as equal;
#: raising it flaps less and takes a real gain later.
_HYSTERESIS: Final = 0.0005

#: Observations scored (decayed) before anything but the line is published: with fewer, segments are noise. Raising it
#: keeps the line longer.
_MIN_SCORED: Final = 1_500.0


def enabled_forms(settings: FitSettings) -> tuple[str, ...]:
    """The forms that settings allow, in order of generality."""
    if settings.method != "auto" or not settings.knots:
        return (LINE,)
    return (LINE, LINK, SEGMENTED) if settings.segments else (LINE, LINK)


@dataclass(frozen=True)
class Points:
    """Fitted points of one window. line, link: S = 1; segments: S = NUM_SLOTS; None where the form is off.

    information: of the rows about the line, [1 + K, 1 + K]."""

    line: Point
    information: Floats
    knots: tuple[float, ...] = ()
    link: Point | None = None
    segments: Point | None = None


def fit_window(window: Floats, knots: tuple[float, ...], settings: FitSettings, start: Points | None) -> Points:
    """All enabled forms on sums [3, NUM_SLOTS, K, NUM_BINS]. `start`: the previous fit, to begin from."""
    total = window.sum(axis=1, keepdims=True)
    line, information = fit_line(Cells.of(total), settings, start.line if start else None)
    if not knots:
        return Points(line, information)
    warm = start if start and start.knots == knots else None
    link = fit_link(Cells.of(total, knots), line, warm.link if warm else None)
    if not settings.segments:
        return Points(line, information, knots, link)
    segments = _by_segment(window, knots, link, SEGMENT, warm.segments if warm else None)
    return Points(line, information, knots, link, segments)


def refine(window: Floats, base: Points, start: Points | None) -> Points:
    """What the recent window says beyond `base`, each form shrunk to it. `start`: the previous such fit."""
    warm = start if start and start.knots == base.knots else None
    total = window.sum(axis=1, keepdims=True)
    line, normal = solve_groups(Cells.of(total), base.line, RECENT, start.line if start else None)
    return Points(
        line,
        information_matrix(normal),
        base.knots,
        None
        if base.link is None
        else fit_groups(Cells.of(total, base.knots), base.link, RECENT, warm.link if warm else None),
        None
        if base.segments is None
        else _by_segment(window, base.knots, base.segments, RECENT, warm.segments if warm else None),
    )


def _by_segment(
    window: Floats, knots: tuple[float, ...], parent: Point, shrinkage: Shrinkage, start: Point | None = None
) -> Point:
    """`fit_groups` over the segments that have rows; the others are their parent's."""
    slots = window.shape[1]
    point = Point(*(np.repeat(value, slots // len(value), axis=0) for value in (parent.slopes, parent.intercepts)))
    used = np.flatnonzero(window[0].any(axis=(1, 2)))
    if len(used):
        own = Point(point.slopes[used], point.intercepts[used])
        begin = None if start is None else Point(start.slopes[used], start.intercepts[used])
        found = fit_groups(Cells.of(window[:, used], knots), own, shrinkage, begin)
        point.slopes[used], point.intercepts[used] = found.slopes, found.intercepts
    return point


def to_coefficients(points: Points, form: str, evidence: Floats, offsets: Floats | None = None) -> Coefficients:
    """Float32-exact coefficients of a form; offsets: float64[K] added to every intercept."""
    shift = np.zeros_like(evidence) if offsets is None else offsets
    line = segment_coefficients(points.line.slopes[0], points.line.intercepts[0] + shift)
    chosen = {LINK: points.link, SEGMENTED: points.segments}.get(form)
    if chosen is None:
        return Coefficients(Version(), line, evidence=tuple(evidence.tolist()))
    last = len(chosen.slopes) - 1
    segments = {
        slot: segment_coefficients(chosen.slopes[min(slot, last)], chosen.intercepts[min(slot, last)] + shift)
        for slot in range(NUM_SEGMENTS)
    }
    return Coefficients(Version(), line, points.knots, segments, tuple(evidence.tolist()))


@dataclass
class Choice:
    """Which form is published. losses: form → decayed (nats, observations), scored before they were learned from."""

    form: str = LINE
    losses: dict[str, tuple[float, float]] = field(default_factory=dict)

    def score(self, losses: dict[str, float], observations: float, decay: float) -> None:
        """A round's summed log-loss of each form, by the coefficients it was predicted with."""
        for form, value in losses.items():
            before, n = self.losses.get(form, (0.0, 0.0))
            self.losses[form] = before * decay + value, n * decay + observations

    def means(self) -> dict[str, float]:
        """Form → decayed log-loss, nats an observation."""
        return {form: value / n for form, (value, n) in sorted(self.losses.items()) if n > 0}

    def choose(self, available: tuple[str, ...]) -> str:
        """The form to publish, of those available in order of generality, and remember it.

        The most general one within the hysteresis of the best: it is shrunk to the others, so it costs little where it
        is not needed, and it is there when traffic turns to temperatures not seen before.
        """
        if self.form not in available:
            self.form = LINE
        means = self.means()
        ready = [form for form in available if self.losses.get(form, (0.0, 0.0))[1] >= _MIN_SCORED]
        if self.form not in ready:
            return self.form
        best = min(means[form] for form in ready)
        # Half the width to move to a form, all of it to leave one.
        near = [form for form in ready if means[form] <= best * (1.0 + _HYSTERESIS / (1 if form == self.form else 2))]
        self.form = near[-1]
        return self.form
