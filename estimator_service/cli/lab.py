"""`acceptd record`, `replay`, `features` and `roles`: traces of live traffic, and work on them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from acceptd.errors import ConfigError
from estimator_service.cli.client import InspectClient
from estimator_service.cli.lab_extra import lab_extra
from estimator_service.cli.lab_view import show_replay, show_roles
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.output import console, count, number, print_json, table
from estimator_service.cli.target import LOCAL, Target, asks_service
from estimator_service.jsonable import pair_key

if TYPE_CHECKING:
    from estimator_service.lab.roles import Role

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="Parquet file of format acceptd-trace/1.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("record")(asks_service(record))
    app.command("replay")(replay)
    app.command("features")(features)
    app.command("roles")(roles)


def record(  # noqa: PLR0917  (a command's options)
    pair: Pair,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Parquet file to write.")],
    blocks: Annotated[int | None, typer.Option(min=1, help="Stop after about this many blocks.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after this long.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Record a pair's live traffic as a trace, until Ctrl-C or a limit.

    Copies what workers send anyway: x of the observed positions, labels, segments, workload labels, and entropy and
    margin where the hook computes them. Workers are never slowed; what this command does not take in time is counted.

    Examples:
      acceptd record llama -o monday.parquet --seconds 3600
      acceptd record llama -o sample.parquet --blocks 100000 && acceptd replay sample.parquet
    """
    with lab_extra():
        from estimator_service.lab.record import Recorder  # noqa: PLC0415
    if output.exists() and not force:
        raise ConfigError(f"{output} exists; accepted: another name, or --force")
    if not output.parent.is_dir():
        raise ConfigError(f"{output.parent} is no directory; accepted: a file in one that exists")
    dropped = 0
    with InspectClient(target) as client, _interruptible():
        messages = client.tap(pair, seconds)
        found = next(messages).pair
        metadata = {"pair": found.id, "key": pair_key(found.key)}
        with (
            Recorder(output, found.key.num_speculative_tokens, metadata) as recorder,
            _progress(f"recording {found.id}", blocks) as advance,
            suppress(KeyboardInterrupt),
        ):
            for message in messages:
                recorder.add(message.batch, message.workload)
                dropped = message.dropped_rows
                advance(len(message.batch.accepted))
                if blocks is not None and recorder.blocks >= blocks:
                    break
    if not recorder.blocks:
        raise ConfigError(f"no worker of {found.id} sent a batch meanwhile; nothing was written")
    if as_json:
        values = {"file": str(output), "pair": found.id, "blocks": recorder.blocks}
        print_json({**values, "dropped_blocks": dropped, "skipped_blocks": recorder.skipped})
        return
    console().print(f"wrote {count(recorder.blocks)} blocks of {found.id} to {output}")
    if dropped:
        console().print(f"{count(dropped)} blocks were left out: they came faster than this command took them")
    if recorder.skipped:
        console().print(f"{count(recorder.skipped)} blocks were left out: they lack entropy or margin")


def replay(
    trace: TracePath,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", "-e", help="Which to score; several times or with commas. All, unless given."),
    ] = None,
    round_size: Annotated[
        int | None, typer.Option("--round", min=1, help="Blocks between refits: 640, more for a long trace.")
    ] = None,
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
    with lab_extra():
        from estimator_service.lab import replay as replaying  # noqa: PLC0415
        from estimator_service.lab.estimators.registry import build  # noqa: PLC0415
        from estimator_service.lab.trace import Trace  # noqa: PLC0415

        if plot is not None:
            from estimator_service.lab.plots import draw  # noqa: PLC0415
    opened = Trace(trace)
    names = [name.strip() for item in estimator or [] for name in item.split(",") if name.strip()]
    size = round_size or replaying.default_round(opened)
    estimators = build(opened, names)
    with _progress(f"replaying {trace.name}", opened.num_blocks) as advance:
        outcome = replaying.replay(opened, estimators, round_size=size, on_progress=advance)
    pictures = [] if plot is None else draw(outcome, plot, title=opened.pair or trace.stem)
    if as_json:
        print_json(outcome.as_json())
    else:
        show_replay(outcome)
        for picture in pictures:
            console().print(f"wrote {picture}")


def features(trace: TracePath, as_json: Json = False) -> None:
    """How well each feature alone tells accepted draft tokens from rejected ones.

    "fitted" is logit P = slope·feature + intercept of the position, fitted to the whole trace. A lossy feature depends
    on the token that was drawn: verifying by it would change what is generated, so it is here for comparison alone.

    Examples:
      acceptd features trace.parquet
    """
    with lab_extra():
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
    with lab_extra():
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
        show_roles(found, spread(found), several=len(opened) > 1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the recording as Ctrl-C does, with a complete file."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
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
