"""The open round's observations, as they came: who sent each is known until it has been judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from estimator_service.fit.histogram import NUM_SLOTS, Floats, Ints
from estimator_service.fit.staging import Group

#: Observations kept before they are judged and merged without waiting for the round's end: as many as a pair's other
#: tables, which grow with K, leave room for in its 2 MB at up to 10 bytes each. Raising them merges less often, judges
#: workers on more of their rows at once, and answers nobody for longer while it does.
_MOST, _CAPACITY, _LESS_A_POSITION, _LEAST = 131_072, 212_992, 12_288, 16_384

#: The same in batches, each of which costs some 800 bytes (K = 16) beside its rows.
MAX_BATCHES: Final = 128


Codes = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class Pending:
    """N journalled observations of C batches.

    sizes, worker, workload: int64[C], observations of each batch and indices into the names. code: uint16[N] or
    uint32[N], 2·cell + accepted. x: float32[N]. weight: float32[N], inverse propensity where the row is an unbiased
    sample of its position, 0 elsewhere; None: 0 for all.
    """

    sizes: Ints
    worker: Ints
    workload: Ints
    code: Codes
    x: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    workers: tuple[str, ...]
    workloads: tuple[str, ...]

    def batch(self, step: int = 1) -> Ints:
        """Index of the batch of every `step`-th observation, int64[ceil(N / step)]."""
        if step == 1:
            return np.repeat(np.arange(len(self.sizes)), self.sizes)
        return np.searchsorted(np.cumsum(self.sizes), np.arange(0, len(self.code), step), side="right")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One batch. code: uint16[N] or uint32[N], 2·cell + accepted; x and weight as in `Pending`, in less space.

    weight: None for 0 everywhere. scores: see `dispersion.batch_scores`.
    """

    worker: str
    workload: str
    code: Codes
    x: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    scores: Floats

    @staticmethod
    def split(group: Group, *, code: Codes, weight: Floats | None, scores: Floats) -> Iterator[Chunk]:
        """A group's batches again, with what was worked out for them together: views of it."""
        x, weights = group.rows.features, None if weight is None else weight.astype(np.float32)
        ends = np.cumsum(group.sizes).tolist()
        for batch, start, end, own in zip(group.batches, [0, *ends], ends, scores, strict=False):
            rows = slice(start, end)
            yield Chunk(
                batch.worker, batch.workload, code[rows], x[rows], None if weights is None else weights[rows], own
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
        capacity = min(_MOST, max(_LEAST, _CAPACITY - _LESS_A_POSITION * self.num_positions))
        return self.observations >= capacity or len(self.chunks) >= MAX_BATCHES

    def append(self, chunks: Iterable[Chunk]) -> None:
        """Take batches."""
        for chunk in chunks:
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
        weight = None
        if any(chunk.weight is not None for chunk in chunks):
            weight = np.concatenate([np.zeros_like(c.x) if c.weight is None else c.weight for c in chunks])
        return Pending(
            np.array([len(chunk.x) for chunk in chunks], np.int64),
            np.array([workers.index(chunk.worker) for chunk in chunks], np.int64),
            np.array([workloads.index(chunk.workload) for chunk in chunks], np.int64),
            np.concatenate([narrowed(np.zeros(0, np.int64), self.num_positions), *(chunk.code for chunk in chunks)]),
            np.concatenate([np.zeros(0, np.float32), *(chunk.x for chunk in chunks)]),
            weight,
            workers,
            workloads,
        )


def narrowed(code: Ints, num_positions: int) -> Codes:
    """Codes of a pair with K positions in the narrower type that holds them."""
    if 2 * NUM_SLOTS * num_positions * NUM_BINS <= 1 + np.iinfo(np.uint16).max:
        return code.astype(np.uint16)
    return code.astype(np.uint32)
