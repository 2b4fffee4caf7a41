"""Exploration: a few draft tokens are verified whatever their confidences say, so that every position keeps labels.

A position that the budget always trims is never graded, and a budget stuck at 0 grades nothing: the estimates could
not recover. So each step draws a depth, and then the requests whose blocks are verified at least to that depth. The
draw uses a generator keyed by (seed, step), the scheduled counts and per-position counts of earlier evidence, and
nothing else; it is made before the step's confidences are read. Choosing by x would leak: a deep position's x depends
on the tokens drawn before it. Every rank draws the same from the same seed, step and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from acceptd.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Share of drafted slots that exploration may add. More gives deep positions labels sooner and costs as much time.
DEFAULT_SHARE = 0.01

#: Steps after which one block is explored in any case. At one request of K = 4 the share alone takes 100 steps.
DEFAULT_MAX_GAP = 64

#: Part of the depth draws spread evenly over positions, so that none starves while another has the fewest labels.
EVEN_PART = 0.25

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Explored:
    """What one step explores.

    rows: indices of the requests, ascending. depth: leading draft tokens of each that are verified in any case.
    propensity: probability that a given request of at least that depth was drawn in this step, given the depth; the
    same for every row and every position below `depth`, in (0, 1]. chance: probability that the depth was this one.
    """

    rows: tuple[int, ...]
    depth: int
    propensity: float
    chance: float = 1.0

    @property
    def slots(self) -> int:
        """Draft tokens in all."""
        return len(self.rows) * self.depth

    def forced(self, num_requests: int) -> NDArray[np.int32]:
        """int32[R]: `depth` at the explored rows, 0 elsewhere."""
        out = np.zeros(num_requests, np.int32)
        out[list(self.rows)] = self.depth
        return out


class Exploration:
    """Draws what each step explores.

    seed: the same on all ranks. share: expected explored slots over drafted slots, in [0, 1]; 0 turns exploration
    off. max_gap: steps with drafts within which at least one block is explored. gap: such steps since the last one that
    explored, which is all that a draw changes.
    """

    def __init__(self, seed: int, *, share: float = DEFAULT_SHARE, max_gap: int = DEFAULT_MAX_GAP) -> None:
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"exploration share is {share}; accepted: 0 to 1")
        if max_gap < 1:
            raise ConfigError(f"exploration max_gap is {max_gap}; accepted: 1 or more steps")
        self.seed = seed
        self.share = share
        self.max_gap = max_gap
        self.gap = 0

    def draw(
        self, step: int, scheduled: NDArray[np.int32], evidence: Sequence[float], max_drafts: int
    ) -> Explored | None:
        """The rows to explore in this step, or None.

        scheduled: int32[R]. evidence: K counts of labels a position has had, from earlier steps and equal on all
        ranks; positions with fewer are drawn more often. max_drafts: slots one sampler chunk takes.
        """
        if not self.share:
            return None
        deepest = int(scheduled.max(initial=0))
        key = _mix(_mix(self.seed) ^ step)
        depth, chance = _depth(_uniform(key, 0), evidence[:deepest]) if deepest else (0, 0.0)
        depth = min(depth, max_drafts)
        if not depth:
            return None
        total = int(scheduled.sum())
        rows = None if total == deepest * scheduled.shape[0] else np.flatnonzero(scheduled >= depth)
        candidates = scheduled.shape[0] if rows is None else rows.shape[0]
        wanted = self.share * total / depth
        due = self.gap + 1 >= self.max_gap
        # Rounded at random, so that a given row's chance is exactly expected / candidates.
        expected = min(max(wanted, 1.0 if due else 0.0), float(candidates), float(max_drafts // depth))
        count = int(expected)
        count += _uniform(key, 1) < expected - count
        if not count:
            self.gap += 1
            return None
        self.gap = 0
        drawn = _sample(key, candidates, count)
        return Explored(tuple(drawn if rows is None else rows[drawn].tolist()), depth, expected / candidates, chance)


def _depth(point: float, evidence: Sequence[float]) -> tuple[int, float]:
    """A depth in 1 … len(evidence), at `point` in [0, 1) of the distribution in which position k is the last one
    explored with weight 1 / (1 + evidence[k]), beside the even part; and the probability of that depth."""
    weights = [1.0 / (1.0 + max(count, 0.0)) for count in evidence]
    total = sum(weights)
    even = EVEN_PART * total / ((1.0 - EVEN_PART) * len(weights))
    whole = total + even * len(weights)
    point *= whole
    for depth, weight in enumerate(weights, 1):
        point -= weight + even
        if point < 0.0:
            return depth, (weight + even) / whole
    return len(weights), (weights[-1] + even) / whole


def _sample(key: int, candidates: int, count: int) -> list[int]:
    """`count` of range(candidates) without replacement, each subset equally likely, ascending (Floyd's algorithm)."""
    chosen: set[int] = set()
    for i, last in enumerate(range(candidates - count, candidates)):
        index = int(_uniform(key, 2 + i) * (last + 1))
        chosen.add(last if index in chosen else index)
    return sorted(chosen)


def _uniform(key: int, index: int) -> float:
    """Number `index` of a step in [0, 1): counter-based, so no draw depends on how many were made before."""
    return (_mix(key ^ index) >> 11) / 2**53


def _mix(value: int) -> int:
    """SplitMix64's output function (Steele, Lea & Flood, 2014): every input bit reaches every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
