"""Puts a factory where vLLM's estimator class is: it decides for each worker between that class and ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from acceptd import __version__
from acceptd.errors import AcceptdError, HookError
from vllm_client_hook import config
from vllm_client_hook.engine_pair import pair_key
from vllm_client_hook.ranks import agree
from vllm_client_hook.sites import SPECULATOR, require_binding, require_estimator
from vllm_client_hook.tensor_parallel import own_group

if TYPE_CHECKING:
    from types import ModuleType

    from vllm_client_hook.config import HookSettings


def replace_estimator(settings: HookSettings, module: ModuleType) -> None:
    """In the speculator's module, once it is loaded. Raises UnsupportedVllm."""
    stock = getattr(module, "OnlineAcceptanceEstimator", None)
    if isinstance(stock, EstimatorFactory):
        return
    require_estimator(stock)
    module.OnlineAcceptanceEstimator = EstimatorFactory(stock, settings)  # type: ignore[attr-defined]


class EstimatorFactory:
    """Stands where vLLM's class stood. Called inside `load_model`, once a worker, with that class's arguments.

    stock: vLLM's class. Whatever goes wrong, and on any difference between the tensor-parallel ranks, the worker gets
    an instance of it. verdict: why, or "" if ours is active; None before the first call.
    """

    constructions = 0

    def __init__(self, stock: Any, settings: HookSettings) -> None:
        self.stock = stock
        self.settings = settings
        self.verdict: str | None = None

    def __call__(self, max_num_reqs: int, num_speculative_steps: int, device: Any) -> Any:
        """The estimator of one worker."""
        try:
            estimator = self._decide(max_num_reqs, num_speculative_steps, device)
        except Exception as error:
            self.verdict = str(error) if isinstance(error, AcceptdError) else f"{type(error).__name__}: {error}"
            estimator = None
        return self.stock(max_num_reqs, num_speculative_steps, device) if estimator is None else estimator

    def _decide(self, max_num_reqs: int, num_speculative_steps: int, device: Any) -> Any:
        from vllm_client_hook import patch_budget  # noqa: PLC0415 (torch: only where a worker loads)

        vllm_config = _current_config()
        ranks, store, name = own_group()
        estimator, reason = None, ""
        try:
            settings = config.with_additional(self.settings, getattr(vllm_config, "additional_config", None))
            if not settings.enabled:
                raise HookError("switched off (enabled = false)")
            require_binding()
            pair_key(vllm_config, settings).validate()
            # Built before the ranks agree, so that a rank that cannot build says so in time.
            estimator = our_class()(
                max_num_reqs, num_speculative_steps, device, full_features=settings.features == "full"
            )
            self.effective = settings
        except Exception as error:
            settings = self.settings
            reason = str(error) if isinstance(error, AcceptdError) else f"{type(error).__name__}: {error}"
        EstimatorFactory.constructions += 1
        options = {
            "hook": __version__,
            "K": num_speculative_steps,
            "refused": reason,
            "features": settings.features,
            "workload": settings.workload,
            "rank0_confidences": settings.rank0_confidences,
            "budget": patch_budget.unsupported(),
        }
        disagreement = agree(
            ranks,
            store,
            f"acceptd/{name}/{EstimatorFactory.constructions}",
            options,
            timeout_seconds=settings.agreement_timeout,
        )
        self.verdict = reason or disagreement
        return None if self.verdict else estimator


def our_class() -> Any:
    """AcceptanceEstimator, loaded when it is asked for."""
    from vllm_client_hook.estimator import AcceptanceEstimator  # noqa: PLC0415 (torch: only where a worker loads)

    return AcceptanceEstimator


def current_factory() -> Any:
    """The factory that stands in vLLM's module, where a worker has an estimator of ours."""
    return sys.modules[SPECULATOR].OnlineAcceptanceEstimator


def why_stock(speculator: Any) -> str:
    """Why a loaded worker has vLLM's own estimator, or none; "" if that was said before."""
    module = sys.modules.get(SPECULATOR)
    factory = getattr(module, "OnlineAcceptanceEstimator", None)
    if module is None:
        return "this worker does not run Model Runner V2"
    if not isinstance(factory, EstimatorFactory):
        return ""  # said when its module was loaded
    if factory.verdict:
        return factory.verdict
    if speculator is None:
        return "no speculative decoding"
    if not getattr(speculator, "enable_adaptive_verification", False):
        return "adaptive verification is off"
    return "the drafter scores its own tokens (confidence head)"


def _current_config() -> Any:
    from vllm.config import get_current_vllm_config  # noqa: PLC0415 (a worker has loaded it)

    return get_current_vllm_config()
