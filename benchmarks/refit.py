"""A refit to convergence, K = 8, beside statsmodels' GLM on the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import statsmodels.api as sm

from acceptd.codec import Observations
from acceptd.segments import Segment
from acceptd.types import prior
from benchmarks.result import Result, below, beside, median_cpu_seconds
from estimator_service.fit.model import PairModel
from estimator_service.fit.settings import FitSettings

K = 8
BLOCKS = 25_600
SPELLS = 5
SLOPE = 0.6
INTERCEPTS = np.linspace(0.4, -0.6, K)


def blocks(rng: np.random.Generator, count: int, positions: int = K) -> Observations:
    """`count` untrimmed blocks of a pair that follows the straight line exactly."""
    x = rng.normal(1.0, 2.5, (count, positions)).astype(np.float32)
    intercepts = np.interp(np.arange(positions), np.arange(K), INTERCEPTS)
    accept = rng.random((count, positions)) < 1 / (1 + np.exp(-(SLOPE * x + intercepts)))
    accepted = np.where(accept.all(axis=1), positions, np.argmin(accept, axis=1)).astype(np.uint8)
    observed = np.arange(positions) <= accepted[:, None]
    return Observations(
        accepted,
        np.full(count, positions, np.uint8),
        x[observed],
        np.full(count, Segment.HIGH, np.uint8),
        np.zeros(count, np.uint8),
        np.zeros(count, np.float32),
    )


def design(rows: Observations) -> tuple[np.ndarray, np.ndarray]:
    """The rows as a regression sees them: [N, 1 + K] and labels [N]."""
    observed = rows.observed
    position = np.concatenate([np.arange(n) for n in observed])
    label = position < np.repeat(rows.accepted, observed)
    matrix = np.zeros((len(position), 1 + K))
    matrix[:, 0] = rows.features
    matrix[np.arange(len(position)), 1 + position] = 1.0
    return matrix, label.astype(np.float64)


def run() -> Iterator[Result]:
    """Our refit (the binned window of 25,600 blocks, from the coefficients in force) and statsmodels' on its rows.

    Each in its best of `SPELLS`, which take turns: what else a shared core does only adds to CPU time.
    """
    rows = blocks(np.random.default_rng(1), BLOCKS)
    snapshot = _window(rows).to_bytes()
    matrix, label = design(rows)
    spells = [(_ours(snapshot), _theirs(label, matrix)) for _ in range(SPELLS)]
    ours, theirs = map(min, zip(*spells, strict=True))
    yield below("refit of the line, K = 8, CPU time", ours * 1e3, 0.5, "ms")
    yield beside(
        "refit of the line beside statsmodels' GLM on the rows", theirs, ours, "s (theirs / ours)", at_least=200
    )


def _ours(snapshot: bytes) -> float:
    fresh = iter([PairModel.from_bytes(snapshot, FitSettings(method="line")) for _ in range(64)])
    return median_cpu_seconds(lambda: next(fresh).close_round(1.0), repeats=50)


def _theirs(label: np.ndarray, matrix: np.ndarray) -> float:
    return median_cpu_seconds(lambda: sm.GLM(label, matrix, family=sm.families.Binomial()).fit(), repeats=3, warmup=1)


def _window(rows: Observations) -> PairModel:
    model = PairModel(K, FitSettings(method="line"))
    model.observe(rows, used=prior(K))
    model.close_round(0.0)
    return model
