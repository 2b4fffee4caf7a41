"""`acceptd watch`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import typer
from rich.live import Live

from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.output import console, print_json, stamp
from estimator_service.cli.pair_view import one_line
from estimator_service.cli.target import LOCAL, Target, asks_service
from estimator_service.cli.watch_view import LOOKS, WatchView


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("watch")(asks_service(watch))


def watch(
    pair: Pair,
    target: Target = LOCAL,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, metavar="SECONDS", help="Time between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first state.")] = False,
    as_json: Json = False,
) -> None:
    """One pair, live, until Ctrl-C. Without a terminal: one line an interval.

    Examples:
      acceptd watch llama
      acceptd watch llama --once
      acceptd watch llama --interval 10 >> llama.log
      acceptd watch llama --json | jq -c '[.coefficients.version.counter, .coefficients.slope]'
    """
    out = console()
    with InspectClient(target) as client:
        states = client.watch(pair, interval)
        if as_json or not out.is_terminal:
            for state in paced(states, interval, time.monotonic):
                if as_json:
                    print_json(jsonable.pair_state(state), indent=None)
                else:
                    out.print(f"{stamp(time.time())} {one_line(state)}", soft_wrap=True)
                if once:
                    return
            return
        view = WatchView(client.history(pair, LOOKS).entries)
        with Live(console=out, auto_refresh=False, screen=not once) as live:
            for state in paced(states, interval, time.monotonic):
                view.add(state, time.time())
                live.update(view.render(), refresh=True)
                if once:
                    return


def paced(
    states: Iterable[inspect_pb2.PairState], interval: float, clock: Callable[[], float]
) -> Iterator[inspect_pb2.PairState]:
    """The first state, and then at most one an `interval` (seconds by `clock`): a busy pair publishes more often."""
    last = -math.inf
    for state in states:
        # The service's own timer may be early by a little.
        if (now := clock()) - last >= 0.9 * interval:
            last = now
            yield state
