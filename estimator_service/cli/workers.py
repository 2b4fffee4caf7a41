"""`acceptd workers`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from estimator_service import jsonable
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json
from estimator_service.cli.output import NONE, ago, console, count, print_json, table
from estimator_service.cli.target import LOCAL, Target, asks_service


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("workers")(asks_service(workers))


def workers(
    pair: Annotated[str, typer.Option("--pair", "-p", help="Only the workers of this pair (id or prefix).")] = "",
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Workers, what they run on, and whether they are learned from.

    Examples:
      acceptd workers
      acceptd workers --pair llama --json
    """
    with InspectClient(target) as client:
        found = client.workers(pair).workers
    if as_json:
        print_json([jsonable.worker(worker) for worker in found])
        return
    if not found:
        console().print(f"No worker is known at {target.address}.")
        return
    out, now = (
        table("worker", "~pair", "~state", ">version", "mode", ">blocks", "workload", "hook", "vLLM"),
        time.time(),
    )
    for worker in found:
        since = f"connected {ago(worker.connected_at_seconds, now)}" if worker.connected else "gone"
        state = worker.quarantined or worker.last_rejected_update
        out.add_row(
            worker.worker,
            worker.pair,
            f"{since}; {state}" if state else since,
            jsonable.version_text(worker.version_applied),
            jsonable.mode_name(worker.mode) or NONE,
            count(worker.blocks),
            worker.workload or NONE,
            worker.hook_version or NONE,
            worker.vllm_version or NONE,
        )
    console().print(out)
