"""Taps: copies of a pair's applied batches for whoever records them. Knows no gRPC."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from acceptd.errors import TooLarge
from acceptd.v1 import inspect_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from acceptd.v1 import estimator_pb2

#: Taps open on one pair. Each costs a copy of every batch.
MAX_TAPS: Final = 4

#: Bytes one tap holds for a caller that is slow to take them; what comes on top is dropped. At 10,000 blocks a second
#: and K = 8 this is about a minute of traffic.
MAX_TAP_BYTES: Final = 16 * 1024 * 1024


class Tap:
    """One caller's view of a pair's batches. Bounded; the newest are dropped when it is full, and counted."""

    def __init__(self) -> None:
        self.dropped_batches = 0
        self.dropped_rows = 0
        self._waiting: deque[inspect_pb2.TapPairResponse] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()

    def offer(self, worker: str, workload: str, batch: estimator_pb2.ObservationBatch) -> bool:
        """Takes a copy if there is room; whether it did."""
        size = batch.ByteSize()
        if self._bytes + size > MAX_TAP_BYTES:
            self.dropped_batches += 1
            self.dropped_rows += len(batch.accepted)
            return False
        self._waiting.append(inspect_pb2.TapPairResponse(worker=worker, workload=workload, batch=batch))
        self._bytes += size
        self._arrived.set()
        return True

    def wake(self) -> None:
        """Lets `take` return without a batch, so that its caller can look around."""
        self._arrived.set()

    async def take(self) -> inspect_pb2.TapPairResponse | None:
        """The oldest batch, waiting for one, with the counts of what was dropped; None after `wake`."""
        if not self._waiting:
            await self._arrived.wait()
            self._arrived.clear()
            if not self._waiting:
                return None
        message = self._waiting.popleft()
        self._bytes -= message.batch.ByteSize()
        message.dropped_batches, message.dropped_rows = self.dropped_batches, self.dropped_rows
        return message


class Taps:
    """All open taps, by pair id. `on_drop` is called with the pair's id for each batch that a tap had no room for."""

    def __init__(self, on_drop: Callable[[str], None]) -> None:
        self._on_drop = on_drop
        self._open: dict[str, list[Tap]] = {}

    def open(self, pair: str) -> Tap:
        """A new tap on the pair with this id. Raises TooLarge if it has MAX_TAPS already."""
        taps = self._open.setdefault(pair, [])
        if len(taps) >= MAX_TAPS:
            raise TooLarge(f"{pair} is tapped {len(taps)} times; accepted: {MAX_TAPS}")
        tap = Tap()
        taps.append(tap)
        return tap

    def close(self, pair: str, tap: Tap) -> None:
        """Ends a tap; what it holds is gone."""
        taps = self._open[pair]
        taps.remove(tap)
        if not taps:
            del self._open[pair]

    def wake(self) -> None:
        """Wakes every tap."""
        for taps in self._open.values():
            for tap in taps:
                tap.wake()

    def offer(self, pair: str, worker: str, workload: str, batch: estimator_pb2.ObservationBatch) -> None:
        """Copies an applied batch to the pair's taps; without one, a dictionary look-up."""
        for tap in self._open.get(pair, ()):
            if not tap.offer(worker, workload, batch):
                self._on_drop(pair)
