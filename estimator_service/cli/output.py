"""What commands print: JSON for programs, tables for people, and how numbers look in them."""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from estimator_service.jsonable import finite

#: Shown where there is no value yet.
NONE = "–"

#: Columns of output that no terminal shows.
_PIPE_WIDTH: Final = 1000


def console() -> Console:
    """The console of stdout. Nothing is cut or wrapped when the output is a file or a pipe.

    Plain text is printed as it is: brackets and colons in names are no markup.
    """
    out = Console(highlight=False, markup=False, emoji=False)
    if out.is_terminal:
        return out
    return Console(highlight=False, markup=False, emoji=False, width=max(out.width, _PIPE_WIDTH))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON document on stdout. NaN and infinity become null: JSON has no word for them."""
    sys.stdout.write(json.dumps(finite(value), indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table. ">name" is a column of numbers, aligned right; "~name" one that may wrap where space is short."""
    out = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        out.add_column(column.lstrip(">~"), justify=justify, no_wrap=not column.startswith("~"), overflow="fold")
    return out


def facts(rows: list[tuple[str, str | Text]]) -> Table:
    """Names and values without a frame."""
    out = Table.grid(padding=(0, 2))
    out.add_column(style="dim", no_wrap=True)
    out.add_column(overflow="fold")
    for name, value in rows:
        out.add_row(name, value)
    return out


def count(value: float) -> str:
    """1234567 → 1,234,567."""
    return f"{value:,.0f}"


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Fixed digits; a dash for None or NaN."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value:{'+' if sign else ''}.{digits}f}"


def share(part: float, whole: float) -> str:
    """A percentage, or a dash of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else NONE


def ago(then: float, now: float) -> str:
    """How long before `now` (both seconds since the epoch); a dash for 0."""
    if not then:
        return NONE
    seconds = max(0.0, now - then)
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def stamp(at: float) -> str:
    """Seconds since the epoch as UTC to the second: 2027-01-15T08:00:00Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def counts(values: dict[str, int]) -> str:
    """`penalties 12, padded 4`, largest first; "none" if all are zero."""
    present = sorted(((n, name) for name, n in values.items() if n), key=lambda item: (-item[0], item[1]))
    return ", ".join(f"{name} {count(n)}" for n, name in present) or "none"
