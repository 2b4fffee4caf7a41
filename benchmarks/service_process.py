"""A real service in a process of its own that a benchmark can ask to publish, beside bare gRPC in the same process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import uvloop

from acceptd.types import SegmentCoefficients, Version
from acceptd.v1.estimator_pb2 import ObservationBatch, UpdateStatus
from benchmarks.bare import Bare
from estimator_service.answers import Acceptance
from estimator_service.config import load_settings
from estimator_service.heap import shorten_collections
from estimator_service.intake import Intake
from estimator_service.polling import read_in_place
from estimator_service.server import Server
from estimator_service.session import Session


@dataclass(frozen=True)
class Service:
    """Where it and the bare server listen, and the pipe to ask them by."""

    address: str
    bare_address: str
    control: Connection
    pid: int

    def acks(self) -> list[float]:
        """Seconds from the latest publication to each acknowledgement that has come since this was last asked."""
        return list(self._ask("acks"))

    def learned(self) -> list[tuple[int, int, float]]:
        """(incarnation, sequence, `time.perf_counter`) of each batch that was applied since this was last asked."""
        return list(zip(*self._ask("learned"), strict=True))

    def push_bare(self) -> int:
        """Has the bare server write to all its streams; how many there are."""
        return int(self._ask("push bare"))

    def bare_answers(self) -> list[float]:
        """Seconds from the bare server's latest push to each answer that has come since this was last asked."""
        return list(self._ask("bare answers"))

    def resident(self) -> int:
        """Bytes of the service in memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def publish(self) -> float:
        """Publishes the only pair's coefficients with another slope. Returns when, as `time.perf_counter`."""
        return float(self._ask("publish"))

    def cpu_seconds(self) -> float:
        """CPU time the service has taken so far."""
        return float(self._ask("cpu"))

    def _ask(self, what: str) -> Any:
        self.control.send(what)
        return self.control.recv()


@contextmanager
def service(core: int | None, **settings: Any) -> Iterator[Service]:
    """A service pinned to `core` (None: to none), without a store, beside a bare gRPC server in its process."""
    read_in_place()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, core, settings), daemon=True)
    process.start()
    # Otherwise a service that fails would leave the pipe open, and whoever waits for it waiting.
    theirs.close()
    address, bare_address = ours.recv()
    try:
        yield Service(address, bare_address, ours, process.pid or 0)
    finally:
        ours.send("stop")
        process.join(10)


def pin(core: int) -> None:
    """Keeps this process on one core, where there are as many."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


@contextmanager
def apart_from(core: int) -> Iterator[None]:
    """Keeps this thread, and the threads it starts meanwhile, off one core, where there are as many.

    For what a service pinned to that core must not disturb: its refits would, wherever the kernel lets a running
    process finish its slice before one that has just woken up.
    """
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, (before - {cores[core % len(cores)]}) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _main(control: Connection, core: int | None, settings: dict[str, Any]) -> None:
    if core is not None:
        pin(core)
    uvloop.run(_serve(control, settings))


async def _serve(control: Connection, settings: dict[str, Any]) -> None:
    loaded = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "", **settings}, environ={})
    bare, bare_server = Bare(), grpc.aio.server()
    bare_server.add_generic_rpc_handlers((bare.handler(),))
    port = bare_server.add_insecure_port("127.0.0.1:0")
    await bare_server.start()
    async with await Server.start(loaded) as server:
        shorten_collections()
        acks, learned = _note_acks(server), Learned()
        control.send((server.address, f"127.0.0.1:{port}"))
        loop = asyncio.get_running_loop()
        answers: dict[str, Callable[[], Any]] = {
            "acks": lambda: _taken(acks),
            "learned": learned.take,
            "bare answers": lambda: _taken(bare.answers),
            "push bare": bare.push,
            "publish": lambda: _publish(server),
            "cpu": time.process_time,
        }
        while (command := await loop.run_in_executor(None, control.recv)) != "stop":
            control.send(answers[command]())
    await bare_server.stop(0)


def _taken(seconds: list[float]) -> list[float]:
    taken = seconds[:]
    seconds.clear()
    return taken


def _note_acks(server: Server) -> list[float]:
    """Seconds from the latest publication to each acknowledgement from now on."""
    acks: list[float] = []
    published = [time.perf_counter()]
    publish, judged = server.fleet.board.publish, Session._update_status

    def note_publish(topic: str, value: Any) -> None:
        published[0] = time.perf_counter()
        publish(topic, value)

    def note_ack(session: Session, status: UpdateStatus) -> None:
        # The first of a stream is what Welcome brought, whenever that was published.
        if status.nonce > 1:
            acks.append(time.perf_counter() - published[0])
        judged(session, status)

    server.fleet.board.publish = note_publish  # type: ignore[method-assign]
    Session._update_status = note_ack  # type: ignore[method-assign]
    return acks


class Learned:
    """Which batches were applied, and when; in few bytes, since the service's memory is measured, too."""

    def __init__(self) -> None:
        self._clear()
        take = Intake.take

        def note(intake: Intake, batch: ObservationBatch, held: Version) -> tuple[Any, int]:
            answer = take(intake, batch, held)
            if isinstance(answer[0], Acceptance):
                values = intake.worker.incarnation, batch.sequence, time.perf_counter()
                for column, value in zip(self._columns, values, strict=True):
                    column.append(value)
            return answer

        Intake.take = note  # type: ignore[method-assign]

    def take(self) -> tuple[array[Any], ...]:
        """Incarnations, sequences and times, and none of them is left."""
        taken = self._columns
        self._clear()
        return taken

    def _clear(self) -> None:
        self._columns: tuple[array[Any], ...] = array("Q"), array("Q"), array("d")


def _publish(server: Server) -> float:
    (pair,) = server.fleet.pairs.values()
    current = server.fleet.board.latest(pair.id) or pair.publication
    version = replace(current.version, counter=current.version.counter + 1)
    line = SegmentCoefficients((0.5 + 0.125 * (version.counter % 2),), current.pooled.line.intercepts)
    changed = replace(current, pooled=replace(current.pooled, version=version, line=line))
    now = time.perf_counter()
    server.fleet.board.publish(pair.id, changed)
    return now
