"""What must outlive the process, and when it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acceptd.v1 import estimator_pb2
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Decision, Pair
    from estimator_service.publication import Publication
    from estimator_service.worker import Worker


class Ledger:
    """Keeps nothing: a service without a store."""

    def __init__(self) -> None:
        self.epoch = 1
        self.committed = 0
        self.ticket = 0
        self.trouble: str | None = None
        self.retry_seconds = 1.0

    def restore(self, fleet: Fleet) -> None:
        """Fills the fleet with what earlier processes left."""

    def pair(self, pair: Pair) -> None:
        """Notes a new pair."""

    def batch(self, pair: Pair, worker: Worker, workload: str, batch: estimator_pb2.ObservationBatch) -> int:
        """Notes an applied batch; returns the ticket its answer waits for, 0 for none."""
        return 0

    def reject(self, pair: Pair, worker: Worker, reason: int, rows: int) -> int:
        """Notes a batch refused for good; returns the ticket its answer waits for, 0 for none."""
        return 0

    def round(self, pair: Pair, decision: Decision) -> None:
        """Notes a closed round and what it published."""

    def published(self, pair: Pair, publication: Publication) -> None:
        """Notes a publication outside a round."""

    async def raise_epoch(self, epoch: int) -> None:
        """Returns once `epoch` is on disk."""

    def tick(self, fleet: Fleet) -> None:
        """Writes what is due."""

    async def history(self, pair: Pair, limit: int) -> list[Publication]:
        """Publications of a pair, newest first, at most `limit`."""
        return pair.recent()[:limit]
