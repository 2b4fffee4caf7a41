"""One process a store: two would each hand out versions and overwrite the other's state."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from acceptd.errors import ConfigError


class StoreLock:
    """An advisory lock beside the store; the kernel releases it however the process ends.

    Raises ConfigError if another process holds it, if its directory cannot be written and does not exist, or if the
    store is a directory itself.
    """

    def __init__(self, store: Path) -> None:
        if store.is_dir():
            raise ConfigError(f"store = {str(store)!r} is a directory; accepted: a file in one")
        path = store.with_name(store.name + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A lock that is there serves on a disk that has become read-only, too.
            flags = os.O_RDONLY if path.exists() else os.O_RDWR | os.O_CREAT
            self._file = os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"store = {str(store)!r}: {error.strerror}; accepted: a file in a writable directory"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(
                f"store = {str(store)!r} is in use by another process; accepted: one service a store"
            ) from None

    def release(self) -> None:
        """Lets another process have the store."""
        os.close(self._file)
