"""Batches that came and were not worked on yet. Many small ones are graded and scored as one, which costs far less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.types import Coefficients
from estimator_service.fit.histogram import Floats, Ints, Rows
from estimator_service.fit.journal import Codes, Stretch, journalled_bytes

#: Observations that wait at most: from about here on the work is in the rows, no longer in the calls. Raising it makes
#: the pauses longer in which the service answers nobody.
_OBSERVATIONS: Final = 8_192

#: Batches that wait at most, times K: sums are taken for each of them by position. Raising it makes pauses longer, and
#: saves less and less a batch.
_BATCHES_BY_POSITION: Final = 2_048


@dataclass(slots=True)
class Batch:
    """Rows of one worker, as decoded. used: the version they were predicted with. learned: not from quarantine.

    explored: whether some of them are an unbiased sample. Not frozen, which would take twice as long to make.
    """

    rows: Rows
    used: Coefficients
    workload: str
    worker: str
    learned: bool
    explored: bool


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
    """C batches of one version and one standing. order: int64[C], places among all. sizes: int64[C], observations of
    each. explored: whether some rows are an unbiased sample.
    """

    order: Ints
    batches: Sequence[Batch]
    rows: Rows
    sizes: Ints
    explored: bool

    @staticmethod
    def of(order: Sequence[int], batches: Sequence[Batch]) -> Group:
        """All their rows, in order."""
        parts = [batch.rows for batch in batches]
        rows = parts[0]
        if len(parts) > 1:
            rows = Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in Columns.__slots__))
        sizes = np.array([len(part.features) for part in parts])
        return Group(np.array(order), batches, rows, sizes, any(batch.explored for batch in batches))

    def stretch(self, *, code: Codes, weight: Floats | None, scores: Floats) -> Stretch:
        """The batches with what was worked out for them."""
        return Stretch(
            [batch.worker for batch in self.batches],
            [batch.workload for batch in self.batches],
            self.order,
            self.sizes,
            code,
            self.rows.features,
            None if weight is None else weight.astype(np.float32),
            scores,
        )


@dataclass(slots=True)
class Staging:
    """Batches of a pair with K positions, in order of arrival. size: bytes that they will take in the journal."""

    num_positions: int
    batches: list[Batch] = field(default_factory=list)
    observations: int = 0
    size: int = 0

    @property
    def full(self) -> bool:
        """Whether to take them now."""
        return self.observations >= _OBSERVATIONS or len(self.batches) * self.num_positions >= _BATCHES_BY_POSITION

    def add(self, batch: Batch) -> None:
        """One more, whose arrays must not change any more."""
        observations = len(batch.rows.features)
        self.batches.append(batch)
        self.observations += observations
        self.size += journalled_bytes(observations, self.num_positions, weighted=batch.explored)

    def take(self) -> Iterator[Group]:
        """All of them, and none is left."""
        batches, self.batches, self.observations, self.size = self.batches, [], 0, 0
        groups: dict[tuple[int, bool], list[int]] = {}
        for place, batch in enumerate(batches):
            # By the version's identity: whoever is served the same coefficients holds the same object.
            groups.setdefault((id(batch.used), batch.learned), []).append(place)
        for order in groups.values():
            yield Group.of(order, [batches[place] for place in order])
