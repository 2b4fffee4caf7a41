"""A refit: every enabled form fitted to a pair's windows, and the coefficients that may be published."""

from __future__ import annotations

from dataclasses import dataclass

from acceptd.types import Coefficients
from estimator_service.fit.forms import LINE, LINK, Choice, Points, enabled_forms, fit_window, refine, to_coefficients
from estimator_service.fit.guard import Sample
from estimator_service.fit.histogram import Floats
from estimator_service.fit.knots import choose_knots
from estimator_service.fit.line import adequate_line, line_errors
from estimator_service.fit.settings import FitSettings
from estimator_service.fit.windows import Windows


@dataclass(frozen=True)
class Refit:
    """Its outcome.

    base, points: fits of the long window, and of what the recent one says beyond it. knots: of both; the next refit
    begins from all three. evidence: float64[K], the windows'. errors: float64[1 + K], standard errors of the line,
    slope first. form: the one to publish. forms: form → coefficients of all labels together. coefficients: by workload
    label in the form to publish, "" for all labels together.
    """

    knots: tuple[float, ...]
    base: Points
    points: Points
    evidence: Floats
    errors: Floats
    form: str
    forms: dict[str, Coefficients]
    coefficients: dict[str, Coefficients]


def refit(
    windows: Windows,
    settings: FitSettings,
    choice: Choice,
    *,
    knots: tuple[float, ...],
    base: Points | None,
    points: Points | None,
    newest: Floats,
    sample: Sample,
) -> Refit:
    """Fit `windows`, from the previous refit's `knots`, `base` and `points`. choice: remembers the form it chooses.

    newest: sums of the round's rows over all segments, float64[3, 1, K, NUM_BINS]. sample: the same rows; a form beside
    the line is published only if it does no worse on them than the line, or than their own rate.
    """
    enabled = enabled_forms(settings)
    if LINK in enabled:
        knots = choose_knots(windows.long[0].sum(axis=(0, 1)), knots)
    base = fit_window(windows.long, knots, settings, base)
    windowed = settings.recent_half_life_observations < settings.half_life_observations
    points = refine(windows.recent, base, points) if windowed else base
    evidence = windows.evidence
    errors = line_errors(base, points, windows, settings)
    line = adequate_line(points, sample, newest, settings)
    offsets = windows.unbiased.offsets(line)
    published = points if line is points.line else Points(line, points.information)
    available = enabled if published.link is not None else (LINE,)
    form = choice.choose(available)
    forms = {name: to_coefficients(published, name, evidence, offsets) for name in available}
    if form != LINE and sample.total:
        limit = max(sample.constant_loss(), sample.loss(forms[LINE]))
        form = form if sample.loss(forms[form]) <= limit else LINE
    coefficients = {"": forms[form], **windows.workloads.coefficients(published, form, evidence, offsets)}
    return Refit(knots, base, points, evidence, errors, form, forms, coefficients)
