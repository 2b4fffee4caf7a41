"""Bounds on rows a second, as buckets that refill."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.worker import WorkerKey

#: Workers whose bucket is remembered. One that is forgotten starts with a full one; each costs some 300 bytes.
_MAX_WORKERS: Final = 16_384


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
        wait = self.wait(rows)
        if not wait and self._rate:
            self._level -= rows
        return wait

    def wait(self, rows: int) -> float:
        """What `take` would say, with nothing taken."""
        if not self._rate:
            return 0.0
        now = self._clock.monotonic()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (min(rows, self._size) - self._level) / self._rate)


class Rates:
    """A bucket for each worker, over all of its streams, and one for each pair."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._workers: OrderedDict[WorkerKey, RowRate] = OrderedDict()
        self._pairs: dict[str, RowRate] = {}

    def take(self, pair: str, worker: WorkerKey, rows: int) -> tuple[str, float] | None:
        """None if the rows were taken from both, else which bound they exceed, and seconds until they may fit."""
        settings = self._settings
        own, shared = settings.max_rows_per_second, settings.max_rows_per_second_a_pair
        if not own and not shared:
            return None
        mine, ours = self._worker(worker, own), self._pair(pair, shared)
        if wait := mine.wait(rows):
            return f"more than max_rows_per_second = {own:g}; accepted again in {wait:.2f} s", wait
        if wait := ours.take(rows):
            return f"{pair}: more than max_rows_per_second_a_pair = {shared:g}; accepted again in {wait:.2f} s", wait
        mine.take(rows)
        return None

    def forget(self, pair: str) -> None:
        """The pair is gone."""
        self._pairs.pop(pair, None)

    def _worker(self, worker: WorkerKey, rate: float) -> RowRate:
        bucket = self._workers.setdefault(worker, RowRate(rate, self._settings.max_rows, self._clock))
        self._workers.move_to_end(worker)
        if len(self._workers) > _MAX_WORKERS:
            self._workers.popitem(last=False)
        return bucket

    def _pair(self, pair: str, rate: float) -> RowRate:
        return self._pairs.setdefault(pair, RowRate(rate, self._settings.max_rows, self._clock))
