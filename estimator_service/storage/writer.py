"""The thread that owns the store while the service runs: SQLite never makes the event loop wait."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from estimator_service.storage.records import Record
from estimator_service.storage.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Listener(Protocol):
    """Told from the writer's thread; passes it on to its own."""

    def on_committed(self, ticket: int) -> None:
        """Everything up to `ticket` is committed."""

    def on_trouble(self, why: str) -> None:
        """A commit failed. Until a whole state is submitted and committed, nothing is written."""


@dataclass(frozen=True)
class _Submission:
    records: Sequence[Record]
    ticket: int
    whole: bool


class StoreWriter:
    """Commits what is submitted, in order, everything that waits in one transaction.

    After a failure what was submitted is dropped, and so is everything after it, until a submission that is `whole`
    (it says all there is to say) has been committed; for it the file is opened anew. `pending` bounds what the caller
    lets wait.
    """

    def __init__(self, store: Store | None, reopen: Callable[[], Store], listener: Listener) -> None:
        self._store = store
        self._reopen = reopen
        self._listener = listener
        self._queue: deque[_Submission | Callable[[], None]] = deque()
        self._condition = threading.Condition()
        self._stopping = False
        self._broken = store is None
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="acceptd-store", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def pending(self) -> int:
        """Submissions not yet committed or dropped."""
        with self._condition:
            return len(self._queue) + self._busy

    def submit(self, records: Sequence[Record], ticket: int, *, whole: bool = False) -> None:
        """Has `records` committed; `Listener.on_committed(ticket)` or `on_trouble` follows."""
        self._put(_Submission(records, ticket, whole))

    def call(self, function: Callable[[Store], T]) -> Future[T]:
        """Has `function` run on the thread; fails with sqlite3.Error, also while the store is broken."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._store is None or self._broken:
                    raise sqlite3.OperationalError("the store is not available")
                future.set_result(function(self._store))
            except Exception as error:  # handed to the caller, whatever it is
                future.set_exception(error)

        self._put(run)
        return future

    def stop(self) -> None:
        """Finishes what is queued and closes the store. Blocks."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _put(self, item: _Submission | Callable[[], None]) -> None:
        with self._condition:
            self._queue.append(item)
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._busy = False
                while not self._queue and not self._stopping:
                    self._condition.wait()
                if not self._queue:
                    break
                items, self._queue = self._queue, deque()
                self._busy = True
            submissions: list[_Submission] = []
            for item in items:
                if isinstance(item, _Submission):
                    submissions.append(item)
                else:
                    self._commit(submissions)
                    submissions = []
                    item()
            self._commit(submissions)
        if self._store is not None:
            self._store.close()

    def _commit(self, submissions: list[_Submission]) -> None:
        if self._broken:
            whole = next((i for i, submission in enumerate(submissions) if submission.whole), None)
            submissions = [] if whole is None else submissions[whole:]
        if not submissions:
            return
        try:
            if self._broken:
                self._open_again()
            assert self._store is not None  # noqa: S101
            self._store.commit([record for submission in submissions for record in submission.records])
        except Exception as error:  # whatever it is: a thread that ends would commit nothing more, and tell nobody
            self._broken = True
            self._listener.on_trouble(str(error) or type(error).__name__)
        else:
            self._broken = False
            self._listener.on_committed(submissions[-1].ticket)

    def _open_again(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            store.close()
        self._store = self._reopen()
