"""Opening the store whatever state its file is in."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from acceptd.errors import ConfigError
from estimator_service.storage.store import Store

logger = logging.getLogger(__name__)

#: Errors that mean the file's content is wrong, as opposed to a disk that is full or may not be written.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def last_good_path(path: Path) -> Path:
    """Where the copy lies that a damaged store is replaced by."""
    return path.with_name(path.name + ".last-good")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error says that the file's content is wrong."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in _DAMAGED


def open_store(
    path: Path | Literal[":memory:"], *, history_versions: int, fsync: Literal["normal", "full"], now: float
) -> Store:
    """The store at `path`: as it is, else from its last good copy, else empty.

    A damaged file is kept beside it under another name, and the log says so. Raises sqlite3.Error where the disk does
    not let itself be written, ConfigError for a store of a later schema.
    """

    def attempt() -> Store:
        if not isinstance(path, str) and path.exists() and not path.stat().st_size and last_good_path(path).exists():
            # SQLite takes an empty file for a new one.
            raise sqlite3.DatabaseError("the file is empty")
        store = Store(path, history_versions=history_versions, fsync=fsync, now=now)
        try:
            store.check()
        except BaseException:
            store.close()
            raise
        return store

    try:
        return attempt()
    except sqlite3.DatabaseError as error:
        if isinstance(path, str) or not is_damage(error):
            raise
        aside = set_aside(path, now)
        logger.error("store %s is damaged (%s); it was set aside as %s", path, error, aside)
    copy = last_good_path(path)
    if copy.exists() and copy.stat().st_size:
        shutil.copyfile(copy, path)
        try:
            store = attempt()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            logger.error("its last good copy %s is damaged, too (%s)", copy, error)
            set_aside(path, now)
        else:
            logger.error("continuing from its last good copy %s", copy)
            return store
    logger.error("starting with an empty store")
    return attempt()


def read_store(path: Path, *, history_versions: int) -> Store | None:
    """The store as of its latest commit, on a disk that is full or may not be written; None if there is none yet.

    Raises ConfigError if it cannot be read: with less than was committed, the service would overwrite the rest later.
    """
    log = path.with_name(path.name + "-wal")
    if not path.exists() or not (path.stat().st_size or (log.exists() and log.stat().st_size)):
        return None
    try:
        return Store(path, history_versions=history_versions, fsync="normal", now=None)
    except sqlite3.Error as error:
        logger.warning("store %s cannot be read in place (%s); reading a copy", path, error)
    # In memory where there is such a place. Once it is open, the copy needs no name.
    shared_memory = Path("/dev/shm")  # noqa: S108 (a directory of our own is made in it)
    try:
        with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as directory:
            copy = Path(directory) / path.name
            shutil.copyfile(path, copy)
            if log.exists():
                shutil.copyfile(log, copy.with_name(log.name))
            store = Store(copy, history_versions=history_versions, fsync="normal", now=None)
            store.check()
            return store
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"store = {str(path)!r}: can be neither written nor read ({error}); accepted: a file that can be read"
        ) from None


def set_aside(path: Path, now: float, why: str = "damaged") -> Path:
    """Renames the file and its companions; a stale write-ahead log must not be applied to another file.

    now: seconds since the Unix epoch; with `why` it makes the new name, which is returned.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    aside, n = path.with_name(f"{path.name}.{why}-{stamp}"), 1
    while aside.exists():
        n += 1
        aside = path.with_name(f"{path.name}.{why}-{stamp}-{n}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside
