"""Columns that wait to be cut into batches: in order, each batch of one version, no more than a few pieces.

Used by the sending side alone. Every question is answered from running counts and appending merges small pieces as it
goes, so that no call takes long, however many pieces there are: pure Python in this thread holds up the main thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acceptd.codec import Observations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acceptd.types import Version

#: Pieces of one version at the end that are merged into one. Raising it copies rows less often, and lengthens the one
#: stretch in which a batch is encoded.
_MERGED: Final = 16

_COLUMNS: Final = tuple(Observations.__dataclass_fields__)
#: Columns with one value an observation; the others have one a row.
_OBSERVED: Final = frozenset({"features", "entropies", "margins"})


class Chunks:
    """rows: of all chunks together."""

    def __init__(self) -> None:
        self.rows = 0
        self._chunks: deque[tuple[float, Version | None, Observations]] = deque()
        self._changes = 0  # neighbours of different versions
        self._tail = 0  # chunks at the end that are of one version

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def oldest(self) -> float | None:
        """When the first rows were offered; None: there are none."""
        return self._chunks[0][0] if self._chunks else None

    @property
    def mixed(self) -> bool:
        """Whether rows of more than one version wait."""
        return self._changes > 0

    def append(self, since: float, version: Version | None, columns: Any) -> None:
        """Columns (the fields of `Observations`), at least one row, offered at `since`."""
        observations = columns if isinstance(columns, Observations) else Observations(*_columns(columns))
        if self._chunks and self._chunks[-1][1] != version:
            self._changes += 1
            self._tail = 0
        self._chunks.append((since, version, observations))
        self.rows += len(observations)
        self._tail += 1
        if self._tail == _MERGED:
            merged = [self._chunks.pop() for _ in range(_MERGED)][::-1]
            self._chunks.append((merged[0][0], version, _concatenate([piece for _, _, piece in merged])))
            self._tail = 1

    def take(self, limit: int) -> tuple[Version | None, list[Observations]]:
        """The leading rows of one version, at most `limit` of them; there must be some."""
        version = self._chunks[0][1]
        taken: list[Observations] = []
        room = limit
        while room and self._chunks and self._chunks[0][1] == version:
            since, _, columns = self._chunks.popleft()
            if len(columns) > room:
                columns, rest = _split(columns, room)
                self._chunks.appendleft((since, version, rest))
            taken.append(columns)
            room -= len(columns)
        self.rows -= limit - room
        self._tail = min(self._tail, len(self._chunks))
        if self._chunks and self._chunks[0][1] != version:
            self._changes -= 1
        return version, taken

    def clear(self) -> int:
        """Forgets all; the rows forgotten."""
        rows = self.rows
        self._chunks.clear()
        self.rows = self._changes = self._tail = 0
        return rows


def _columns(columns: Any) -> Iterator[Any]:
    return (getattr(columns, name) for name in _COLUMNS)


def _split(columns: Observations, rows: int) -> tuple[Observations, Observations]:
    """The first `rows` rows, and the rest."""
    values = int(columns.observed[:rows].sum())

    def parts() -> Iterator[tuple[Any, Any]]:
        for name in _COLUMNS:
            column = getattr(columns, name)
            at = values if name in _OBSERVED else rows
            yield (None, None) if column is None else (column[:at], column[at:])

    first, rest = zip(*parts(), strict=True)
    return Observations(*first), Observations(*rest)


def _concatenate(parts: list[Observations]) -> Observations:
    def joined(columns: tuple[Any, ...]) -> Any:
        return None if any(column is None for column in columns) else np.concatenate(columns)

    return Observations(*map(joined, zip(*map(_columns, parts), strict=True)))
