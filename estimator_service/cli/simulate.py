"""`acceptd simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import Progress

from acceptd.errors import ConfigError
from estimator_service.cli.lab_extra import lab_extra
from estimator_service.cli.options import Json
from estimator_service.cli.output import console, print_json
from estimator_service.cli.simulation_view import show

if TYPE_CHECKING:
    from estimator_service.lab.cost_model import CostModel

_DEFAULT_CONCURRENCY: Final = "1,2,4,8,16,32,64,128,256"
_DEFAULT_ROOFLINE: Final = "h200-8b-block"

#: Largest concurrency simulated. The cost tables grow with it.
_MAX_CONCURRENCY: Final = 4096


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate")(simulate)


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A recorded trace, acceptd-trace/1 (Parquet).")],
    *,
    costs: Annotated[
        Path | None, typer.Option("--costs", metavar="FILE", help="Profiled step costs, JSON (docs/simulator.md).")
    ] = None,
    roofline: Annotated[
        str | None,
        typer.Option(
            "--roofline",
            metavar="NAME",
            help="A roofline instead: h200-8b-ar, h200-8b-block (default), h200-30b-ar or h200-30b-block.",
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,N,…", help="Requests in flight, a list.")
    ] = _DEFAULT_CONCURRENCY,
    exploration: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of drafted tokens that a learning policy explores.")
    ] = 0.01,
    round_size: Annotated[int, typer.Option("--round", min=1, metavar="N", help="Blocks between two refits.")] = 640,
    max_steps: Annotated[
        int, typer.Option(min=1, help="Play every n-th request where the trace has more steps than this.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the exploration.")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="DIR", help="Write plots (PNG) into DIR.")] = None,
    as_json: Json = False,
) -> None:
    """Throughput of a recorded trace under fixed k, thresholds and adaptive verification, by concurrency.

    Plays the real blocks through the worker's own budget code with a cost model; the probabilities are learned as
    they would be live, from what was verified. The oracle's probabilities are the limit.

    Examples:
      acceptd simulate trace.parquet --roofline h200-8b-ar
      acceptd simulate trace.parquet --costs costs.json --concurrency 16,64,256 --plot plots/
      acceptd simulate trace.parquet --json | jq '.concurrency["64"].av'
    """
    with lab_extra():
        from estimator_service.lab.estimators.registry import ATTACHED, ESTIMATORS  # noqa: PLC0415
        from estimator_service.lab.simulate import DEPTH_OF, POLICIES  # noqa: PLC0415
        from estimator_service.lab.simulate import simulate as run  # noqa: PLC0415
        from estimator_service.lab.trace import Trace  # noqa: PLC0415

        if plot is not None:
            from estimator_service.lab.simulate_plot import save_plots  # noqa: PLC0415  (loads matplotlib)
    if costs is not None and roofline is not None:
        raise ConfigError("--costs and --roofline were both given; accepted: one of them")
    wanted = _concurrencies(concurrency)
    source = Trace(trace)
    k = source.num_positions
    model = _cost_model(costs, roofline, num_positions=k, max_requests=max(wanted))
    names = [name for name in POLICIES if name not in ATTACHED - source.names]
    makers = {name: (lambda make=ESTIMATORS[name]: make(k)) for name in names}
    steps = 1 + len(makers) + (k - 1 if model.depth_costs and DEPTH_OF in makers else 0)
    out = console()
    with Progress(console=out, transient=True, disable=as_json or not out.is_terminal) as progress:
        task = progress.add_task("simulating", total=len(wanted) * steps)
        result = run(
            source,
            model,
            makers,
            wanted,
            exploration_share=exploration,
            seed=seed,
            round_size=round_size,
            max_steps=max_steps,
            on_progress=lambda done: progress.advance(task, done),
        )
    if plot is not None:
        paths = save_plots(result, plot)
    if as_json:
        print_json(result.as_json())
        return
    show(out, result)
    if plot is not None:
        out.print(f"Plots: {', '.join(map(str, paths))}", soft_wrap=True)


def _concurrencies(text: str) -> list[int]:
    accepted = f"accepted: whole numbers from 1 to {_MAX_CONCURRENCY}, separated by commas"
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"--concurrency is {text!r}; {accepted}") from error
    if not 1 <= values[0] <= values[-1] <= _MAX_CONCURRENCY:
        raise ConfigError(f"--concurrency is {text!r}; {accepted}")
    return values


def _cost_model(costs: Path | None, name: str | None, *, num_positions: int, max_requests: int) -> CostModel:
    from estimator_service.lab.cost_model import load_cost_model  # noqa: PLC0415
    from estimator_service.lab.roofline import roofline  # noqa: PLC0415

    if costs is not None:
        return load_cost_model(costs, num_positions=num_positions, max_requests=max_requests)
    return roofline(name or _DEFAULT_ROOFLINE, num_positions=num_positions, max_requests=max_requests)
