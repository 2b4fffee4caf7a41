"""A scrape of /metrics with 100 pairs of K = 8 and 50 workers each."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

from acceptd.codec import Observations, encode_pair_key
from acceptd.segments import NUM_SEGMENTS
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2
from benchmarks.refit import blocks
from benchmarks.result import Result, below
from estimator_service.config import load_settings
from estimator_service.fleet import Fleet
from estimator_service.server import Server

PAIRS, WORKERS, K = 100, 50, 8


def run() -> Iterator[Result]:
    """CPU time to render everything, and the samples a pair shows."""
    seconds, samples = asyncio.run(_measured())
    yield below(f"scrape, {PAIRS} pairs x {WORKERS} workers, CPU", seconds * 1e3, 200.0, "ms")
    yield below("samples a pair, K = 8", samples, 250 + 14 * K, "samples")


async def _measured() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        flags = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "store": str(Path(folder) / "store")}
        registry = CollectorRegistry()
        async with await Server.start(load_settings(flags, environ={}), registry=registry) as server:
            before = _samples(registry)
            rng = np.random.default_rng(1)
            for i in range(PAIRS):
                await _pair(server.fleet, i, rng)
            samples = (_samples(registry) - before) / PAIRS
            # CPU time: a scrape that waits for its turn on a busy machine says nothing about what it costs.
            taken = []
            for _ in range(15):
                start = time.process_time()
                generate_latest(registry)
                taken.append(time.process_time() - start)
            return sorted(taken)[len(taken) // 2], samples


async def _pair(fleet: Fleet, number: int, rng: np.random.Generator) -> None:
    """A pair with link, segments and all its workers, some rounds old."""
    key = encode_pair_key(PairKey("target", f"draft-{number}", K))
    for worker in range(WORKERS):
        hello = estimator_pb2.Hello(pair=key, worker=f"w{worker}", incarnation=1)
        session = await fleet.connect(hello, "benchmark")
    for _ in range(2):
        rows = blocks(rng, 640)
        segments = (np.arange(len(rows)) % NUM_SEGMENTS).astype(np.uint8)
        graded = Observations(rows.accepted, rows.admitted, rows.features, segments, rows.explored, rows.propensities)
        session.pair.apply(graded, (), None, "", "w0")
        session.pair.close_round()


def _samples(registry: CollectorRegistry) -> int:
    return sum(not line.startswith("#") for line in generate_latest(registry).decode().splitlines())
