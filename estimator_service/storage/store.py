"""The SQLite file: one connection, used by one thread at a time. Every commit is one transaction."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Final, Literal

from acceptd.types import Version
from estimator_service.storage.records import (
    AuditRecord,
    EpochRecord,
    ForgetRecord,
    HistoryRecord,
    JournalRecord,
    MarkRecord,
    PairRecord,
    Record,
    SnapshotRecord,
)
from estimator_service.storage.schema import migrate, refuse_foreign
from estimator_service.worker import MAX_INCARNATIONS

logger = logging.getLogger(__name__)

#: Snapshots kept a pair. The journal reaches back to the older one, so a damaged newest one loses nothing.
_SNAPSHOTS: Final = 2
#: Entries of the audit, oldest deleted first. At 1 kB each this is 100 MB, and years of operators.
_AUDIT_ENTRIES: Final = 100_000
#: Bytes the write-ahead log may keep after a checkpoint. Raising it saves little and holds disk.
_WAL_BYTES: Final = 64 * 1024 * 1024
#: Largest integer that a column holds.
_MAX_INTEGER: Final = 2**63 - 1
#: A statement waits this long for a reader's lock (a backup by hand), seconds.
_BUSY_SECONDS: Final = 2.0


class Store:
    """Open file at `path`, ":memory:" for none. Methods raise sqlite3.Error; what they wrote is then rolled back.

    history_versions: versions kept a pair. fsync: see `Settings.fsync`. now: wall-clock seconds; None: open what is
    there to read it, on a disk that takes nothing.
    """

    def __init__(
        self,
        path: Path | Literal[":memory:"],
        *,
        history_versions: int,
        fsync: Literal["normal", "full"],
        now: float | None,
    ) -> None:
        self.path = path
        self._history_versions = history_versions
        #: Inode and size of the file and its write-ahead log, by suffix.
        self._seen: dict[str, tuple[int, int]] = {}
        self._connection = sqlite3.connect(path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            if now is None:
                # For whom no other process may interfere, the index of the write-ahead log is kept in memory. Otherwise
                # it is a file, which a full disk does not take, and without it the latest commits are not seen.
                self._execute("PRAGMA locking_mode = EXCLUSIVE")
                self.epoch()
                return
            refuse_foreign(self._connection)
            self._execute("PRAGMA journal_mode = WAL")
            self._execute(f"PRAGMA synchronous = {fsync.upper()}")
            self._execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            migrate(self._connection, now)
            self._notice_tampering()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Checkpoints and closes."""
        self._connection.close()

    def check(self) -> None:
        """Raises sqlite3.DatabaseError if pages of the file do not fit together."""
        (verdict,) = self._execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    def commit(self, records: Iterable[Record]) -> None:
        """Writes all of them, or none."""
        self._notice_tampering()
        self._execute("BEGIN IMMEDIATE")
        try:
            trimmed = set()
            for record in records:
                self._write(record)
                if isinstance(record, SnapshotRecord):
                    trimmed.add(record.pair)
            for pair in trimmed:
                self._trim(pair)
            self._execute("COMMIT")
        except BaseException:
            # A full disk may have ended the transaction already.
            with suppress(sqlite3.Error):
                self._execute("ROLLBACK")
            raise

    def backup(self, target: Path) -> None:
        """A consistent copy at `target`, replaced at once when it is whole."""
        partial = target.with_name(target.name + ".partial")
        copy = sqlite3.connect(partial)
        try:
            self._connection.backup(copy)
        finally:
            copy.close()
        os.replace(partial, target)

    # Reading

    def epoch(self) -> int:
        """Of the latest process that wrote here; 0: none."""
        return int(self._execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])

    def last_ticket(self) -> int:
        """Highest ticket in use."""
        columns = ["journal.ticket", "snapshots.ticket", "marks.touched"]
        # A store of an earlier version that could only be opened for reading has none.
        if self._execute("SELECT 1 FROM sqlite_master WHERE name = 'audit'").fetchone():
            columns.append("audit.ticket")
        maxima = " UNION ".join(f"SELECT max({column}) AS t FROM {column.split('.')[0]}" for column in columns)  # noqa: S608
        return int(self._execute(f"SELECT coalesce(max(t), 0) FROM ({maxima})").fetchone()[0])  # noqa: S608

    def pairs(self) -> list[PairRecord]:
        """All pairs, first seen first."""
        return [
            PairRecord(*row) for row in self._execute("SELECT id, key, first_seen FROM pairs ORDER BY first_seen, id")
        ]

    def history(self, pair: str, limit: int, before: Version | None = None) -> list[HistoryRecord]:
        """Published versions, newest first, at most `limit`, that sort before `before` (None: from the newest on)."""
        epoch, counter = (before.epoch, before.counter) if before else (_MAX_INTEGER, _MAX_INTEGER)
        query = (
            "SELECT * FROM history WHERE pair = ? AND (epoch, counter) < (?, ?)"
            " ORDER BY epoch DESC, counter DESC LIMIT ?"
        )
        values = pair, min(epoch, _MAX_INTEGER), min(counter, _MAX_INTEGER), limit
        return [HistoryRecord(*row) for row in self._execute(query, values)]

    def course(self, pair: str, points: int) -> list[HistoryRecord]:
        """Every so-many-th version, newest first, so that at most `points` cover all that is kept."""
        query = (
            "WITH numbered AS (SELECT rowid AS id, row_number() OVER (ORDER BY epoch DESC, counter DESC) - 1 AS place,"
            " count(*) OVER () AS kept FROM history WHERE pair = ?1)"
            " SELECT history.* FROM numbered JOIN history ON history.rowid = numbered.id"
            " WHERE place % max(1, (kept + ?2 - 1) / ?2) = 0 ORDER BY place"
        )
        return [HistoryRecord(*row) for row in self._execute(query, (pair, points))]

    def version(self, pair: str, epoch: int, counter: int) -> HistoryRecord | None:
        """One published version, None if it is not kept."""
        query = "SELECT * FROM history WHERE pair = ? AND epoch = ? AND counter = ?"
        row = self._execute(query, (pair, epoch, counter)).fetchone()
        return HistoryRecord(*row) if row else None

    def audit(self, pair: str, limit: int) -> list[AuditRecord]:
        """What operators did to the pair ("": to any), newest first, at most `limit`."""
        query = "SELECT * FROM audit WHERE ?1 IN ('', pair) ORDER BY ticket DESC LIMIT ?2"
        return [AuditRecord(*row) for row in self._execute(query, (pair, limit))]

    def snapshot(self, pair: str) -> SnapshotRecord | None:
        """The newest one whose checksum holds."""
        query = (
            "SELECT pair, ticket, taken, header, window, checksum FROM snapshots WHERE pair = ? ORDER BY ticket DESC"
        )
        for *values, checksum in self._execute(query, (pair,)):
            record = SnapshotRecord(*values)
            if record.checksum == checksum:
                return record
            logger.error("snapshot %d of %s is damaged; continuing from the one before", record.ticket, pair)
        return None

    def journal(self, pair: str, after: int) -> Iterator[JournalRecord]:
        """Events of a pair after the ticket `after`, in order."""
        query = (
            "SELECT ticket, pair, kind, payload, worker, incarnation, sequence, workload FROM journal"
            " WHERE pair = ? AND ticket > ? ORDER BY ticket"
        )
        for row in self._execute(query, (pair, after)):
            ticket, pair, kind, payload, worker, incarnation, sequence, workload = row
            yield JournalRecord(ticket, pair, kind, payload, worker, _unsigned(incarnation), sequence, workload)

    def marks(self) -> list[MarkRecord]:
        """High-water marks, the one touched longest ago first."""
        query = "SELECT worker, incarnation, pair, sequence, touched FROM marks ORDER BY touched"
        return [MarkRecord(row[0], _unsigned(row[1]), *row[2:]) for row in self._execute(query)]

    # Writing

    def _write(self, record: Record) -> None:
        match record:
            case JournalRecord():
                self._execute(
                    "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        record.ticket,
                        record.pair,
                        record.kind,
                        record.worker,
                        _signed(record.incarnation),
                        record.sequence,
                        record.workload,
                        record.payload,
                    ),
                )
            case HistoryRecord():
                self._execute(
                    "INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?, ?, ?)",
                    (record.pair, record.epoch, record.counter, record.published, record.cause, record.body),
                )
            case MarkRecord():
                self._execute(
                    "INSERT INTO marks VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET pair = excluded.pair,"
                    " sequence = max(sequence, excluded.sequence), touched = excluded.touched",
                    (record.worker, _signed(record.incarnation), record.pair, record.sequence, record.touched),
                )
            case SnapshotRecord():
                self._execute(
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)",
                    (record.pair, record.ticket, record.taken, record.header, bytes(record.window), record.checksum),
                )
            case PairRecord():
                self._execute(
                    "INSERT OR IGNORE INTO pairs VALUES (?, ?, ?)", (record.id, record.key, record.first_seen)
                )
            case ForgetRecord():
                self._execute("DELETE FROM pairs WHERE id = ?", (record.pair,))
                for table in ("history", "snapshots", "journal"):
                    self._execute(f"DELETE FROM {table} WHERE pair = ?", (record.pair,))  # noqa: S608
            case AuditRecord():
                self._execute("INSERT OR IGNORE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(record))
                self._execute(
                    "DELETE FROM audit WHERE ticket <="
                    " (SELECT ticket FROM audit ORDER BY ticket DESC LIMIT 1 OFFSET ?)",
                    (_AUDIT_ENTRIES,),
                )
            case EpochRecord():
                self._execute("UPDATE meta SET value = max(value, ?) WHERE key = 'epoch'", (record.epoch,))

    def _trim(self, pair: str) -> None:
        """Deletes what the newest snapshots make superfluous, and what is over its bound."""
        self._execute(
            "DELETE FROM snapshots WHERE pair = ?1 AND ticket NOT IN"
            " (SELECT ticket FROM snapshots WHERE pair = ?1 ORDER BY ticket DESC LIMIT ?2)",
            (pair, _SNAPSHOTS),
        )
        self._execute(
            "DELETE FROM journal WHERE pair = ?1 AND ticket <= (SELECT min(ticket) FROM snapshots WHERE pair = ?1)",
            (pair,),
        )
        self._execute(
            "DELETE FROM history WHERE pair = ?1 AND (epoch, counter) <= (SELECT epoch, counter FROM history"
            " WHERE pair = ?1 ORDER BY epoch DESC, counter DESC LIMIT 1 OFFSET ?2)",
            (pair, self._history_versions),
        )
        self._execute(
            "DELETE FROM marks WHERE touched <= (SELECT touched FROM marks ORDER BY touched DESC LIMIT 1 OFFSET ?)",
            (MAX_INCARNATIONS,),
        )

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _notice_tampering(self) -> None:
        """Raises sqlite3.OperationalError if the file is not the one that was opened, or has become shorter.

        SQLite itself would go on writing into a file that nobody will find again, or around a hole.
        """
        if isinstance(self.path, str):
            return
        for suffix in ("", "-wal"):
            path = self.path.with_name(self.path.name + suffix)
            try:
                status = path.stat()
            except OSError:
                raise sqlite3.OperationalError(f"{path} was removed") from None
            inode, size = self._seen.get(suffix, (status.st_ino, 0))
            if status.st_ino != inode:
                raise sqlite3.OperationalError(f"{path} was replaced")
            # A write-ahead log above its limit is cut by SQLite itself, nothing else ever is.
            if status.st_size < (min(size, _WAL_BYTES) if suffix else size):
                raise sqlite3.OperationalError(f"{path} was truncated")
            self._seen[suffix] = inode, status.st_size


def _signed(value: int) -> int:
    """A fixed64 as SQLite's signed integer."""
    return value - 2**64 if value >= 2**63 else value


def _unsigned(value: int) -> int:
    return value + 2**64 if value < 0 else value
