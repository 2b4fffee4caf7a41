"""Where the link may bend: quantiles of the traffic's x, on bin edges, that stay put unless the traffic moves."""

from __future__ import annotations

from typing import Final

import numpy as np

from acceptd.bins import EDGES
from estimator_service.fit.likelihood import Floats

#: Knots of the link. Six give seven pieces of equal traffic; more follow noise, fewer miss the bend that lies between
#: rows of no and of some confidence. At most acceptd.limits.MAX_KNOTS.
NUM_KNOTS: Final = 6

#: No knot beyond these, nats: rows there are rare, and their acceptance is near its limits.
_LOWEST, _HIGHEST = -6.0, 12.0

#: Knots are at least this far apart and move only when the traffic's quantile is this far off, nats. Raising it makes
#: the link coarser but steadier over refits.
_SPACING: Final = 0.5
_INERTIA: Final = 1.0

_CANDIDATES: Final = np.arange(_LOWEST, _HIGHEST + _SPACING, _SPACING)


def choose_knots(n: Floats, previous: tuple[float, ...] = ()) -> tuple[float, ...]:
    """Ascending knots for traffic with counts n, float64[NUM_BINS] by bin of x. `previous` is kept while it fits.

    Fewer than NUM_KNOTS (perhaps none) where the traffic is too narrow for them.
    """
    total = float(n.sum())
    if total <= 0:
        return previous
    levels = np.arange(1, NUM_KNOTS + 1) / (NUM_KNOTS + 1)
    quantiles = np.interp(levels, np.concatenate(([0.0], np.cumsum(n))) / total, EDGES)
    nearest = np.abs(quantiles[:, None] - _CANDIDATES).argmin(axis=1)
    wanted = tuple(float(x) for x in np.unique(_CANDIDATES[nearest]))
    if len(wanted) == len(previous) and np.abs(np.subtract(wanted, previous)).max(initial=0.0) < _INERTIA:
        return previous
    return wanted
