"""`acceptd history`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from estimator_service import jsonable
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.output import NONE, ago, console, number, print_json, table
from estimator_service.cli.target import LOCAL, Target, asks_service


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("history")(asks_service(history))


def history(
    pair: Pair,
    target: Target = LOCAL,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most this many.")] = 20,
    as_json: Json = False,
) -> None:
    """Versions that were published for a pair, newest first, over restarts too.

    Examples:
      acceptd history llama -n 5
      acceptd history llama -n 10000 --json > llama-history.json
    """
    with InspectClient(target) as client:
        entries = client.history(pair, limit).entries
    if as_json:
        print_json([jsonable.history_entry(entry) for entry in entries])
        return
    out = table(">version", ">published", "cause", ">slope", "~intercepts", ">log-loss", ">ECE")
    now = time.time()
    for entry in entries:
        line, scored = entry.coefficients.line, entry.calibration.observations > 0
        out.add_row(
            jsonable.version_text(entry.coefficients.version),
            ago(entry.published_at_seconds, now),
            f"{entry.cause} of {jsonable.version_text(entry.origin)}" if entry.HasField("origin") else entry.cause,
            number(line.slopes[0], 4) if line.slopes else NONE,
            " ".join(number(value, 2, sign=True) for value in line.intercepts),
            number(entry.calibration.log_loss, 4) if scored else NONE,
            number(entry.calibration.ece, 4) if scored else NONE,
        )
    console().print(out)
