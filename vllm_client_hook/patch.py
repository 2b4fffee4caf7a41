"""What the hook replaces in vLLM, and when.

Two names are replaced, once the modules they live in are loaded: `OnlineAcceptanceEstimator` in the speculator's
module, by a factory that decides for each worker between vLLM's class and ours; and methods of `Worker`, to bind the
pieces after load and to follow sleep, wake and weight updates. Everything else is attached to the instances.

vLLM's insides are known to this file, `sites`, `patch_estimator`, `binding`, `admission`, `engine_pair`,
`tensor_parallel`, `patch_budget` and `verification_budget`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from acceptd import __version__
from vllm_client_hook import binding
from vllm_client_hook.imports import after_import
from vllm_client_hook.link import LINK_ATTRIBUTE, link_of
from vllm_client_hook.methods import after_method, before_method
from vllm_client_hook.patch_estimator import replace_estimator
from vllm_client_hook.sites import SPECULATOR, WORKER

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from vllm_client_hook.config import HookSettings

logger = logging.getLogger("vllm.acceptd")


def install(settings: HookSettings) -> None:
    """Arranges the replacements. Costs a process that never loads a worker nothing."""
    after_import(SPECULATOR, functools.partial(_guarded, functools.partial(replace_estimator, settings)))
    after_import(WORKER, functools.partial(_guarded, _extend_worker))


def _guarded(action: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:
        logger.warning("acceptd %s: not active: %s", __version__, error)


def _extend_worker(module: ModuleType) -> None:
    worker: Any = module.Worker
    if getattr(worker, LINK_ATTRIBUTE, False) is None:
        return
    setattr(worker, LINK_ATTRIBUTE, None)
    after_method(worker, "load_model", lambda self, *_, **__: binding.bind(self))
    after_method(worker, "initialize_from_config", lambda self, *_, **__: binding.bind_budget(self))
    before_method(worker, "sleep", lambda self, *_, **__: _tell(self, "before_sleep"))
    after_method(
        worker, "wake_up", lambda self, tags=None, **__: _tell(self, "after_wake") if _wakes_weights(tags) else None
    )
    after_method(worker, "reload_weights", lambda self, *_, **__: _tell(self, "weights_changed"))
    after_method(worker, "finish_weight_update", lambda self, *_, **__: _tell(self, "weights_changed"))
    before_method(worker, "shutdown", lambda self, *_, **__: _tell(self, "close"))

    def acceptd_flush(self: Any, timeout: float = 5.0) -> dict[str, Any]:
        """For `collective_rpc`: sends what is pending; seconds to wait for the service's answers."""
        link = link_of(self)
        return {"active": False} if link is None else link.flush(timeout)

    def acceptd_status(self: Any) -> dict[str, Any]:
        """For `collective_rpc`: what this rank holds and counted."""
        link = link_of(self)
        return {"active": False} if link is None else link.status()

    worker.acceptd_flush = acceptd_flush
    worker.acceptd_status = acceptd_status


def _wakes_weights(tags: Any) -> bool:
    return tags is None or "weights" in tags


def _tell(worker: Any, method: str) -> None:
    link = link_of(worker)
    if link is not None:
        getattr(link, method)()
