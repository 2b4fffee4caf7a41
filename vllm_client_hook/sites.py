"""Where in vLLM the hook acts, and the check that this vLLM has there what the hook knows. Imports no vLLM.

Where it decides the budget is `patch_budget`'s to know.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from acceptd.errors import UnsupportedVllm
from vllm_client_hook import gate

SPECULATOR: Final = "vllm.v1.worker.gpu.spec_decode.speculator"
WORKER: Final = "vllm.v1.worker.gpu_worker"
SAMPLER: Final = "vllm.v1.worker.gpu.sample.sampler"


def require_estimator(stock: Any) -> None:
    """Raises UnsupportedVllm unless `stock` is an estimator class whose place ours can take."""
    if stock is None:
        raise UnsupportedVllm("this vLLM has no OnlineAcceptanceEstimator")
    found = {name: gate.parameters_of(stock, name.rpartition(".")[2]) for name in gate.ESTIMATOR}
    gate.require_signatures(found, gate.ESTIMATOR)


def require_binding() -> None:
    """Raises UnsupportedVllm unless the modules of a worker, which are loaded, have what binding calls or wraps."""
    speculator, sampler = sys.modules.get(SPECULATOR), sys.modules.get(SAMPLER)
    owners = {
        "DraftModelSpeculator": getattr(speculator, "DraftModelSpeculator", None),
        "Sampler": getattr(sampler, "Sampler", None),
    }
    found = {name: gate.parameters_of(owners[name.partition(".")[0]], name.rpartition(".")[2]) for name in gate.BINDING}
    gate.require_signatures(found, gate.BINDING)
