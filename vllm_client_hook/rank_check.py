"""Notices tensor-parallel ranks whose confidences differ: an occasional hash, compared with rank 0's.

Ranks that differ in the last bit can choose different budgets, and then disagree on shapes and hang. The check makes
such a hang explainable, and names the option that prevents it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_client_hook.budget import digest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_client_hook.ranks import Ranks
    from vllm_client_hook.streams import Event, Streams

#: Steps between two checks. One costs a hash of R × K floats and a broadcast of 8 bytes.
INTERVAL: Final = 64

#: Steps from a broadcast to its comparison, as for the coefficients: by then the copy is done.
LAG: Final = 2

logger = logging.getLogger("vllm.acceptd")


class RankCheck:
    """Compares every INTERVAL steps. divergent: checks in which this rank differed from rank 0."""

    def __init__(self, ranks: Ranks, streams: Streams, device: Any) -> None:
        self.divergent = 0
        self._ranks = ranks
        self._streams = streams
        self._sent = torch.zeros(1, dtype=torch.int64, device=device)
        self._arrived = streams.empty((1,), torch.int64)
        self._own = 0
        self._event: Event | None = None

    def step(self, step: int, confidences: NDArray[np.float32] | None) -> None:
        """One decision, at the same `step` on every rank. confidences: float32[R, K] that it is made with, or None."""
        if self._ranks.size == 1:
            return
        if step % INTERVAL == 0:
            self._own = 0 if confidences is None else digest(confidences)
            self._sent.fill_(self._own)
            self._ranks.broadcast(self._sent)
            self._event = self._streams.copy([(self._arrived, self._sent)])
        elif step % INTERVAL == LAG and self._event is not None:
            self._event.synchronize()
            self._event = None
            if int(self._arrived[0]) != self._own:
                self._differs()

    def _differs(self) -> None:
        self.divergent += 1
        # Logged at the 1st, 2nd, 4th, 8th …
        if self.divergent & (self.divergent - 1) == 0:
            logger.warning(
                "acceptd: tensor-parallel rank %d has other confidences than rank 0 (%d checks so far); "
                "ACCEPTD_RANK0_CONFIDENCES=1 has all ranks decide with rank 0's",
                self._ranks.rank,
                self.divergent,
            )
