"""`acceptd pairs` and `acceptd show`."""

from __future__ import annotations

import time

import typer

from estimator_service import jsonable
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.output import ago, console, count, print_json, table
from estimator_service.cli.pair_view import pair_view
from estimator_service.cli.target import LOCAL, Target, asks_service


def register(app: typer.Typer) -> None:
    """Adds both commands."""
    app.command("pairs")(asks_service(pairs))
    app.command("show")(asks_service(show))


def pairs(target: Target = LOCAL, as_json: Json = False) -> None:
    """The pairs the service knows.

    Examples:
      acceptd pairs
      acceptd pairs --address 10.0.0.7:50051 --json
    """
    with InspectClient(target) as client:
        found = client.pairs().pairs
    if as_json:
        print_json([jsonable.summary(pair) for pair in found])
        return
    if not found:
        console().print(
            f"No worker has come to {target.address} yet. "
            "vLLM with the hook connects by itself once ACCEPTD_ADDRESS names it."
        )
        return
    out, now = table("~pair", ">version", ">workers", ">observations", ">published"), time.time()
    for pair in found:
        out.add_row(
            pair.id,
            jsonable.version_text(pair.version),
            count(pair.workers),
            count(pair.observations),
            ago(pair.published_at_seconds, now),
        )
    console().print(out)


def show(pair: Pair, target: Target = LOCAL, as_json: Json = False) -> None:
    """One pair: coefficients in force, the evidence behind them, calibration, refits, workers.

    Examples:
      acceptd show llama
      acceptd show llama --json | jq .coefficients.slope
    """
    with InspectClient(target) as client:
        state = client.pair(pair)
        workers = [] if as_json else client.workers(state.summary.id).workers
    if as_json:
        print_json(jsonable.pair_state(state))
    else:
        console().print(pair_view(state, workers, time.time()))
