"""Segments: classes of sampling settings between which the feature changes its meaning.

The draft samples at the request's temperature and x is taken from the scaled distribution, so the same x means
something else at another temperature; a very narrow top-k, top-p or min-p on the target cuts what the draft still
proposes. The table is part of the protocol: worker and service must agree on it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Segment(IntEnum):
    """Segment of one request. The value is what travels in `ObservationBatch.segments`."""

    GREEDY = 0  # temperature 0
    LOW = 1  # (0, 0.5]
    MID = 2  # (0.5, 0.9]
    HIGH = 3  # above 0.9
    NARROW = 4  # top_k <= 8, top_p < 0.8 or min_p > 0.1, at any temperature above 0


NUM_SEGMENTS: Final = len(Segment)

#: Rows that a worker's coefficient tensors have, used or not: fixed when it starts, so that a captured graph's shapes
#: do not change. Raising it needs a restart of the workers.
MAX_SEGMENTS: Final = 8

#: Upper temperature bounds (inclusive) of GREEDY, LOW and MID.
TEMPERATURE_BOUNDS: Final = (0.0, 0.5, 0.9)

NARROW_TOP_K: Final = 8
NARROW_TOP_P: Final = 0.8
NARROW_MIN_P: Final = 0.1


def is_narrow(*, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> bool:
    """Whether the target's cut-offs are narrow. `top_k` of 0 or -1 means none, as in vLLM."""
    return 0 < top_k <= NARROW_TOP_K or top_p < NARROW_TOP_P or min_p > NARROW_MIN_P


def segment_of(temperature: float, *, narrow: bool = False) -> Segment:
    """The segment of a request with this sampling temperature."""
    greedy, low, mid = TEMPERATURE_BOUNDS
    if temperature <= greedy:
        return Segment.GREEDY
    if narrow:
        return Segment.NARROW
    if temperature <= low:
        return Segment.LOW
    return Segment.MID if temperature <= mid else Segment.HIGH
