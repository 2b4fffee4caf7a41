"""Puts our budget into vLLM's `AdaptiveVerificationManager`.

vLLM's manager stays, with its buffers, its copies and the layout it builds. Replaced are, on the instance,
`get_num_tokens` (how many draft tokens) and `set_cost_curves`, and in its module the function that assigns them to
requests (whose). Whatever fails on the way falls back to vLLM's own.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

from acceptd.errors import AcceptdError, UnsupportedVllm
from vllm_client_hook import gate
from vllm_client_hook.verification_budget import VerificationBudget

if TYPE_CHECKING:
    from vllm_client_hook.estimator import AcceptanceEstimator
    from vllm_client_hook.ranks import Ranks
    from vllm_client_hook.streams import Streams
    from vllm_client_hook.uplink import Uplink

MODULE: Final = "vllm.v1.worker.gpu.spec_decode.adaptive_verification"

#: Parameters of what is called or replaced. `reallocate_drafts` itself is not: what it returns differs by release.
SIGNATURES: Final = {
    "AdaptiveVerificationManager.get_num_tokens": ("self", "num_tokens_per_req", "draft_tokens"),
    "AdaptiveVerificationManager.record_confidences": ("self", "confidence_probs", "input_batch"),
    "AdaptiveVerificationManager.set_cost_curves": ("self", "draft_curve", "verify_curve"),
}
ASSIGN: Final = "_assign_draft_token_budget_compiled"
_ASSIGN_PARAMETERS: Final = ("confidence_probs", "idx_mapping", "capacities", "draft_budget", "num_steps")

#: State of the manager that is read or written, here or in `verification_budget`.
_ATTRIBUTES: Final = (
    "req_states",
    "num_speculative_steps",
    "num_bonus_tokens",
    "cost_tables",
    "_max_total_logits",
    "_stale_confidences",
    "_stale_idx",
    "_confidence_probs",
    "_batch_budget",
    "_cudagraph_limit",
)

_STATES: Final = (
    "req_id_to_index",
    "num_computed_tokens_np",
    "prefill_len",
    "max_num_reqs",
    "max_num_batched_tokens",
)


def unsupported() -> str:
    """Why this vLLM keeps its own budget; empty if it does not. Called in a worker, before the ranks agree."""
    try:
        module = importlib.import_module(MODULE)
        manager = getattr(module, "AdaptiveVerificationManager", None)
        found = {name: gate.parameters_of(manager, name.rpartition(".")[2]) for name in SIGNATURES}
        gate.require_exact(found, SIGNATURES)
        plain = {"assign": gate.parameters_of(module, ASSIGN.removesuffix("_compiled"))}
        gate.require_exact(plain, {"assign": _ASSIGN_PARAMETERS})
        if not callable(getattr(module, ASSIGN, None)):
            raise UnsupportedVllm(f"this vLLM has no {ASSIGN}")
    except Exception as error:
        return str(error) if isinstance(error, AcceptdError) else f"{type(error).__name__}: {error}"
    return ""


def attach(
    manager: Any,
    estimator: AcceptanceEstimator,
    ranks: Ranks,
    streams: Streams,
    *,
    uplink: Uplink | None,
    seed: int,
    rank0_confidences: bool,
) -> VerificationBudget:
    """Puts a budget into `manager`, once its buffers exist. Raises UnsupportedVllm, and has then changed nothing.

    ranks, streams: the estimator's own. seed: of the exploration, equal on all ranks. rank0_confidences: whether all
    ranks decide with rank 0's confidences, at the price of a broadcast of R × K floats a step.
    """
    missing = [name for name in _ATTRIBUTES if not hasattr(manager, name)]
    missing += [f"req_states.{name}" for name in _STATES if not hasattr(manager.req_states, name)]
    if missing:
        raise UnsupportedVllm(f"AdaptiveVerificationManager has no {missing[0]}")
    budget = VerificationBudget(manager, estimator, ranks, streams, uplink=uplink, seed=seed)
    module: Any = importlib.import_module(MODULE)
    assignment = getattr(module, ASSIGN)
    if not isinstance(assignment, Assignment):
        assignment = Assignment(assignment)
        setattr(module, ASSIGN, assignment)
    assignment.owners[id(manager._confidence_probs)] = budget
    manager.get_num_tokens = budget.get_num_tokens
    manager.set_cost_curves = functools.partial(budget.set_cost_curves, manager.set_cost_curves)
    if rank0_confidences and ranks.size > 1:
        manager.record_confidences = functools.partial(_record_rank_0s, ranks, manager.record_confidences)
    return budget


def _record_rank_0s(ranks: Ranks, record: Any, confidence_probs: Any, input_batch: Any) -> Any:
    ranks.broadcast(confidence_probs[: input_batch.num_reqs])
    return record(confidence_probs, input_batch)


class Assignment:
    """Stands where vLLM's compiled assignment stood: each manager's own, or vLLM's where it has none.

    owners: by the identity of the manager's confidences, which live as long as it does.
    """

    def __init__(self, stock: Any) -> None:
        self.stock = stock
        self.owners: dict[int, VerificationBudget] = {}

    def __call__(
        self, confidence_probs: Any, idx_mapping: Any, capacities: Any, draft_budget: int, num_steps: int
    ) -> None:
        """Turns scheduled into admitted counts, in place."""
        owner = self.owners.get(id(confidence_probs))
        if owner is None or owner.failed:
            self.stock(confidence_probs, idx_mapping, capacities, draft_budget, num_steps)
        else:
            owner.assign(confidence_probs, idx_mapping, capacities, draft_budget)
