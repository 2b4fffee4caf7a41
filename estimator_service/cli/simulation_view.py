"""What `acceptd simulate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from estimator_service.cli.output import number, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from estimator_service.lab.simulate import Comparison, Simulation

#: A policy below the best fixed k by more than this is pointed out.
_SLACK: Final = 0.01


def show(out: Console, result: Simulation) -> None:
    """Two tables, throughputs and shares of the oracle's, and what should not have to be found in them."""
    names = list(next(iter(result.comparisons.values())).av)
    out.print(f"{result.trace} with {result.costs}, K = {result.num_positions}\n", soft_wrap=True)
    out.print(_throughputs(result, names))
    out.print(_shares(result, names))
    for line in [*result.notices, *_remarks(result, names)]:
        out.print(line, soft_wrap=True)


def _throughputs(result: Simulation, names: list[str]) -> Table:
    out = table(
        ">users", ">k = 0", ">best k", ">fixed", ">threshold", *(f">{name}" for name in names), title="Tokens/s"
    )
    for c in result.comparisons.values():
        row = [c.fixed[0], c.fixed[c.best_fixed], c.thresholds[c.best_threshold], *c.av.values()]
        nothing, *rest = (f"{outcome.throughput:,.0f}" for outcome in row)
        out.add_row(str(c.concurrency), nothing, str(c.best_fixed), *rest)
    return out


def _shares(result: Simulation, names: list[str]) -> Table:
    columns = (f">{name}" for name in names)
    out = table(">users", ">k = 0", ">fixed", ">threshold", *columns, ">verified", title="Share of the oracle's, %")
    for c in result.comparisons.values():
        row = [c.fixed[0], c.fixed[c.best_fixed], c.thresholds[c.best_threshold], *c.av.values()]
        shares = [c.share(outcome) for outcome in row]
        out.add_row(
            str(c.concurrency),
            *(number(None if value is None else 100 * value, 1) for value in shares),
            number(100 * c.av[names[-1]].verified_share, 1),
        )
    return out


def _remarks(result: Simulation, names: list[str]) -> list[str]:
    remarks = []
    stop = result.drafting_stops_paying
    if stop is not None:
        remarks.append(f"Drafting does not pay from {stop} users on: k = 0 has the highest throughput there.")
    for name in names:
        below = [
            f"{c.concurrency} ({100 * _over_fixed(c, name):+.1f} %)"
            for c in result.comparisons.values()
            if _over_fixed(c, name) < -_SLACK
        ]
        if below:
            remarks.append(f"Below the best fixed k by more than 1 %: {name} at {', '.join(below)} users.")
    return remarks


def _over_fixed(comparison: Comparison, name: str) -> float:
    """Throughput over the best fixed k's, minus 1."""
    return comparison.av[name].throughput / comparison.fixed[comparison.best_fixed].throughput - 1.0
