"""The policy of one worker: mode, exploration, steadiness and limits around the budget's argmax.

It holds what carries over from step to step. Every rank runs the same policy on the same inputs: mode, cost table,
seed and evidence reach all ranks on the same step, and nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from acceptd.modes import Mode
from vllm_client_hook.budget import Choice, choose, drafts_that_fit
from vllm_client_hook.exploration import Exploration, Explored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_client_hook.costs import CostTable

#: A count is given up for a better one only if that gains more than this share. Two counts of nearly equal value at
#: the edges of a bucket then do not alternate step after step; the price is at most this share of throughput.
MARGIN = 0.005


@dataclass(frozen=True, slots=True)
class Decision:
    """One step's answer.

    drafts: draft tokens to verify, of `scheduled` ones that `requests` requests brought.
    explored: the draw behind it; the rows' explored depth and propensity are reported with their labels. choice: what
    the argmax wanted; None if none was taken (mode off, or no cost table yet).
    clamped: everything should have been verified, but one sampler chunk does not take it.
    saved_ms, lost_tokens: verification time that trimming saves in this step, and tokens it is expected to lose, both
    against verifying all; in shadow mode what trimming would have saved and lost. explored_ms: what exploration adds.
    """

    drafts: int
    scheduled: int
    requests: int
    explored: Explored | None = None
    choice: Choice | None = None
    clamped: bool = False
    saved_ms: float = 0.0
    lost_tokens: float = 0.0
    explored_ms: float = 0.0

    @property
    def forced(self) -> NDArray[np.int32] | None:
        """int32[R], depth verified in any case; None if nothing is explored."""
        return None if self.explored is None else self.explored.forced(self.requests)


@dataclass
class Totals:
    """Running totals of a policy; none ever falls. Milliseconds are the cost table's.

    zero_budget_steps: steps in which nothing was worth verifying; what exploration verified does not count.
    explored: slots that were drawn; explored_extra: those of them that the budget alone would have left out.
    """

    steps: int = 0
    scheduled: int = 0
    verified: int = 0
    explored: int = 0
    clamped_steps: int = 0
    zero_budget_steps: int = 0
    explored_extra: int = 0
    saved_ms: float = 0.0
    lost_tokens: float = 0.0
    explored_ms: float = 0.0

    def add(self, decision: Decision) -> None:
        """Counts one step."""
        self.steps += 1
        self.scheduled += decision.scheduled
        self.verified += decision.drafts
        explored = decision.explored.slots if decision.explored else 0
        self.explored += explored
        self.clamped_steps += decision.clamped
        self.zero_budget_steps += decision.choice is not None and decision.choice.drafts == explored
        self.explored_extra += decision.choice.extra if decision.choice else 0
        self.saved_ms += decision.saved_ms
        self.lost_tokens += decision.lost_tokens
        self.explored_ms += decision.explored_ms


@dataclass
class BudgetPolicy:
    """Decides each step's budget.

    max_total_logits: rows one sampler chunk takes. bonus_tokens: rows a request needs beside its drafts.
    costs: None until there is a table: everything is verified. exploration: None explores nothing.
    margin: see `MARGIN`; 0 decides each step afresh.
    """

    max_total_logits: int
    bonus_tokens: int = 1
    costs: CostTable | None = None
    mode: Mode = Mode.TRIM
    exploration: Exploration | None = None
    margin: float = MARGIN
    totals: Totals = field(default_factory=Totals)
    _previous: int | None = None

    def decide(
        self,
        step: int,
        confidences: NDArray[np.float32],
        scheduled: NDArray[np.int32],
        evidence: Sequence[float],
        *,
        context_tokens: int,
        sampling_requests: int,
    ) -> Decision:
        """The step's decision; see `budget.choose` for the arrays and `Exploration.draw` for `evidence`.

        One that raises leaves nothing behind: the next call with the same arguments decides as this one would have.
        """
        gap = self.exploration.gap if self.exploration else 0
        try:
            decision = self._decide(
                step,
                confidences,
                scheduled,
                evidence,
                context_tokens=context_tokens,
                sampling_requests=sampling_requests,
            )
        except BaseException:
            if self.exploration:
                self.exploration.gap = gap
            raise
        if decision.choice is not None:
            self._previous = decision.choice.drafts
        self.totals.add(decision)
        return decision

    def alone(
        self,
        confidences: NDArray[np.float32],
        scheduled: NDArray[np.int32],
        *,
        context_tokens: int,
        sampling_requests: int,
    ) -> int:
        """Draft tokens that the argmax takes without exploration and without a previous budget; changes nothing."""
        if self.costs is None:
            return int(scheduled.sum())
        return choose(
            confidences,
            scheduled,
            self.costs,
            context_tokens=context_tokens,
            sampling_requests=sampling_requests,
            max_drafts=drafts_that_fit(self.max_total_logits, scheduled.shape[0], self.bonus_tokens),
        ).drafts

    def _decide(
        self,
        step: int,
        confidences: NDArray[np.float32],
        scheduled: NDArray[np.int32],
        evidence: Sequence[float],
        *,
        context_tokens: int,
        sampling_requests: int,
    ) -> Decision:
        total = int(scheduled.sum())
        requests = scheduled.shape[0]
        limit = drafts_that_fit(self.max_total_logits, requests, self.bonus_tokens)
        everything = min(total, limit)
        if self.costs is None or self.mode is Mode.OFF or not total:
            return Decision(everything, total, requests, clamped=everything < total)

        trims = self.mode is Mode.TRIM
        explored = self.exploration.draw(step, scheduled, evidence, limit) if trims and self.exploration else None
        choice = choose(
            confidences,
            scheduled,
            self.costs,
            context_tokens=context_tokens,
            sampling_requests=sampling_requests,
            max_drafts=limit,
            explored=explored,
            previous=self._previous,
            margin=self.margin,
        )
        drafts = choice.drafts if trims else everything
        return Decision(
            drafts,
            total,
            requests,
            explored=explored,
            choice=choice,
            clamped=not trims and everything < total,
            saved_ms=self._verify_ms(context_tokens + everything) - self._verify_ms(context_tokens + choice.drafts),
            lost_tokens=choice.expected_at_limit - choice.expected,
            explored_ms=self._verify_ms(context_tokens + choice.drafts)
            - self._verify_ms(context_tokens + choice.drafts - choice.extra),
        )

    def _verify_ms(self, tokens: int) -> float:
        """Milliseconds of verifying `tokens`, at most what the table goes to."""
        if self.costs is None:
            return 0.0
        verify_ms = self.costs.verify_ms
        return float(verify_ms[min(tokens, verify_ms.shape[0] - 1)])
