"""`acceptd doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.text import Text

from acceptd import __version__
from estimator_service.cli.checks import Finding, Level, check_pair, check_pairs, check_versions
from estimator_service.cli.client import CommandFailed, InspectClient
from estimator_service.cli.options import Json
from estimator_service.cli.output import console, print_json, table
from estimator_service.cli.target import LOCAL, Target, asks_service

_MARKS = {Level.OK: Text("✓", "green"), Level.NOTE: Text("!", "yellow"), Level.WRONG: Text("✗", "red")}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor")(asks_service(doctor))


def doctor(target: Target = LOCAL, as_json: Json = False) -> None:
    """Looks for what usually goes wrong, and says what to do about it.

    Exit status 1 if something is wrong, 0 if all is well or merely worth a look.

    Examples:
      acceptd doctor
      acceptd doctor --address 10.0.0.7:50051 --json | jq '.[] | select(.level != "ok")'
    """
    findings = list(_findings(target))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        out = table("", "~about", "~what was seen", "~what to do")
        for finding in findings:
            out.add_row(_MARKS[finding.level], finding.about, finding.text, finding.advice)
        console().print(out)
    if any(finding.level is Level.WRONG for finding in findings):
        raise typer.Exit(1)


def _findings(target: Target) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        with InspectClient(target) as client:
            pairs = client.pairs().pairs
            took = time.monotonic() - began
            yield Finding(Level.OK, "service", f"{target.address} answers in {1e3 * took:.0f} ms")
            workers = client.workers("").workers
            states = [client.pair(pair.id) for pair in pairs]
    except CommandFailed as error:
        yield Finding(Level.WRONG, "service", str(error), "")
        return
    now = time.time()
    yield from check_pairs(pairs, now)
    yield from check_versions(__version__, workers)
    for state in states:
        yield from check_pair(state, [w for w in workers if w.pair == state.summary.id], now)
