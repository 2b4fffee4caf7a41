"""The class that stands in for vLLM's OnlineAcceptanceEstimator."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm_client_hook.seams import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_client_hook.ranks import Ranks
    from vllm_client_hook.seams import Uplink
    from vllm_client_hook.streams import Streams


class AcceptanceEstimator:
    """Predicts per-position acceptance inside the draft graph and packs what the target decided for the uplink.

    slope: float32[1] and intercepts: float32[K] are views of the line in force. features and predictions:
    float32[max_num_reqs, K], by request-state slot.
    """

    def __init__(self, max_num_reqs: int, num_speculative_steps: int, device: Any, *, full_features: bool = False):
        raise NotImplementedError

    def bind(
        self,
        *,
        ranks: Ranks,
        uplink: Uplink | None,
        live: Callable[[], bool],
        draft_tokens: Any = None,
        standard_rejection: bool = True,
        streams: Streams | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Links what exists only after loading. Until then every block counts as warm-up.

        uplink: on rank 0 alone. live: whether the cost tables are in place. draft_tokens: int64[max_num_reqs, K] of the
        request states. standard_rejection: whether the sampler runs the standard per-token test.
        """

    def predict(self, logits: Any, idx_mapping: Any, draft_step: Any, confidence_probs: Any, temperature: Any) -> None:
        """As vLLM's; graph-capturable."""

    def step(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any, *extra: Any, **extras: Any) -> None:
        """As vLLM's; never waits, never raises."""

    def admit(self, slot: int, params: Any, *, custom_processors: bool = False) -> None:
        """A request with these sampling parameters takes a request-state slot."""

    def flush(self) -> None:
        """Hands everything pending to the uplink; may wait for the device."""

    def reseed(self) -> None:
        """Writes every device tensor again from host copies: after sleep and wake."""

    def weights_changed(self) -> None:
        """Target or draft weights were replaced, on all ranks between the same two steps."""

    @property
    def mode(self) -> Mode:
        """Adopted on the same step on all ranks."""
        return Mode.TRIM
