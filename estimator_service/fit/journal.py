"""The open round's observations, as they came: who sent each is known until it has been judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

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

#: Batches kept. Merging fewer at a time costs more for each, and merging more holds answers up for longer.
_BATCHES = 512


Codes = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class Pending:
    """N journalled observations of C batches, in order of arrival.

    sizes, worker, workload: int64[C], observations of each batch and indices into the names. code: uint16[N] or
    uint32[N], 2·cell + accepted. x: float32[N]. weight: float32[N], inverse propensity where the row is an unbiased
    sample of its position, 0 elsewhere; None: 0 for all. scores: float64[C, 3·K + 3], see `dispersion.batch_scores`.
    """

    sizes: Ints
    worker: Ints
    workload: Ints
    code: Codes
    x: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    scores: Floats
    workers: tuple[str, ...]
    workloads: tuple[str, ...]

    def batch(self, step: int = 1) -> Ints:
        """Index of the batch of every `step`-th observation, int64[ceil(N / step)]."""
        if step == 1:
            return np.repeat(np.arange(len(self.sizes)), self.sizes)
        return np.searchsorted(np.cumsum(self.sizes), np.arange(0, len(self.code), step), side="right")


@dataclass(frozen=True, slots=True)
class Stretch:
    """C batches that were graded together, N observations. workers, workloads: of each batch.

    order: int64[C], each one's place in the journal: others that were graded apart may lie between. The other columns
    are as in `Pending`.
    """

    workers: Sequence[str]
    workloads: Sequence[str]
    order: Ints
    sizes: Ints
    code: Codes
    x: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    scores: Floats


@dataclass
class Journal:
    """Batches of a pair with K positions. size: bytes they count for."""

    num_positions: int
    stretches: list[Stretch] = field(default_factory=list)
    batches: int = 0
    observations: int = 0
    size: int = 0

    def full(self, staged: int, staged_bytes: int) -> bool:
        """Whether it and so many batches of so many bytes beside it are as much as there is room for, or more.

        What waits outside counts, so that it is full after the same batch whenever they are taken in.
        """
        if self.batches + staged >= _BATCHES:
            return True
        return self.size + staged_bytes >= max(_LEAST, _CAPACITY - _LESS_A_POSITION * self.num_positions)

    def check(self) -> None:
        """Raises ValueError unless its parts fit together; for a journal from elsewhere."""
        least = most = 0
        places = np.zeros(0, np.int64)
        for stretch in self.stretches:
            if not isinstance(stretch, Stretch) or not _fits(stretch, self.num_positions):
                raise ValueError("snapshot is damaged: columns of journalled batches do not fit together")
            places = np.concatenate((places, stretch.order))
            for observations in stretch.sizes.tolist():
                least += journalled_bytes(observations, self.num_positions, weighted=False)
                most += journalled_bytes(observations, self.num_positions, weighted=stretch.weight is not None)
        observations = sum(len(stretch.x) for stretch in self.stretches)
        counts = (self.batches, self.observations)
        if counts != (len(places), observations) or not np.array_equal(np.sort(places), np.arange(len(places))):
            raise ValueError("snapshot is damaged: journalled batches are other ones than it says")
        if not least <= self.size <= most:
            raise ValueError(f"snapshot is damaged: journalled batches take {self.size} bytes")

    def append(self, stretches: Iterable[Stretch], size: int) -> None:
        """Take the batches that came after those there are. order: their places among themselves."""
        before = self.batches
        for stretch in stretches:
            self.stretches.append(replace(stretch, order=stretch.order + before))
            self.batches += len(stretch.sizes)
            self.observations += len(stretch.x)
        self.size += size

    def extend(self, other: Journal) -> None:
        """Take another journal's batches too."""
        self.append(other.stretches, other.size)

    def take(self) -> Pending:
        """All of it, and leave it empty."""
        pending = self.peek()
        self.stretches, self.batches, self.observations, self.size = [], 0, 0, 0
        return pending

    def peek(self) -> Pending:
        """All of it. Workers and workloads are numbered by name."""
        stretches = self.stretches
        order = np.concatenate([np.zeros(0, np.int64), *(stretch.order for stretch in stretches)])
        workers, worker = _numbered([name for stretch in stretches for name in stretch.workers])
        workloads, workload = _numbered([name for stretch in stretches for name in stretch.workloads])
        weight = None
        if any(stretch.weight is not None for stretch in stretches):
            weight = np.concatenate([np.zeros_like(s.x) if s.weight is None else s.weight for s in stretches])
        sizes = np.concatenate([np.zeros(0, np.int64), *(stretch.sizes for stretch in stretches)])
        code = np.concatenate([narrowed(np.zeros(0, np.int64), self.num_positions), *(s.code for s in stretches)])
        x = np.concatenate([np.zeros(0, np.float32), *(stretch.x for stretch in stretches)])
        scores = np.concatenate([np.zeros((0, 3 * self.num_positions + 3)), *(s.scores for s in stretches)])
        if np.count_nonzero(order[1:] < order[:-1]):
            place = np.argsort(order)
            first = (np.cumsum(sizes) - sizes)[place]
            sizes, worker, workload, scores = sizes[place], worker[place], workload[place], scores[place]
            rows = np.arange(len(x)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
            code, x, weight = code[rows], x[rows], None if weight is None else weight[rows]
        return Pending(sizes, worker, workload, code, x, weight, scores, workers, workloads)


def _fits(stretch: Stretch, num_positions: int) -> bool:
    """Whether columns have the types and lengths of each other."""
    batches, observations = len(stretch.sizes), len(stretch.x)
    columns: list[tuple[Any, Any, tuple[int, ...]]] = [
        (stretch.order, np.int64, (batches,)),
        (stretch.sizes, np.int64, (batches,)),
        (stretch.code, narrowed(np.zeros(0, np.int64), num_positions).dtype, (observations,)),
        (stretch.x, np.float32, (observations,)),
        (stretch.scores, np.float64, (batches, 3 * num_positions + 3)),
    ]
    if stretch.weight is not None:
        columns.append((stretch.weight, np.float32, (observations,)))
    if not all(isinstance(c, np.ndarray) and c.dtype == kind and c.shape == shape for c, kind, shape in columns):
        return False
    names = (stretch.workers, stretch.workloads)
    if not all(isinstance(each, list) and len(each) == batches and set(map(type, each)) <= {str} for each in names):
        return False
    below = bool((stretch.code < 2 * NUM_SLOTS * num_positions * NUM_BINS).all())
    # One by one no larger than all together, so that the sum cannot overflow.
    return (
        below
        and bool(((stretch.sizes > 0) & (stretch.sizes <= observations)).all())
        and (int(stretch.sizes.sum()) == observations)
    )


def _numbered(names: list[str]) -> tuple[tuple[str, ...], Ints]:
    """The names there are, in order, and which of them each is."""
    known = tuple(sorted(set(names)))
    index = {name: i for i, name in enumerate(known)}
    return known, np.array([index[name] for name in names], np.int64)


def journalled_bytes(observations: int, num_positions: int, *, weighted: bool) -> int:
    """What a batch counts for in a journal of K = `num_positions`."""
    columns = (2 if _narrow(num_positions) else 4) + 4 + 4 * weighted
    return _BATCH + 8 * (3 * num_positions + 3) + observations * columns


@cache
def _narrow(num_positions: int) -> bool:
    """Whether codes fit 16 bits. One for each K: at most 64."""
    return 2 * NUM_SLOTS * num_positions * NUM_BINS <= 1 + np.iinfo(np.uint16).max


def narrowed(code: Ints, num_positions: int) -> Codes:
    """Codes of a pair with K positions in the narrower type that holds them."""
    return code.astype(np.uint16) if _narrow(num_positions) else code.astype(np.uint32)
