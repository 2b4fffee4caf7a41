"""Files that are read again when they change, and what is said while they cannot be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from acceptd.errors import ConfigError
from acceptd.names import path_shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Unreadable(ConfigError):
    """The file's content is not known: unlike what is wrong in it, this may pass though the file stays as it is."""


def read(name: str, path: Path, accepted: str) -> bytes:
    """All of the file. name: of the setting. Raises Unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{name} = {path_shown(path)}: {error.strerror}; accepted: {accepted}") from None


def stamp_of(path: Path) -> tuple[int, ...]:
    """Changes with the file, with who may read it, and where a link is turned to another file; () for no file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


class FileWatch:
    """Of files that belong together. Whoever asks `due` reads them, and says what came of it."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._stamps: tuple[tuple[int, ...], ...] = ()
        self._trouble = ""
        self._again = True

    def due(self) -> bool:
        """Whether to read them: they have changed since they were, or could not be read."""
        stamps = tuple(map(stamp_of, self._paths))
        changed = stamps != self._stamps
        # Taken before they are read: what changes meanwhile is read again.
        self._stamps = stamps
        return changed or self._again

    def used(self) -> None:
        """They could be used."""
        self._trouble, self._again = "", False

    def failed(self, error: ConfigError) -> bool:
        """They could not; whether the reason is another one than before."""
        told, self._trouble = self._trouble, str(error)
        self._again = isinstance(error, Unreadable)
        return told != self._trouble
