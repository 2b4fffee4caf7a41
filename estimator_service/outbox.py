"""What one stream still has to send, encoded. Results in order, everything else only in its latest state."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acceptd.v1 import estimator_pb2

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Ending:
    """How a stream ends. code: name of a gRPC status. retry_after: seconds for RetryInfo, None: none."""

    code: str
    message: str
    retry_after: float | None = None


class Outbox:
    """One sender takes from it with `take` / `wait`; sessions and the board put into it, and never wait.

    Bounds: results are at most the batches in flight, since `room` tells the reader to stop reading; the update,
    the heartbeat and the drain notice are one slot each. `latest_update` is asked when the sender is ready, so a slow
    reader gets the newest coefficients and none in between; it gives an encoded StreamResponse.
    """

    def __init__(
        self,
        max_results: int,
        committed: Callable[[], int],
        latest_update: Callable[[], bytes | None],
    ) -> None:
        self._max_results = max_results
        self._committed = committed
        self._latest_update = latest_update
        self._results: deque[tuple[int, estimator_pb2.BatchResult]] = deque()
        self._heartbeat: estimator_pb2.Heartbeat | None = None
        self._drain: estimator_pb2.Drain | None = None
        self._finishing = False
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def result(self, result: estimator_pb2.BatchResult, ticket: int) -> None:
        """Queues an answer that may leave once the store has committed `ticket` (0: at once)."""
        self._results.append((ticket, result))
        if len(self._results) >= self._max_results:
            self._room.clear()
        self._wake.set()

    def heartbeat(self, heartbeat: estimator_pb2.Heartbeat) -> None:
        """Sends this heartbeat, or replaces one that has not left yet."""
        self._heartbeat = heartbeat
        self._wake.set()

    def drain(self, drain: estimator_pb2.Drain) -> None:
        """Announces the end; the results queued before it still leave first."""
        self._drain = drain
        self._wake.set()

    def end(self, ending: Ending) -> None:
        """Ends the stream: nothing more is sent but what is ready now. The first ending counts."""
        if self._ending is None:
            self._ending = ending
        self._ended.set()
        self._room.set()
        self._wake.set()

    def finish(self) -> None:
        """The worker will send no more: the stream ends once its batches are answered."""
        self._finishing = True
        self._wake.set()

    def wake(self) -> None:
        """Has the sender look again: a commit or a new publication."""
        self._wake.set()

    @property
    def waiting(self) -> bool:
        """Whether there are answers that have not left."""
        return bool(self._results)

    @property
    def ending(self) -> Ending | None:
        """How the stream ends, once that is known."""
        return self._ending

    @property
    def room(self) -> bool:
        """Whether another result fits."""
        return self._room.is_set()

    async def wait_for_room(self) -> None:
        """Returns when another result fits or the stream ends."""
        await self._room.wait()

    async def wait_for_ending(self) -> None:
        """Returns when it is known how the stream ends."""
        await self._ended.wait()

    async def wait(self) -> None:
        """Returns when there may be something to take."""
        await self._wake.wait()

    def take(self) -> bytes | None:
        """The next StreamResponse, None if there is nothing to send now."""
        if self._results and self._results[0][0] <= self._committed():
            _, result = self._results.popleft()
            if len(self._results) < self._max_results:
                self._room.set()
            return estimator_pb2.StreamResponse(batch_result=result).SerializeToString()
        update = self._latest_update()
        if update is not None:
            return update
        if self._heartbeat is not None:
            heartbeat, self._heartbeat = self._heartbeat, None
            return estimator_pb2.StreamResponse(heartbeat=heartbeat).SerializeToString()
        if self._drain is not None and not self._results:
            drain, self._drain, self._finishing = self._drain, None, True
            return estimator_pb2.StreamResponse(drain=drain).SerializeToString()
        if self._finishing and not self._results:
            self.end(Ending("OK", ""))
        self._wake.clear()
        return None
