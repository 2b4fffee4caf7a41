"""Watches the budget inside an engine, for tests alone: each decision beside vLLM's own on the same state.

ACCEPTD_TEST_BUDGET turns it on: "watch", or "perturb", which also has tensor-parallel rank 1 see its draft logits a
last bit larger, as other hardware might.
"""

from dataclasses import replace


class BudgetWatch:
    """One entry a decision. tokens: vLLM's answer and ours; modes: in force; splits: vLLM's, ours, and whether tied."""

    def __init__(self):
        self.tokens: list[tuple[int, int]] = []
        self.modes: list[str] = []
        self.splits: list[tuple[list[int], list[int], bool]] = []


WATCH = BudgetWatch()


def install(how):
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification
    from vllm.v1.worker.gpu_worker import Worker

    from vllm_client_hook import patch_budget, verification_budget
    from vllm_client_hook.rows import JUDGED_BLOCKS
    from vllm_client_hook.trimming_cost import UNITS

    stock_tokens = adaptive_verification.AdaptiveVerificationManager.get_num_tokens
    stock_split = adaptive_verification._assign_draft_token_budget
    attach, assign = patch_budget.attach, verification_budget.VerificationBudget.assign

    def attaching(manager, estimator, ranks, streams, **options):
        budget = attach(manager, estimator, ranks, streams, **options)
        decide = manager.get_num_tokens

        def both(num_tokens_per_req, draft_tokens):
            theirs = stock_tokens(manager, num_tokens_per_req, draft_tokens)
            ours = decide(num_tokens_per_req, draft_tokens)
            WATCH.tokens.append((theirs, ours))
            WATCH.modes.append(budget.policy.mode.name.lower())
            return ours

        manager.get_num_tokens = both
        if how == "perturb" and ranks.rank == 1:
            _perturb(estimator)
        return budget

    def splitting(self, confidence_probs, idx_mapping, capacities, draft_budget):
        theirs = capacities.clone()
        stock_split(confidence_probs, idx_mapping, theirs, draft_budget, confidence_probs.shape[1])
        scheduled = capacities.clone()
        assign(self, confidence_probs, idx_mapping, capacities, draft_budget)
        tied = _tied(confidence_probs[idx_mapping], scheduled, draft_budget)
        WATCH.splits.append((theirs.tolist(), capacities.tolist(), tied))

    patch_budget.attach = attaching
    verification_budget.VerificationBudget.assign = splitting

    def adopt(self, mode, exploration_rate):
        """As if the service had pushed it just now; called on all ranks between two steps."""
        from acceptd.modes import Mode
        from acceptd.types import Version

        applied = self._acceptd_link.estimator.apply
        applied.in_force = replace(
            applied.in_force, version=Version(1, 1), mode=Mode[mode.upper()], exploration_rate=exploration_rate
        )

    def push(self, mode):
        """As if the service pushed a mode: only rank 0 hears of it."""
        import time

        from acceptd.modes import Mode
        from acceptd.types import Version, prior
        from vllm_client_hook.seams import Received

        uplink = self._acceptd_link.uplink
        if uplink is not None:
            coefficients = prior(self.model_runner.num_speculative_steps, Version(1, 2))
            pushed = Received(coefficients, nonce=7, mode=Mode[mode.upper()], renewed_at=time.monotonic())
            uplink.latest = lambda: pushed

    def budget_watched(self):
        tap = self._acceptd_link.estimator._tap
        return {name: list(entries) for name, entries in vars(WATCH).items()} | {
            "status": self._acceptd_link.budget.status(),
            "judged_blocks": None if tap is None else int(tap.totals[JUDGED_BLOCKS]) / UNITS,
        }

    Worker.adopt, Worker.push, Worker.budget_watched = adopt, push, budget_watched


def _tied(confidences, scheduled, drafts):
    """Whether the last slot that is admitted scores exactly as the first that is not."""
    import torch

    scores = confidences.cumprod(dim=1)
    scores = scores[torch.arange(scores.shape[1]) < scheduled[:, None]].sort(descending=True).values
    return 0 < drafts < len(scores) and bool(scores[drafts - 1] == scores[drafts])


def _perturb(estimator):
    import torch

    predict = estimator.predict

    def predicting(logits, *arguments):
        return predict(torch.nextafter(logits, torch.full_like(logits, torch.inf)) * 1.0000002, *arguments)

    estimator.predict = predicting
