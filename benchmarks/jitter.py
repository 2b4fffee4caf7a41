"""What the uplink's thread does to the main thread: period of a 1 ms loop with the uplink busy, beside idle.

The service has one core and this process all others: a service that refits on the core on which the main thread wants
to wake up delays it by milliseconds, and a bare process beside it just as much, which says nothing about the uplink.
With two cores that leaves one, which the main thread shares with all threads of the uplink and of gRPC: what these
take, of the GIL or of the core, is what the loop feels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from acceptd.types import PairKey
from benchmarks.refit import K, blocks
from benchmarks.result import Result, beside
from benchmarks.service_process import apart_from, service
from vllm_client_hook.outbound import GradedColumns
from vllm_client_hook.uplink import Capabilities, Uplink

PERIOD = 1e-3
#: Steps of one stretch, and stretches of each kind, taken in turn: many short ones, since what a virtual machine's host
#: does to some of them is as large as what is measured.
STEPS = 1000
STRETCHES = 31
#: Blocks the tap hands over every 8 steps: 16,000 blocks a second, what a worker with 256 requests and a decode step of
#: 16 ms grades.
BLOCKS = 16 * 8
EVERY = 8


def run() -> Iterator[Result]:
    """p99.9 of the loop's period in each stretch, the median of a kind: one stretch that another process disturbed
    decides nothing.
    """
    rows = GradedColumns(None, blocks(np.random.default_rng(3), BLOCKS))
    idle, busy = [], []
    with service(core=0) as running, apart_from(core=0):
        uplink = Uplink(running.address, PairKey("target", "draft", K), worker="bench", capabilities=Capabilities(8, 8))
        uplink.start()
        for _ in range(STRETCHES):
            idle.append(_stretch(lambda step: None))
            busy.append(_stretch(lambda step: uplink.offer(rows) if step % EVERY == 0 else None))
            uplink.flush(10)
        uplink.close()
    ours, alone = (float(np.median(np.percentile(kind, 99.9, axis=1))) * 1e3 for kind in (busy, idle))
    yield beside("p99.9 of a 1 ms main-thread loop, uplink busy beside idle", ours, alone, "ms", at_most=1.2)


def _stretch(work: object) -> list[float]:
    periods = []
    before = time.perf_counter()
    for step in range(STEPS):
        work(step)  # type: ignore[operator]
        time.sleep(max(0.0, before + PERIOD - time.perf_counter()))
        now = time.perf_counter()
        periods.append(now - before)
        before = now
    return periods
