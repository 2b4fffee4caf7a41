"""Rows on their way to the service: a bounded queue, and numbered batches that are kept until they are answered.

No gRPC and no threads: `Uplink` calls `offer` on the worker's main thread and everything else on the sending side.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from acceptd.codec import Observations, encode_parts
from acceptd.limits import MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, MAX_ROWS
from acceptd.v1 import types_pb2
from vllm_client_hook.chunks import Chunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from acceptd.types import Version
    from acceptd.v1 import estimator_pb2

#: Reasons are numbers of `ExclusionReason` in types.proto.
QUEUE_FULL: Final = int(types_pb2.EXCLUSION_REASON_QUEUE_FULL)

#: Bytes a batch needs beside its rows: sequence, version, exclusions and field headers, generously.
_ENVELOPE_BYTES: Final = 1024


#: What `prepare` turns into columns in one call: offers, and rows after which it stops. Raising them keeps other
#: threads waiting for longer, some 50 us an offer; lowering them costs a pause of the sender for each call.
_STRETCH_PIECES: Final = 4
_STRETCH_ROWS: Final = 256


class Graded(Protocol):
    """Rows as the device side hands them over (`vllm_client_hook.rows.Rows`); see there for the columns."""

    @property
    def generation(self) -> int:
        """Weights generation of the rows."""

    def __len__(self) -> int: ...

    def by_version(self) -> Sequence[tuple[Version | None, Any]]:
        """Columns for each version the rows were predicted with, in the order these came into force."""


@dataclass(frozen=True)
class GradedColumns:
    """Rows of one version that are columns already: for senders without a device, such as a replayed trace."""

    version: Version | None
    columns: Observations
    generation: int = 0

    def __len__(self) -> int:
        return len(self.columns.accepted)

    def by_version(self) -> list[tuple[Version | None, Observations]]:
        """One entry."""
        return [(self.version, self.columns)]


@dataclass
class Limits:
    """What the service asked for in its Welcome; the protocol's own limits until then.

    rows, age_seconds: a batch goes out when it holds this many rows or is this old.
    """

    max_rows: int = MAX_ROWS
    max_batch_bytes: int = MAX_MESSAGE_BYTES
    max_in_flight: int = MAX_IN_FLIGHT
    rows: int = MAX_ROWS
    age_seconds: float = 1.0

    def rows_a_batch(self, num_positions: int) -> int:
        """Rows of K = `num_positions` that fit every limit, features, entropies and margins included; at least 1."""
        fitting = (self.max_batch_bytes - _ENVELOPE_BYTES) // (8 + 12 * num_positions)
        return max(1, min(self.max_rows, self.rows, fitting))


def limits_of(welcome: estimator_pb2.Welcome) -> Limits:
    """Limits of a Welcome; a field it leaves at 0 keeps the protocol's own."""
    limits = Limits()
    limits.max_rows = min(welcome.limits.max_rows or limits.max_rows, limits.max_rows)
    limits.max_batch_bytes = min(welcome.limits.max_batch_bytes or limits.max_batch_bytes, limits.max_batch_bytes)
    limits.max_in_flight = min(welcome.limits.max_in_flight or limits.max_in_flight, limits.max_in_flight)
    limits.rows = min(welcome.flush.rows or limits.rows, limits.max_rows)
    limits.age_seconds = welcome.flush.max_age_seconds or limits.age_seconds
    return limits


@dataclass
class _Batch:
    message: estimator_pb2.ObservationBatch
    rows: int
    exclusions: dict[int, int]


class Outbound:
    """At most `queue_rows` rows wait; beyond that the oldest go and are counted as QUEUE_FULL. Rows of another weights
    generation than `generation` are counted, and left out.

    Sequence numbers start at 1 and grow by 1 a batch. A batch stays in flight until the service answered it, so that it
    can be sent again with the same number; at most `limits.max_in_flight` of them exist.
    """

    def __init__(self, num_positions: int, queue_rows: int, generation: int) -> None:
        self.limits = Limits()
        self.offered = 0
        self.dropped = 0
        self.acknowledged = 0
        self.refused = 0
        self.stale_generation = 0
        self._num_positions = num_positions
        self._queue_rows = queue_rows
        self._lock = threading.Lock()
        self._queue: deque[tuple[float, Graded]] = deque()
        self._waiting = 0
        self._chunks = Chunks()
        self._excluded: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._flight: deque[_Batch] = deque()
        self._sent = 0
        self._echoes = 0
        self._sequence = 0
        self._generation = generation

    # -- the worker's main thread ---------------------------------------------------------------------------------

    def offer(self, rows: Graded, now: float) -> bool:
        """Queues rows; whether the sender should look now: its next deadline may have changed.

        The lock is held for a few list operations, never for encoding.
        """
        with self._lock:
            if rows.generation != self._generation:
                self.stale_generation += len(rows)
                return False
            self.offered += len(rows)
            # Only what changes something wakes the sender: the first rows, and those that fill a batch.
            wake = not self._queue or self._waiting < self.limits.rows <= self._waiting + len(rows)
            self._queue.append((now, rows))
            self._waiting += len(rows)
            while self._waiting > self._queue_rows and self._queue:
                _, oldest = self._queue.popleft()
                self._waiting -= len(oldest)
                self.dropped += len(oldest)
        return wake

    def exclude(self, totals: Mapping[int, int]) -> None:
        """Running totals of blocks without a label, by reason; what grew since goes out with the next batch."""
        with self._lock:
            self._excluded.update(totals)

    # -- the sending side -----------------------------------------------------------------------------------------

    @property
    def exclusions(self) -> dict[int, int]:
        """Running totals by reason, the rows dropped here included."""
        with self._lock:
            totals = dict(self._excluded)
        totals[QUEUE_FULL] = totals.get(QUEUE_FULL, 0) + self.dropped
        return {reason: total for reason, total in totals.items() if total}

    @property
    def idle(self) -> bool:
        """Whether everything offered so far was answered or dropped."""
        return not (self._waiting or self._chunks or self._flight)

    @property
    def full(self) -> bool:
        """Whether a new batch has to wait until one in flight is answered."""
        return len(self._flight) >= self.limits.max_in_flight

    def deadline(self) -> float | None:
        """When the oldest waiting rows reach the age at which they go out; None: nothing waits."""
        oldest = self._chunks.oldest
        if oldest is None:
            with self._lock:
                oldest = self._queue[0][0] if self._queue else None
        return None if oldest is None else oldest + self.limits.age_seconds

    def prepare(self, now: float, *, flush: bool = False) -> bool:
        """Turns a few of the queued rows into columns, if the next message needs them; whether it needs more.

        For a sender that lets other threads run in between: `next_message` turns all that are left at once.
        """
        if self._sent < len(self._flight) or self.full:
            return False
        limit = self.limits.rows_a_batch(self._num_positions)
        if not self._due(now, limit, flush):
            return False
        goal = min(limit, self._chunks.rows + _STRETCH_ROWS)
        for _ in range(_STRETCH_PIECES):
            if self._chunks.rows >= goal or not self._convert():
                break
        return self._chunks.rows < limit and bool(self._queue)

    def next_message(self, now: float, *, flush: bool = False) -> estimator_pb2.ObservationBatch | None:
        """The next batch for the wire, None if there is none for now: those to send again first, then a new one."""
        if self._sent < len(self._flight):
            self._sent += 1
            return self._flight[self._sent - 1].message
        if self.full:
            return None
        batch = self._cut(now, flush)
        if batch is None:
            return None
        self._flight.append(batch)
        self._sent += 1
        return batch.message

    def answered(self, sequence: int, last_sequence: int, *, refused: bool) -> None:
        """A batch was answered. `refused`: nothing of it was applied; what it said about exclusions is said again."""
        while self._flight and self._flight[0].message.sequence <= last_sequence:
            batch = self._flight.popleft()
            self._sent = max(0, self._sent - 1)
            if refused and batch.message.sequence == sequence:
                self.refused += batch.rows
                for reason, blocks in batch.exclusions.items():
                    self._told[reason] -= blocks
            else:
                self.acknowledged += batch.rows

    def postponed(self, sequence: int) -> None:
        """A batch in flight was refused for now: it goes out again, and so does what was sent after it.

        What was sent after it arrives before its turn and will be refused as that: see `follows_postponed`.
        """
        at = next((i for i, batch in enumerate(self._flight) if batch.message.sequence == sequence), self._sent)
        if at < self._sent:
            self._echoes += self._sent - at - 1
            self._sent = at

    def follows_postponed(self) -> bool:
        """Whether a batch that came out of order did so because one before it was postponed. Asked once for each."""
        if self._echoes:
            self._echoes -= 1
            return True
        return False

    def resume(self, last_sequence: int) -> bool:
        """A new stream begins; the service holds everything up to `last_sequence`. False: it has lost batches it had
        answered, so the numbers no longer meet and a new incarnation must begin (`renumber`).
        """
        self.answered(0, last_sequence, refused=False)
        self._sent = self._echoes = 0
        first = self._flight[0].message.sequence if self._flight else self._sequence + 1
        return last_sequence == first - 1

    def renumber(self) -> None:
        """Starts at sequence 1 again, with what is in flight first."""
        for number, batch in enumerate(self._flight, start=1):
            batch.message.sequence = number
        self._sequence = len(self._flight)
        self._sent = 0

    def replace_pair(self, generation: int) -> int:
        """Forgets what was graded for weights that are no longer served; the rows forgotten."""
        with self._lock:
            forgotten = self._waiting
            self._queue.clear()
            self._waiting = 0
            self._generation = generation
        forgotten += self._chunks.clear() + sum(batch.rows for batch in self._flight)
        self._flight.clear()
        self._sequence = self._sent = 0
        self.stale_generation += forgotten
        return forgotten

    def _cut(self, now: float, flush: bool) -> _Batch | None:
        limit = self.limits.rows_a_batch(self._num_positions)
        if self._due(now, limit, flush):
            while self._chunks.rows < limit and self._convert():
                pass
            if not self._chunks:
                return None
        elif not self._chunks.mixed:
            # Rows that wait behind a change of version cannot join the ones before it: those go out now.
            return None
        version, taken = self._chunks.take(limit)
        exclusions = self._owed()
        self._sequence += 1
        message = encode_parts(self._sequence, version, taken, exclusions)
        return _Batch(message, sum(map(len, taken)), exclusions)

    def _due(self, now: float, limit: int, flush: bool) -> bool:
        """Whether a batch goes out now: it is full, or old enough."""
        if flush or self._waiting + self._chunks.rows >= limit:
            return True
        deadline = self.deadline()
        return deadline is not None and deadline <= now

    def _convert(self) -> bool:
        """Turns the oldest queued rows into columns; False: there are none."""
        with self._lock:
            if not self._queue:
                return False
            since, rows = self._queue.popleft()
            self._waiting -= len(rows)
        for version, columns in rows.by_version():
            if len(columns.accepted):
                self._chunks.append(since, version, columns)
        return True

    def _owed(self) -> dict[int, int]:
        """Exclusions not told yet, by reason; told from now on."""
        totals = self.exclusions
        owed = {reason: total - self._told.get(reason, 0) for reason, total in totals.items()}
        self._told |= totals
        return {reason: blocks for reason, blocks in owed.items() if blocks > 0}
