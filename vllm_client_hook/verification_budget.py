"""What one manager's steps verify: our budget, decided with what vLLM's `AdaptiveVerificationManager` knows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from acceptd.cost_table import encode_cost_table
from acceptd.errors import AcceptdError
from acceptd.modes import Mode
from vllm_client_hook import budget_device
from vllm_client_hook.costs import CostTable, build_cost_table
from vllm_client_hook.exploration import Exploration
from vllm_client_hook.policy import MARGIN, BudgetPolicy
from vllm_client_hook.rank_check import RankCheck
from vllm_client_hook.trimming_cost import judgement

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from vllm_client_hook.estimator import AcceptanceEstimator
    from vllm_client_hook.exploration import Explored
    from vllm_client_hook.policy import Decision
    from vllm_client_hook.ranks import Ranks
    from vllm_client_hook.streams import Streams
    from vllm_client_hook.uplink import Uplink

_T = TypeVar("_T")

logger = logging.getLogger("vllm.acceptd")

#: Steps between two reports of the totals to the uplink, which sends them every few seconds.
_REPORT_STEPS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """One step's requests. drafts: scheduled draft tokens by request; the same as int32[R], beside the tokens that are
    no drafts and their sum, the request-state slots, and the confidences that decide, float32[R, K]."""

    drafts: dict[str, int]
    scheduled: NDArray[np.int32]
    context: NDArray[np.int32]
    context_tokens: int
    slots: NDArray[np.intp]
    confidences: NDArray[np.float32]


class VerificationBudget:
    """Decides, for one manager, what each step verifies.

    failed: why vLLM's own budget decides from here on, empty while ours does. repeated: parts of a decision that failed
    once and were made again from the same inputs; see docs/worker.md, "When a rank fails".
    """

    def __init__(
        self,
        manager: Any,
        estimator: AcceptanceEstimator,
        ranks: Ranks,
        streams: Streams,
        *,
        uplink: Uplink | None,
        seed: int,
    ) -> None:
        self.failed = ""
        self.repeated = 0
        self.policy = BudgetPolicy(manager._max_total_logits, bonus_tokens=manager.num_bonus_tokens)
        self.rank_check = RankCheck(ranks, streams, estimator.device)
        self.exploration = Exploration(seed)
        self.last_mode = Mode.TRIM
        self._manager = manager
        self._estimator = estimator
        self._uplink = uplink
        self._stock = manager.get_num_tokens
        self._tables: Any = None
        self._told: CostTable | None = None
        self._explored = [0.0] * manager.num_speculative_steps
        self._forces = False
        self._step = 0

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        """Tokens of the step once its drafts are cut to the budget; takes and leaves what vLLM's own does."""
        self._step += 1
        batch = None if self.failed else self._try(self._batch, num_tokens_per_req, draft_tokens)
        # In any case: the other ranks wait in its broadcast.
        self.rank_check.step(self._step, batch.confidences if batch else None)
        decision = self._try(self._choose, batch) if batch else None
        tokens = self._try(self._impose, batch, decision) if decision else None
        if self._uplink is not None and decision is not None and batch is not None:
            self._judge(batch, decision)
        if self._uplink is not None and (self._step % _REPORT_STEPS == 0 or self._told is not self.policy.costs):
            self._report(self._uplink)
        return int(self._stock(num_tokens_per_req, draft_tokens) if tokens is None else tokens)

    def _try(self, part: Callable[..., _T], *arguments: Any) -> _T | None:
        """What `part` gives; on failure what it gives when it is run again, so no part may leave half of itself behind.

        Other ranks have no way to know of a failure in this step. What fails once has a cause of this rank alone, and
        the second run gives what the others have. What fails twice has its cause in the inputs, which all ranks share:
        then all of them turn to vLLM's own budget, on this step.
        """
        try:
            return part(*arguments)
        except Exception as error:
            self.repeated += 1
            if self.repeated & (self.repeated - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                logger.warning(
                    "acceptd: the budget failed and is decided again (%d times): %s: %s",
                    self.repeated,
                    type(error).__name__,
                    error,
                )
        try:
            return part(*arguments)
        except Exception as error:
            logger.exception("acceptd: the budget failed twice; vLLM's own decides from here on")
            self.failed = f"{type(error).__name__}: {error}"
            self._forces = False
            self._estimator.untrimmed = False
            return None

    def assign(self, confidence_probs: Any, idx_mapping: Any, capacities: Any, draft_budget: int) -> None:
        """The split of this step, on the device."""
        forced = self._estimator.slots.explored[idx_mapping].to(capacities.dtype) if self._forces else None
        budget_device.split(confidence_probs, idx_mapping, capacities, draft_budget, forced)

    def set_cost_curves(self, stock: Any, draft_curve: Any, verify_curve: Any) -> None:
        """Rank 0's curves to all, then vLLM's tables of them, and ours."""
        from vllm.distributed.parallel_state import get_tp_group  # noqa: PLC0415 (a worker has loaded it)

        manager = self._manager
        curves = get_tp_group().broadcast_object((draft_curve, verify_curve), src=0)
        stock(*curves)
        self._tables = manager.cost_tables
        try:
            self.policy.costs = build_cost_table(
                *curves,
                max_requests=manager.req_states.max_num_reqs,
                max_tokens=manager.req_states.max_num_batched_tokens,
                capture_limit=manager._cudagraph_limit,
            )
            for notice in self.policy.costs.notices:
                logger.warning("acceptd: costs: %s", notice)
        except AcceptdError as error:
            self.policy.costs = None
            logger.warning("acceptd: no cost table, everything is verified: %s", error)

    def status(self) -> dict[str, Any]:
        """Plain values for `collective_rpc`."""
        return {
            "failed": self.failed,
            "repeated": self.repeated,
            "mode": self.last_mode.name.lower(),
            "divergent_checks": self.rank_check.divergent,
            "costs": list(self.policy.costs.notices) if self.policy.costs else None,
            **vars(self.policy.totals),
        }

    def _batch(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> _Batch:
        manager, states = self._manager, self._manager.req_states
        count = len(num_tokens_per_req)
        tokens = np.fromiter(num_tokens_per_req.values(), np.int32, count)
        # Maps, not a comprehension: with hundreds of requests it is the costliest line of a decision.
        lengths = list(map(len, map(draft_tokens.get, num_tokens_per_req, repeat(()))))
        if count and lengths.count(lengths[0]) == count:  # as in nearly every step
            drafts = dict.fromkeys(num_tokens_per_req, lengths[0])
            scheduled = np.full(count, lengths[0], np.int32)
        else:
            drafts = dict(zip(num_tokens_per_req, lengths, strict=True))
            scheduled = np.array(lengths, np.int32)
        context = tokens - scheduled
        slots = np.fromiter(map(states.req_id_to_index.__getitem__, num_tokens_per_req), np.intp, count)
        return _Batch(
            drafts,
            scheduled,
            context,
            int(context.sum()),
            slots,
            manager._stale_confidences[manager._stale_idx].np.take(slots, axis=0),
        )

    def _choose(self, batch: _Batch) -> Decision:
        self._adopt()
        return self.policy.decide(self._step, batch.confidences, batch.scheduled, self._explored, **self._sizes(batch))

    def _sizes(self, batch: _Batch) -> dict[str, int]:
        """Tokens of the step that are no drafts, and requests that sample."""
        states = self._manager.req_states
        computed = states.num_computed_tokens_np.take(batch.slots) + batch.context
        samples = computed >= states.prefill_len.np.take(batch.slots)
        return {"context_tokens": batch.context_tokens, "sampling_requests": int(np.count_nonzero(samples))}

    def _impose(self, batch: _Batch, decision: Decision) -> int:
        """Tokens of the step. Sets what the split and vLLM's layout read; only the very last of it counts anything."""
        self._estimator.untrimmed = decision.drafts == decision.scheduled
        self._forces = decision.explored is not None and not self._estimator.untrimmed
        if batch.context_tokens == len(batch.drafts) and (batch.context == 1).all():
            context = dict.fromkeys(batch.drafts, 1)  # decodes alone
        else:
            context = dict(zip(batch.drafts, batch.context.tolist(), strict=True))
        self._manager._batch_budget = (batch.drafts, context, decision.drafts)
        if decision.explored is not None and self._forces:
            self._explore(decision.explored, batch.slots)
        return batch.context_tokens + decision.drafts

    def _explore(self, explored: Explored, slots: NDArray[np.intp]) -> None:
        where = slots[list(explored.rows)]
        self._estimator.slots.write_explored(where, explored.depth, explored.propensity)
        for k in range(explored.depth):
            self._explored[k] += len(where)

    def _judge(self, batch: _Batch, decision: Decision) -> None:
        """On rank 0 alone: which blocks of this step will tell what trimming costs."""
        try:
            self._estimator.judged = judgement(
                self._step,
                decision,
                self.policy.mode,
                slots=batch.slots,
                scheduled=batch.scheduled,
                num_positions=batch.confidences.shape[1],
                alone=lambda: self.policy.alone(batch.confidences, batch.scheduled, **self._sizes(batch)),
            )
        except Exception:
            self._uplink = None
            logger.exception("acceptd: judging the budget failed; it is reported no longer")

    def _adopt(self) -> None:
        """What all ranks adopted on the same step; a table that was set without curves (by a test, or by hand)."""
        in_force = self._estimator.in_force
        served = in_force.version.epoch > 0 or in_force.local
        policy = self.policy
        policy.mode = self.last_mode = in_force.mode
        # Never served: stock vLLM, and its numbers.
        policy.margin = MARGIN if served else 0.0
        self.exploration.share = in_force.exploration_rate if served else 0.0
        policy.exploration = self.exploration
        tables = self._manager.cost_tables
        if tables is not self._tables:
            self._tables = tables
            policy.costs = None if tables is None else CostTable(*tables)

    def _report(self, uplink: Uplink) -> None:
        """On rank 0 alone, so nothing here may keep it from deciding as the others do."""
        totals = self.policy.totals
        try:
            uplink.report(
                steps=totals.steps,
                scheduled=totals.scheduled,
                clamped_steps=totals.clamped_steps,
                zero_budget_steps=totals.zero_budget_steps,
                verification_saved_seconds=totals.saved_ms / 1e3,
                lost_accepted=totals.lost_tokens,
                explored_extra=totals.explored_extra,
                explored_seconds=totals.explored_ms / 1e3,
            )
            costs = self.policy.costs
            if costs is not None and costs is not self._told:
                uplink.report_costs(
                    encode_cost_table(costs.draft_ms, costs.verify_ms, costs.notices, can_trim=costs.can_trim)
                )
            self._told = costs
        except Exception:
            self._uplink = None
            logger.exception("acceptd: reporting the budget failed; it is reported no longer")
