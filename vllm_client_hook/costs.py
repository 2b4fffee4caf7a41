"""The cost tables: milliseconds that drafting and verification take, by size, from profiled samples.

Graphs pad to the next captured size, so up to the capture limit the cost is a step function of the padded size; above
it nothing pads and the cost is continuous. What a profile gets wrong is repaired or refused here, because the argmax
over a table believes every hole: a cost that seems to stand still makes more tokens look free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from acceptd.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Milliseconds below which a step's verification is not believed: a rate needs a divisor.
MIN_VERIFY_MS = 1e-6

#: A verify curve that rises by less than this share from its cheapest to its dearest size cannot pay for trimming.
#: Raising it calls more tables flat; the table is used all the same, this only decides what is reported.
FLAT_SHARE = 0.02

Sample = tuple[int, float]


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """draft_ms: float64[largest number of requests + 1], verify_ms: float64[largest number of tokens + 1].

    Indexed by size; both never fall. notices: one line each for what was repaired or refused, for people.
    can_trim: whether verifying less costs noticeably less. Raises ConfigError on values no argmax can be taken over.
    """

    draft_ms: NDArray[np.float64]
    verify_ms: NDArray[np.float64]
    notices: tuple[str, ...] = ()
    can_trim: bool = True

    def __post_init__(self) -> None:
        for name, table, least in (("draft", self.draft_ms, 0.0), ("verify", self.verify_ms, MIN_VERIFY_MS)):
            if table.ndim != 1 or table.shape[0] < 2 or not np.isfinite(table).all() or table.min() < least:
                raise ConfigError(f"{name} cost table: accepted: two or more finite milliseconds, each >= {least}")

    def step_ms(self, num_requests: int, num_tokens: int) -> float:
        """Milliseconds of one step. Raises ConfigError for a size that cannot be scheduled."""
        for what, size, limit in (
            ("requests", num_requests, self.draft_ms.shape[0] - 1),
            ("tokens", num_tokens, self.verify_ms.shape[0] - 1),
        ):
            if not 0 <= size <= limit:
                raise ConfigError(f"cost of {size} {what}: cannot be scheduled; accepted: 0 to {limit}")
        return float(self.draft_ms[num_requests] + self.verify_ms[num_tokens])


def build_cost_table(
    draft_samples: Iterable[Sample],
    verify_samples: Iterable[Sample],
    *,
    max_requests: int,
    max_tokens: int,
    capture_limit: int = 0,
) -> CostTable:
    """Tables from (size, milliseconds) samples, any number a size, in any order.

    draft_samples: by number of requests; verify_samples: by number of target tokens. capture_limit: largest captured
    size in tokens, 0 if nothing is captured. On a clean profile (rising, at least two sizes) the tables are those of
    vLLM's `build_cost_tables_from_curves`. Raises ConfigError where no usable sample is left.
    """
    notices: list[str] = []
    draft_curve = _clean("draft", draft_samples, max_requests, notices)
    verify_curve = _clean("verify", verify_samples, max_tokens, notices)
    draft_ms = np.maximum(_table(draft_curve, max_requests, capture_limit), 0.0)
    verify_ms = np.maximum(_table(verify_curve, max_tokens, capture_limit), MIN_VERIFY_MS)
    can_trim = bool(verify_ms[1] < verify_ms[-1] * (1.0 - FLAT_SHARE))
    if not can_trim:
        notices.append(
            f"cannot trim: verifying {max_tokens} tokens takes {verify_ms[-1]:.3g} ms, "
            f"verifying 1 takes {verify_ms[1]:.3g} ms"
        )
    for table in (draft_ms, verify_ms):
        table.flags.writeable = False
    return CostTable(draft_ms, verify_ms, tuple(notices), can_trim)


def _clean(name: str, samples: Iterable[Sample], limit: int, notices: list[str]) -> list[Sample]:
    """Median a size, refused sizes left out, made non-decreasing; (size, milliseconds) ascending."""
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    refused: set[int] = set()
    for size, milliseconds in samples:
        if not 0 < size <= limit:
            refused.add(size)
        elif np.isfinite(milliseconds) and milliseconds >= 0.0:
            by_size[int(size)].append(float(milliseconds))
    if refused:
        shown = ", ".join(str(size) for size in sorted(refused)[:8])
        notices.append(f"{name} curve: refused sizes that cannot be scheduled: {shown}; accepted: 1 to {limit}")
    if not by_size:
        raise ConfigError(f"{name} curve has no usable sample; accepted: sizes 1 to {limit} with a finite time")
    curve = [(size, float(np.median(times))) for size, times in sorted(by_size.items())]
    fitted = non_decreasing(_without_outliers([milliseconds for _, milliseconds in curve]))
    repaired = [size for (size, raw), value in zip(curve, fitted, strict=True) if raw != value]
    if repaired:
        notices.append(f"{name} curve: smoothed where a larger size took less, at {', '.join(map(str, repaired[:8]))}")
    if len(curve) == 1:
        notices.append(f"{name} curve has one size, {curve[0][0]}: taken as proportional beyond it")
    return [(size, value) for (size, _), value in zip(curve, fitted, strict=True)]


def _without_outliers(values: Sequence[float]) -> list[float]:
    """A value out of order between two neighbours that are in order takes the nearer neighbour's level."""
    out = list(values)
    for i in range(1, len(values) - 1):
        before, after = values[i - 1], values[i + 1]
        if before <= after:
            out[i] = min(max(values[i], before), after)
    return out


def non_decreasing(values: Sequence[float]) -> list[float]:
    """Isotonic regression in absolute error: neighbours that fall are pooled to their lower median.

    A running maximum would carry one spike on to every larger size and make all of them look free; here a single
    value out of line takes its neighbours' level. Values that already rise come back unchanged.

    >>> non_decreasing([1.0, 2.0, 50.0, 4.0, 5.0])
    [1.0, 2.0, 4.0, 4.0, 5.0]
    """
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and _lower_median(blocks[-2]) > _lower_median(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [level for block in blocks for level in [_lower_median(block)] * len(block)]


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _table(curve: Sequence[Sample], limit: int, capture_limit: int) -> NDArray[np.float64]:
    """float64[limit + 1]: padded to the next profiled size, or between sizes past the capture limit on the line."""
    sizes, times = np.asarray(curve, np.float64).T
    values = np.arange(limit + 1)
    table = times[np.minimum(np.searchsorted(sizes, values, side="left"), len(sizes) - 1)]
    if capture_limit:
        smooth, above = values > capture_limit, sizes > capture_limit
        if smooth.any() and above.any():
            # Only between sizes that are both past the limit: losing the graphs is a genuine jump.
            table[smooth] = np.interp(values[smooth], sizes[above], times[above])
    beyond = values > sizes[-1]
    table[beyond] = times[-1] + _last_slope(sizes, times) * (values[beyond] - sizes[-1])
    return np.asarray(table, np.float64)


def _last_slope(sizes: NDArray[np.float64], times: NDArray[np.float64]) -> float:
    """Milliseconds a token beyond the last profiled size: never 0 while the cost is not."""
    if len(sizes) > 1:
        last = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        if last > 0.0:
            return float(last)
        whole = (times[-1] - times[0]) / (sizes[-1] - sizes[0])
        if whole > 0.0:
            return float(whole)
    return float(times[-1] / sizes[-1])
