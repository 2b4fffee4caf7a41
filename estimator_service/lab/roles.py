"""What is the pair's and what is the workload's: every workload fitted apart, and how the fits differ.

The method's claim is that the slope belongs to the pair and stays, while the intercepts follow the workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acceptd.limits import MAX_LOG_ODDS
from estimator_service.lab.binned import Binned
from estimator_service.lab.regression import regress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks
    from estimator_service.lab.regression import Regression
    from estimator_service.lab.trace import Trace

#: Bins of x over ±40 nats, 0.04 wide. Raising it costs 24 bytes a bin, position and workload.
_BINS: Final = 2048

#: Where a trace does not tell requests apart, this many consecutive blocks count as one cluster of correlated labels:
#: one decode step of 64 requests.
_CLUSTER_BLOCKS: Final = 64


@dataclass(frozen=True)
class Role:
    """One workload of one trace, fitted apart.

    entropy: mean over observed positions, nats, NaN without the column. slope, intercepts [K] and their standard
    errors, which allow for labels of one request being correlated (cluster-robust); NaN at positions without labels.
    """

    trace: str
    workload: str
    observations: int
    acceptance: float
    entropy: float
    slope: float
    slope_error: float
    intercepts: NDArray[np.float64]
    intercept_errors: NDArray[np.float64]

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in vars(self).items()}


@dataclass(frozen=True)
class Spread:
    """How the fits differ: standard deviations over them, and Pearson correlations with the mean entropy.

    NaN with fewer than two fits (correlations: three).
    """

    slope: float
    intercepts: NDArray[np.float64]
    entropy_and_first_intercept: float
    entropy_and_slope: float

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in vars(self).items()}


def fit_roles(trace: Trace, on_progress: Callable[[int], None] = lambda _: None) -> list[Role]:
    """A role for each workload, in order of appearance. Two passes over the trace; `on_progress` gets blocks of both.

    Raises TraceError at the first bad value.
    """
    binned = Binned(trace.num_positions, -MAX_LOG_ODDS, MAX_LOG_ODDS, _BINS)
    entropy = np.zeros(0)
    for blocks in trace.chunks(["entropy"]):
        observed = _Observed(blocks)
        binned.add(observed.group, observed.position, observed.x, observed.label)
        entropy = _extended(entropy, len(blocks.workloads))
        if "entropy" in blocks.positions:
            values = blocks.positions["entropy"][observed.row, observed.position]
            entropy += np.bincount(observed.group, values, len(entropy))
        on_progress(len(blocks))
    fitted = regress(binned.cells())
    scores = _ClusterScores(fitted)
    for blocks in trace.chunks():
        scores.add(_Observed(blocks))
        on_progress(len(blocks))
    number, accepted, _ = binned.sums.sum(axis=(2, 3))
    if "entropy" not in trace.names:
        entropy[:] = np.nan
    roles = []
    for group, workload in enumerate(trace.workloads or [""]):
        errors = np.sqrt(np.diagonal(scores.covariance(group)))
        roles.append(
            Role(
                str(trace.path),
                workload,
                int(number[group]),
                float(accepted[group] / number[group]),
                float(entropy[group] / number[group]),
                float(fitted.slope[group]),
                float(errors[0]),
                fitted.intercepts[group],
                errors[1:],
            )
        )
    return roles


def spread(roles: Sequence[Role]) -> Spread:
    """How `roles` differ. Positions that not all traces have are left out."""
    positions = min((len(role.intercepts) for role in roles), default=0)
    slopes = np.array([role.slope for role in roles])
    intercepts = np.array([role.intercepts[:positions] for role in roles]).reshape(len(roles), positions)
    entropy = np.array([role.entropy for role in roles])
    several = len(roles) > 1
    return Spread(
        float(slopes.std(ddof=1)) if several else float("nan"),
        intercepts.std(axis=0, ddof=1) if several else np.full(positions, np.nan),
        _correlation(entropy, intercepts[:, 0]) if positions else float("nan"),
        _correlation(entropy, slopes),
    )


class _Observed:
    """The observations of some blocks as columns [N]."""

    def __init__(self, blocks: Blocks) -> None:
        self.row, self.position = np.nonzero(blocks.observed)
        self.group = blocks.workload[self.row].astype(np.int64)
        self.x = blocks.x[self.row, self.position].astype(np.float64)
        self.label = blocks.label[self.row, self.position]
        self.request = None if blocks.request is None else blocks.request[self.row]


class _ClusterScores:
    """Sums of the score (gradient of the log-likelihood) over clusters, for the sandwich covariance.

    Liang and Zeger, Biometrika 73(1), 1986: A⁻¹ (Σ_c s_c s_cᵀ) A⁻¹, with C/(C − 1) for C clusters.
    """

    def __init__(self, fitted: Regression) -> None:
        self._fitted = fitted
        self._first_block = 0
        self._keys: list[NDArray[np.int64]] = []
        self._sums: list[NDArray[np.float64]] = []

    def add(self, observed: _Observed) -> None:
        """Adds N observations."""
        fitted = self._fitted
        eta = fitted.slope[observed.group] * observed.x + fitted.intercepts[observed.group, observed.position]
        residual = observed.label - 1.0 / (1.0 + np.exp(-eta))
        if observed.request is None:
            cluster = (self._first_block + observed.row) // _CLUSTER_BLOCKS
            self._first_block += int(observed.row[-1]) + 1 if len(observed.row) else 0
        else:
            cluster = observed.request
        key = (observed.group << 40) | cluster
        distinct, inverse = np.unique(key, return_inverse=True)
        size = 1 + fitted.intercepts.shape[1]
        flat = np.bincount(inverse * size + 1 + observed.position, residual, len(distinct) * size)
        sums = np.asarray(flat, np.float64).reshape(len(distinct), size)
        sums[:, 0] = np.bincount(inverse, residual * observed.x, len(distinct))
        self._keys.append(distinct)
        self._sums.append(sums)

    def covariance(self, group: int) -> NDArray[np.float64]:
        """float64[1 + K, 1 + K] of a group's slope and intercepts."""
        keys, parts = np.concatenate(self._keys), np.concatenate(self._sums)
        own = (keys >> 40) == group
        distinct, inverse = np.unique(keys[own], return_inverse=True)
        sums = np.zeros((len(distinct), parts.shape[1]))
        np.add.at(sums, inverse, parts[own])
        bread = self._fitted.covariance[group]
        known = np.isfinite(np.diagonal(bread))
        out: NDArray[np.float64] = np.full_like(bread, np.nan)
        if len(distinct) > 1:
            kept = bread[np.ix_(known, known)]
            half: NDArray[np.float64] = sums[:, known] @ kept
            out[np.ix_(known, known)] = half.T @ half * (len(distinct) / (len(distinct) - 1))
        return out


def _extended(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    extended: NDArray[np.float64] = np.concatenate([values, np.zeros(max(0, size - len(values)))])
    return extended


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < 3 or not a[known].std() or not b[known].std():
        return float("nan")
    return float(np.corrcoef(a[known], b[known])[0, 1])
