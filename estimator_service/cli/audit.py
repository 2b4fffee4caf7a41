"""`acceptd audit`."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from acceptd.v1 import inspect_pb2
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json
from estimator_service.cli.output import ago, console, print_json, table
from estimator_service.cli.target import LOCAL, Target, asks_service


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("audit")(asks_service(audit))


def audit(
    pair: Annotated[str, typer.Option("--pair", "-p", help="Only of this pair (id or prefix).")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most this many.")] = 20,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """What operators did, newest first: who, when, and what it changed.

    Examples:
      acceptd audit
      acceptd audit --pair llama --json | jq '.[] | select(.action == "rollback")'
    """
    with InspectClient(target) as client:
        entries = client.audit(pair, limit).entries
    if as_json:
        print_json([_plain(entry) for entry in entries])
        return
    if not entries:
        console().print("No operator has done anything.")
        return
    out, now = table(">when", "~who", "action", "~pair", "~what changed"), time.time()
    for entry in entries:
        out.add_row(ago(entry.at_seconds, now), entry.who, entry.action, entry.pair, _changes(_plain(entry)))
    console().print(out)


def _plain(entry: inspect_pb2.AuditEntry) -> dict[str, Any]:
    value = {field.name: getattr(entry, field.name) for field in entry.DESCRIPTOR.fields}
    return {**value, "before": json.loads(entry.before), "after": json.loads(entry.after)}


def _changes(entry: dict[str, Any]) -> str:
    before, after = entry["before"], entry["after"]
    changed = [name for name in after if before.get(name) != after[name]]
    return ", ".join(f"{name} {_shown(before.get(name))} → {_shown(after[name])}" for name in changed)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
