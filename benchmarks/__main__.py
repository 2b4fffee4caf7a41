"""Runs every benchmark, prints one table, writes benchmarks/results.json."""

from __future__ import annotations

import argparse
import importlib
import math
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.result import Result, write

#: In the order of the table. Each module has `run() -> Iterator[Result]`.
MODULES = ("refit", "largest_pair", "throughput", "update_latency", "jitter", "scrape", "step_host")

RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    """1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MODULES, action="append", help="run these alone, write nothing")
    only = parser.parse_args().only
    # Before numpy loads, and for the processes that benchmarks start: figures are of one thread.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    console = Console()
    load = os.getloadavg()[0]
    by_module: dict[str, list[Result]] = {}
    for name in only or MODULES:
        with console.status(f"{name} …"):
            by_module[name] = list(importlib.import_module(f"benchmarks.{name}").run())
    results = [result for found in by_module.values() for result in found]
    console.print(table(results))
    if not only:
        write({f"python -m benchmarks --only {name}": found for name, found in by_module.items()}, RESULTS, load=load)
        console.print(
            f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}"
        )
    return 0 if all(r.ok for r in results) else 1


def table(results: list[Result]) -> Table:
    """What a reader sees: the figure, what it stands beside, and whether the goal was reached."""
    view = Table(title="acceptd benchmarks (both columns measured in this run)")
    for column in ("benchmark", "value", "beside", "ratio", "goal", ""):
        view.add_column(column, justify="left" if column in ("benchmark", "goal", "") else "right")
    for r in results:
        mark = "[green]ok[/]" if r.ok else "[red]missed[/]"
        view.add_row(r.name, f"{r.value:.4g} {r.unit}", _figure(r.limit, 4), _figure(r.ratio, 3), r.goal, mark)
    return view


def _figure(value: float, digits: int) -> str:
    """Nothing where there is no figure."""
    return f"{value:.{digits}g}" if math.isfinite(value) else ""


if __name__ == "__main__":
    raise SystemExit(main())
