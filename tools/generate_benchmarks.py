"""Writes the tables of docs/benchmarks.md and docs/operations.md from what benchmarks recorded, or checks them.

No figure stands there that a command did not print: `make bench` and `make load` record, `make docs` writes the pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import RESULTS
from benchmarks.load import RECORD

DOCS = Path(__file__).resolve().parent.parent / "docs"


def tables() -> str:
    """One table a benchmark, under its command."""
    if not RESULTS.exists():
        return "No results are recorded in this checkout; `make bench` measures and records them.\n"
    recorded = json.loads(RESULTS.read_text())
    lines = [f"{measured_on(recorded)}. A load above the number of cores blurs latencies.", ""]
    for command, rows in groupby(recorded["results"], key=lambda row: row["command"]):
        lines += [f"    {command}", "", "| What | Measured | Beside | Ratio | Goal |", "|---|---|---|---|---|"]
        lines += [row_of(row) for row in rows]
        lines.append("")
    return "\n".join(lines)


def measured_on(recorded: dict[str, Any]) -> str:
    """The machine, and what else it was doing."""
    machine = recorded["machine"]
    return (
        f"Measured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, with a load of "
        f"{machine['load']:.1f} from other work before the run"
    )


def row_of(row: dict[str, Any]) -> str:
    """One figure."""
    limit, ratio = row["limit"], row["ratio"]
    beside = f"{limit:.4g} {row['unit']}" if limit is not None else "–"
    reached = row["goal"] if row["ok"] else f"{row['goal']}: **missed**"
    shown = f"{ratio:.3g}" if ratio is not None else "–"
    return f"| {row['name']} | {row['value']:.4g} {row['unit']} | {beside} | {shown} | {reached} |"


def loads() -> str:
    """A row for each size that `make load` went through."""
    if not RECORD.exists():
        return "No load is recorded in this checkout; `make load` measures and records it.\n"
    recorded = json.loads(RECORD.read_text())
    lines = [
        f"{measured_on(recorded)}; {recorded['rows_a_flush']} rows a flush. Of each size the middle one of "
        f"{len(recorded['sizes'][0]['both_p99s'])} runs by its p99, and the least and greatest p99 of all.",
        "",
        "| Workers | Flushes/s due | answered | held back | batch → result p50, p99 (in the window) "
        "| publish → ACK p50, p99 (bare) "
        "| both p99 | CPU | a flush | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(load_of(row) for row in recorded["sizes"]),
    ]
    goals = [f"{row['workers']} workers, {row['flushes']:g}/s each, {row['goal']}" for row in recorded["sizes"]]
    lines += ["", f"Goal: {'; '.join(goal for goal in goals if not goal.endswith(', '))}.", ""]
    return "\n".join(lines)


def load_of(row: dict[str, Any]) -> str:
    """One size: its middle run, and how far the others were from it."""
    least, greatest = row["both_p99s"][0], row["both_p99s"][-1]
    return (
        f"| {row['workers']:,} | {row['flushes_due']:,.0f} | {row['flushes_acknowledged']:,.0f} "
        f"| {row['held_back_percent']:.1f} % | {row['result_p50']:.1f}, {row['result_p99']:.0f} ms "
        f"({row['learned_p99']:.0f} ms) "
        f"| {row['ack_p50']:.0f}, {row['ack_p99']:.0f} ms ({row['bare_p99']:.0f} ms) "
        f"| {row['both_p99']:.0f} ms ({least:.0f} to {greatest:.0f}) "
        f"| {row['service_core_percent']:.0f} % of a core | {row['service_us_a_flush']:.0f} µs "
        f"| {row['memory']:.0f} MB |"
    )


#: page, the words that begin and end what is made, and what makes it.
PAGES: Final = (
    ("benchmarks.md", "results: made by `make docs` from benchmarks/results.json", "end of results", tables),
    ("operations.md", "load: made by `make docs` from benchmarks/load.json", "end of load", loads),
)


def main() -> int:
    """Writes the pages, or with --check only compares; 1 if one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    stale = 0
    for name, start, end, make in PAGES:
        page = DOCS / name
        text = page.read_text()
        head, _, rest = text.partition(f"<!-- {start} -->\n")
        _, _, tail = rest.partition(f"<!-- {end} -->")
        fresh = f"{head}<!-- {start} -->\n\n{make()}\n<!-- {end} -->{tail}"
        if not check:
            page.write_text(fresh)
        elif fresh != text:
            print(f"docs/{name} is stale; run `make docs`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
