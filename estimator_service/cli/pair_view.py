"""One pair as a person reads it: what is in force, whether it is right, and what needs attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.cli.output import NONE, ago, count, counts, facts, number, share, stamp, table

#: |predicted - observed| acceptance of a position that is coloured as suspicious.
_GAP_WORTH_A_LOOK = 0.05


def pair_view(state: inspect_pb2.PairState, workers: Sequence[inspect_pb2.WorkerState], now: float) -> Group:
    """The whole view. `now`: seconds since the epoch, for ages."""
    parts: list[RenderableType] = [_title(state)]
    # What needs attention comes first: the rest may scroll.
    parts += [Text(f"! {notice}", style="yellow") for notice in state.notices]
    parts += [_status(state, workers, now), _positions(state)]
    if state.coefficients.segments:
        parts.append(_segments(state))
    return Group(*parts)


def one_line(state: inspect_pb2.PairState) -> str:
    """The state in one line, for output that is no terminal."""
    line, calibration = state.coefficients.line, state.calibration
    slope = number(line.slopes[0]) if line.slopes else NONE
    intercepts = " ".join(number(value, 2, sign=True) for value in line.intercepts)
    score = f"log-loss {number(calibration.log_loss)} ece {number(calibration.ece)}" if calibration.observations else ""
    drift = f" latest-drift {state.drifts[0].kind}@{stamp(state.drifts[0].at_seconds)}" if state.drifts else ""
    return (
        f"{state.summary.id} v{jsonable.version_text(state.coefficients.version)} slope {slope} "
        f"intercepts {intercepts} observations {sum(state.observations)} "
        f"workers {state.summary.workers} {score}{drift}".rstrip()
    )


def _title(state: inspect_pb2.PairState) -> Text:
    key = state.summary.key
    details = [f"K = {key.num_speculative_tokens}", key.method, key.draft_sampling]
    details += [key.quantization] if key.quantization else []
    details += [f"weights generation {key.weights_generation}"] if key.weights_generation else []
    return Text.assemble(
        (state.summary.id, "bold"),
        "\n",
        (key.target, "cyan"),
        " ← ",
        (key.draft, "cyan"),
        (f"  ({', '.join(details)})", "dim"),
    )


def _status(state: inspect_pb2.PairState, workers: Sequence[inspect_pb2.WorkerState], now: float) -> Table:
    version = [jsonable.version_text(state.coefficients.version)]
    version += [f"published {ago(state.summary.published_at_seconds, now)}"]
    version += [state.refit.published_link or "prior", f"mode {jsonable.mode_name(state.mode)}"]
    version += [f"{100 * state.exploration_rate:g} % explored"]
    rows: list[tuple[str, str | Text]] = [
        ("version", ", ".join(version)),
        *_pinned(state),
        ("slope", _slope(state)),
        ("refits", _refits(state.refit)),
        *_held(state.refit),
        ("round", _round(state.calibration)),
        ("workers", _workers(state, workers)),
        (
            "counted",
            f"{count(state.blocks)} blocks, {count(sum(state.observations))} observations, "
            f"{share(sum(state.acceptances), sum(state.observations))} accepted",
        ),
    ]
    excluded = jsonable.exclusions(state.exclusions)
    if any(excluded.values()):
        rows.append(("excluded", counts(excluded)))
    if any(state.rejects.values()):
        rows.append(("rejected", Text(counts(dict(state.rejects)), style="yellow")))
    if state.totals.steps:
        rows.append(("verification", _verification(state)))
    return facts(rows)


def _pinned(state: inspect_pb2.PairState) -> list[tuple[str, Text]]:
    """A row of its own while an operator keeps fits back."""
    if not state.HasField("pinned"):
        return []
    text = f"to {jsonable.version_text(state.pinned)}; fits are not published until `acceptd unpin`"
    return [("pinned", Text(text, style="yellow"))]


def _slope(state: inspect_pb2.PairState) -> str:
    slopes = state.coefficients.line.slopes
    error = f" ± {number(state.standard_errors[0], 4)}" if state.standard_errors else ""
    return f"{number(slopes[0], 4)}{error}" if slopes else NONE


def _refits(refit: inspect_pb2.RefitState) -> str:
    text = f"{count(refit.done)} done, the last in {1e3 * refit.last_seconds:.2f} ms" if refit.done else "none yet"
    return f"{text}; {count(refit.pending_blocks)} blocks towards the next"


def _held(refit: inspect_pb2.RefitState) -> list[tuple[str, Text]]:
    """Refits that were not published: a row of its own, coloured if the latest one was."""
    if not any(refit.held.values()):
        return []
    last = f"; the latest: {refit.last_held}" if refit.last_held else "; the latest one was published"
    return [("held back", Text(counts(dict(refit.held)) + last, style="yellow" if refit.last_held else ""))]


def _round(calibration: inspect_pb2.Calibration) -> str:
    if not calibration.observations:
        return "none scored yet"
    return (
        f"{count(calibration.observations)} observations, log-loss {number(calibration.log_loss, 4)}, "
        f"AUC {number(calibration.auc)}, ECE {number(calibration.ece, 4)}, "
        f"gap {number(calibration.gap, 4, sign=True)}, survival ECE {number(calibration.survival_ece, 4)}"
    )


def _workers(state: inspect_pb2.PairState, workers: Sequence[inspect_pb2.WorkerState]) -> str | Text:
    connected = [worker for worker in workers if worker.connected]
    text = f"{len(connected) if workers else state.summary.workers} connected"
    behind = sum(worker.version_applied != state.coefficients.version for worker in connected)
    if behind:
        text += f", {behind} on another version"
    refused = [worker for worker in connected if worker.quarantined or worker.last_rejected_update]
    if not refused:
        return text
    why = "; ".join(f"{w.worker}: {w.quarantined or w.last_rejected_update}" for w in refused[:3])
    more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
    return Text(f"{text}; {why}{more}", style="yellow")


def _verification(state: inspect_pb2.PairState) -> str:
    totals = state.totals
    return (
        f"{count(totals.verified)} of {count(totals.scheduled)} drafted tokens verified "
        f"({share(totals.verified, totals.scheduled)}), {count(totals.accepted)} accepted, "
        f"{count(totals.explored)} explored ({count(totals.explored_extra)} beyond the budget), "
        f"{count(totals.clamped_steps)} steps clamped"
    )


def _positions(state: inspect_pb2.PairState) -> Table:
    # Fits 80 columns; the accepted count is rate × observed, and in the JSON.
    out = table(">pos", ">intercept", ">±", ">evidence", ">observed", ">accepted", ">gap", ">log-loss", ">AUC")
    errors = state.standard_errors[1:]
    calibration = state.calibration
    for k, intercept in enumerate(state.coefficients.line.intercepts):
        observed, accepted = _at(state.observations, k) or 0, _at(state.acceptances, k) or 0
        gap = _at(calibration.gap_by_position, k)
        suspicious = gap is not None and not math.isnan(gap) and abs(gap) > _GAP_WORTH_A_LOOK
        out.add_row(
            str(k),
            number(intercept, 4, sign=True),
            number(_at(errors, k), 4),
            count(_at(state.coefficients.evidence, k) or 0),
            count(observed),
            share(accepted, observed),
            Text(number(gap, 4, sign=True), style="yellow" if suspicious else ""),
            number(_at(calibration.log_loss_by_position, k), 4),
            number(_at(calibration.auc_by_position, k)),
        )
    return out


def _segments(state: inspect_pb2.PairState) -> Table:
    out = table("~segment", "~slope by piece", "~intercepts", title="Segments of the link")
    alike: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
    for segment in state.coefficients.segments:
        values = (tuple(segment.slopes), tuple(segment.intercepts))
        alike.setdefault(values, []).append(jsonable.segment_name(segment.segment))
    for (slopes, intercepts), names in alike.items():
        out.add_row(
            " ".join(names),
            " ".join(number(slope, 2) for slope in itertools.accumulate(slopes)),
            " ".join(number(value, 2, sign=True) for value in intercepts),
        )
    if state.coefficients.knots:
        out.caption = "pieces meet at x = " + ", ".join(number(knot, 2) for knot in state.coefficients.knots)
    return out


def _at(values: Sequence[float], index: int) -> float | None:
    return values[index] if index < len(values) else None
