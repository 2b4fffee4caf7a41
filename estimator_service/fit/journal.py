"""The open round's observations, as they came: who sent each is known until it has been judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from estimator_service.fit.histogram import NUM_SLOTS, Floats, Ints

#: Bytes kept before they are judged and merged without waiting for the round's end: as many as a pair's other tables,
#: which grow with K, leave room for in its 2 MB. Raising them merges less often, judges workers on more of their rows
#: at once, and answers nobody for longer while it does.
_CAPACITY, _LESS_A_POSITION, _LEAST = 1_376_256, 75_776, 163_840

#: Bytes of a batch beside its columns.
_BATCH = 512

#: Batches kept: each takes some 10 µs when a snapshot is made, and merging fewer costs more for each.
_BATCHES = 512


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


@dataclass
class Journal:
    """Batches of a pair with K positions, in order of arrival."""

    num_positions: int
    chunks: list[Chunk] = field(default_factory=list)
    observations: int = 0

    @cached_property
    def size(self) -> int:
        """Bytes of its batches; kept up as they come."""
        return sum(map(self._bytes, self.chunks))

    def full(self, staged: int, staged_bytes: int) -> bool:
        """Whether it and so many batches of so many bytes beside it are as much as there is room for, or more.

        What waits outside counts, so that it is full after the same batch whenever they are taken in.
        """
        if len(self.chunks) + staged >= _BATCHES:
            return True
        return self.size + staged_bytes >= max(_LEAST, _CAPACITY - _LESS_A_POSITION * self.num_positions)

    def append(self, chunks: Iterable[Chunk]) -> None:
        """Take batches."""
        size = self.size
        for chunk in chunks:
            self.chunks.append(chunk)
            self.observations += len(chunk.x)
            size += self._bytes(chunk)
        self.size = size

    def extend(self, other: Journal) -> None:
        """Take another journal's batches too."""
        self.append(other.chunks)

    def _bytes(self, chunk: Chunk) -> int:
        return journalled_bytes(len(chunk.x), self.num_positions, weighted=chunk.weight is not None)

    def take(self) -> Pending:
        """All of it, and leave it empty."""
        pending = self.peek()
        self.chunks, self.observations, self.size = [], 0, 0
        return pending

    def peek(self) -> Pending:
        """All of it. Workers and workloads are numbered by name, so order of arrival is no matter."""
        chunks = self.chunks
        workers = {name: i for i, name in enumerate(sorted({chunk.worker for chunk in chunks}))}
        workloads = {name: i for i, name in enumerate(sorted({chunk.workload for chunk in chunks}))}
        weight = None
        if any(chunk.weight is not None for chunk in chunks):
            weight = np.concatenate([np.zeros_like(c.x) if c.weight is None else c.weight for c in chunks])
        return Pending(
            np.array([len(chunk.x) for chunk in chunks], np.int64),
            np.array([workers[chunk.worker] for chunk in chunks], np.int64),
            np.array([workloads[chunk.workload] for chunk in chunks], np.int64),
            np.concatenate([narrowed(np.zeros(0, np.int64), self.num_positions), *(chunk.code for chunk in chunks)]),
            np.concatenate([np.zeros(0, np.float32), *(chunk.x for chunk in chunks)]),
            weight,
            tuple(workers),
            tuple(workloads),
        )


def journalled_bytes(observations: int, num_positions: int, *, weighted: bool) -> int:
    """What a batch takes in a journal of K = `num_positions`."""
    columns = (2 if _narrow(num_positions) else 4) + 4 + 4 * weighted
    return _BATCH + 8 * (3 * num_positions + 3) + observations * columns


@cache
def _narrow(num_positions: int) -> bool:
    """Whether codes fit 16 bits. One for each K: at most 64."""
    return 2 * NUM_SLOTS * num_positions * NUM_BINS <= 1 + np.iinfo(np.uint16).max


def narrowed(code: Ints, num_positions: int) -> Codes:
    """Codes of a pair with K positions in the narrower type that holds them."""
    return code.astype(np.uint16) if _narrow(num_positions) else code.astype(np.uint32)
