"""The budget: how many draft tokens a step verifies, and whose.

    survival[r, k] = confidence[r, 0] · … · confidence[r, k]        P(the block of request r reaches past position k)
    expected[n]    = sampling requests + sum of the n best survivals        tokens the step emits
    budget         = argmax_n expected[n] / (draft cost + verify cost[n])        tokens a millisecond
    split          = the `budget` best slots of the whole batch

Lossless by construction: the budget comes from confidences that are at least one step old, the split from scores
that are functions of the prefix alone, so whether a slot is verified never depends on the token in it. Survival falls
along a request, so the best slots of a request are always a prefix of its block.

Pure numpy, no state; `vllm_client_hook.budget_device` is the split's twin on the device.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_client_hook.costs import CostTable
    from vllm_client_hook.exploration import Explored

_NOTHING = np.empty(0)

#: Score of a slot admitted whatever the confidences say. Any value above 1, the largest survival.
FORCED = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the argmax found.

    drafts: draft tokens to verify, forced ones included. expected: tokens the step is expected to emit.
    milliseconds: what the cost table says the step takes. limit: the largest count that was allowed, and
    expected_at_limit what it would emit. extra: forced draft tokens that rank below all the chosen ones.
    """

    drafts: int
    expected: float
    milliseconds: float
    limit: int
    expected_at_limit: float
    extra: int = 0

    @property
    def rate(self) -> float:
        """Expected tokens a millisecond."""
        return self.expected / self.milliseconds


def drafts_that_fit(max_total_logits: int, num_requests: int, bonus_tokens: int = 1) -> int:
    """Draft tokens one sampler chunk takes beside every request's bonus tokens, at least 0.

    The rejection sampler addresses a trimmed batch in one chunk only, so more than this cannot be verified.
    """
    return max(0, max_total_logits - num_requests * bonus_tokens)


def choose(
    confidences: NDArray[np.float32],
    scheduled: NDArray[np.int32],
    costs: CostTable,
    *,
    context_tokens: int,
    sampling_requests: int,
    max_drafts: int,
    explored: Explored | None = None,
    previous: int | None = None,
    margin: float = 0.0,
) -> Choice:
    """The number of draft tokens that maximises expected tokens a millisecond; 0 is a legal answer.

    confidences: float32[R, K] in [0, 1], from an earlier step. scheduled: int32[R], drafts each request brought.
    context_tokens: tokens of the step that are no drafts. sampling_requests: requests that emit a token even with no
    draft accepted. max_drafts: what the sampler takes (`drafts_that_fit`).
    explored: rows verified to a depth in any case, at most `scheduled`; their sum must be within `max_drafts`.
    previous, margin: keep `previous` unless another count is better by more than this share, so that two counts of
    nearly equal value do not alternate. A kept count is never worse than the best by more than `margin`; 0 turns it
    off. Of counts that are exactly equal the smallest wins.

    With `explored` absent and `margin` 0 the answer is that of vLLM's `AdaptiveVerificationManager.get_num_tokens`,
    operation for operation (float64 products of float32 confidences, first argmax).
    """
    num_requests, num_positions = confidences.shape
    # [K, R], so that each product is one pass over a row. Negated, so that an ascending sort puts the best first; what
    # cannot be chosen gets 1 and ends up last.
    survival = confidences.T.astype(np.float64, order="C")
    np.negative(survival[0], out=survival[0])
    for before, here in pairwise(survival):
        np.multiply(here, before, out=here)
    total = int(scheduled.sum())
    base = 0
    gain = float(sampling_requests)
    if total < survival.size:
        np.putmask(survival, np.arange(num_positions)[:, None] >= scheduled, 1.0)
    taken = _NOTHING
    if explored is not None:
        rows = np.array(explored.rows, np.intp)
        taken = survival[: explored.depth, rows]
        survival[: explored.depth, rows] = 1.0
        base = taken.size
        gain -= float(taken.sum())
    scores = survival.reshape(-1)
    scores.sort()

    room = costs.verify_ms.shape[0] - 1 - context_tokens
    limit = max(base, min(total, max_drafts, room))
    expected = np.empty(limit - base + 1)
    expected[0] = 0.0
    np.negative(scores[: limit - base], out=expected[1:])
    np.add.accumulate(expected, out=expected)
    expected += gain

    draft_ms = costs.draft_ms[min(num_requests, costs.draft_ms.shape[0] - 1)]
    milliseconds = draft_ms + costs.verify_ms[context_tokens + base : context_tokens + limit + 1]
    if not milliseconds.shape[0]:
        # Larger than anything the table knows: such a batch was never profiled, so nothing is added to it.
        milliseconds = draft_ms + costs.verify_ms[-1:]
    rates = expected / milliseconds
    best = int(rates.argmax())
    if not rates[best] >= 0.0:
        # A NaN among the confidences sorts last and hides what follows it: decide without those slots.
        return choose(
            np.nan_to_num(confidences, nan=0.0, posinf=1.0, neginf=0.0),
            scheduled,
            costs,
            context_tokens=context_tokens,
            sampling_requests=sampling_requests,
            max_drafts=max_drafts,
            explored=explored,
            previous=previous,
            margin=margin,
        )
    if margin and previous is not None:
        kept = min(max(previous, base), limit) - base
        if kept < rates.shape[0] and rates[kept] * (1.0 + margin) >= rates[best]:
            best = kept
    extra = 0
    if base and best:
        extra = int(np.count_nonzero(taken > scores[best - 1]))
    elif base:
        # Nothing else is chosen: those that rank no higher than the best slot left out.
        extra = int(np.count_nonzero(taken >= min(scores[0], 0.0)))
    return Choice(base + best, float(expected[best]), float(milliseconds[best]), limit, float(expected[-1]), extra)


def split(
    confidences: NDArray[np.floating[Any]],
    scheduled: NDArray[np.int32],
    drafts: int,
    forced: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """int32[R], draft tokens of each request to verify: the `drafts` best slots of the batch.

    confidences: floating[R, K] of this step. scheduled: as in `choose`. forced: int32[R], depth verified in any case,
    at most `scheduled` (`Explored.forced`). Ties go to the lower request index, then to the lower position, so that
    the answer is the same wherever it is computed. A NaN counts as 0.
    """
    num_requests, num_positions = confidences.shape
    if drafts <= 0:
        return np.zeros(num_requests, np.int32)
    if drafts >= int(scheduled.sum()):
        return np.asarray(scheduled, np.int32).copy()
    scores = np.multiply.accumulate(np.nan_to_num(confidences, nan=0.0), axis=1)
    positions = np.arange(num_positions)
    if forced is not None:
        scores[positions < forced[:, None]] = FORCED
    scores[positions >= scheduled[:, None]] = -1.0
    winners = np.argsort(-scores, axis=None, kind="stable")[:drafts]
    return np.bincount(winners // num_positions, minlength=num_requests).astype(np.int32)


def digest(confidences: NDArray[np.float32]) -> int:
    """32-bit hash of the exact bits of float32[R, K]: ranks that hold different confidences tell by it."""
    return zlib.crc32(confidences.tobytes())
