"""Exact, undecayed counts of a pair: what was learned from, what was left out and what was refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acceptd.codec import observations_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from acceptd.codec import Observations

#: Where counts that workers claim stay, instead of leaving what a uint64 field holds.
MAX_UINT64: Final = 2**64 - 1


#: Batches, and rows, that are counted together at most: of small batches the calls cost more than the counting. Raising
#: them keeps more in memory.
_BATCHES, _ROWS = 64, 1024


@dataclass
class Counters:
    """blocks: rows learned from. exclusions: blocks by ExclusionReason value.

    rejects: batches by RejectReason value. rows_rejected: their rows, as far as they could be told.
    """

    _observations: NDArray[np.uint64]
    _acceptances: NDArray[np.uint64]
    blocks: int = 0
    exclusions: Counter[int] = field(default_factory=Counter)
    rejects: Counter[int] = field(default_factory=Counter)
    rows_rejected: int = 0
    _waiting: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = field(default_factory=list)
    _rows_waiting: int = 0

    @classmethod
    def zero(cls, num_positions: int) -> Counters:
        """Nothing seen yet, for K = `num_positions`."""
        return cls(np.zeros(num_positions, np.uint64), np.zeros(num_positions, np.uint64))

    @property
    def observations(self) -> NDArray[np.uint64]:
        """Graded draft tokens by position: uint64[K]."""
        self._settle()
        return self._observations

    @property
    def acceptances(self) -> NDArray[np.uint64]:
        """Those that were accepted: uint64[K]."""
        self._settle()
        return self._acceptances

    def add(self, rows: Observations) -> None:
        """Counts each observed position of `rows`, whose columns must not change any more, and its label."""
        self.blocks += len(rows)
        self._rows_waiting += len(rows)
        self._waiting.append((rows.accepted, rows.admitted))
        if len(self._waiting) >= _BATCHES or self._rows_waiting >= _ROWS:
            self._settle()

    def _settle(self) -> None:
        if not self._waiting:
            return
        accepted, admitted = map(np.concatenate, zip(*self._waiting, strict=True))
        self._waiting, self._rows_waiting = [], 0
        self._observations += _deeper_than(observations_of(accepted, admitted), len(self._observations))
        self._acceptances += _deeper_than(accepted, len(self._acceptances))

    def exclude(self, reason: int, blocks: int) -> None:
        """Counts `blocks` that a worker left out. Stays at MAX_UINT64."""
        self.exclusions[reason] = min(self.exclusions[reason] + blocks, MAX_UINT64)

    def to_json(self) -> dict[str, Any]:
        """Plain values; exact, since Python's integers are."""
        return {
            "observations": [int(n) for n in self.observations],
            "acceptances": [int(n) for n in self.acceptances],
            "blocks": self.blocks,
            "exclusions": {str(reason): n for reason, n in self.exclusions.items()},
            "rejects": {str(reason): n for reason, n in self.rejects.items()},
            "rows_rejected": self.rows_rejected,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Counters:
        """What `to_json` gave."""
        return cls(
            np.array(value["observations"], np.uint64),
            np.array(value["acceptances"], np.uint64),
            value["blocks"],
            Counter({int(reason): min(n, MAX_UINT64) for reason, n in value["exclusions"].items()}),
            Counter({int(reason): n for reason, n in value["rejects"].items()}),
            value["rows_rejected"],
        )


def _deeper_than(depths: NDArray[Any], num_positions: int) -> NDArray[np.uint64]:
    """uint64[K]: how many of `depths` are larger than k."""
    histogram = np.bincount(depths, minlength=num_positions + 1)
    return np.cumsum(histogram[::-1])[::-1][1 : num_positions + 1].astype(np.uint64)
