"""`acceptd costs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from acceptd.cost_table import milliseconds_at
from estimator_service import jsonable
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json
from estimator_service.cli.output import console, count, number, print_json, table
from estimator_service.cli.target import LOCAL, Target, asks_service

if TYPE_CHECKING:
    from rich.table import Table

    from acceptd.v1 import types_pb2


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("costs")(asks_service(costs))


def costs(
    pair: Annotated[str, typer.Argument(help="Only the workers of this pair (id or prefix).")] = "",
    worker: Annotated[str, typer.Option("--worker", "-w", help="Only this worker.")] = "",
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """What a step takes on each worker, as its budget believes it, and what of the profile was repaired or refused.

    Drafting by number of requests, verification by number of tokens. JSON has every point of both curves.

    Examples:
      acceptd costs llama
      acceptd costs llama --worker node-3 --json
    """
    with InspectClient(target) as client:
        answer = client.costs(pair, worker)
    if as_json:
        print_json({"workers": [jsonable.worker_costs(item) for item in answer.workers], "omitted": answer.omitted})
        return
    out = console()
    if not answer.workers:
        out.print(f"No such worker is connected at {target.address}.")
    for item in answer.workers:
        name = f"{item.worker} ({item.pair})"
        if not item.HasField("costs"):
            out.print(f"{name}: no cost table; everything is verified")
            continue
        out.print(_table(name, item.costs))
        for notice in item.costs.notices:
            out.print(f"  {notice}")
        if not item.costs.can_trim and not any("cannot trim" in notice for notice in item.costs.notices):
            out.print("  cannot trim: verifying less is hardly cheaper")
    if answer.omitted:
        out.print(f"{answer.omitted} more; name one with --worker, or a PAIR")


def _table(title: str, costs: types_pb2.CostTable) -> Table:
    """Both curves at powers of two, and at their ends."""
    out = table(">size", ">draft ms (requests)", ">verify ms (tokens)", ">verify µs a token", title=title)
    ends = {costs.draft.sizes[-1], costs.verify.sizes[-1]}
    for size in sorted({2**i for i in range(max(ends).bit_length())} | ends):
        verify = milliseconds_at(costs.verify, size)
        out.add_row(
            count(size), number(milliseconds_at(costs.draft, size)), number(verify), number(1e3 * verify / size, 1)
        )
    return out
