"""One action of an operator, as the audit shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acceptd.v1.types_pb2 import Mode

if TYPE_CHECKING:
    from estimator_service.pair import Pair


@dataclass(frozen=True)
class Act:
    """who: a token's or certificate's name, never a secret. before, after: what `situation` says."""

    who: str
    peer: str
    action: str
    before: dict[str, Any]
    after: dict[str, Any]


def situation(pair: Pair) -> dict[str, Any]:
    """What of a pair operators can change."""
    publication, pinned = pair.publication, pair.orders.pinned
    return {
        "version": str(publication.version),
        "coefficients_of": str(publication.source),
        "pinned": str(pinned) if pinned else None,
        "mode": Mode.Name(pair.mode).removeprefix("MODE_").lower(),
        "exploration_rate": pair.exploration_rate,
    }
