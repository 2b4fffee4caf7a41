"""Bin edges of x, fixed in the protocol: windows with the same edges add up, over workers and over replicas.

Fine where traffic lies (a vocabulary of 128k gives x >= -11.8), coarse in the tails. Within a bin the mean of x is
kept, so what binning loses is second order in the width: at 0.25 a fitted coefficient moves by less than 1e-3
(tests/unit/test_newton.py compares with statsmodels on the rows).
"""

from __future__ import annotations

from typing import Final

from acceptd.limits import MAX_LOG_ODDS

_INNER, _MIDDLE = 10.0, 16.0
_FINE, _COARSE, _TAIL = 0.25, 0.5, 2.0


def _grid(start: float, stop: float, width: float) -> list[float]:
    return [start + width * i for i in range(round((stop - start) / width))]


#: Ascending, NUM_BINS + 1 values, nats. Bin b holds EDGES[b] <= x < EDGES[b + 1]; the last one holds +40 too.
EDGES: Final[tuple[float, ...]] = (
    *_grid(-MAX_LOG_ODDS, -_MIDDLE, _TAIL),
    *_grid(-_MIDDLE, -_INNER, _COARSE),
    *_grid(-_INNER, _INNER, _FINE),
    *_grid(_INNER, _MIDDLE, _COARSE),
    *_grid(_MIDDLE, MAX_LOG_ODDS, _TAIL),
    MAX_LOG_ODDS,
)

NUM_BINS: Final = len(EDGES) - 1
