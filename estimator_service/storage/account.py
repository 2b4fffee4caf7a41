"""What is to be written for one pair, and in which form: its events, or a snapshot in their place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from acceptd.codec import encode_pair_key
from estimator_service.fit.snapshot import Size
from estimator_service.publications import MAX_RECENT
from estimator_service.storage.records import HistoryRecord, JournalRecord, PairRecord, Record, SnapshotRecord

if TYPE_CHECKING:
    from estimator_service.pair import Pair
    from estimator_service.publication import Publication
    from estimator_service.worker import Worker

#: A snapshot counts as at least this large: even a small one takes a few milliseconds to make.
_LEAST_SNAPSHOT_BYTES: Final = 128 * 1024
#: Events may be this many times the size of a snapshot before one takes their place, where it may. Making one costs
#: about as much time as learning from as many bytes; raising it writes more.
_EVENTS_A_SNAPSHOT: Final = 4
#: Bytes of a pair's journal after which a snapshot is made before its time. A restart replays at most this much a pair
#: (about a second).
_MAX_JOURNAL_BYTES: Final = 32 * 1024 * 1024


@dataclass(eq=False)
class Account:
    """Of one pair. last_snapshot: monotonic seconds.

    events: not yet submitted. others: what a snapshot does not hold (the pair itself, its history). bytes: of events
    since the latest snapshot. workers: whose marks changed since then. folded: events were left out of
    `events`, so that only a snapshot holds what they did.
    """

    pair: Pair
    last_snapshot: float
    events: list[JournalRecord] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)
    bytes: int = 0
    workers: dict[tuple[str, int], Worker] = field(default_factory=dict)
    _window: Size = field(default_factory=Size)
    folded: bool = False

    def grow(self, size: int, *, may_fold: bool) -> bool:
        """An event of `size` bytes happens. Whether it is left to the next snapshot, which is far smaller than all."""
        self.bytes += size
        if may_fold and self.bytes > _EVENTS_A_SNAPSHOT * max(self._window.bytes, _LEAST_SNAPSHOT_BYTES):
            self.folded = True
            self.events = []
        return self.folded

    def note(self, record: Record) -> None:
        """Keeps a record for the next submission; the oldest goes where none is taken for long."""
        self.others = [*self.others, record][-MAX_RECENT:]

    def snapshot_due(self, now: float, interval: float) -> bool:
        """Whether to make a snapshot at `now`; without events since the latest there is nothing to hold."""
        return self.bytes > 0 and (now - self.last_snapshot >= interval or self.bytes > _MAX_JOURNAL_BYTES)

    def snapshot(self, ticket: int, now: float, wall: float, *, packed: bool = False) -> list[Record]:
        """The pair's state after the event `ticket`, with the marks that belong to it.

        packed: compressed here, not by whoever writes it: of all pairs at once it would be much.
        """
        header, window = self.pair.snapshot()
        if packed:
            bytes(window)
        records: list[Record] = [worker.mark() for worker in self.workers.values()]
        records.append(SnapshotRecord(self.pair.id, ticket, wall, json.dumps(header), window))
        self.last_snapshot = now
        self.events, self.bytes, self.workers = [], 0, {}
        self._window, self.folded = window.size, False
        return records

    def whole(self, ticket: int, now: float, wall: float) -> list[Record]:
        """Everything that a store needs which knows nothing of the pair."""
        self.others = []
        return [
            pair_record(self.pair),
            *(history_record(self.pair, publication) for publication in self.pair.publications.recent()),
            *self.snapshot(ticket, now, wall, packed=True),
        ]


def pair_record(pair: Pair) -> PairRecord:
    """The pair as a row."""
    return PairRecord(pair.id, encode_pair_key(pair.key).SerializeToString(deterministic=True), pair.first_seen)


def history_record(pair: Pair, publication: Publication) -> HistoryRecord:
    """A publication as a row."""
    version = publication.version
    body = json.dumps(publication.to_json())
    return HistoryRecord(pair.id, version.epoch, version.counter, publication.wall, publication.cause, body)
