"""What a fit must pass before it may be published."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from acceptd.errors import WireError
from acceptd.limits import MAX_INTERCEPT
from acceptd.types import Coefficients
from estimator_service.fit.histogram import Floats
from estimator_service.fit.likelihood import Point
from estimator_service.fit.predict import Predictor

#: Observations below which a round is not compared with its own rate: that rate is then fitted noise.
MIN_COMPARED: Final = 200.0


@dataclass(frozen=True)
class Sample:
    """Non-empty cells of a round, M of them, kept small.

    segment, position: uint8[M]. n, accepted: float32[M], exact as long as they are counts. x: float32[M], the mean.
    """

    segment: NDArray[np.uint8]
    position: NDArray[np.uint8]
    n: NDArray[np.float32]
    accepted: NDArray[np.float32]
    x: NDArray[np.float32]

    @staticmethod
    def empty() -> Sample:
        """No cells."""
        index, value = np.zeros(0, np.uint8), np.zeros(0, np.float32)
        return Sample(index, index, value, value, value)

    @staticmethod
    def of(sums: Floats) -> Sample:
        """From sums [3, NUM_SLOTS, K, NUM_BINS]."""
        n, accepted, sum_x = sums.reshape(3, -1)
        used = np.flatnonzero(n)
        k = sums.shape[2]
        segment, position = (used // (k * NUM_BINS)).astype(np.uint8), (used // NUM_BINS % k).astype(np.uint8)
        columns = (n[used], accepted[used], sum_x[used] / n[used])
        return Sample(segment, position, *(column.astype(np.float32) for column in columns))

    @property
    def total(self) -> float:
        """Observations."""
        return float(self.n.sum(dtype=np.float64))

    def loss(self, value: Coefficients) -> float:
        """Log-loss of coefficients, nats, summed."""
        segment, position = self.segment.astype(np.int64), self.position.astype(np.int64)
        z = Predictor.of(value).log_odds(segment, position, self.x.astype(np.float64))
        return float((self.n * (np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0.0)) - self.accepted * z).sum())

    def constant_loss(self) -> float:
        """Log-loss of the best constant: the acceptance rate. Rates nearer to 0 or 1 than bounds allow are cut off."""
        n, accepted = self.total, float(self.accepted.sum(dtype=np.float64))
        z = constant_log_odds(accepted, n)
        return n * float(np.logaddexp(0.0, z)) - accepted * z


def constant_log_odds(accepted: float, n: float) -> float:
    """Log-odds of a rate, within the bounds of an intercept."""
    if n <= 0:
        return 0.0
    with np.errstate(divide="ignore"):
        value = np.log(accepted) - np.log(max(n - accepted, 0.0))
    return float(np.clip(value, -MAX_INTERCEPT, MAX_INTERCEPT))


def first_adequate(
    sample: Sample, candidates: Iterable[Callable[[], Point]], to_coefficients: Callable[[Point], Coefficients]
) -> Point:
    """The first candidate whose straight line beats the round's own rate; that rate itself if none does."""
    limit = sample.constant_loss() * (1.0 + 1e-9) + 1e-6 * sample.total
    point = None
    for make in candidates:
        point = make()
        if sample.loss(to_coefficients(point)) <= limit:
            return point
    k = 1 if point is None else point.intercepts.shape[1]
    rate = constant_log_odds(float(sample.accepted.sum(dtype=np.float64)), sample.total)
    return Point(np.zeros((1, 1)), np.full((1, k), rate))


def reason_to_hold(
    sample: Sample, candidate: Coefficients, in_force: Coefficients | None, tolerance: float
) -> str | None:
    """Why `candidate` must not be published: invalid, or worse than what is in force. None if it may be."""
    try:
        candidate.validate(candidate.num_positions)
    except WireError as error:
        return f"invalid: {error}"
    if in_force is None or sample.total < MIN_COMPARED:
        return None
    if sample.loss(candidate) > sample.loss(in_force) * (1.0 + tolerance):
        return "worse than the coefficients in force on the newest round"
    return None
