"""What must outlive the process: events, what they published, and what operators did.

Every applied batch, every batch refused for good and every closed round of a pair is an event with a ticket. Events go
to the journal; a snapshot of the pair replaces those before it. Replaying the journal on the latest snapshot gives the
pair's state again, with high-water marks and exact counters.

* strict: an event is submitted when it happens, and the answer to its batch waits for the commit.
* relaxed: events are submitted together every `commit_seconds`. Where a pair's events have become much larger than a
  snapshot, one is written in their place, which bounds both memory and writing.

When a commit fails, serving goes on; strict mode postpones batches meanwhile.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING

from estimator_service.storage.account import Account, history_record, pair_record
from estimator_service.storage.delivery import Delivery
from estimator_service.storage.records import (
    AuditRecord,
    EpochRecord,
    ForgetRecord,
    JournalRecord,
    Record,
)
from estimator_service.worker import Roster

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from acceptd.v1 import estimator_pb2
    from estimator_service.act import Act
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.pair import Decision, Pair
    from estimator_service.publication import Publication
    from estimator_service.storage.writer import StoreWriter
    from estimator_service.worker import Worker

logger = logging.getLogger(__name__)

#: Entries of the audit that memory holds while the store cannot commit; the oldest go first.
_MAX_AUDITS = 1000
#: Snapshots made at one tick for their age alone. Each takes a millisecond of the event loop, or more; raising it lets
#: many pairs hold it up at once.
_SNAPSHOTS_A_TICK = 16


class Ledger:
    """Lives on the event loop. `ticket` is the latest event's; `delivery` brings records to the store."""

    def __init__(self, settings: Settings, clock: Clock, *, epoch: int, ticket: int, trouble: str | None) -> None:
        self.epoch = epoch
        self.ticket = ticket
        self._settings = settings
        self._clock = clock
        self._strict = settings.durability == "strict"
        self._accounts: dict[str, Account] = {}
        self._audits: deque[AuditRecord] = deque(maxlen=_MAX_AUDITS)
        self._roster = Roster()
        self._on_commit: Callable[[], None] | None = None
        self.delivery = Delivery(settings, clock, self._committed, ticket=ticket, trouble=trouble)

    def attach(self, writer: StoreWriter, roster: Roster, committed: Callable[[], None]) -> None:
        """Begins to write. `committed` is called on the loop after each commit that answers may wait for."""
        self._roster = roster
        self._on_commit = committed if self._strict else None
        self.delivery.attach(writer)

    @property
    def postpone(self) -> str | None:
        """Why no batch may be applied now: strict mode, and the store cannot commit."""
        return self.delivery.trouble if self._strict else None

    @property
    def audits(self) -> Collection[AuditRecord]:
        """What operators did that is not known to be committed, oldest first."""
        return self._audits

    @property
    def awaited(self) -> int:
        """The ticket that an answer about what happened before waits for, 0 for none."""
        return self.ticket if self._strict else 0

    async def settled(self, ticket: int) -> bool:
        """Whether what an answer presumes is on disk: waits for the commit, False if none is possible now."""
        return not self._strict or await self.delivery.settled(ticket)

    # Events

    def pair(self, pair: Pair) -> None:
        """Notes a pair; one that is new is written."""
        account = self._accounts[pair.id] = Account(pair, self._clock.monotonic())
        self._note(account, pair_record(pair))

    def restored(self, pair: Pair) -> None:
        """Notes a pair that came from the store."""
        self._accounts[pair.id] = Account(pair, self._clock.monotonic())

    def forget(self, pair: Pair) -> None:
        """Notes that a pair is forgotten."""
        del self._accounts[pair.id]
        if (writer := self.delivery.writer) is not None:
            writer.submit([ForgetRecord(pair.id)], self.delivery.committed)

    def batch(self, pair: Pair, worker: Worker, workload: str, batch: estimator_pb2.ObservationBatch) -> int:
        """Notes an applied batch; returns the ticket that its answer waits for, 0 for none."""
        account = self._touch(pair, worker)
        size = batch.ByteSize()
        if self._folds(account, size):
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
        if self._folds(account, len(payload)):
            return 0
        return self._event(
            account,
            JournalRecord(self.ticket, pair.id, "reject", payload, worker.name, worker.incarnation, sequence),
        )

    def round(self, pair: Pair, decision: Decision) -> None:
        """Notes a closed round and what it published."""
        self.ticket += 1
        account = self._accounts[pair.id]
        payload = json.dumps(
            {
                "elapsed": decision.elapsed,
                "held": decision.held,
                "in_force": [decision.in_force.epoch, decision.in_force.counter],
            }
        ).encode()
        if not self._folds(account, len(payload)):
            self._event(account, JournalRecord(self.ticket, pair.id, "round", payload))
        if decision.publication is not None:
            self.published(pair, decision.publication)

    def published(self, pair: Pair, publication: Publication) -> None:
        """Notes a publication."""
        self._note(self._accounts[pair.id], history_record(pair, publication))

    async def raise_epoch(self, epoch: int) -> None:
        """Returns once `epoch` is on disk, or cannot be now."""
        self.epoch = max(self.epoch, epoch)
        writer = self.delivery.writer
        if writer is None or self.delivery.trouble is not None:
            return
        self.ticket += 1
        writer.submit([EpochRecord(self.epoch)], self.ticket)
        await self.delivery.reached(self.ticket)

    async def acted(self, pair: Pair, act: Act, publication: Publication | None) -> str:
        """Writes an operator's action and its effect in one transaction. Returns what keeps it from that, or "".

        publication: what the action published. The pair's state is as the action left it.
        """
        self.ticket += 1
        account = self._accounts[pair.id]
        if publication is not None:
            account.note(history_record(pair, publication))
        wall = self._clock.wall()
        entry = AuditRecord(
            self.ticket, wall, act.who, act.peer, act.action, pair.id, json.dumps(act.before), json.dumps(act.after)
        )
        if len(self._audits) == _MAX_AUDITS:
            logger.error("store: the audit's entry %s is lost, since nothing can be committed", self._audits[0])
        self._audits.append(entry)
        if (writer := self.delivery.writer) is None:
            return "the service is stopping"
        if self.delivery.trouble is None:
            records = [*account.others, *account.snapshot(self.ticket, self._clock.monotonic(), wall), entry]
            account.others = []
            writer.submit(records, self.ticket)
        return await self.delivery.reached(self.ticket) or ""

    # Writing

    def tick(self) -> None:
        """Submits what is due. Called several times a second."""
        self.delivery.tick(self.ticket, self._due, self._whole)

    async def close(self) -> None:
        """Writes the last snapshots and the last good copy."""
        await self.delivery.close(self.ticket, self._whole)

    def _committed(self, ticket: int) -> None:
        while self._audits and self._audits[0].ticket <= ticket:
            self._audits.popleft()
        if self._on_commit is not None:
            self._on_commit()

    def _touch(self, pair: Pair, worker: Worker) -> Account:
        self.ticket += 1
        account = self._accounts[pair.id]
        account.workers[worker.key] = worker
        worker.ticket = self.ticket
        return account

    def _folds(self, account: Account, size: int) -> bool:
        """Whether the pair's next event, of `size` bytes, is left to the snapshot."""
        return account.grow(size, may_fold=not self._strict and self.delivery.writer is not None)

    def _event(self, account: Account, record: JournalRecord) -> int:
        if self._strict and (writer := self.delivery.writer) is not None:
            writer.submit([record], record.ticket)
            return record.ticket
        account.events.append(record)
        return 0

    def _note(self, account: Account, record: Record) -> None:
        if self._strict and (writer := self.delivery.writer) is not None:
            writer.submit([record], self.ticket)
        else:
            account.note(record)

    def _due(self, now: float) -> list[Record]:
        """What was not submitted yet: events, or a snapshot where one takes their place or is due by time."""
        records: list[Record] = []
        interval = self._settings.snapshot_seconds
        due = [account for account in self._accounts.values() if account.snapshot_due(now, interval)]
        due = sorted(due, key=lambda account: account.last_snapshot)[:_SNAPSHOTS_A_TICK]
        for account in self._accounts.values():
            records += account.others
            account.others = []
            if account.folded or account in due:
                records += account.snapshot(self.ticket, now, self._clock.wall())
            else:
                records += account.events
                account.events = []
        return records

    def _whole(self) -> list[Record]:
        """All there is to say: what a store needs that knows nothing of this process."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        records: list[Record] = [EpochRecord(self.epoch), *(worker.mark() for worker in self._roster)]
        for account in self._accounts.values():
            records += account.whole(self.ticket, now, wall)
        return [*records, *self._audits]
