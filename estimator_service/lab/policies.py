"""How many draft tokens each step verifies, under the policies that `acceptd simulate` compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from estimator_service.lab.trimmed import take, trimmed
from vllm_client_hook.budget import split
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import MARGIN, BudgetPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks
    from estimator_service.lab.cost_model import CostModel
    from estimator_service.lab.estimators.base import Estimator
    from estimator_service.lab.schedule import Schedule

#: Rows one sampler chunk takes: more than any simulated step has, the simulator has no sampler to fit.
_NO_LIMIT: Final = 1 << 30


@dataclass
class Outcome:
    """What a policy did over a trace. Tokens are emitted ones; milliseconds are the cost model's."""

    tokens: float = 0.0
    milliseconds: float = 0.0
    steps: int = 0
    scheduled: int = 0
    verified: int = 0
    accepted: int = 0
    explored: int = 0
    budget_changes: int = 0

    @property
    def throughput(self) -> float:
        """Tokens a second, all requests together."""
        return 1e3 * self.tokens / self.milliseconds

    @property
    def verified_share(self) -> float:
        """Share of the draft tokens that was verified; 0 where nothing was drafted."""
        return self.verified / self.scheduled if self.scheduled else 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields, and what follows from them."""
        return vars(self) | {"throughput": self.throughput, "verified_share": self.verified_share}


def fixed(blocks: Blocks, plan: Schedule, costs: CostModel, k: int) -> Outcome:
    """Draft and verify k tokens a request, always. k = 0 drafts nothing and pays no drafting."""
    steps, requests = plan.rows.shape
    accepted = int(np.minimum(blocks.accepted[plan.rows], k).sum(dtype=np.int64))
    drafts = steps * requests * k
    return Outcome(
        tokens=accepted + steps * requests,
        milliseconds=steps * float(costs.step_ms(k, requests, requests * (k + 1))),
        steps=steps,
        scheduled=drafts,
        verified=drafts,
        accepted=accepted,
    )


def threshold(blocks: Blocks, plan: Schedule, costs: CostModel, least: float) -> Outcome:
    """A block ends with its first token whose q_max is below `least` (Draft & Verify, with a fixed threshold).

    All that was drafted is verified, the token that ended the block included. An autoregressive draft takes as many
    passes as the batch's longest block.
    """
    steps, requests = plan.rows.shape
    confident = blocks.x[plan.rows] >= np.log(least) - np.log1p(-least)
    depth = np.minimum(np.minimum.accumulate(confident, axis=2).sum(axis=2) + 1, blocks.num_positions)
    accepted = int(np.minimum(blocks.accepted[plan.rows], depth).sum(dtype=np.int64))
    drafts = depth.sum(axis=1)
    milliseconds = costs.step_ms(depth.max(axis=1), requests, requests + drafts)
    return Outcome(
        tokens=accepted + steps * requests,
        milliseconds=float(milliseconds.sum()),
        steps=steps,
        scheduled=int(drafts.sum()),
        verified=int(drafts.sum()),
        accepted=accepted,
    )


@dataclass
class Adaptive:
    """Adaptive verification: the worker's own budget code over an estimator's probabilities.

    exploration: None explores nothing. margin: see `policy.MARGIN`. round_size: blocks between two refits.
    depth: tokens drafted a request, None for all that were recorded.
    """

    costs: CostModel
    estimator: Estimator
    exploration: Exploration | None = None
    margin: float = MARGIN
    round_size: int = 640
    depth: int | None = None
    outcome: Outcome = field(default_factory=Outcome)

    def run(self, blocks: Blocks, plan: Schedule) -> Outcome:
        """Plays `plan`. The budget sees each request's confidences of its previous block (1 at its first), as vLLM's
        does; the split sees this block's. The estimator learns from what was verified, and from nothing else."""
        steps, requests = plan.rows.shape
        depth = self.depth or blocks.num_positions
        policy = BudgetPolicy(
            _NO_LIMIT, costs=self.costs.table(depth), exploration=self.exploration, margin=self.margin
        )
        stale = np.ones((requests, blocks.num_positions), np.float32)
        round_steps = max(1, self.round_size // requests)
        for start in range(0, steps, round_steps):
            rows = plan.rows[start : start + round_steps]
            part = take(blocks, rows.reshape(-1))
            predicted = self.estimator.predict(part).astype(np.float32)
            fresh = predicted.reshape(*rows.shape, blocks.num_positions)
            first = plan.first[start : start + round_steps]
            stale = self._round(policy, start, part, fresh=fresh, stale=stale, first=first)
        self.outcome.explored = policy.totals.explored
        return self.outcome

    def _round(
        self,
        policy: BudgetPolicy,
        start: int,
        part: Blocks,
        *,
        fresh: NDArray[np.float32],
        stale: NDArray[np.float32],
        first: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """One round between two refits; returns the confidences that the next step's budget sees."""
        steps, requests, num_positions = fresh.shape
        depth = self.depth or num_positions
        scheduled = np.full(requests, depth, np.int32)
        evidence = self._evidence(num_positions)
        accepted = part.accepted.reshape(steps, requests)
        admitted = np.zeros((steps, requests), np.int32)
        explored = np.zeros((steps, requests), np.int32)
        propensity = np.zeros((steps, requests))
        drafts = np.zeros(steps, np.int64)
        for i in range(steps):
            stale = np.where(first[i][:, None], np.float32(1.0), stale)
            decision = policy.decide(
                start + i, stale, scheduled, evidence, context_tokens=requests, sampling_requests=requests
            )
            admitted[i] = split(fresh[i], scheduled, decision.drafts, decision.forced)
            drafts[i] = decision.drafts
            if decision.explored and decision.forced is not None:
                explored[i] = decision.forced
                propensity[i, list(decision.explored.rows)] = decision.explored.propensity
            stale = fresh[i]
        self._count(drafts, np.minimum(accepted, admitted), requests, depth)
        graded = trimmed(part, admitted.reshape(-1), explored.reshape(-1), propensity.reshape(-1))
        if len(graded):
            self.estimator.learn(graded)
        return stale

    def _count(self, drafts: NDArray[np.int64], accepted: NDArray[np.int32], requests: int, depth: int) -> None:
        out = self.outcome
        out.steps += len(drafts)
        out.scheduled += len(drafts) * requests * depth
        out.verified += int(drafts.sum())
        out.accepted += int(accepted.sum())
        out.tokens += int(accepted.sum()) + len(drafts) * requests
        out.milliseconds += float(self.costs.step_ms(depth, requests, requests + drafts).sum())
        out.budget_changes += int(np.count_nonzero(np.diff(drafts)))

    def _evidence(self, num_positions: int) -> Sequence[float]:
        coefficients = self.estimator.coefficients()
        return coefficients.evidence if coefficients else (0.0,) * num_positions
