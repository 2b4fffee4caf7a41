"""`acceptd pin`, `unpin`, `rollback` and `reset`."""

from __future__ import annotations

from typing import Annotated

import typer

from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.output import console, print_json
from estimator_service.cli.target import LOCAL, Target, asks_service


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("pin")(asks_service(pin))
    app.command("unpin")(asks_service(unpin))
    app.command("rollback")(asks_service(rollback))
    app.command("reset")(asks_service(reset))


def pin(
    pair: Pair,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="EPOCH.COUNTER, one that `acceptd history` lists.")],
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Put an earlier version's coefficients in force, and keep them there.

    They go out under a new, higher version: workers never take a lower one. Learning goes on; no fit is published until
    `acceptd unpin`.

    Examples:
      acceptd pin llama 3.41
    """
    wanted = jsonable.parse_version(version)
    if wanted is None:
        raise typer.BadParameter(f"{version!r} is no version; accepted: EPOCH.COUNTER, such as 3.41")
    with InspectClient(target) as client:
        answer = client.pin(pair, wanted)
    report(answer.state, answer.durability.trouble, as_json)


def unpin(pair: Pair, target: Target = LOCAL, as_json: Json = False) -> None:
    """Let fits be published again; the next round's is the first.

    Examples:
      acceptd unpin llama
    """
    with InspectClient(target) as client:
        answer = client.unpin(pair)
    report(answer.state, answer.durability.trouble, as_json)


def rollback(pair: Pair, target: Target = LOCAL, as_json: Json = False) -> None:
    """Pin the version before the one in force. Again: the one before that.

    Examples:
      acceptd rollback llama
    """
    with InspectClient(target) as client:
        answer = client.rollback(pair)
    report(answer.state, answer.durability.trouble, as_json)


def reset(
    pair: Pair,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Drop what a pair has learned: the prior goes out, and fits start from nothing. Exact counts and history stay.

    `acceptd export` first keeps what there is.

    Examples:
      acceptd reset llama
      acceptd reset llama --yes
    """
    with InspectClient(target) as client:
        found = client.pair(pair).summary.id
        if not yes:
            typer.confirm(f"Drop what {found} has learned?", abort=True, err=True)
        answer = client.reset(found)
    report(answer.state, answer.durability.trouble, as_json)


def report(state: inspect_pb2.PairState, trouble: str, as_json: bool) -> None:
    """What is in force after an action, and whether it will outlive the service."""
    if as_json:
        print_json({**jsonable.pair_state(state), "not_on_disk": trouble or None})
        return
    pinned = f"pinned to {jsonable.version_text(state.pinned)}" if state.HasField("pinned") else "not pinned"
    console().print(
        f"{state.summary.id}: version {jsonable.version_text(state.coefficients.version)} in force, {pinned}, "
        f"mode {jsonable.mode_name(state.mode)}, {100 * state.exploration_rate:g} % explored"
    )
    if trouble:
        console().print(f"In force, but not on disk yet: {trouble}", style="yellow")
