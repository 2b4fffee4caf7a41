"""What `acceptd simulate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from estimator_service.cli.output import number, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from estimator_service.lab.policies import Outcome
    from estimator_service.lab.simulate import Comparison, Simulation

#: Baselines, of which nothing is promised.
_NOT_OURS: Final = frozenset({"raw", "round", "line", "link", "oracle"})

#: A policy below the best fixed k by more than this is pointed out.
_SLACK: Final = 0.01


def show(out: Console, result: Simulation) -> None:
    """Two tables, throughputs and shares of the oracle's, and what should not have to be found in them."""
    names = list(next(iter(result.comparisons.values())).av)
    out.print(f"{result.trace} with {result.costs}, K = {result.num_positions}\n", soft_wrap=True)
    out.print(_throughputs(result, names))
    out.print(_shares(result, names))
    if result.depth_of:
        out.print(_depths(result))
    for line in [*result.notices, *_remarks(result, names)]:
        out.print(line, soft_wrap=True)


def _throughputs(result: Simulation, names: list[str]) -> Table:
    columns = [">users", ">k = 0", ">best k", ">fixed", ">threshold", *(f">{name}" for name in names)]
    out = table(*columns, title="Tokens/s")
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
        if name in _NOT_OURS:
            continue
        below = [
            f"{c.concurrency} users ({100 * gain:+.1f} %)"
            for c in result.comparisons.values()
            if (gain := _over_fixed(c, c.av[name])) < -_SLACK
        ]
        if below:
            remarks.append(f"AV with {name} is more than 1 % below the best fixed k at {', '.join(below)}.")
    if result.depth_of:
        remarks.append("Each drafted token takes a pass whether it is verified or not: draft fewer, and trim those.")
    return remarks


def _depths(result: Simulation) -> Table:
    name = result.depth_of
    out = table(
        ">users",
        ">drafted",
        ">tokens/s",
        ">over best fixed k, %",
        f">{name} drafting {result.num_positions}, %",
        title=f"AV with {name} at the number of drafted tokens that suits it best",
    )
    for c in result.comparisons.values():
        depth = c.best_depth or result.num_positions
        best = c.by_depth[depth]
        out.add_row(
            str(c.concurrency),
            str(depth),
            f"{best.throughput:,.0f}",
            number(100 * _over_fixed(c, best), 1, sign=True),
            number(100 * _over_fixed(c, c.av[name]), 1, sign=True),
        )
    return out


def _over_fixed(comparison: Comparison, outcome: Outcome) -> float:
    """Throughput over the best fixed k's, minus 1."""
    return outcome.throughput / comparison.fixed[comparison.best_fixed].throughput - 1.0
