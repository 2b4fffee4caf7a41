"""`acceptd replay`, `features` and `roles`: offline work on recorded traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from acceptd.errors import ConfigError
from estimator_service.cli.options import Json
from estimator_service.cli.output import console, count, number, print_json, table

if TYPE_CHECKING:
    from estimator_service.lab.replay import Replay
    from estimator_service.lab.roles import Role, Spread

#: Fits side by side in a table of intercepts: what 120 columns hold.
_FITS_A_TABLE = 5

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="Parquet file of format acceptd-trace/1.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("replay")(replay)
    app.command("features")(features)
    app.command("roles")(roles)


def replay(
    trace: TracePath,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", "-e", help="Which to score; several times or with commas. All, unless given."),
    ] = None,
    round_size: Annotated[int, typer.Option("--round", min=1, help="Blocks between two refits.")] = 640,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="DIR", help="Draw PNG files there.")] = None,
    as_json: Json = False,
) -> None:
    """Score estimators on a trace: each predicts a round of blocks before it learns from it.

    "gap closed" is the share of the log-loss between `round`, vLLM's built-in estimator, and the oracle, which knows
    the target's distribution.

    Examples:
      acceptd replay trace.parquet
      acceptd replay trace.parquet -e round,link+segments --round 2000 --plot plots/
      acceptd replay trace.parquet --json | jq '.estimators.line.ece'
    """
    with _lab():
        from estimator_service.lab import replay as replaying  # noqa: PLC0415
        from estimator_service.lab.estimators.registry import build  # noqa: PLC0415
        from estimator_service.lab.trace import Trace  # noqa: PLC0415

        if plot is not None:
            from estimator_service.lab.plots import draw  # noqa: PLC0415
    opened = Trace(trace)
    names = [name.strip() for item in estimator or [] for name in item.split(",") if name.strip()]
    estimators = build(opened, names)
    with _progress(f"replaying {trace.name}", opened.num_blocks) as advance:
        outcome = replaying.replay(opened, estimators, round_size=round_size, on_progress=advance)
    pictures = [] if plot is None else draw(outcome, plot, title=opened.pair or trace.stem)
    if as_json:
        print_json(outcome.as_json())
    else:
        _show_replay(outcome)
        for picture in pictures:
            console().print(f"wrote {picture}")


def features(trace: TracePath, as_json: Json = False) -> None:
    """How well each feature alone tells accepted draft tokens from rejected ones.

    "fitted" is logit P = slope·feature + intercept of the position, fitted to the whole trace. A lossy feature depends
    on the token that was drawn: verifying by it would change what is generated, so it is here for comparison alone.

    Examples:
      acceptd features trace.parquet
    """
    with _lab():
        from estimator_service.lab.feature_table import feature_table  # noqa: PLC0415
        from estimator_service.lab.trace import Trace  # noqa: PLC0415
    opened = Trace(trace)
    with _progress(f"reading {trace.name}", opened.num_blocks) as advance:
        rows = feature_table(opened, advance)
    if as_json:
        print_json({"trace": str(trace), "features": {row.feature.name: row.as_json() for row in rows}})
        return
    out = table("feature", ">AUC", ">AUC fitted", ">log-loss fitted", ">slope", "may decide what is verified")
    for row in rows:
        verdict = "yes" if row.feature.lossless else "no: lossy"
        out.add_row(
            row.feature.name,
            number(row.auc, 4),
            number(row.fitted_auc, 4),
            number(row.log_loss, 4),
            number(row.slope, 3),
            verdict,
        )
    console().print(out)


def roles(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE…", help="Traces of format acceptd-trace/1.")],
    as_json: Json = False,
) -> None:
    """Fit every workload of every trace apart: what belongs to the pair, and what to the workload?

    Expect slopes of one pair to agree and intercepts to follow the workload; the last lines say whether they do.
    Errors allow for the correlation of labels within a request.

    Examples:
      acceptd roles trace.parquet
      acceptd roles llama-eagle3.parquet qwen-mtp.parquet --json
    """
    with _lab():
        from estimator_service.lab.roles import fit_roles, spread  # noqa: PLC0415
        from estimator_service.lab.trace import Trace  # noqa: PLC0415
    opened = [Trace(path) for path in traces]
    found: list[Role] = []
    with _progress("fitting", 2 * sum(one.num_blocks for one in opened)) as advance:
        for one in opened:
            found += fit_roles(one, advance)
    if as_json:
        print_json({"roles": [role.as_json() for role in found], "spread": spread(found).as_json()})
    else:
        _show_roles(found, spread(found), several=len(opened) > 1)


def _show_replay(outcome: Replay) -> None:
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


def _show_roles(found: list[Role], between: Spread, *, several: bool) -> None:
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


@contextmanager
def _lab() -> Iterator[None]:
    """Imports of the lab: heavy, and of an extra that may be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"acceptd", "estimator_service"}:
            raise
        raise ConfigError(f'{missing} is not installed; this command needs: pip install "acceptd[lab]"') from error


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; nothing otherwise."""
    screen = Console(stderr=True)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
