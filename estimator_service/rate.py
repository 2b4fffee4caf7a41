"""A bound on rows a second, as a bucket that refills."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_service.clock import Clock


class RowRate:
    """Takes rows from a bucket that holds one second's worth, at least one whole batch. `rate` 0: no bound.

    rate: rows a second. burst: rows that always fit into a full bucket.
    """

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._size = max(rate, float(burst))
        self._level = self._size
        self._clock = clock
        self._at = clock.monotonic()

    def take(self, rows: int) -> float:
        """0.0 if the rows were taken, else the seconds after which they will fit."""
        if not self._rate:
            return 0.0
        now = self._clock.monotonic()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        if rows <= self._level:
            self._level -= rows
            return 0.0
        return (min(rows, self._size) - self._level) / self._rate
