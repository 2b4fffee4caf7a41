"""Draft blocks in columns, as the lab's estimators and scores take them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptd.codec import Observations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Blocks:
    """B draft blocks of one pair, in time order.

    accepted, admitted: uint8[B], 0 <= accepted <= admitted <= K. positions: by column name (`columns.POSITIONS`),
    float32[B, K]; NaN where nothing was recorded, which happens beyond the first rejection alone.
    workload: int32[B], index into `workloads`. temperature: float32[B], NaN where unknown.
    segment: uint8[B], `codec.UNKNOWN_SEGMENT` where unknown. step, request: int64[B] or None. explored:
    uint8[B], depth that is an unbiased sample, and its propensity float32[B] in [0, 1]; None: blocks that were verified
    whole are one, and no others.
    """

    accepted: NDArray[np.uint8]
    admitted: NDArray[np.uint8]
    positions: dict[str, NDArray[np.float32]]
    workload: NDArray[np.int32]
    temperature: NDArray[np.float32]
    segment: NDArray[np.uint8]
    workloads: Sequence[str] = field(default=("",))
    step: NDArray[np.int64] | None = None
    request: NDArray[np.int64] | None = None
    explored: NDArray[np.uint8] | None = None
    propensity: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def num_positions(self) -> int:
        """K."""
        return int(self.x.shape[1])

    @property
    def x(self) -> NDArray[np.float32]:
        """float32[B, K]: logit q_max, nats."""
        return self.positions["logit_qmax"]

    @cached_property
    def observed(self) -> NDArray[np.bool_]:
        """bool[B, K]: positions that carry a label, min(accepted + 1, admitted) a block."""
        depth = np.minimum(self.accepted.astype(np.int64) + 1, self.admitted)
        return np.asarray(np.arange(self.num_positions) < depth[:, None])

    @cached_property
    def label(self) -> NDArray[np.bool_]:
        """bool[B, K]: whether the token passed. Means something where `observed` alone."""
        return np.asarray(np.arange(self.num_positions) < self.accepted[:, None])

    def __getitem__(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> Blocks:
        """The blocks of a slice, as views, or those at indices or where true, in that order, as copies."""
        return Blocks(
            self.accepted[rows],
            self.admitted[rows],
            {name: values[rows] for name, values in self.positions.items()},
            self.workload[rows],
            self.temperature[rows],
            self.segment[rows],
            self.workloads,
            None if self.step is None else self.step[rows],
            None if self.request is None else self.request[rows],
            None if self.explored is None else self.explored[rows],
            None if self.propensity is None else self.propensity[rows],
        )

    def observations(self) -> Observations:
        """The same rows as a worker sends them: what production code learns from."""
        explored, propensity = self.explored, self.propensity
        if explored is None:
            explored = np.where(self.admitted == self.num_positions, self.admitted, 0).astype(np.uint8)
        if propensity is None:
            propensity = (explored > 0).astype(np.float32)
        return Observations(self.accepted, self.admitted, self.x[self.observed], self.segment, explored, propensity)


def concatenate(parts: Sequence[Blocks]) -> Blocks:
    """The blocks of `parts` (at least one, same columns), in order. Copies unless there is one part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return Blocks(
        np.concatenate([p.accepted for p in parts]),
        np.concatenate([p.admitted for p in parts]),
        {name: np.concatenate([p.positions[name] for p in parts]) for name in first.positions},
        np.concatenate([p.workload for p in parts]),
        np.concatenate([p.temperature for p in parts]),
        np.concatenate([p.segment for p in parts]),
        parts[-1].workloads,
        *(_joined([getattr(p, name) for p in parts]) for name in ("step", "request", "explored", "propensity")),
    )


def _joined(values: list[Any]) -> Any:
    return None if values[0] is None else np.concatenate(values)
