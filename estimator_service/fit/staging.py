"""Batches that came and were not worked on yet. Many small ones are graded and scored as one, which costs far less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.types import Coefficients
from estimator_service.fit.histogram import Ints, Rows

#: Observations that wait at most: from about here on the work is in the rows, no longer in the calls. Raising it makes
#: the pauses longer in which the service answers nobody.
_OBSERVATIONS: Final = 4_096

#: Batches that wait at most, times K: sums are taken for each of them by position.
_BATCHES_BY_POSITION: Final = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one worker, as decoded. used: the version they were predicted with. learned: not from quarantine."""

    rows: Rows
    used: Coefficients
    workload: str
    worker: str
    learned: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of one or more batches. As in `histogram.Rows`."""

    accepted: NDArray[np.uint8]
    admitted: NDArray[np.uint8]
    features: NDArray[np.float32]
    segments: NDArray[np.uint8]
    explored: NDArray[np.uint8]
    propensities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Group:
    """C batches of one version and one standing. sizes: int64[C], observations of each."""

    batches: Sequence[Batch]
    rows: Rows
    sizes: Ints

    @staticmethod
    def of(batches: Sequence[Batch]) -> Group:
        """All their rows, in order."""
        sizes = np.array([len(batch.rows.features) for batch in batches])
        if len(batches) == 1:
            return Group(batches, batches[0].rows, sizes)
        columns = (np.concatenate([getattr(batch.rows, name) for batch in batches]) for name in Columns.__slots__)
        return Group(batches, Columns(*columns), sizes)


@dataclass(slots=True)
class Staging:
    """Batches of a pair with K positions, in order of arrival."""

    num_positions: int
    batches: list[Batch] = field(default_factory=list)
    observations: int = 0

    @property
    def full(self) -> bool:
        """Whether to take them now."""
        return self.observations >= _OBSERVATIONS or len(self.batches) * self.num_positions >= _BATCHES_BY_POSITION

    def add(self, batch: Batch) -> None:
        """One more, whose arrays must not change any more."""
        self.batches.append(batch)
        self.observations += len(batch.rows.features)

    def take(self) -> Iterator[Group]:
        """All of them, and none is left."""
        batches, self.batches, self.observations = self.batches, [], 0
        groups: dict[tuple[int, bool], list[Batch]] = {}
        for batch in batches:
            # By the version's identity: whoever is served the same coefficients holds the same object.
            groups.setdefault((id(batch.used), batch.learned), []).append(batch)
        yield from map(Group.of, groups.values())
