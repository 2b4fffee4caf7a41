"""Writes the tables of docs/benchmarks.md from benchmarks/results.json, or checks them.

No figure stands there that a command did not print: `make bench` writes the results, `make docs` the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
START = "<!-- results: made by `make docs` from benchmarks/results.json -->\n"
END = "<!-- end of results -->"


def tables() -> str:
    """One table a benchmark, under its command."""
    if not RESULTS.exists():
        return "No results are recorded in this checkout; `make bench` measures and records them.\n"
    recorded = json.loads(RESULTS.read_text())
    machine = recorded["machine"]
    lines = [
        f"Measured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, with a load of "
        f"{machine['load']:.1f} from other work before the run. Above the number of cores it blurs latencies.",
        "",
    ]
    for command, rows in groupby(recorded["results"], key=lambda row: row["command"]):
        lines += [f"    {command}", "", "| What | Measured | Beside | Ratio | Goal |", "|---|---|---|---|---|"]
        lines += [row_of(row) for row in rows]
        lines.append("")
    return "\n".join(lines)


def row_of(row: dict[str, Any]) -> str:
    """One figure."""
    limit, ratio = row["limit"], row["ratio"]
    beside = f"{limit:.4g} {row['unit']}" if limit is not None else "–"
    reached = row["goal"] if row["ok"] else f"{row['goal']}: **missed**"
    shown = f"{ratio:.3g}" if ratio is not None else "–"
    return f"| {row['name']} | {row['value']:.4g} {row['unit']} | {beside} | {shown} | {reached} |"


def main() -> int:
    """Writes the document, or with --check only compares; 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    fresh = f"{head}{START}\n{tables()}\n{END}{tail}"
    if not parser.parse_args().check:
        DOCUMENT.write_text(fresh)
        return 0
    if fresh != text:
        print("docs/benchmarks.md is stale; run `make docs`", file=sys.stderr)
    return int(fresh != text)


if __name__ == "__main__":
    raise SystemExit(main())
