"""What one stream still has to send, encoded. Answers in order, everything else only in its latest state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acceptd.v1 import estimator_pb2
from estimator_service.answers import Acceptance, Answers

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

    Bounds: answers are at most the batches in flight, since `room` tells the reader to stop reading; the update,
    the heartbeat and the drain notice are one slot each. `latest_update` is asked when the sender is ready, so a slow
    reader gets the newest coefficients and none in between; it gives an encoded StreamResponse. `monotonic`: seconds.
    """

    def __init__(
        self,
        answers: Answers,
        committed: Callable[[], int],
        latest_update: Callable[[], bytes | None],
        monotonic: Callable[[], float],
    ) -> None:
        self._committed = committed
        self._latest_update = latest_update
        self._monotonic = monotonic
        self._answers = answers
        self._heartbeat: estimator_pb2.Heartbeat | None = None
        self._drain: estimator_pb2.Drain | None = None
        self._finishing = False
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def result(self, result: Acceptance | estimator_pb2.BatchResult, ticket: int) -> None:
        """Queues the answer to a batch, which may leave once the store has committed `ticket` (0: at once)."""
        self._answers.add(result, ticket, self._committed(), self._monotonic())
        if not self._answers.room:
            self._room.clear()
        if self._answers.due:
            self._wake.set()

    def look(self, now: float) -> None:
        """Sends answers that have waited long enough for others to join them. now: monotonic seconds."""
        if self._answers and self._answers.look(now):
            self._wake.set()

    def hurry(self) -> None:
        """Sends the answers there are: the worker may wait for them."""
        self._answers.hurry()
        if self._answers.due:
            self._wake.set()

    def heartbeat(self, heartbeat: estimator_pb2.Heartbeat) -> None:
        """Sends this heartbeat, or replaces one that has not left yet."""
        self._heartbeat = heartbeat
        self._wake.set()

    def drain(self, drain: estimator_pb2.Drain) -> None:
        """Announces the end; the answers queued before it still leave first."""
        self._drain = drain
        self._answers.due = True
        self._wake.set()

    def end(self, ending: Ending) -> None:
        """Ends the stream: nothing more is sent but what is ready now. The first ending counts."""
        if self._ending is None:
            self._ending = ending
        self._answers.due = True
        self._ended.set()
        self._room.set()
        self._wake.set()

    def finish(self) -> None:
        """The worker will send no more: the stream ends once its batches are answered."""
        self._finishing = self._answers.due = True
        self._wake.set()

    def wake(self) -> None:
        """Has the sender look again: a commit or a new publication."""
        self._wake.set()

    @property
    def waiting(self) -> bool:
        """Whether there are answers that would leave if the store had committed what they say."""
        return bool(self._answers) and self._answers.due

    @property
    def ending(self) -> Ending | None:
        """How the stream ends, once that is known."""
        return self._ending

    @property
    def room(self) -> bool:
        """Whether another answer fits."""
        return self._room.is_set()

    async def wait_for_room(self) -> None:
        """Returns when another answer fits or the stream ends."""
        await self._room.wait()

    async def wait_for_ending(self) -> None:
        """Returns when it is known how the stream ends."""
        await self._ended.wait()

    async def wait(self) -> None:
        """Returns when there may be something to take."""
        await self._wake.wait()

    def take(self) -> bytes | None:
        """The next StreamResponse, None if there is nothing to send now."""
        if self._answers.due and (result := self._answers.take(self._committed(), self._monotonic())) is not None:
            if self._answers.room:
                self._room.set()
            return estimator_pb2.StreamResponse(batch_result=result).SerializeToString()
        update = self._latest_update()
        if update is not None:
            return update
        if self._heartbeat is not None:
            heartbeat, self._heartbeat = self._heartbeat, None
            return estimator_pb2.StreamResponse(heartbeat=heartbeat).SerializeToString()
        if self._drain is not None and not self._answers:
            drain, self._drain, self._finishing = self._drain, None, True
            return estimator_pb2.StreamResponse(drain=drain).SerializeToString()
        if self._finishing and not self._answers:
            self.end(Ending("OK", ""))
        self._wake.clear()
        return None
