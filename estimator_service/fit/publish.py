"""Whether a new fit is worth a new version: apart from fitting, a decision of its own."""

from __future__ import annotations

from typing import Final

import numpy as np

from acceptd.types import Coefficients
from estimator_service.fit.histogram import NUM_SLOTS
from estimator_service.fit.predict import Predictor, sigmoid

#: Largest change of a confidence that goes unpublished. A budget cannot tell .002; raising it publishes less often.
MIN_CHANGE: Final = 0.002

#: Where confidences are compared, nats: the range of ordinary traffic.
_GRID: Final = np.arange(-8.0, 16.5, 0.5)


def largest_change(old: Coefficients, new: Coefficients) -> float:
    """Largest difference of any confidence over segments, positions and x in [-8, 16]; K must agree."""
    k = new.num_positions
    segment, position, x = (
        axis.ravel() for axis in np.meshgrid(np.arange(NUM_SLOTS), np.arange(k), _GRID, indexing="ij")
    )
    before, after = (sigmoid(Predictor.of(value).log_odds(segment, position, x)) for value in (old, new))
    return float(np.abs(after - before).max())


def should_publish(
    old: Coefficients, new: Coefficients, *, age_seconds: float, max_age_seconds: float, min_change: float = MIN_CHANGE
) -> bool:
    """Whether `new` goes out: it changes a confidence by more than `min_change`, or `old` is `max_age_seconds` old."""
    return age_seconds >= max_age_seconds or largest_change(old, new) > min_change
