"""What earlier processes left, taken up at start."""

from __future__ import annotations

import json
import logging
import sqlite3
from typing import TYPE_CHECKING

from acceptd.codec import decode_batch, decode_pair_key, decode_version
from acceptd.errors import AcceptdError
from acceptd.types import Version
from acceptd.v1 import estimator_pb2, types_pb2
from estimator_service.pair import Pair
from estimator_service.publication import Publication
from estimator_service.publications import MAX_RECENT
from estimator_service.storage.records import EpochRecord

if TYPE_CHECKING:
    from estimator_service.fleet import Fleet
    from estimator_service.storage.records import JournalRecord
    from estimator_service.storage.store import Store

logger = logging.getLogger(__name__)


def begin_epoch(store: Store) -> tuple[int, str | None]:
    """(this process' epoch, why it could not be written or None). Nothing has been handed out with it before."""
    epoch = store.epoch() + 1
    try:
        store.commit([EpochRecord(epoch)])
    except sqlite3.Error as error:
        return epoch, str(error)
    return epoch, None


def restore(fleet: Fleet, store: Store) -> None:
    """Fills an empty fleet from the store: pairs as of their latest event, and high-water marks."""
    for mark in store.marks():
        worker = fleet.roster.get(mark.worker, mark.incarnation, mark.pair)
        worker.last_sequence, worker.ticket, worker.restored = mark.sequence, mark.touched, True
    for record in store.pairs():
        try:
            key = decode_pair_key(types_pb2.PairKey.FromString(record.key))
        except AcceptdError as error:
            logger.error("pair %s is left alone: %s", record.id, error)
            continue
        pair = Pair(key, fleet.settings, fleet.clock, fleet.epoch, record.first_seen)
        _restore_pair(fleet, pair, store)
        fleet.ledger.restored(pair)
        fleet.add(pair)


def _restore_pair(fleet: Fleet, pair: Pair, store: Store) -> None:
    now = fleet.clock.monotonic()
    publications = []
    for item in reversed(store.history(pair.id, MAX_RECENT)):
        try:
            publications.append(Publication.from_json(json.loads(item.body), published=now))
        except (KeyError, TypeError, ValueError) as error:
            logger.error("version %d.%d of %s cannot be read: %r", item.epoch, item.counter, pair.id, error)
    pair.publications.restore(publications)
    snapshot = store.snapshot(pair.id)
    if snapshot is not None:
        try:
            pair.restore(json.loads(snapshot.header), bytes(snapshot.window))
        except (KeyError, TypeError, ValueError) as error:
            logger.error("window of %s cannot be read and starts anew: %r", pair.id, error)
    events = 0
    for event in store.journal(pair.id, snapshot.ticket if snapshot else 0):
        try:
            _replay(fleet, pair, event)
        except (AcceptdError, KeyError, TypeError, ValueError) as error:
            logger.error("event %d of %s cannot be replayed: %r", event.ticket, pair.id, error)
        events += 1
    logger.info(
        "pair %s continues at version %s, %d events after its snapshot", pair.id, pair.publication.version, events
    )


def _replay(fleet: Fleet, pair: Pair, event: JournalRecord) -> None:
    if event.kind == "round":
        value = json.loads(event.payload)
        pair.replay_round(value["elapsed"], Version(*value["in_force"]), value["held"])
        return
    worker = fleet.roster.get(event.worker, event.incarnation, pair.id)
    worker.last_sequence, worker.ticket = max(worker.last_sequence, event.sequence), event.ticket
    worker.restored = True
    if event.kind == "batch":
        batch = estimator_pb2.ObservationBatch.FromString(event.payload)
        version = decode_version(batch.version) if batch.HasField("version") else None
        rows = decode_batch(batch, pair.num_positions)
        pair.apply(rows, batch.exclusions, version, event.workload, event.worker)
    else:
        value = json.loads(event.payload)
        pair.reject(value["reason"], value["rows"])
