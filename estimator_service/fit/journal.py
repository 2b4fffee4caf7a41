"""The open round's observations, as they came: who sent each is known until it has been judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from estimator_service.fit.histogram import NUM_SLOTS, Floats, Graded, Ints

#: Observations kept before they are judged and merged without waiting for the round's end: as many as a pair's other
#: tables, which grow with K, leave room for in its 2 MB at up to 10 bytes each. Raising them merges less often, and
#: judges workers on more of their rows at once.
_CAPACITY, _LESS_A_POSITION, _LEAST = 65_536, 3_072, 16_384

#: The same in batches, each of which costs some 800 bytes (K = 16) beside its rows.
MAX_BATCHES: Final = 128


@dataclass(frozen=True)
class Pending:
    """N journalled observations. worker, workload: int64[N], indices into the names; other columns as graded.

    weight: float64[N], inverse propensity where the row is an unbiased sample of its position, 0
    elsewhere; None: 0 for all.
    """

    worker: Ints
    workload: Ints
    cell: Ints
    x: Floats
    accepted: NDArray[np.bool_]
    weight: Floats | None
    workers: tuple[str, ...]
    workloads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One batch. code: uint16[N] or uint32[N], 2·cell + accepted; x and weight as in `Pending`, in less space.

    weight: None for 0 everywhere. scores: see `dispersion.batch_scores`.
    """

    worker: str
    workload: str
    code: NDArray[np.uint16] | NDArray[np.uint32]
    x: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    scores: Floats

    @staticmethod
    def of(
        worker: str, workload: str, graded: Graded, weight: Floats | None, scores: Floats, num_positions: int
    ) -> Chunk:
        """From graded rows of K = `num_positions`."""
        narrow = 2 * NUM_SLOTS * num_positions * NUM_BINS <= 1 + np.iinfo(np.uint16).max
        code = graded.cell * 2
        code += graded.accepted
        return Chunk(
            worker,
            workload,
            code.astype(np.uint16 if narrow else np.uint32),
            graded.x.astype(np.float32),
            None if weight is None else weight.astype(np.float32),
            scores,
        )


@dataclass
class Journal:
    """Batches of a pair with K positions, in order of arrival."""

    num_positions: int
    chunks: list[Chunk] = field(default_factory=list)
    observations: int = 0

    @property
    def full(self) -> bool:
        """Whether it holds as many observations as there is room for, or `MAX_BATCHES` batches, or more."""
        capacity = max(_LEAST, _CAPACITY - _LESS_A_POSITION * self.num_positions)
        return self.observations >= capacity or len(self.chunks) >= MAX_BATCHES

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
            if len(set(values)) == 1:
                return np.full(sum(sizes), values[0], np.int64)
            return np.repeat(np.asarray(values, np.int64), sizes)

        def joined(values: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
            return np.concatenate(values) if values else np.zeros(0, np.float32)

        weight = None
        if any(chunk.weight is not None for chunk in chunks):
            weights = [np.zeros(len(c.x), np.float32) if c.weight is None else c.weight for c in chunks]
            weight = joined(weights).astype(np.float64)
        code = joined([chunk.code for chunk in chunks]).astype(np.int64)
        return Pending(
            column([workers.index(chunk.worker) for chunk in chunks]),
            column([workloads.index(chunk.workload) for chunk in chunks]),
            code >> 1,
            joined([chunk.x for chunk in chunks]).astype(np.float64),
            (code & 1).astype(np.bool_),
            weight,
            workers,
            workloads,
        )
