"""What a scrape reads of the fleet, copied on its event loop so that another thread can read it."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_service.counters import Counters
    from estimator_service.fit.report import Round
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair
    from estimator_service.publication import Publication


@dataclass(frozen=True)
class PairView:
    """What one pair shows. age: of its publication, seconds. mode: as in `types_pb2.Mode`.

    workers, cannot_trim: of those connected. quarantined: workers not learned from.
    """

    id: str
    publication: Publication
    age: float
    counters: Counters
    refits_done: int
    refits_held: dict[str, int]
    pending_blocks: int
    last_round: Round | None
    workers: int
    mode: int
    quarantined: int
    cannot_trim: int
    exploration_rate: float
    pinned: bool

    @classmethod
    def of(cls, pair: Pair, *, workers: int, cannot_trim: int, now: float) -> PairView:
        """The pair at `now`, monotonic seconds."""
        return cls(
            pair.id,
            pair.publication,
            now - pair.publication.published,
            copy.deepcopy(pair.counters),
            pair.refits_done,
            dict(pair.refits_held),
            pair.pending_blocks,
            pair.last_round,
            workers,
            pair.mode,
            len(pair.quarantined),
            cannot_trim,
            pair.exploration_rate,
            pair.orders.pinned is not None,
        )


@dataclass(frozen=True)
class FleetView:
    """All pairs, and the store. commits, failures: transactions. remembered: incarnations of workers."""

    pairs: list[PairView]
    epoch: int
    commits: int
    failures: int
    trouble: bool
    remembered: int

    @classmethod
    def of(cls, fleet: Fleet) -> FleetView:
        """The fleet now. To be called on its event loop."""
        workers: Counter[str] = Counter()
        flat: Counter[str] = Counter()
        for session in fleet.sessions.values():
            workers[session.pair.id] += 1
            flat[session.pair.id] += session.cannot_trim
        now = fleet.clock.monotonic()
        return cls(
            [
                PairView.of(pair, workers=workers[pair.id], cannot_trim=flat[pair.id], now=now)
                for pair in fleet.pairs.values()
            ],
            fleet.epoch,
            fleet.ledger.delivery.commits,
            fleet.ledger.delivery.failures,
            fleet.ledger.delivery.trouble is not None,
            len(fleet.roster),
        )
