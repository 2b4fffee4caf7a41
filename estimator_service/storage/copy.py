"""Copies of a store beside a running service, and back while none runs."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from acceptd.errors import ConfigError
from estimator_service.storage.lock import StoreLock
from estimator_service.storage.recovery import set_aside
from estimator_service.storage.schema import SCHEMA_VERSION

#: A copy waits this long for the service's lock, seconds.
_BUSY_SECONDS: Final = 10.0


def back_up(store: Path, copy: Path) -> int:
    """A consistent copy at `copy`, replaced at once when it is whole; the service may run. Returns how many pairs.

    Raises ConfigError.
    """
    if copy.exists() and store.exists() and copy.samefile(store):
        raise ConfigError(f"{copy} is the store itself; accepted: another file")
    _copy(store, copy)
    return _checked(copy)


def restore_copy(copy: Path, store: Path, *, now: float) -> tuple[int, Path | None]:
    """Puts a checked copy in the store's place; returns (pairs, where the file that was there is now).

    now: seconds since the Unix epoch, names that file. Raises ConfigError if the service runs or the copy is not whole.
    """
    pairs = _checked(copy)
    lock = StoreLock(store)
    try:
        if store.exists() and copy.samefile(store):
            raise ConfigError(f"{copy} is the store itself; accepted: a copy of it")
        fresh = store.with_name(store.name + ".restoring")
        _copy(copy, fresh)
        aside = set_aside(store, now, "replaced") if store.exists() else None
        os.replace(fresh, store)
    except OSError as error:
        raise ConfigError(f"{store}: {error.strerror}; accepted: a file in a writable directory") from None
    finally:
        lock.release()
    return pairs, aside


def _copy(source: Path, target: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    try:
        with closing(_open(source)) as reading:
            # The copy holds everything the store holds.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            with closing(sqlite3.connect(partial)) as writing:
                reading.backup(writing)
                writing.execute("PRAGMA journal_mode = DELETE")
        os.replace(partial, target)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{source} cannot be copied to {target}: {why}") from None


def _checked(path: Path) -> int:
    """How many pairs a store holds. Raises ConfigError unless it is whole, and of a schema this version knows."""
    try:
        with closing(_open(path)) as store:
            (verdict,) = store.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            (schema,) = store.execute("SELECT max(version) FROM migrations").fetchone()
            if schema > SCHEMA_VERSION:
                raise ConfigError(f"{path} has schema version {schema}; accepted: up to {SCHEMA_VERSION}")
            return int(store.execute("SELECT count(*) FROM pairs").fetchone()[0])
    except sqlite3.Error as error:
        raise ConfigError(f"{path} is no whole store of acceptd: {error}") from None


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; accepted: a store of acceptd")
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", _BUSY_SECONDS, uri=True)
