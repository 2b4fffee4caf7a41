"""Rounds for drift detection: of blocks with a known truth, and of recorded ones, resampled by request."""

from pathlib import Path

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.segments import Segment
from estimator_service.fit.histogram import NUM_SLOTS, bins_of, histogram

K = 7
ROUND = 640
DATA = Path(__file__).parents[1] / "data" / "code_then_chat.npz"


def sums(x, accepted, segment=Segment.HIGH):
    """The sums of one round, [3, S, K, NUM_BINS]. x: [B, K]. accepted: [B]. segment: of all, or [B]."""
    position = np.arange(K)
    seen = position < np.minimum(accepted + 1, K)[:, None]
    slot = np.broadcast_to(np.asarray(segment).reshape(-1, 1) * K + position, x.shape)[seen]
    label = (position < accepted[:, None])[seen].astype(float)
    cell = slot * NUM_BINS + bins_of(x[seen].astype(float))
    return histogram(cell, x[seen].astype(float), label, NUM_SLOTS * K * NUM_BINS).reshape(3, NUM_SLOTS, K, NUM_BINS)


def drawn(rng, slope, intercept, mean=2.0, deviation=2.0, blocks=ROUND, segment=Segment.HIGH):
    """One round of independent blocks, logistic in x."""
    x = np.clip(rng.normal(mean, deviation, (blocks, K)), -40, 40)
    passed = rng.random(x.shape) < 1 / (1 + np.exp(-(slope * x + intercept)))
    return sums(x, np.cumprod(passed, axis=1).sum(axis=1), segment)


class Recorded:
    """The recorded blocks of one workload; x stands at observed positions, 0 elsewhere."""

    def __init__(self, accepted, request, x):
        self.accepted, self.x = accepted.astype(int), x
        order = np.argsort(request, kind="stable")
        self._rows = np.split(order, np.flatnonzero(np.diff(request[order])) + 1)

    def in_order(self, blocks=ROUND, scale=1.0):
        """Its rounds as they were recorded, the incomplete last one left out."""
        for start in range(0, len(self.accepted) - blocks + 1, blocks):
            rows = slice(start, start + blocks)
            yield sums(self.x[rows] * scale, self.accepted[rows])

    def resampled(self, rng, rounds, blocks=ROUND, slots=64, scale=1.0):
        """A stationary stream: each of `slots` seats serves random requests one after another (block bootstrap)."""
        steps = rounds * blocks // slots
        seats = []
        for _ in range(slots):
            # A seat starts somewhere within its first request, as in a service that has been running.
            seat = [self._rows[rng.integers(len(self._rows))]]
            seat[0] = seat[0][rng.integers(len(seat[0])) :]
            length = len(seat[0])
            while length < steps:
                seat.append(self._rows[rng.integers(len(self._rows))])
                length += len(seat[-1])
            seats.append(np.concatenate(seat)[:steps])
        order = np.stack(seats, axis=1).ravel()
        for start in range(0, rounds * blocks, blocks):
            rows = order[start : start + blocks]
            yield sums(self.x[rows] * scale, self.accepted[rows])


def recorded():
    """(code, chat) of the recorded pair, both at temperature 1."""
    with np.load(DATA) as stored:
        accepted, request, flat, code = (stored[name] for name in ("accepted", "request", "x", "code"))
    x = np.zeros((len(accepted), K))
    x[np.arange(K) < np.minimum(accepted.astype(int) + 1, K)[:, None]] = flat
    return (
        Recorded(accepted[:code], request[:code], x[:code]),
        Recorded(accepted[code:], request[code:], x[code:]),
    )
