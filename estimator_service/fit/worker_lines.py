"""Each worker's own line through the scores of a journal's rows, from as many of them as it takes to judge it."""

from __future__ import annotations

from typing import Final

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.types import Coefficients
from estimator_service.fit.journal import Pending
from estimator_service.fit.predict import Compiled
from estimator_service.fit.workers import Recalibration, recalibrate

#: Observations from which workers are judged in one merge, or 64 times fewer for each worker if that is more. Raising
#: it costs time and names a fault on less of a difference.
_JUDGED: Final = 8_192


def worker_lines(pending: Pending, coefficients: Coefficients, compiled: Compiled, num_positions: int) -> Recalibration:
    """Fits of `pending.workers`, in their order. coefficients: those of all, by which the rows are scored."""
    k, workers = num_positions, len(pending.workers)
    # Every n-th row judges a worker as well as all: enough of them for each one's line.
    step = max(1, len(pending.code) // max(_JUDGED, workers * _JUDGED // 64))
    code, x = pending.code[::step].astype(np.int64), pending.x[::step].astype(np.float64)
    cell = code >> 1
    position = cell // NUM_BINS % k
    score = compiled.log_odds(coefficients, cell, x)
    return recalibrate(pending.worker[pending.batch(step)], position, score, code & 1, shape=(workers, k))
