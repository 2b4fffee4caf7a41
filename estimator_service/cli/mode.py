"""`acceptd mode`."""

from __future__ import annotations

from typing import Annotated

import typer

from acceptd.modes import Mode
from acceptd.v1 import inspect_pb2
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.pin import report
from estimator_service.cli.target import LOCAL, Target, asks_service

_MODES = tuple(mode.name.lower() for mode in Mode)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("mode")(asks_service(mode))


def mode(
    pair: Pair,
    mode: Annotated[str, typer.Argument(metavar="[trim|shadow|off]", help="Nothing: as it is.")] = "",
    exploration: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="SHARE", help="Of drafted tokens, verified beyond the budget.")
    ] = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """What a pair's workers do with their predictions, from one step on, on all ranks.

    trim verifies what is worth it, shadow decides and verifies everything, off verifies everything.

    Examples:
      acceptd mode llama shadow
      acceptd mode llama trim --exploration 0.02
      acceptd mode llama --exploration 0
    """
    if mode and mode not in _MODES:
        raise typer.BadParameter(f"{mode!r} is no mode; accepted: {', '.join(_MODES)}")
    if not mode and exploration is None:
        raise typer.BadParameter(f"nothing to change; accepted: one of {', '.join(_MODES)}, --exploration, or both")
    request = inspect_pb2.SetModeRequest(pair=pair, exploration_rate=exploration)
    if mode:
        request.mode = Mode[mode.upper()].value  # type: ignore[assignment]
    with InspectClient(target) as client:
        answer = client.set_mode(request)
    report(answer.state, answer.durability.trouble, as_json)
