"""The costliest pair: K = 16, rows of every segment, all knots of the protocol. Time of its refit, and its memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np

from acceptd.codec import Observations
from acceptd.limits import MAX_KNOTS
from acceptd.segments import NUM_SEGMENTS
from acceptd.types import prior
from benchmarks.refit import blocks
from benchmarks.result import Result, below, median_cpu_seconds
from estimator_service.fit import knots
from estimator_service.fit.model import PairModel

K = 16
BLOCKS = 2_000
BATCHES = 8
ROUNDS = 4


def run() -> Iterator[Result]:
    """A refit, as `benchmarks.refit` times it, without workload labels; the memory of a pair that uses every table."""
    rng = np.random.default_rng(4)
    with patch.object(knots, "NUM_KNOTS", MAX_KNOTS):
        refit = _refit(rng)
        yield below("refit of line, link and segments, K = 16, all segments, J = 8, CPU time", refit * 1e3, 5.0, "ms")
        most = _most_bytes(rng) / 1e6
        yield below("memory of a pair, K = 16, every table in use, at most", most, 2.0, "MB")


def _refit(rng: np.random.Generator) -> float:
    model = PairModel(K)
    for _ in range(ROUNDS):
        for _ in range(BATCHES):
            model.observe(_rows(rng, K - 1), used=prior(K))
        model.close_round(1.0)
    snapshot = model.to_bytes()
    fresh = iter([PairModel.from_bytes(snapshot) for _ in range(40)])
    closed = model.close_round(1.0)
    if len(closed.forms["link"].knots) != MAX_KNOTS:
        raise RuntimeError(f"the link has {len(closed.forms['link'].knots)} knots; expected {MAX_KNOTS}")
    return median_cpu_seconds(lambda: next(fresh).close_round(1.0), repeats=30)


def _most_bytes(rng: np.random.Generator) -> float:
    """Largest size between two calls: many workers, more labels than are kept apart, explored rows, all bins of x."""
    batches = [_rows(rng, K, deviation=15.0) for _ in range(4)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    model, used, most = PairModel(K), prior(K), 0
    for i in range(ROUNDS * BATCHES):
        model.observe(batches[i % 4], used=used, worker=f"w{i}", workload=f"label{i % 10}")
        most = max(most, tracemalloc.get_traced_memory()[0] - before)
        if i % BATCHES == BATCHES - 1:
            used = model.close_round(1.0).coefficients[""]
            most = max(most, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    return most


def _rows(rng: np.random.Generator, explored: int, deviation: float = 2.5) -> Observations:
    rows = blocks(rng, BLOCKS, K)
    x = np.clip(rng.normal(1.0, deviation, len(rows.features)), -40, 40) if deviation != 2.5 else rows.features
    depth = np.full(BLOCKS, explored, np.uint8)
    return Observations(
        rows.accepted,
        rows.admitted,
        x.astype(np.float32),
        rng.integers(0, NUM_SEGMENTS, BLOCKS).astype(np.uint8),
        depth,
        np.ones(BLOCKS, np.float32),
    )
