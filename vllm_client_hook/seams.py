"""What the device side and the uplink know of each other. No torch, no gRPC: both sides import this.

Everything here is called on the worker's main thread, between two launches: no method may block, raise, or call a
CUDA API on behalf of the uplink's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from acceptd.modes import Mode

if TYPE_CHECKING:
    from acceptd.types import Coefficients, Version
    from vllm_client_hook.rows import Rows


@dataclass(frozen=True)
class Received:
    """The newest push of the service. Immutable: the uplink replaces it whole.

    nonce names the push in the answer. exploration_rate: share of drafted slots, in [0, 1]. renewed_at: seconds on the
    worker's monotonic clock of the last push or heartbeat; older than max_age_seconds, the service counts as lost.
    generation: weights generation of the pair it was fitted for.
    """

    coefficients: Coefficients
    nonce: int
    mode: Mode = Mode.TRIM
    exploration_rate: float = 0.0
    renewed_at: float = 0.0
    max_age_seconds: float = 600.0
    generation: int = 0


class Uplink(Protocol):
    """The service as tensor-parallel rank 0 sees it."""

    def offer(self, rows: Rows) -> None:
        """Takes rows to send. Bounded: what does not fit is dropped by the uplink and counted there."""

    def latest(self) -> Received | None:
        """The newest push; None: never served."""

    def answer(self, nonce: int, version: Version | None, rejected: str = "") -> None:
        """ACK (rejected is empty) or NACK of a push; version is the one in force now, None the worker's own."""

    def weights_changed(self, generation: int) -> None:
        """The pair's weights were replaced: from now on it is another pair."""


class Unserved:
    """An uplink to nowhere: as if the service had never answered."""

    def offer(self, rows: Rows) -> None:
        """Dropped."""

    def latest(self) -> None:
        """Never served."""

    def answer(self, nonce: int, version: Version | None, rejected: str = "") -> None:
        """Nobody asked."""

    def weights_changed(self, generation: int) -> None:
        """Nobody to tell."""
