"""The worker's own round, for when the service has never been there or has been lost for too long.

One damped Newton step a round on a shift of the coefficients in force: Δω added to every segment's slope, Δβ_k to its
intercepts. On a straight line that is the round of vLLM's estimator (arrowhead system, update × n / (n + 50)); on a
link with segments it keeps their shape. Unlike vLLM's it cannot run away: the step is bounded, the slopes stay within
the protocol's bounds, and it is halved until the rows' log-loss does not grow, or dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from acceptd.limits import MAX_SLOPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_client_hook.block import Block
    from vllm_client_hook.rows import Rows

    Floats = NDArray[np.float32]

#: Rows a round looks at. It runs between two decode steps: 1024 x K = 8 takes about a millisecond every 100 steps.
MAX_ROWS: Final = 1024

#: Rows taken from one copy, so that a round's sample spreads over its steps.
MAX_ROWS_A_COPY: Final = 128

#: Decode steps of a round, damping and ridge: vLLM's own.
ROUND_STEPS: Final = 100
DAMPING: Final = 50.0
RIDGE: Final = 1e-3

#: Largest change a round, slope and nats. Larger follows a shift sooner, and a bad round further.
MAX_SLOPE_STEP: Final = 0.5
MAX_INTERCEPT_STEP: Final = 2.0

_HALVINGS: Final = 4


class LocalRound:
    """Collects rows and turns them into the next block."""

    def __init__(self) -> None:
        self._features: list[Floats] = []
        self._accepted: list[NDArray[np.uint8]] = []
        self._observed: list[NDArray[np.bool_]] = []
        self._segments: list[NDArray[np.uint8]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def learn(self, rows: Rows) -> None:
        """Takes a bounded number of rows, evenly over the copy: neighbours are of one step, in the batch's order."""
        take = min(len(rows), MAX_ROWS_A_COPY, MAX_ROWS - self._count)
        if take <= 0:
            return
        chosen = np.linspace(0, len(rows) - 1, take).astype(np.int64)
        self._features.append(rows.features[chosen])
        self._accepted.append(rows.accepted[chosen])
        self._observed.append(rows.observed[chosen])
        self._segments.append(rows.segments[chosen])
        self._count += take

    def forget(self) -> None:
        """Starts a round anew."""
        self.__init__()  # type: ignore[misc]

    def refit(self, base: Block) -> Block | None:
        """The next block after `base`, from this round's rows, which are forgotten; None: nothing to change."""
        if not self._count:
            return None
        x, observed = np.concatenate(self._features), np.concatenate(self._observed)
        accepted, segments = np.concatenate(self._accepted), np.concatenate(self._segments)
        self.forget()
        label = (np.arange(x.shape[1]) < accepted[:, None]).astype(np.float64)
        log_odds = base.log_odds(x, segments).astype(np.float64)
        slope, intercepts = _newton(x.astype(np.float64), label, observed, log_odds)
        pieces = np.cumsum(base.slopes.astype(np.float64), axis=1)
        before = _log_loss(log_odds, label, observed)
        for _ in range(_HALVINGS):
            slope = float(np.clip(slope, -pieces.min(), MAX_SLOPE - pieces.max()))
            shift = np.clip(intercepts, -MAX_INTERCEPT_STEP, MAX_INTERCEPT_STEP)
            moved = base.moved(slope, shift.astype(np.float32))
            after = _log_loss(moved.log_odds(x, segments).astype(np.float64), label, observed)
            if after <= before:
                return moved
            slope, intercepts = slope / 2, intercepts / 2
        return None


def _newton(
    x: NDArray[np.float64], label: NDArray[np.float64], observed: NDArray[np.bool_], log_odds: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """One damped step for one shared slope and K intercepts; arrays are [n, K]."""
    p = 1 / (1 + np.exp(-np.clip(log_odds, -60, 60)))
    weight = np.where(observed, p * (1 - p), 0.0)
    residual = np.where(observed, label - p, 0.0)
    n = observed.sum(axis=0)
    a = (weight * x * x).sum() + RIDGE
    b, c = (weight * x).sum(axis=0), weight.sum(axis=0) + RIDGE
    g0, g1 = (residual * x).sum(), residual.sum(axis=0)
    slope = (g0 - (b * g1 / c).sum()) / (a - (b * b / c).sum())
    slope = float(np.clip(slope * n.sum() / (n.sum() + DAMPING), -MAX_SLOPE_STEP, MAX_SLOPE_STEP))
    return slope, (g1 - b * slope) / c * n / (n + DAMPING)


def _log_loss(log_odds: NDArray[np.float64], label: NDArray[np.float64], observed: NDArray[np.bool_]) -> float:
    loss = np.logaddexp(0, log_odds) - label * log_odds
    return float(loss[observed].sum())
