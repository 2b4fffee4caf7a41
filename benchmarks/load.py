"""How many workers one service carries: connected, flapping, sending small batches, each answered and each counted.

    python -m benchmarks.load [--workers 100 500 1000] [--flushes 1 10] [--seconds 12] [--json] [--record]

The service and all workers share the machine; the service, whose event loop is one thread, can use little more than one
core of it. A worker that has its batches in flight unanswered sends no more until there is an answer, as the hook does:
such flushes are "held back", and what the hook would then wait with is bounded and counted there. A tenth
of the workers drops its connection every other second and comes back.

batch → result: from a batch's write to its answer. publish → ACK: from a publication to each worker's acknowledgement
at the service. Both: the way of an observation into coefficients that are in force, apart from the wait for its round's
end, which is a setting: one of the first and one of the second, drawn at random. The goal is a p99 of 50 ms with up to
500 workers. Exits with 1 if the service's count of blocks is not exactly what was acknowledged, if a version went back,
or if memory grew. --record writes benchmarks/load.json.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import random
import resource
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from acceptd.codec import encode_batch, encode_pair_key, encode_version
from acceptd.types import PairKey, Version
from acceptd.v1 import estimator_pb2, inspect_pb2, inspect_pb2_grpc
from benchmarks.http2_stream import Http2Stream
from benchmarks.refit import K, blocks
from benchmarks.result import machine
from benchmarks.service_process import Service, service

ROWS = 8
KEY = PairKey("load/target", "load/draft", K)
FLAPPING = 10
FLAP_SECONDS = 2.0
#: The goal, milliseconds, where the number of workers is at most this.
GOAL_MS, GOAL_WORKERS = 50.0, 500
RECORD = Path(__file__).with_name("load.json")
#: Bytes a service may gain from a third of the run to its end: its heap, and the buffers of each connection, which are
#: as large as what once waited in them.
FLAT_BYTES, FLAT_BYTES_A_WORKER = 8_000_000, 16_384
#: Of a result and an acknowledgement, for the distribution of their sum.
DRAWS = 200_000


@dataclass
class Tally:
    """Of all workers. results: seconds from write to answer."""

    due: int = 0
    sent: int = 0
    held_back: int = 0
    acknowledged: int = 0
    refused: int = 0
    reconnects: int = 0
    updates: int = 0
    backwards: int = 0
    results: list[float] = field(default_factory=list)
    ended: list[Worker] = field(default_factory=list)


class Worker:
    """One stream at a time over a connection of its own."""

    def __init__(self, index: int, address: str, bodies: list[bytes], tally: Tally) -> None:
        self.index = index
        self.due = 0.0
        self.drop_at = float("inf")
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)
        self._bodies = bodies
        self._tally = tally
        self._sequence = 0
        self._limit = 0
        self._flight: deque[tuple[int, float]] = deque()
        self._version = Version()
        self._stream: Http2Stream | None = None

    @property
    def idle(self) -> bool:
        """Whether everything was answered."""
        return not self._flight

    async def connect(self) -> None:
        """A new stream; what was not answered on the old one is sent again once it is welcome."""
        self._limit = 0
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(
            lambda: Http2Stream(self._received, self._ended), self._host, self._port
        )
        self._stream = stream
        hello = estimator_pb2.Hello(pair=encode_pair_key(KEY), worker=f"w{self.index}", incarnation=self.index + 1)
        if self._version > Version():
            hello.version.CopyFrom(encode_version(self._version))
        stream.send(estimator_pb2.StreamRequest(hello=hello).SerializeToString())

    def drop(self) -> None:
        """Cuts the connection."""
        if self._stream is not None:
            self._stream.abort()

    def flush(self) -> None:
        """One batch, unless as many as allowed are unanswered."""
        self._tally.due += 1
        if len(self._flight) >= self._limit or self._stream is None:
            self._tally.held_back += 1
            return
        self._sequence += 1
        self._tally.sent += 1
        self._flight.append((self._sequence, time.perf_counter()))
        self._stream.send(self._message(self._sequence))

    def _ended(self, stream: Http2Stream) -> None:
        if stream is self._stream:
            self._stream, self._limit = None, 0
            self._tally.ended.append(self)

    def _message(self, sequence: int) -> bytes:
        # Fields may come in any order and piecewise: the sequence goes behind the rows that all batches share.
        tail = estimator_pb2.StreamRequest(batch=estimator_pb2.ObservationBatch(sequence=sequence))
        # Each flush has other rows, and the same ones when it is sent again.
        return self._bodies[(self.index + sequence) % len(self._bodies)] + tail.SerializeToString()

    def _received(self, response: estimator_pb2.StreamResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "batch_result":
            self._answered(response.batch_result)
        elif kind == "update":
            self._take(response.update)
        elif kind == "welcome":
            self._limit = response.welcome.limits.max_in_flight
            self._done_with(response.welcome.last_sequence, None)
            for sequence, _ in self._flight:
                assert self._stream is not None
                self._stream.send(self._message(sequence))
            if response.welcome.HasField("update"):
                self._take(response.welcome.update)

    def _answered(self, result: estimator_pb2.BatchResult) -> None:
        if result.reason not in {estimator_pb2.REJECT_REASON_UNSPECIFIED, estimator_pb2.REJECT_REASON_DUPLICATE}:
            self._tally.refused += 1
        self._done_with(result.last_sequence, time.perf_counter())

    def _done_with(self, last: int, now: float | None) -> None:
        while self._flight and self._flight[0][0] <= last:
            _, sent = self._flight.popleft()
            self._tally.acknowledged += 1
            if now is not None:
                self._tally.results.append(now - sent)

    def _take(self, update: estimator_pb2.CoefficientUpdate) -> None:
        raw = update.coefficients.version
        version = Version(raw.epoch, raw.counter)
        self._tally.updates += 1
        self._tally.backwards += version < self._version
        self._version = version
        status = estimator_pb2.UpdateStatus(nonce=update.nonce, version=raw)
        if self._stream is not None:
            self._stream.send(estimator_pb2.StreamRequest(update_status=status).SerializeToString())


async def drive(crew: list[Worker], tally: Tally, period: float, stop: asyncio.Event, random_: random.Random) -> None:
    """Has every worker flush once a period, drops every tenth's connection now and then, and reconnects."""
    now = time.perf_counter()
    queue = [(now + random_.random() * period, each.index) for each in crew]
    heapq.heapify(queue)
    drops = [(now + random_.uniform(0.5, 1.5) * FLAP_SECONDS, each.index) for each in crew[::FLAPPING]]
    heapq.heapify(drops)
    while not stop.is_set() or not all(each.idle for each in crew):
        now = time.perf_counter()
        while not stop.is_set() and queue[0][0] <= now:
            due, index = queue[0]
            crew[index].flush()
            heapq.heapreplace(queue, (max(due, now - period) + period, index))
        while not stop.is_set() and drops[0][0] <= now:
            _, index = drops[0]
            crew[index].drop()
            heapq.heapreplace(drops, (now + random_.uniform(0.5, 1.5) * FLAP_SECONDS, index))
        ended, tally.ended = tally.ended, []
        for each in ended:
            tally.reconnects += 1
            await each.connect()
        await asyncio.sleep(0.001)


@dataclass(frozen=True)
class Report:
    """One size. Latencies in milliseconds, sizes in megabytes, rates a second."""

    workers: int
    flushes: float
    flushes_due: float
    flushes_acknowledged: float
    held_back_percent: float
    result_p50: float
    result_p99: float
    ack_p50: float
    ack_p99: float
    both_p99: float
    service_core_percent: float
    service_us_a_flush: float
    reconnects: int
    memory: float
    memory_growth: float
    exact: bool
    backwards: int

    @property
    def _flat(self) -> int:
        return FLAT_BYTES + FLAT_BYTES_A_WORKER * self.workers

    @property
    def sound(self) -> bool:
        """Whether nothing was lost and nothing grew."""
        return self.exact and not self.backwards and self.memory_growth * 1e6 <= self._flat

    @property
    def goal(self) -> str:
        """Whether the goal was reached, "" where there is none."""
        if self.workers > GOAL_WORKERS:
            return ""
        return f"p99 <= {GOAL_MS:g} ms: {'reached' if self.both_p99 <= GOAL_MS else 'missed'}"


def measure(workers: int, flushes: float, seconds: float) -> Report:
    """One size against a service of its own."""
    settings: dict[str, Any] = {
        "round_seconds": 1.0,
        "round_blocks": 10_000_000,
        "publish_min_change": 0.0,
        "max_workers": workers + 16,
        "max_workers_a_pair": workers + 16,
    }
    with service(core=None, **settings) as running:
        return asyncio.run(_run(running, workers, flushes, seconds))


async def _run(running: Service, workers: int, flushes: float, seconds: float) -> Report:
    rng = np.random.default_rng(5)
    bodies = [
        estimator_pb2.StreamRequest(batch=encode_batch(0, None, blocks(rng, ROWS))).SerializeToString()
        for _ in range(1024)
    ]
    tally, stop = Tally(), asyncio.Event()
    crew = [Worker(i, running.address, bodies, tally) for i in range(workers)]
    for each in crew:
        await each.connect()
    driver = asyncio.create_task(drive(crew, tally, 1.0 / flushes, stop, random.Random(6)))
    # A third for everybody to be there, and for buffers to have their size.
    await asyncio.sleep(seconds / 3)
    tally.results.clear()
    running.acks()
    before, cpu, began, memory = tally.acknowledged, running.cpu_seconds(), time.perf_counter(), running.resident()
    due, held_back = tally.due, tally.held_back
    await asyncio.sleep(seconds * 2 / 3)
    took = time.perf_counter() - began
    acknowledged, results, acks = tally.acknowledged - before, list(tally.results), running.acks()
    due, held_back = tally.due - due, tally.held_back - held_back
    cpu, grown = running.cpu_seconds() - cpu, running.resident()
    stop.set()
    await driver
    for each in crew:
        each.drop()
    async with grpc.aio.insecure_channel(running.address) as channel:
        request = inspect_pb2.GetPairRequest(pair=KEY.id)
        state = (await inspect_pb2_grpc.InspectStub(channel).GetPair(request)).state
    both = rng.choice(results, DRAWS) + rng.choice(acks or [float("nan")], DRAWS)
    result50, result99 = np.percentile(results, [50, 99]) * 1e3
    ack50, ack99 = np.percentile(acks or [float("nan")], [50, 99]) * 1e3
    return Report(
        workers,
        flushes,
        due / took,
        acknowledged / took,
        100.0 * held_back / max(due, 1),
        float(result50),
        float(result99),
        float(ack50),
        float(ack99),
        float(np.percentile(both, 99) * 1e3),
        100.0 * cpu / took,
        1e6 * cpu / max(acknowledged, 1),
        tally.reconnects,
        grown / 1e6,
        (grown - memory) / 1e6,
        state.blocks == ROWS * tally.acknowledged == ROWS * tally.sent and not tally.refused,
        tally.backwards,
    )


def main() -> int:
    """0 if every size is sound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--flushes", type=float, nargs="+", default=[1.0, 10.0], help="a second and worker")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each size")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true", help="write benchmarks/load.json, for docs/operations.md")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection is a file, here and in the service, which inherits this.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sizes = [(workers, flushes) for flushes in options.flushes for workers in options.workers]
    load = os.getloadavg()[0]
    reports = [measure(workers, flushes, options.seconds) for workers, flushes in sizes]
    if options.json:
        print(json.dumps([{**asdict(report), "sound": report.sound} for report in reports], indent=2))
    else:
        print(f"load average {load:.1f} before, on {os.cpu_count()} cores; {ROWS} blocks a flush, K = {K}")
        for report in reports:
            print(_lines(report))
    if options.record:
        rows = [{**asdict(report), "goal": report.goal} for report in reports]
        RECORD.write_text(
            json.dumps({"machine": machine(load), "rows_a_flush": ROWS, "reports": rows}, indent=2) + "\n"
        )
    return 0 if all(report.sound for report in reports) else 1


def _lines(r: Report) -> str:
    return (
        f"{r.workers} workers: {r.flushes_due:,.0f} flushes/s due, {r.flushes_acknowledged:,.0f} acknowledged, "
        f"{r.held_back_percent:.1f} % held back\n"
        f"  batch → result p50 {r.result_p50:.1f} ms, p99 {r.result_p99:.1f} ms; "
        f"publish → ACK p50 {r.ack_p50:.1f} ms, p99 {r.ack_p99:.1f} ms; both p99 {r.both_p99:.1f} ms\n"
        f"  service: {r.service_core_percent:.0f} % of a core, {r.service_us_a_flush:.0f} µs a flush and what goes "
        f"with it; {r.memory:.0f} MB ({r.memory_growth:+.1f} MB); "
        f"{r.reconnects} reconnects; counts {'exact' if r.exact else 'NOT EXACT'}, versions back {r.backwards}; "
        f"{'sound' if r.sound else 'UNSOUND'}{f'; {r.goal}' if r.goal else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
