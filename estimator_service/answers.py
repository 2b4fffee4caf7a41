"""What one worker is still to be told of its batches: refusals at once, acceptances of many batches in one."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from acceptd.v1.estimator_pb2 import BatchResult


@dataclass(slots=True)
class Acceptance:
    """Everything up to `sequence` is done with, and so many rows were learned from."""

    sequence: int
    rows_accepted: int


@dataclass(slots=True)
class _Answer:
    """To `batches` in a row. ticket: it may leave once the store has committed this."""

    result: Acceptance | BatchResult
    ticket: int
    batches: int = 1


class Answers:
    """In order of the batches. A worker that flushes rarely gets each answer at once; one that flushes often gets some
    a second, since to write a message costs the service as much as to learn from a small batch. All leave once half of
    the batches that may be unanswered are.

    max_batches: that may be unanswered. pause: seconds from an answer to the next, where it only says that batches were
    accepted; the last of them waits twice as long for company. due: whether they leave now, as far as the store has
    committed.
    """

    def __init__(self, max_batches: int, pause: float) -> None:
        self._max_batches = max_batches
        self._pause = pause
        self._queue: deque[_Answer] = deque()
        self._batches = 0
        self._left = -math.inf
        self.due = False

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def room(self) -> bool:
        """Whether another batch may be answered later."""
        return self._batches < self._max_batches

    def add(self, result: Acceptance | BatchResult, ticket: int, committed: int, now: float) -> None:
        """One more. ticket: what has to be committed before it leaves (0: nothing). now: monotonic seconds."""
        self._batches += 1
        if now - self._left >= self._pause or 2 * self._batches >= self._max_batches or isinstance(result, BatchResult):
            self.due = True
        if self._queue and isinstance(result, Acceptance):
            last = self._queue[-1]
            # What is to leave is not made to wait for another commit.
            waits = ticket > committed and (self.due or last.ticket <= committed)
            if isinstance(last.result, Acceptance) and not waits:
                last.result.sequence = result.sequence
                last.result.rows_accepted += result.rows_accepted
                last.ticket = max(last.ticket, ticket)
                last.batches += 1
                return
        self._queue.append(_Answer(result, ticket))

    def hurry(self) -> None:
        """Lets those there are leave now."""
        self.due = self.due or bool(self._queue)

    def look(self, now: float) -> bool:
        """Whether they are due by `now`. Called several times a second."""
        if self._queue and now - self._left >= 2 * self._pause:
            self.due = True
        return self.due

    def take(self, committed: int, now: float) -> BatchResult | None:
        """The next that may leave now."""
        if not self.due or not self._queue or self._queue[0].ticket > committed:
            return None
        answer = self._queue.popleft()
        self._batches -= answer.batches
        self._left = now
        self.due = bool(self._queue)
        if isinstance(answer.result, BatchResult):
            return answer.result
        sequence = answer.result.sequence
        return BatchResult(sequence=sequence, last_sequence=sequence, rows_accepted=answer.result.rows_accepted)
