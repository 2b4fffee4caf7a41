"""The store's tables, as the list of changes that led to them. A change is added at the end, never edited."""

from __future__ import annotations

import sqlite3
from typing import Final

from acceptd.errors import ConfigError

#: (what it does, statements). Its place in the list, from 1, is the schema's version.
MIGRATIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "pairs, history, snapshots, journal, marks",
        (
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
            "INSERT INTO meta VALUES ('epoch', 0)",
            "CREATE TABLE pairs (id TEXT PRIMARY KEY, key BLOB NOT NULL, first_seen REAL NOT NULL) WITHOUT ROWID",
            "CREATE TABLE history (pair TEXT NOT NULL, epoch INTEGER NOT NULL, counter INTEGER NOT NULL,"
            " published REAL NOT NULL, cause TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (pair, epoch, counter))",
            "CREATE TABLE snapshots (pair TEXT NOT NULL, ticket INTEGER NOT NULL, taken REAL NOT NULL,"
            " header TEXT NOT NULL, window BLOB NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (pair, ticket))",
            "CREATE TABLE journal (ticket INTEGER PRIMARY KEY, pair TEXT NOT NULL, kind TEXT NOT NULL,"
            " worker TEXT NOT NULL, incarnation INTEGER NOT NULL, sequence INTEGER NOT NULL, workload TEXT NOT NULL,"
            " payload BLOB NOT NULL)",
            "CREATE INDEX journal_by_pair ON journal (pair, ticket)",
            "CREATE TABLE marks (worker TEXT NOT NULL, incarnation INTEGER NOT NULL, pair TEXT NOT NULL,"
            " sequence INTEGER NOT NULL, touched INTEGER NOT NULL, PRIMARY KEY (worker, incarnation)) WITHOUT ROWID",
            "CREATE INDEX marks_by_age ON marks (touched)",
        ),
    ),
    (
        "audit",
        (
            "CREATE TABLE audit (ticket INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL, peer TEXT NOT NULL,"
            " action TEXT NOT NULL, pair TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL)",
        ),
    ),
)

SCHEMA_VERSION: Final = len(MIGRATIONS)


def refuse_foreign(connection: sqlite3.Connection) -> None:
    """Raises ConfigError for another program's database; changes nothing."""
    query = "SELECT count(*), coalesce(sum(name = 'migrations'), 0) FROM sqlite_master WHERE type = 'table'"
    tables, known = connection.execute(query).fetchone()
    if tables and not known:
        raise ConfigError(
            f"store is another program's database ({tables} tables); accepted: a file of acceptd, or none"
        )


def migrate(connection: sqlite3.Connection, now: float) -> None:
    """Brings the tables up to `SCHEMA_VERSION`, each change in a transaction of its own.

    now: wall-clock seconds, noted beside each change. Raises ConfigError for a file of a later version.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations"
        " (version INTEGER PRIMARY KEY, description TEXT NOT NULL, applied_at REAL NOT NULL)"
    )
    (current,) = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
    if current > SCHEMA_VERSION:
        raise ConfigError(
            f"store has schema version {current}; accepted: up to {SCHEMA_VERSION} (a newer acceptd wrote it)"
        )
    for version, (description, statements) in enumerate(MIGRATIONS[current:], current + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?, ?, ?)", (version, description, now))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
