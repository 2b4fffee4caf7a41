"""The store's life around the event loop: opened before anything is served, handed to its thread, closed last."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Self

from estimator_service.storage.ledger import Ledger
from estimator_service.storage.lock import StoreLock
from estimator_service.storage.recovery import open_store, read_store
from estimator_service.storage.restore import begin_epoch, restore
from estimator_service.storage.store import Store
from estimator_service.storage.writer import StoreWriter

if TYPE_CHECKING:
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.fleet import Fleet

logger = logging.getLogger(__name__)


class Persistence:
    """Store, writer thread and ledger of one process.

    Raises ConfigError if the store is another process' or its directory cannot be used. A store that can be read but
    not written is no reason not to serve: the ledger reports the trouble and keeps trying.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = StoreLock(settings.store) if settings.store is not None else None
        self._store: Store | None = None
        trouble: str | None = None
        try:
            self._store = self._open()
        except (sqlite3.Error, OSError) as error:
            trouble = str(error)
            if settings.store is not None:
                self._store = read_store(settings.store, history_versions=settings.history_versions)
        epoch, ticket = 1, 0
        if self._store is not None:
            epoch, failure = begin_epoch(self._store)
            trouble = trouble or failure
            ticket = self._store.last_ticket()
        if trouble is not None:
            logger.error("store %s cannot be written (%s); serving all the same", settings.store, trouble)
        self.ledger = Ledger(settings, clock, epoch=epoch, ticket=ticket, trouble=trouble)

    def attach(self, fleet: Fleet) -> Self:
        """Restores the fleet and begins to write what happens to it. On the event loop."""
        if self._store is not None:
            restore(fleet, self._store)
        writable = self._store if self.ledger.delivery.trouble is None else None
        if writable is None and self._store is not None:
            self._store.close()
        writer = StoreWriter(writable, self._open, self.ledger.delivery)
        self.ledger.attach(writer, fleet.roster, fleet.committed)
        return self

    async def close(self) -> None:
        """Writes what is left and lets the store go."""
        await self.ledger.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self) -> Store:
        return open_store(
            self._settings.store or ":memory:",
            history_versions=self._settings.history_versions,
            fsync=self._settings.fsync,
            now=self._clock.wall(),
        )
