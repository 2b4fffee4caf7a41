"""Writes the tables of settings in docs/configuration.md from the settings classes, or checks them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from estimator_service.config import Settings
from vllm_client_hook.config import HookSettings

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
START = "<!-- {} settings: made by `make docs` -->\n"
END = "<!-- end of {} settings -->"


def service_table() -> str:
    """One row a setting, in the order of the class."""
    rows = ["| Setting | Default | Meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        meaning = str(field.description)
        if get_origin(field.annotation) is Literal and ":" not in meaning:
            meaning += f" ({', '.join(map(str, get_args(field.annotation)))})"
        rows.append(f"| `{name}` | {shown(field.default)} | {meaning} |")
    return "\n".join(rows) + "\n"


def hook_table() -> str:
    """The same of the hook."""
    rows = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for field in dataclasses.fields(HookSettings):
        rows.append(f"| `ACCEPTD_{field.name.upper()}` | {shown(field.default)} | {field.metadata['meaning']} |")
    return "\n".join(rows) + "\n"


def shown(default: object) -> str:
    """A default as one would write it in the TOML file."""
    if default is None or default == "":
        return "–"
    if isinstance(default, float):
        default = f"{default:g}" if default.is_integer() else default
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


def main() -> int:
    """Writes the document, or with --check only compares; 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    text = DOCUMENT.read_text()
    fresh = text
    for name, table in (("service", service_table()), ("hook", hook_table())):
        start, end = START.format(name), END.format(name)
        head, _, rest = fresh.partition(start)
        _, _, tail = rest.partition(end)
        fresh = f"{head}{start}\n{table}\n{end}{tail}"
    if not parser.parse_args().check:
        DOCUMENT.write_text(fresh)
        return 0
    if fresh != text:
        print("docs/configuration.md is stale; run `make docs`", file=sys.stderr)
    return int(fresh != text)


if __name__ == "__main__":
    raise SystemExit(main())
