"""How many workers one service carries: connected, flapping, sending small batches, each answered and each counted.

    python -m benchmarks.load [--workers 100 250 500 1000] [--flushes 1 10] [--seconds 12] [--runs 1] [--json]
                              [--record]

The service and all workers share the machine; the service, whose event loop is one thread, can use little more than
one core of it; workers are read in turns of a few milliseconds, which leaves it more of that core and is in the
latencies. A worker that has its batches in flight unanswered sends no more until there is an answer, as the hook
does: such flushes are "held back", and what the hook would then wait with is bounded and counted there. A tenth of
the workers drops its connection every other second and comes back.

batch → result: from a batch's write to its answer, which those of a worker that flushes often share; in the window:
to when the service has applied it. publish → ACK: from a publication to each worker's acknowledgement at the service;
beside it the same for a bare gRPC server on this machine, which writes as many bytes to as many streams and does
nothing else. Both: the way of an observation into coefficients in force, apart from the wait for its round's end,
which is a setting: one wait until a batch is in the window and one for an ACK, drawn at random. The goal is a p99 of
50 ms with up to 500 workers. Exits with 1 if the service's count of blocks is not exactly what was acknowledged, if a
version went back, or if memory grew.

A run sees few publications, and its p99 is in effect the slowest one's: where others share the machine, one run differs
from the next. --runs goes through all sizes several times; --record writes, for each size, the run in the middle and
the p99 of all of them to benchmarks/load.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from acceptd.codec import encode_batch
from acceptd.v1 import estimator_pb2, inspect_pb2, inspect_pb2_grpc
from benchmarks.crew import KEY, Crew, Tally, Worker
from benchmarks.fan_out import fan_out
from benchmarks.refit import K, blocks
from benchmarks.result import machine
from benchmarks.service_process import Service, service

ROWS = 8
#: The goal, milliseconds, where the number of workers is at most this.
GOAL_MS, GOAL_WORKERS = 50.0, 500
RECORD = Path(__file__).with_name("load.json")
#: Bytes a service may gain from a third of the run to its end: its heap, and the buffers of each connection, which are
#: as large as what once waited in them.
FLAT_BYTES, FLAT_BYTES_A_WORKER = 8_000_000, 16_384
#: Of a batch's wait and an acknowledgement's, for the distribution of their sum.
DRAWS = 200_000


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
    learned_p99: float
    ack_p50: float
    ack_p99: float
    bare_p99: float
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
    def size(self) -> tuple[float, int]:
        """Flushes a second, workers."""
        return self.flushes, self.workers


@dataclass(frozen=True)
class Runs:
    """One size, one or more times; ascending by both_p99."""

    reports: tuple[Report, ...]

    @property
    def both_p99s(self) -> list[float]:
        """Milliseconds, of each run in ascending order."""
        return [report.both_p99 for report in self.reports]

    @property
    def middle(self) -> Report:
        """The run whose p99 is the median, the upper one of two."""
        return self.reports[len(self.reports) // 2]

    @property
    def goal(self) -> str:
        """In how many runs the goal was reached, "" where there is none."""
        if self.middle.workers > GOAL_WORKERS:
            return ""
        reached = sum(p99 <= GOAL_MS for p99 in self.both_p99s)
        return f"p99 <= {GOAL_MS:g} ms: reached in {reached} of {len(self.reports)} runs"

    def recorded(self) -> dict[str, Any]:
        """The middle run, with what is known of the others."""
        return {**asdict(self.middle), "both_p99s": self.both_p99s, "goal": self.goal}


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
        return _measure(running, workers, flushes, seconds)


def _measure(running: Service, workers: int, flushes: float, seconds: float) -> Report:
    rng = np.random.default_rng(5)
    bodies = [
        estimator_pb2.StreamRequest(batch=encode_batch(0, None, blocks(rng, ROWS))).SerializeToString()
        for _ in range(1024)
    ]
    tally = Tally()
    bare = fan_out(running, workers)
    crew = Crew(
        [Worker(i, running.address, bodies, tally) for i in range(workers)], tally, 1 / flushes, random.Random(6)
    )
    # A third for everybody to be there, and for buffers to have their size.
    crew.run(seconds / 3)
    tally.results.clear()
    running.acks()
    running.learned()
    before, cpu, began, memory = tally.acknowledged, running.cpu_seconds(), time.perf_counter(), running.resident()
    due, held_back = tally.due, tally.held_back
    crew.run(seconds * 2 / 3)
    took = time.perf_counter() - began
    acknowledged, results, acks = tally.acknowledged - before, list(tally.results), running.acks()
    due, held_back = tally.due - due, tally.held_back - held_back
    waits = [then - tally.written[incarnation, sequence] for incarnation, sequence, then in running.learned()]
    cpu, grown = running.cpu_seconds() - cpu, running.resident()
    crew.finish()
    with grpc.insecure_channel(running.address) as channel:
        request = inspect_pb2.GetPairRequest(pair=KEY.id)
        state = inspect_pb2_grpc.InspectStub(channel).GetPair(request).state
    both = rng.choice(waits, DRAWS) + rng.choice(acks or [float("nan")], DRAWS)
    result50, result99 = np.percentile(results, [50, 99]) * 1e3
    bare99 = np.percentile(bare, 99) * 1e3
    ack50, ack99 = np.percentile(acks or [float("nan")], [50, 99]) * 1e3
    return Report(
        workers,
        flushes,
        due / took,
        acknowledged / took,
        100.0 * held_back / max(due, 1),
        float(result50),
        float(result99),
        float(np.percentile(waits, 99) * 1e3),
        float(ack50),
        float(ack99),
        float(bare99),
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
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 250, 500, 1000])
    parser.add_argument("--flushes", type=float, nargs="+", default=[1.0, 10.0], help="a second and worker")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each size")
    parser.add_argument("--runs", type=int, default=1, help="through all sizes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true", help="write benchmarks/load.json, for docs/operations.md")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs is {options.runs}; accepted: 1 or more")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection is a file, here and in the service, which inherits this.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sizes = [(workers, flushes) for flushes in options.flushes for workers in options.workers]
    load = os.getloadavg()[0]
    if not options.json:
        print(f"load average {load:.1f} before, on {os.cpu_count()} cores; {ROWS} blocks a flush, K = {K}")
    reports = []
    for _ in range(options.runs):
        for workers, flushes in sizes:
            reports.append(measure(workers, flushes, options.seconds))
            if not options.json:
                print(_lines(reports[-1]), flush=True)
    ascending = sorted(reports, key=lambda report: report.both_p99)
    runs = [Runs(tuple(r for r in ascending if r.size == (flushes, workers))) for workers, flushes in sizes]
    if options.json:
        print(json.dumps([{**asdict(report), "sound": report.sound} for report in reports], indent=2))
    else:
        for each in runs:
            if each.goal:
                print(f"{each.middle.workers} workers, {each.middle.flushes:g} flushes/s each: {each.goal}")
    if options.record:
        recorded = {"machine": machine(load), "rows_a_flush": ROWS, "sizes": [each.recorded() for each in runs]}
        RECORD.write_text(json.dumps(recorded, indent=2) + "\n")
    return 0 if all(report.sound for report in reports) else 1


def _lines(r: Report) -> str:
    return (
        f"{r.workers} workers: {r.flushes_due:,.0f} flushes/s due, {r.flushes_acknowledged:,.0f} acknowledged, "
        f"{r.held_back_percent:.1f} % held back\n"
        f"  batch → result p50 {r.result_p50:.1f} ms, p99 {r.result_p99:.1f} ms "
        f"(in the window: {r.learned_p99:.1f} ms); "
        f"publish → ACK p50 {r.ack_p50:.1f} ms, p99 {r.ack_p99:.1f} ms "
        f"(bare gRPC {r.bare_p99:.1f} ms); both p99 {r.both_p99:.1f} ms\n"
        f"  service: {r.service_core_percent:.0f} % of a core, {r.service_us_a_flush:.0f} µs a flush and what goes "
        f"with it; {r.memory:.0f} MB ({r.memory_growth:+.1f} MB); "
        f"{r.reconnects} reconnects; counts {'exact' if r.exact else 'NOT EXACT'}, versions back {r.backwards}; "
        f"{'sound' if r.sound else 'UNSOUND'}"
    )


if __name__ == "__main__":
    sys.exit(main())
