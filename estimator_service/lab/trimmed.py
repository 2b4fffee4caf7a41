"""Blocks as a worker that trims would have recorded them: labels up to what was admitted, and what was explored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from acceptd.codec import Observations
from estimator_service.lab.blocks import Blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TrimmedBlocks(Blocks):
    """explored: uint8[B], depth admitted whatever the confidences; propensities: float32[B] of it, 0 where none."""

    explored: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    propensities: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def observations(self) -> Observations:
        """The rows as the worker sends them."""
        return Observations(
            self.accepted,
            self.admitted,
            self.x[self.observed],
            self.segment,
            explored=self.explored,
            propensities=self.propensities,
        )


def take(blocks: Blocks, rows: NDArray[np.int64]) -> Blocks:
    """The blocks at `rows`, int64[N], in that order."""
    return Blocks(
        blocks.accepted[rows],
        blocks.admitted[rows],
        {name: values[rows] for name, values in blocks.positions.items()},
        blocks.workload[rows],
        blocks.temperature[rows],
        blocks.segment[rows],
        blocks.workloads,
        None if blocks.step is None else blocks.step[rows],
        None if blocks.request is None else blocks.request[rows],
    )


def trimmed(
    blocks: Blocks,
    admitted: NDArray[np.int32],
    explored: NDArray[np.int32],
    propensities: NDArray[np.float64],
) -> TrimmedBlocks:
    """`blocks` cut to `admitted`, int32[B]; those of which nothing was verified carry no label and are left out."""
    kept = np.flatnonzero(admitted)
    part = take(blocks, kept)
    depth = admitted[kept].astype(np.uint8)
    return TrimmedBlocks(
        np.minimum(part.accepted, depth),
        depth,
        part.positions,
        part.workload,
        part.temperature,
        part.segment,
        part.workloads,
        part.step,
        part.request,
        explored=explored[kept].astype(np.uint8),
        propensities=propensities[kept].astype(np.float32),
    )
