"""The service killed again and again while requests decode; see `engine.run`."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import engine
import scenarios
from service import Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Seconds that any one condition may take: the start of a service on a machine that is busy, mostly.
PATIENCE = 60.0

#: Four requests of some twenty steps: in one run of them the service dies more than once.
REQUESTS, TOKENS, SEED = 4, 40, 70


def outages(directory: Path, *, times: int) -> dict[str, Any]:
    """Shadow mode: requests without a fault, then the same ones over and over until the service was killed enough."""
    service = Service(directory, mode="shadow")
    service.start()
    os.environ["ACCEPTD_ADDRESS"] = service.address
    try:
        llm = engine.start(scenarios.models(directory))
        before_shadow = _served(llm)
        undisturbed = engine.generate(llm, REQUESTS, TOKENS, seed=SEED)
        killer = Killer(service, llm.collective_rpc(lambda worker: worker._acceptd_link.uplink)[0], times)
        killer.start()
        disturbed = []
        while killer.is_alive():
            disturbed.append(engine.generate(llm, REQUESTS, TOKENS, seed=SEED))
            scenarios.say(f"{len(killer.graded)} outages")
        flushed = llm.collective_rpc("acceptd_flush", args=(PATIENCE,))
        watch = llm.collective_rpc("watched")[0]
        return {
            "undisturbed": undisturbed,
            "disturbed": disturbed,
            "graded": killer.graded,
            "failure": killer.failure,
            "flushed": flushed,
            "watch": watch,
            "shown": _reported(llm, service, watch["verified"]),
            "status": llm.collective_rpc("acceptd_status")[0],
            "modes": llm.collective_rpc("budget_watched")[0]["modes"][before_shadow:],
        }
    finally:
        service.stop()


class Killer(threading.Thread):
    """Kills the service and starts it again, `times` over, beside an engine that never stops decoding.

    graded: blocks that the engine graded in each outage. failure: what ended it early, or "".
    """

    def __init__(self, service: Service, uplink: Any, times: int) -> None:
        super().__init__(name="killer", daemon=True)
        self._service = service
        self._uplink = uplink
        self._times = times
        self._last_epoch = 0
        self.graded: list[int] = []
        self.failure = ""

    def run(self) -> None:
        try:
            for outage in range(self._times):
                self._outage(outage)
        except Exception as error:
            self.failure = f"outage {len(self.graded)}: {type(error).__name__}: {error}"

    def _outage(self, number: int) -> None:
        connects = self._count("connects")
        # Of three the first dies right after its Welcome, the second after it published, the third owing an answer.
        if number % 3 == 1:
            _until(lambda: self._epoch() > self._last_epoch, "a version of the service that came back")
        elif number % 3 == 2:
            _until(lambda: self._count("offered") > self._count("acknowledged"), "a row without an answer")
        self._service.kill()
        self._last_epoch = self._epoch()
        offered = self._count("offered")
        _until(lambda: self._count("offered") > offered, "a step without the service")
        self._service.start()
        self.graded.append(self._count("offered") - offered)
        _until(lambda: self._count("connects") > connects, "the worker's return")

    def _count(self, name: str) -> int:
        return self._uplink.stats()[name]

    def _epoch(self) -> int:
        """Of the newest version that the worker was sent."""
        return self._uplink.stats()["version"].epoch


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.01)


def _served(llm: Any) -> int:
    """Steps until the service's mode was in force."""
    for _ in range(20):
        engine.generate(llm, 1, 8)
        modes = llm.collective_rpc("budget_watched")[0]["modes"]
        if modes[-1] == "shadow":
            break
    return len(modes)


def _reported(llm: Any, service: Service, verified: int) -> dict[str, Any]:
    """What the service shows once the worker's last report has arrived: a flush asks for one, and does not wait."""
    pair = service.ask("pairs")[0]["id"]
    deadline = time.monotonic() + PATIENCE
    while True:
        shown = service.ask("show", pair)
        if shown["totals"]["verified"] >= verified or time.monotonic() > deadline:
            return shown
        llm.collective_rpc("acceptd_flush", args=(5.0,))
