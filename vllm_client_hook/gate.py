"""Which vLLM the hook acts on: releases it knows, whose signatures are the ones it knows. Pure data, imports no vLLM.

The signatures are looked at even for a known release: a patched vLLM must get its own class back, not a crash.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final

from acceptd.errors import UnsupportedVllm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: First release supported, and first not.
OLDEST: Final = (0, 30)
UNKNOWN_FROM: Final = (0, 34)

#: Parameter names of vLLM's own estimator, which ours must accept in the same places.
ESTIMATOR: Final[Mapping[str, Sequence[str]]] = {
    "OnlineAcceptanceEstimator.__init__": ("self", "max_num_reqs", "num_speculative_steps", "device"),
    "OnlineAcceptanceEstimator.step": ("self", "idx_mapping", "num_sampled", "num_rejected"),
    "OnlineAcceptanceEstimator.predict": (
        "self",
        "logits",
        "idx_mapping",
        "draft_step",
        "confidence_probs",
        "temperature",
    ),
}

#: These may gain parameters after the ones named: `step` is handed on, and takes more itself.
_MAY_GROW: Final = frozenset({"OnlineAcceptanceEstimator.step", "DraftModelSpeculator.observe_verification"})

#: What the binding after load calls or wraps: the names that must be among the parameters.
BINDING: Final[Mapping[str, Sequence[str]]] = {
    "DraftModelSpeculator.observe_verification": ("self", "idx_mapping", "num_sampled", "num_rejected"),
    # 0.30 has prompt_len between the two.
    "Sampler.add_request": ("self", "req_idx", "sampling_params"),
}


def require_release(version: str) -> None:
    """Raises UnsupportedVllm unless `version` (such as "0.32.1+cpu") lies in the supported range."""
    match = re.match(r"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= number < UNKNOWN_FROM:
        oldest, newest = ".".join(map(str, OLDEST)), ".".join(map(str, UNKNOWN_FROM))
        raise UnsupportedVllm(f"vLLM {version} is not one this hook knows; supported: >= {oldest}, < {newest}")


def require_signatures(found: Mapping[str, Sequence[str] | None], expected: Mapping[str, Sequence[str]]) -> None:
    """Raises UnsupportedVllm with the first name that is missing in `found` or has other parameters."""
    for name, parameters in expected.items():
        actual = found.get(name)
        if actual is None:
            raise UnsupportedVllm(f"this vLLM has no {name}")
        if name in BINDING and name not in _MAY_GROW:
            fits = set(parameters) <= set(actual) and actual[1] == parameters[1]
        elif name in _MAY_GROW:
            fits = tuple(actual[: len(parameters)]) == tuple(parameters)
        else:
            fits = tuple(actual) == tuple(parameters)
        if not fits:
            raise UnsupportedVllm(f"{name} takes ({', '.join(actual)}); known: ({', '.join(parameters)})")


def require_exact(found: Mapping[str, Sequence[str] | None], expected: Mapping[str, Sequence[str]]) -> None:
    """Raises UnsupportedVllm with the first name that is missing in `found` or whose parameters are not these."""
    for name, parameters in expected.items():
        actual = found.get(name)
        if actual is None:
            raise UnsupportedVllm(f"this vLLM has no {name}")
        if tuple(actual) != tuple(parameters):
            raise UnsupportedVllm(f"{name} takes ({', '.join(actual)}); known: ({', '.join(parameters)})")


def parameters_of(owner: Any, method: str) -> tuple[str, ...] | None:
    """Names of a method's parameters; None if it is not there."""
    function = getattr(owner, method, None)
    if owner is None or not callable(function):
        return None
    return tuple(inspect.signature(function).parameters)
