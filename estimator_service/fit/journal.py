"""The open round's observations, as they came: who sent each is known until it has been judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator_service.fit.histogram import Floats, Ints

#: Observations kept before they are judged and merged without waiting for the round's end. 14 bytes each; raising it
#: judges workers on more of their rows at once.
CAPACITY: Final = 16_384

#: The same in batches, each of which costs some 800 bytes (K = 16) beside its rows.
MAX_BATCHES: Final = 128


@dataclass(frozen=True)
class Pending:
    """N journalled observations. worker, workload, batch: int64[N], indices into the names; other columns as graded.

    weight: float64[N], inverse propensity where the row is an unbiased sample of its position, 0
    elsewhere; None: 0 for all.
    """

    worker: Ints
    workload: Ints
    batch: Ints
    cell: Ints
    x: Floats
    accepted: Floats
    weight: Floats | None
    workers: tuple[str, ...]
    workloads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One batch. cell: uint32[N], the other columns as in `Pending`, in less space; weight None: 0 everywhere.

    scores: see `dispersion.batch_scores`.
    """

    worker: str
    workload: str
    cell: NDArray[np.uint32]
    x: NDArray[np.float32]
    accepted: NDArray[np.bool_]
    weight: NDArray[np.float32] | None
    scores: Floats


@dataclass
class Journal:
    """Batches in order of arrival."""

    chunks: list[Chunk] = field(default_factory=list)
    observations: int = 0

    @property
    def full(self) -> bool:
        """Whether it holds `CAPACITY` observations or `MAX_BATCHES` batches, or more."""
        return self.observations >= CAPACITY or len(self.chunks) >= MAX_BATCHES

    def append(self, chunk: Chunk) -> None:
        """Take a batch."""
        self.chunks.append(chunk)
        self.observations += len(chunk.x)

    def extend(self, other: Journal) -> None:
        """Take another journal's batches too."""
        self.chunks.extend(other.chunks)
        self.observations += other.observations

    def take(self) -> Pending:
        """All of it, and leave it empty."""
        pending = self.peek()
        self.chunks, self.observations = [], 0
        return pending

    def peek(self) -> Pending:
        """All of it. Workers and workloads are numbered by name, so order of arrival is no matter."""
        chunks = self.chunks
        workers = tuple(sorted({chunk.worker for chunk in chunks}))
        workloads = tuple(sorted({chunk.workload for chunk in chunks}))
        sizes = [len(chunk.x) for chunk in chunks]

        def column(values: list[int]) -> Ints:
            return np.repeat(np.asarray(values, np.int64), sizes)

        def joined(values: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
            return np.concatenate(values) if values else np.zeros(0, np.float32)

        weight = None
        if any(chunk.weight is not None for chunk in chunks):
            weights = [np.zeros(len(c.x), np.float32) if c.weight is None else c.weight for c in chunks]
            weight = joined(weights).astype(np.float64)
        return Pending(
            column([workers.index(chunk.worker) for chunk in chunks]),
            column([workloads.index(chunk.workload) for chunk in chunks]),
            column(list(range(len(chunks)))),
            joined([chunk.cell for chunk in chunks]).astype(np.int64),
            joined([chunk.x for chunk in chunks]).astype(np.float64),
            joined([chunk.accepted for chunk in chunks]).astype(np.float64),
            weight,
            workers,
            workloads,
        )
