"""Blocks as a worker that trims would have recorded them: labels up to what was admitted, and what was explored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks


def take(blocks: Blocks, rows: NDArray[np.int64]) -> Blocks:
    """The blocks at `rows`, int64[N], in that order."""
    return blocks[rows]


def trimmed(
    blocks: Blocks,
    admitted: NDArray[np.int32],
    explored: NDArray[np.int32],
    propensities: NDArray[np.float64],
) -> Blocks:
    """`blocks` cut to `admitted`, int32[B]; those of which nothing was verified carry no label and are left out."""
    kept = np.flatnonzero(admitted)
    part = blocks[kept]
    depth = admitted[kept].astype(np.uint8)
    return replace(
        part,
        accepted=np.minimum(part.accepted, depth),
        admitted=depth,
        explored=explored[kept].astype(np.uint8),
        propensity=propensities[kept].astype(np.float32),
    )
