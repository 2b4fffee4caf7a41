"""A general plugin for tests alone: lets vLLM run adaptive verification on a CPU, without CUDA graphs.

ACCEPTD_TEST_COSTS picks the cost tables that a GPU would have measured: "flat" (verifying more costs nothing: never
trims) or "steep" (each verified token costs: trims).
"""

import os

#: (size, milliseconds) samples of the draft and of the target.
DRAFT_CURVE = [(1, 0.5), (64, 0.5)]
VERIFY_CURVES = {
    "flat": [(1, 1.0), (4096, 1.0)],
    "steep": [(n, 1.0 + 0.08 * n) for n in (*range(1, 65), 128, 4096)],
}


def register() -> None:
    from vllm.triton_utils import tl, tldevice

    # The interpreter knows no device library: its log1p returns None.
    tldevice.log1p = lambda x: tl.log(1 + x)

    from vllm.config import VllmConfig

    VllmConfig._validate_adaptive_verification = lambda self: None

    from vllm.v1.worker.gpu.spec_decode import adaptive_verification

    adaptive_verification.get_query_lens_mismatch_unsupported_backend = lambda *args, **kwargs: None
    adaptive_verification.get_varlen_cudagraph_unsupported_backend = lambda *args, **kwargs: None
    adaptive_verification._assign_draft_token_budget_compiled = adaptive_verification._assign_draft_token_budget

    from vllm.v1.worker.gpu import model_runner

    model_runner.resolve_adaptive_cudagraph_mode = lambda mode, **kwargs: mode
    create = adaptive_verification.maybe_create_adaptive_verification_manager

    def create_with_costs(**kwargs):
        manager = create(**kwargs)
        if manager is not None:
            manager.set_cost_curves(DRAFT_CURVE, VERIFY_CURVES[os.environ.get("ACCEPTD_TEST_COSTS", "flat")])
        return manager

    model_runner.maybe_create_adaptive_verification_manager = create_with_costs
