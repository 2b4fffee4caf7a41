"""What must outlive the process, and when it is committed.

Every applied batch, every batch refused for good and every closed round of a pair is an event with a ticket. Events go
to the journal; a snapshot of the pair replaces those before it. Replaying the journal on the latest snapshot gives the
pair's state again, with high-water marks and exact counters.

* strict: an event is submitted when it happens, and the answer to its batch waits for the commit.
* relaxed: events are submitted together every `commit_seconds`. Where a pair's events have become much larger than a
  snapshot, one is written in their place, which bounds both memory and writing.

When a commit fails, serving goes on. The whole state is submitted again until it is committed; strict mode postpones
batches meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from acceptd.codec import encode_pair_key
from estimator_service.pair import MAX_RECENT
from estimator_service.publication import Publication
from estimator_service.records import (
    EpochRecord,
    ForgetRecord,
    HistoryRecord,
    JournalRecord,
    MarkRecord,
    PairRecord,
    Record,
    SnapshotRecord,
)
from estimator_service.store_recovery import last_good_path
from estimator_service.worker import Roster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from acceptd.v1 import estimator_pb2
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.pair import Decision, Pair
    from estimator_service.store import Store
    from estimator_service.store_writer import StoreWriter
    from estimator_service.worker import Worker

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Size of a pair's snapshots, until one was made.
_FIRST_SNAPSHOT_BYTES = 128 * 1024
#: Relaxed mode: events may be this many times the size of a snapshot before one takes their place. Making one costs
#: about as much time as learning from as many bytes; raising it writes more.
_EVENTS_A_SNAPSHOT = 4
#: Strict mode: bytes of a pair's journal after which it is folded into a snapshot before its time. A restart replays
#: at most this much a pair (about a second).
_MAX_JOURNAL_BYTES = 32 * 1024 * 1024
#: Seconds between tries to write again after a failure.
RETRY_SECONDS = 1.0


@dataclass
class _Account:
    """What is to be written for one pair."""

    pair: Pair
    last_snapshot: float
    events: list[JournalRecord] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)
    #: Bytes of events since the latest snapshot.
    bytes: int = 0
    snapshot_bytes: int = _FIRST_SNAPSHOT_BYTES
    #: Events were left out of `events`: only a snapshot holds what they did.
    folded: bool = False
    dirty: bool = False
    workers: dict[tuple[str, int], Worker] = field(default_factory=dict)


class Ledger:
    """Lives on the event loop; `on_committed` and `on_trouble` are called by the writer's thread.

    `ticket` is the latest event's, `committed` the latest that is on disk, `trouble` what keeps the store from
    committing, None if nothing does.
    """

    def __init__(self, settings: Settings, clock: Clock, *, epoch: int, ticket: int, trouble: str | None) -> None:
        self.epoch = epoch
        self.ticket = self.committed = ticket
        self.trouble = trouble
        self.commits = self.failures = 0
        self._settings = settings
        self._clock = clock
        self._strict = settings.durability == "strict"
        self._accounts: dict[str, _Account] = {}
        self._writer: StoreWriter | None = None
        self._roster = Roster()
        self._on_commit: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress = asyncio.Event()
        self._last_submit = self._last_backup = clock.monotonic()

    def attach(self, writer: StoreWriter, roster: Roster, committed: Callable[[], None]) -> None:
        """Begins to write. `committed` is called on the loop after each commit that answers may wait for."""
        self._writer = writer
        self._roster = roster
        self._on_commit = committed if self._strict else None
        self._loop = asyncio.get_running_loop()
        writer.start()

    @property
    def postpone(self) -> str | None:
        """Why no batch may be applied now: strict mode, and the store cannot commit."""
        return self.trouble if self._strict else None

    @property
    def awaited(self) -> int:
        """The ticket that an answer about what happened before waits for, 0 for none."""
        return self.ticket if self._strict else 0

    async def settled(self, ticket: int) -> bool:
        """Whether what an answer presumes is on disk: waits for the commit, False if none is possible now."""
        while self._strict and self._writer is not None and self.committed < ticket:
            if self.trouble is not None:
                return False
            await self._progress.wait()
        return True

    # Events

    def pair(self, pair: Pair) -> None:
        """Notes a pair; one that is new is written."""
        account = self._accounts[pair.id] = _Account(pair, self._clock.monotonic())
        self._note(account, [_pair_record(pair)])

    def restored(self, pair: Pair) -> None:
        """Notes a pair that came from the store."""
        self._accounts[pair.id] = _Account(pair, self._clock.monotonic())

    def forget(self, pair: Pair) -> None:
        """Notes that a pair is forgotten."""
        del self._accounts[pair.id]
        if self._writer is not None:
            self._writer.submit([ForgetRecord(pair.id)], self.committed)

    def batch(self, pair: Pair, worker: Worker, workload: str, batch: estimator_pb2.ObservationBatch) -> int:
        """Notes an applied batch; returns the ticket that its answer waits for, 0 for none."""
        account = self._touch(pair, worker)
        size = batch.ByteSize()
        if self._fold(account, size):
            return 0
        return self._event(
            account,
            JournalRecord(
                self.ticket,
                pair.id,
                "batch",
                batch.SerializeToString(),
                worker.name,
                worker.incarnation,
                batch.sequence,
                workload,
            ),
        )

    def reject(self, pair: Pair, worker: Worker, sequence: int, reason: int, rows: int) -> int:
        """Notes a batch refused for good; returns the ticket that its answer waits for, 0 for none."""
        account = self._touch(pair, worker)
        payload = json.dumps({"reason": reason, "rows": rows}).encode()
        if self._fold(account, len(payload)):
            return 0
        return self._event(
            account,
            JournalRecord(self.ticket, pair.id, "reject", payload, worker.name, worker.incarnation, sequence),
        )

    def round(self, pair: Pair, decision: Decision) -> None:
        """Notes a closed round and what it published."""
        self.ticket += 1
        account = self._accounts[pair.id]
        account.dirty = True
        payload = json.dumps(
            {
                "elapsed": decision.elapsed,
                "held": decision.held,
                "in_force": [decision.in_force.epoch, decision.in_force.counter],
            }
        ).encode()
        if not self._fold(account, len(payload)):
            self._event(account, JournalRecord(self.ticket, pair.id, "round", payload))
        if decision.publication is not None:
            self.published(pair, decision.publication)

    def published(self, pair: Pair, publication: Publication) -> None:
        """Notes a publication."""
        self._note(self._accounts[pair.id], [_history_record(pair, publication)])

    async def raise_epoch(self, epoch: int) -> None:
        """Returns once `epoch` is on disk, or cannot be now."""
        self.epoch = max(self.epoch, epoch)
        if self._writer is None or self.trouble is not None:
            return
        self.ticket += 1
        self._writer.submit([EpochRecord(self.epoch)], self.ticket)
        mine = self.ticket
        while self.committed < mine and self.trouble is None:
            await self._progress.wait()

    async def history(self, pair: Pair, limit: int) -> list[Publication]:
        """Publications of a pair, newest first, at most `limit`: from the store, or what memory has of them."""
        recent = pair.recent()[:limit]
        if len(recent) == limit or self._writer is None or self.trouble is not None:
            return recent
        try:
            records = await asyncio.wrap_future(self._writer.call(lambda store: store.history(pair.id, limit)))
        except sqlite3.Error:
            return recent
        # What was published since the latest commit is in memory only.
        found = {item.version: item for item in recent}
        for record in records:
            publication = Publication.from_json(json.loads(record.body), published=self._clock.monotonic())
            found.setdefault(publication.version, publication)
        return [found[version] for version in sorted(found, reverse=True)][:limit]

    # Writing

    def tick(self) -> None:
        """Submits what is due. Called several times a second."""
        if self._writer is None:
            return
        now = self._clock.monotonic()
        pause = RETRY_SECONDS if self.trouble is not None else self._settings.commit_seconds
        if now - self._last_submit < pause or self._writer.pending:
            return
        self._last_submit = now
        if self.trouble is not None:
            self._writer.submit(self._whole(), self.ticket, whole=True)
            return
        records: list[Record] = []
        for account in self._accounts.values():
            records += account.others
            account.others = []
            if account.folded or self._snapshot_due(account, now):
                records += self._snapshot(account)
            else:
                records += account.events
                account.events = []
        if records:
            self._writer.submit(records, self.ticket)
        if now - self._last_backup >= self._settings.backup_seconds:
            self._back_up()

    async def close(self) -> None:
        """Writes the last snapshots and the last good copy."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.submit(self._whole(), self.ticket, whole=True)
        if self._settings.store is not None:
            writer.call(_backup(last_good_path(self._settings.store)))
        await asyncio.get_running_loop().run_in_executor(None, writer.stop)

    def on_committed(self, ticket: int) -> None:
        """From the writer's thread."""
        self._call(self._committed, ticket)

    def on_trouble(self, why: str) -> None:
        """From the writer's thread."""
        self._call(self._troubled, why)

    def _call(self, function: Callable[[T], None], argument: T) -> None:
        # A loop that is closed belongs to a service that has stopped: nobody waits any more.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, argument)

    def _committed(self, ticket: int) -> None:
        self.commits += 1
        self.committed = max(self.committed, ticket)
        if self.trouble is not None:
            logger.warning("store: commits again")
            self.trouble = None
        self._progress.set()
        self._progress = asyncio.Event()
        if self._on_commit is not None:
            self._on_commit()

    def _troubled(self, why: str) -> None:
        self.failures += 1
        if self.trouble is None:
            logger.error("store: cannot commit (%s); serving goes on, and what is learned is kept in memory", why)
        self.trouble = why
        self._progress.set()
        self._progress = asyncio.Event()

    def _touch(self, pair: Pair, worker: Worker) -> _Account:
        self.ticket += 1
        account = self._accounts[pair.id]
        account.dirty = True
        account.workers[worker.key] = worker
        worker.ticket = self.ticket
        return account

    def _fold(self, account: _Account, size: int) -> bool:
        """Whether the pair's next event is left to the snapshot, which has become smaller than its events."""
        account.bytes += size
        if self._strict or self._writer is None:
            return False
        if account.bytes > _EVENTS_A_SNAPSHOT * account.snapshot_bytes:
            account.folded = True
            account.events = []
        return account.folded

    def _event(self, account: _Account, record: JournalRecord) -> int:
        if self._strict and self._writer is not None:
            self._writer.submit([record], record.ticket)
            return record.ticket
        account.events.append(record)
        return 0

    def _note(self, account: _Account, records: list[Record]) -> None:
        if self._strict and self._writer is not None:
            self._writer.submit(records, self.ticket)
        else:
            account.others = [*account.others, *records][-MAX_RECENT:]

    def _snapshot_due(self, account: _Account, now: float) -> bool:
        if not account.dirty:
            return False
        due = now - account.last_snapshot >= self._settings.snapshot_seconds
        return due or (self._strict and account.bytes > _MAX_JOURNAL_BYTES)

    def _snapshot(self, account: _Account) -> list[Record]:
        """The pair's state now, with the marks that belong to it."""
        header, window = account.pair.state()
        marks = [self._mark(worker) for worker in account.workers.values()]
        account.last_snapshot = self._clock.monotonic()
        account.snapshot_bytes = max(len(window), 4096)
        account.events, account.bytes, account.folded, account.dirty, account.workers = [], 0, False, False, {}
        text = json.dumps(header)
        return [*marks, SnapshotRecord(account.pair.id, self.ticket, self._clock.wall(), text, window)]

    def _whole(self) -> list[Record]:
        """All there is to say: what a store that knows nothing of this process needs."""
        records: list[Record] = [EpochRecord(self.epoch), *(self._mark(worker) for worker in self._roster)]
        for account in self._accounts.values():
            pair = account.pair
            account.others = []
            records.append(_pair_record(pair))
            records += [_history_record(pair, publication) for publication in pair.recent()]
            records += self._snapshot(account)
        return records

    def _mark(self, worker: Worker) -> MarkRecord:
        return MarkRecord(worker.name, worker.incarnation, worker.pair, worker.last_sequence, self.ticket)

    def _back_up(self) -> None:
        self._last_backup = self._clock.monotonic()
        if self._writer is not None and self._settings.store is not None:
            self._writer.call(_backup(last_good_path(self._settings.store)))


def _pair_record(pair: Pair) -> PairRecord:
    return PairRecord(pair.id, encode_pair_key(pair.key).SerializeToString(deterministic=True), pair.first_seen)


def _history_record(pair: Pair, publication: Publication) -> HistoryRecord:
    version = publication.version
    body = json.dumps(publication.to_json())
    return HistoryRecord(pair.id, version.epoch, version.counter, publication.wall, publication.cause, body)


def _backup(target: Path) -> Callable[[Store], None]:
    def back_up(store: Store) -> None:
        try:
            store.backup(target)
        except (sqlite3.Error, OSError) as error:
            logger.error("store: no copy at %s (%s)", target, error)

    return back_up
