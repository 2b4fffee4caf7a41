"""Notes which request a slot was given to, when vLLM's sampler takes it."""

from __future__ import annotations

import functools
import logging
from typing import Any

from acceptd.errors import UnsupportedVllm
from vllm_client_hook.sites import SAMPLER

logger = logging.getLogger("vllm.acceptd")


def admitting(add_request: Any, estimator: Any, *, custom: bool) -> Any:
    """`Sampler.add_request`, whose arguments differ between releases, followed by our own note of the request."""
    from inspect import signature  # noqa: PLC0415 (used once, at load)

    shape = signature(add_request)
    if not {"req_idx", "sampling_params"} <= set(shape.parameters):
        raise UnsupportedVllm(f"this engine's sampler takes requests as {shape}")
    failed = False

    @functools.wraps(add_request)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = add_request(*args, **kwargs)
        try:
            given = shape.bind(*args, **kwargs).arguments
            estimator.admit(given["req_idx"], given["sampling_params"], custom_processors=custom)
        except Exception as error:
            # Said once: it would come with every request. No verdict is graded on flags that may be another's.
            nonlocal failed
            if not failed:
                failed = True
                logger.exception("acceptd: a request could not be noted; this worker no longer reports")
                estimator.frozen = f"admission: {type(error).__name__}: {error}"
        return result

    return wrapper


def custom_processors(sampler: Any) -> bool:
    """Whether any logits processor is not vLLM's own."""
    own = SAMPLER.rpartition(".")[0]
    # 0.30 takes none, and has no list of them.
    processors = getattr(sampler, "logits_processors", ())
    return any(not type(processor).__module__.startswith(own) for processor in processors)
