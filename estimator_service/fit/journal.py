"""The open round's observations, as they came: who sent each is known until it has been judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator_service.fit.histogram import Floats, Graded, Ints

#: Observations kept before they are judged and merged without waiting for the round's end. 14 bytes each; raising it
#: judges workers on more of their rows at once.
CAPACITY: Final = 32_768


@dataclass(frozen=True)
class Pending:
    """N journalled observations. worker, workload, batch: int64[N], indices into the names; other columns as graded.

    weight: float64[N], inverse propensity where the row is an unbiased sample of its position, 0 elsewhere.
    """

    worker: Ints
    workload: Ints
    batch: Ints
    cell: Ints
    x: Floats
    accepted: Floats
    weight: Floats
    workers: tuple[str, ...]
    workloads: tuple[str, ...]


@dataclass(frozen=True)
class Chunk:
    """One batch. cell: uint32[N], the other columns as in `Pending`, in less space."""

    worker: str
    workload: str
    cell: NDArray[np.uint32]
    x: NDArray[np.float32]
    accepted: NDArray[np.bool_]
    weight: NDArray[np.float32]


@dataclass
class Journal:
    """Batches in order of arrival."""

    chunks: list[Chunk] = field(default_factory=list)
    observations: int = 0

    @property
    def full(self) -> bool:
        """Whether it holds `CAPACITY` observations or more."""
        return self.observations >= CAPACITY

    def append(self, worker: str, workload: str, graded: Graded, weight: NDArray[np.float32]) -> None:
        """Take a batch. weight: float32[N], see `Pending`."""
        self.chunks.append(
            Chunk(
                worker,
                workload,
                graded.cell.astype(np.uint32),
                graded.x.astype(np.float32),
                graded.accepted > 0,
                weight,
            )
        )
        self.observations += len(graded.x)

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

        def joined(values: list[NDArray[np.generic]]) -> NDArray[np.generic]:
            return np.concatenate(values) if values else np.zeros(0, np.float32)

        return Pending(
            column([workers.index(chunk.worker) for chunk in chunks]),
            column([workloads.index(chunk.workload) for chunk in chunks]),
            column(list(range(len(chunks)))),
            joined([chunk.cell for chunk in chunks]).astype(np.int64),
            joined([chunk.x for chunk in chunks]).astype(np.float64),
            joined([chunk.accepted for chunk in chunks]).astype(np.float64),
            joined([chunk.weight for chunk in chunks]).astype(np.float64),
            workers,
            workloads,
        )
