"""How records reach the store: when they are submitted, again after trouble, and how far they have come.

When a commit fails, the whole state is submitted again until it is committed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import TYPE_CHECKING, TypeVar

from estimator_service.storage.recovery import last_good_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.storage.records import Record
    from estimator_service.storage.store import Store
    from estimator_service.storage.writer import StoreWriter

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds from a failure to the first try to write again, and the most between two: each doubles, since a try collects
#: the whole state.
RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 30.0


class Delivery:
    """Lives on the event loop; `on_committed` and `on_trouble` are called by the writer's thread.

    `writer` is None before the first record and after the last: nothing is written then. `committed` is the latest
    ticket that is on disk, `trouble` what keeps the store from committing, None if nothing does. on_commit: called on
    the loop with the ticket of each commit.
    """

    def __init__(
        self, settings: Settings, clock: Clock, on_commit: Callable[[int], None], *, ticket: int, trouble: str | None
    ) -> None:
        self.writer: StoreWriter | None = None
        self.committed = ticket
        self.trouble = trouble
        self.commits = self.failures = 0
        self._settings = settings
        self._clock = clock
        self._on_commit = on_commit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress = asyncio.Event()
        self._retry = RETRY_SECONDS
        self._last_submit = self._last_backup = clock.monotonic()

    def attach(self, writer: StoreWriter) -> None:
        """Begins to write."""
        self.writer = writer
        self._loop = asyncio.get_running_loop()
        writer.start()

    @property
    def readable(self) -> StoreWriter | None:
        """Through whom the store can be read now; None if it cannot."""
        return self.writer if self.trouble is None else None

    async def settled(self, ticket: int) -> bool:
        """Waits until `ticket` is on disk; False if it cannot be now. Where nothing is written, nobody waits."""
        while self.writer is not None and self.committed < ticket:
            if self.trouble is not None:
                return False
            await self._progress.wait()
        return True

    async def reached(self, ticket: int) -> str | None:
        """Returns once `ticket` is on disk, or cannot be now: what the trouble is, None if there is none."""
        while self.committed < ticket and self.trouble is None:
            await self._progress.wait()
        return self.trouble

    def tick(self, ticket: int, due: Callable[[float], list[Record]], whole: Callable[[], list[Record]]) -> None:
        """Where it is time to, submits what there is up to `ticket`: `due(now)`, after a failure `whole()`.

        now: monotonic seconds. whole: all there is to say, for a store that knows nothing of this process.
        """
        if self.writer is None:
            return
        now = self._clock.monotonic()
        pause = self._retry if self.trouble is not None else self._settings.commit_seconds
        if now - self._last_submit < pause or self.writer.pending:
            return
        self._last_submit = now
        if self.trouble is not None:
            self._retry = min(2 * self._retry, _MAX_RETRY_SECONDS)
            self.writer.submit(whole(), ticket, whole=True)
            return
        if records := due(now):
            self.writer.submit(records, ticket)
        if now - self._last_backup >= self._settings.backup_seconds:
            self._last_backup = self._clock.monotonic()
            self._back_up(self.writer)

    async def close(self, ticket: int, whole: Callable[[], list[Record]]) -> None:
        """Writes `whole()`, as in `tick`, and the last good copy; returns when that is done."""
        if self.writer is None:
            return
        writer, self.writer = self.writer, None
        writer.submit(whole(), ticket, whole=True)
        self._back_up(writer)
        await asyncio.get_running_loop().run_in_executor(None, writer.stop)
        if self.trouble is not None:
            logger.error("store: what came after the latest commit is lost (%s)", self.trouble)

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
            self._retry = RETRY_SECONDS
        self._wake()
        self._on_commit(ticket)

    def _troubled(self, why: str) -> None:
        self.failures += 1
        if self.trouble is None:
            logger.error("store: cannot commit (%s); serving goes on, and what is learned is kept in memory", why)
        self.trouble = why
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _back_up(self, writer: StoreWriter) -> None:
        if self._settings.store is not None:
            writer.call(_backup(last_good_path(self._settings.store)))


def _backup(target: Path) -> Callable[[Store], None]:
    def back_up(store: Store) -> None:
        try:
            store.backup(target)
        except (sqlite3.Error, OSError) as error:
            logger.error("store: no copy at %s (%s)", target, error)

    return back_up
