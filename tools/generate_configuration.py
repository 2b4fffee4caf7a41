"""Writes the table of service settings in docs/configuration.md from the settings class, or checks it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from estimator_service.config import Settings

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
START = "<!-- service settings: made by `make docs` -->\n"
END = "<!-- end of service settings -->"


def table() -> str:
    """One row a setting, in the order of the class."""
    rows = ["| Setting | Default | Meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        meaning = str(field.description)
        if get_origin(field.annotation) is Literal and ":" not in meaning:
            meaning += f" ({', '.join(map(str, get_args(field.annotation)))})"
        rows.append(f"| `{name}` | {shown(field.default)} | {meaning} |")
    return "\n".join(rows) + "\n"


def shown(default: object) -> str:
    """A default as one would write it in the TOML file."""
    if default is None:
        return "–"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


def main() -> int:
    """Writes the document, or with --check only compares; 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    fresh = f"{head}{START}\n{table()}\n{END}{tail}"
    if not parser.parse_args().check:
        DOCUMENT.write_text(fresh)
        return 0
    if fresh != text:
        print("docs/configuration.md is stale; run `make docs`", file=sys.stderr)
    return int(fresh != text)


if __name__ == "__main__":
    raise SystemExit(main())
