"""What `acceptd replay` and `acceptd roles` print for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from estimator_service.cli.output import console, count, number, table

if TYPE_CHECKING:
    from estimator_service.lab.replay import Replay
    from estimator_service.lab.roles import Role, Spread

#: Fits side by side in a table of intercepts: what 120 columns hold.
_FITS_A_TABLE = 5


def show_replay(outcome: Replay) -> None:
    """Scores overall, by workload and temperature, and by position."""
    out = table("estimator", ">AUC", ">log-loss", ">ECE", ">gap", ">AUC k>0", ">log-loss k>0", ">gap closed")
    for name, scores in outcome.scores.items():
        overall, later, closed = scores.overall(), scores.without_first(), outcome.gap_closed(name)
        out.add_row(
            name,
            number(overall.auc, 4),
            number(overall.log_loss, 4),
            number(overall.ece, 4),
            number(overall.gap, 4, sign=True),
            number(later.auc, 4),
            number(later.log_loss, 4),
            "–" if closed is None else f"{100 * closed:.1f} %",
        )
    first = next(iter(outcome.scores.values())).overall()
    screen = console()
    screen.print(
        f"{outcome.trace}: {count(first.observations)} observations, acceptance {number(first.acceptance)}, "
        f"rounds of {count(outcome.round_size)} blocks"
    )
    screen.print(out)
    for title, field in (("log-loss", "log_loss"), ("ECE", "ece")):
        names = [f">{name}" for name in outcome.scores]
        by_cell = table("workload", ">T", *names, title=f"{title} by workload and temperature")
        for index, cell in enumerate(outcome.cells.found):
            values = [getattr(scores.cells([index]), field) for scores in outcome.scores.values()]
            by_cell.add_row(cell.workload or "–", cell.temperature, *(number(value, 4) for value in values))
        screen.print(by_cell)
    by_position = table(">position", *(f">{name}" for name in outcome.scores), title="AUC by position")
    for position, summaries in enumerate(zip(*(s.positions() for s in outcome.scores.values()), strict=True)):
        by_position.add_row(str(position), *(number(summary.auc, 4) for summary in summaries))
    screen.print(by_position)


def show_roles(found: list[Role], between: Spread, *, several: bool) -> None:
    """Each fit, and how they differ. several: name the trace of each."""
    names = [f"{Path(role.trace).stem}: {role.workload}" if several else role.workload or "all" for role in found]
    out = table("fit", ">labels", ">acceptance", ">entropy", ">slope")
    for name, role in zip(names, found, strict=True):
        out.add_row(
            name,
            count(role.observations),
            number(role.acceptance),
            number(role.entropy, 2),
            _with_error(role.slope, role.slope_error),
        )
    screen = console()
    screen.print(out)
    for start in range(0, len(found), _FITS_A_TABLE):
        some = slice(start, start + _FITS_A_TABLE)
        out = table("intercept", *(f">{name}" for name in names[some]))
        for k in range(max(len(role.intercepts) for role in found)):
            pairs = [
                (role.intercepts[k], role.intercept_errors[k]) if k < len(role.intercepts) else (None, None)
                for role in found[some]
            ]
            out.add_row(f"position {k}", *(_with_error(value, error, sign=True) for value, error in pairs))
        screen.print(out)
    out = table("over the fits", ">value")
    out.add_row("spread of the slope", number(between.slope))
    out.add_row("spread of the intercepts", "  ".join(number(value) for value in between.intercepts))
    out.add_row("correlation of β₀ with entropy", number(between.entropy_and_first_intercept, 2, sign=True))
    out.add_row("correlation of the slope with entropy", number(between.entropy_and_slope, 2, sign=True))
    screen.print(out)


def _with_error(value: float | None, error: float | None, *, sign: bool = False) -> str:
    return f"{number(value, sign=sign)} ± {number(error)}"
