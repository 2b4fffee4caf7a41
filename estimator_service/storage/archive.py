"""What was published and done: from the store, and from what memory has that is not in it yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING

from acceptd.types import Version
from estimator_service.publication import Publication

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from estimator_service.clock import Clock
    from estimator_service.pair import Pair
    from estimator_service.storage.ledger import Ledger
    from estimator_service.storage.records import AuditRecord, HistoryRecord


class Archive:
    """Lives on the event loop; reads and parses in the writer's thread, so that the loop answers workers meanwhile.

    While the store cannot be read, what memory has is all there is.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def history(self, pair: Pair, limit: int, before: Version | None = None) -> list[Publication]:
        """Publications of a pair, newest first, at most `limit`, that sort before `before` (None: from the newest on).

        What was published since the latest commit is in memory only.
        """
        found = {item.version: item for item in pair.publications.recent() if before is None or item.version < before}
        if len(found) < limit and (writer := self._ledger.delivery.readable) is not None:
            with contextlib.suppress(sqlite3.Error, OverflowError):
                found |= await asyncio.wrap_future(
                    writer.call(lambda store: self._parsed(store.history(pair.id, limit, before), found))
                )
        return [found[version] for version in sorted(found, reverse=True)][:limit]

    async def course(self, pair: Pair, points: int) -> list[Publication]:
        """All of a pair's history thinned to at most `points` publications, oldest first, the newest among them."""
        found = {item.version: item for item in pair.publications.recent()}
        if (writer := self._ledger.delivery.readable) is not None:
            with contextlib.suppress(sqlite3.Error):
                stored = await asyncio.wrap_future(
                    writer.call(lambda store: [self._publication(item) for item in store.course(pair.id, points)])
                )
                last = max((item.version for item in stored), default=None)
                newer = [item for item in found.values() if last is None or item.version > last]
                found = {item.version: item for item in (*stored, *newer)}
        newest_first = sorted(found, reverse=True)
        return [found[version] for version in reversed(newest_first[:: max(1, -(-len(newest_first) // points))])]

    async def version(self, pair: Pair, version: Version) -> Publication | None:
        """One publication of a pair, None if it is no longer kept."""
        for publication in pair.publications.recent():
            if publication.version == version:
                return publication
        if (writer := self._ledger.delivery.readable) is None:
            return None
        try:
            record = await asyncio.wrap_future(
                writer.call(lambda store: store.version(pair.id, version.epoch, version.counter))
            )
        except (sqlite3.Error, OverflowError):
            return None
        return self._publication(record) if record is not None else None

    async def audit(self, pair: str, limit: int) -> list[AuditRecord]:
        """What operators did to the pair with this id ("": to any), newest first, at most `limit`."""
        found = {record.ticket: record for record in self._ledger.audits if pair in {"", record.pair}}
        if (writer := self._ledger.delivery.readable) is not None:
            with contextlib.suppress(sqlite3.Error):
                records = await asyncio.wrap_future(writer.call(lambda store: store.audit(pair, limit)))
                found |= {record.ticket: record for record in records}
        return [found[ticket] for ticket in sorted(found, reverse=True)][:limit]

    def _parsed(self, records: Iterable[HistoryRecord], known: Container[Version]) -> dict[Version, Publication]:
        """Records as publications, without those that are known."""
        versions = ((Version(record.epoch, record.counter), record) for record in records)
        return {version: self._publication(record) for version, record in versions if version not in known}

    def _publication(self, record: HistoryRecord) -> Publication:
        return Publication.from_json(json.loads(record.body), published=self._clock.monotonic())
