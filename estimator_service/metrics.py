"""What the service counts, for Prometheus, in a registry that is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

if TYPE_CHECKING:
    from acceptd.v1 import estimator_pb2
    from estimator_service.worker import WorkerKey

_REFIT_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_UPDATE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Events as they happen. States are read at the scrape, by `estimator_service.exposition`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._refit_seconds = Histogram(
            "acceptd_refit_seconds", "Time one refit took.", ["pair"], registry=registry, buckets=_REFIT_BUCKETS
        )
        self._update_seconds = Histogram(
            "acceptd_update_seconds",
            "Time from a push of coefficients to the worker's acknowledgement.",
            ["pair"],
            registry=registry,
            buckets=_UPDATE_BUCKETS,
        )
        self._updates = Counter(
            "acceptd_updates", "Answers of workers to pushed coefficients.", ["pair", "answer"], registry=registry
        )
        self._streams = Counter(
            "acceptd_streams_ended", "Streams that the service ended, by reason.", ["reason"], registry=registry
        )

    def refit(self, pair: str, seconds: float, held: str) -> None:
        """A round was closed in `seconds`; `held` says why nothing was published, "" if something was."""
        self._refit_seconds.labels(pair).observe(seconds)

    def ack(self, pair: str, seconds: float) -> None:
        """A worker applied an update `seconds` after it was pushed."""
        self._update_seconds.labels(pair).observe(seconds)
        self._updates.labels(pair, "applied").inc()

    def nack(self, pair: str) -> None:
        """A worker refused an update."""
        self._updates.labels(pair, "refused").inc()

    def unknown_nonce(self, pair: str) -> None:
        """A worker answered a push that this stream does not know."""
        self._updates.labels(pair, "unknown").inc()

    def report(self, pair: str, worker: WorkerKey, report: estimator_pb2.WorkerReport) -> None:
        """A worker's running totals."""

    def fenced(self, pair: str) -> None:
        """A stream was replaced by a newer one of its incarnation."""
        self._streams.labels("fenced").inc()

    def stream_ended(self, reason: str) -> None:
        """The service ended a stream; `reason` is the gRPC status name."""
        self._streams.labels(reason).inc()
