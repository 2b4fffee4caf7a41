"""What the service counts, for Prometheus, in a registry that is passed in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from estimator_service.fit.drift import DriftKind
from estimator_service.stream_counts import StreamCounts

if TYPE_CHECKING:
    from acceptd.v1 import types_pb2

_REFIT_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)

#: Fields of WorkerTotals.
_TOTALS = {
    "steps": "Decode steps.",
    "scheduled": "Draft tokens scheduled.",
    "verified": "Draft tokens verified.",
    "accepted": "Draft tokens accepted.",
    "explored": "Draft tokens verified by exploration alone.",
    "clamped_steps": "Steps whose verification was cut to what one sampler chunk takes.",
    "zero_budget_steps": "Steps whose budget was 0.",
    "verification_saved_seconds": "Verification time that the cost table says trimming saved.",
    "lost_accepted": "Estimated accepted tokens lost to trimming.",
    "judged_lost": "Accepted tokens lost to trimming, estimated from verdicts on blocks verified whole.",
    "judged_blocks": "Blocks that these verdicts stand for.",
    "explored_extra": "Draft tokens that exploration verified beyond the budget.",
    "explored_seconds": "Verification time that the cost table says exploration added.",
}


class Metrics:
    """Events as they happen. States are read at the scrape, by `estimator_service.web.exposition`.

    streams: what happens with every message.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._refit_seconds = Histogram(
            "acceptd_refit_seconds", "Time one refit took.", ["pair"], registry=registry, buckets=_REFIT_BUCKETS
        )
        self.streams = StreamCounts()
        registry.register(self.streams)
        self._ended = Counter(
            "acceptd_streams_ended", "Streams that the service ended, by reason.", ["reason"], registry=registry
        )
        self._gaps = Counter(
            "acceptd_sequence_gaps",
            "Batches that workers had answered and the service does not know: lost with an earlier process.",
            ["pair"],
            registry=registry,
        )
        self._tap_drops = Counter(
            "acceptd_tap_dropped_batches",
            "Batches that a recorder (TapPair) did not take in time. Workers and fits are not affected.",
            ["pair"],
            registry=registry,
        )
        self._drifts = Counter(
            "acceptd_drifts",
            "Changes named, by kind: pair (the slope moved) or workload (intercepts or features did).",
            ["pair", "kind"],
            registry=registry,
        )
        self._totals = {
            name: Counter(f"acceptd_worker_{name}", f"{text} Sum over workers.", ["pair"], registry=registry)
            for name, text in _TOTALS.items()
        }

        self._refused = Counter(
            "acceptd_refused_calls",
            "Calls of gRPC and of the metrics port that were not allowed, by reason.",
            ["reason"],
            registry=registry,
        )
        self._reloads = Counter(
            "acceptd_identity_reloads",
            "Times that the tokens' file or the certificate was read again, or failed to be for a new reason.",
            ["what", "outcome"],
            registry=registry,
        )
        self._unusable = Gauge(
            "acceptd_identity_unusable",
            "1 while the tokens' file or the certificate cannot be used as it is now, and what was read before stays.",
            ["what"],
            registry=registry,
        )
        self._certificate_not_after = Gauge(
            "acceptd_certificate_not_after_seconds",
            "Unix time until which the service's own certificate is good; 0 without one, -1 if no client can use it.",
            registry=registry,
        )
        self._actions = Counter(
            "acceptd_operator_actions", "Actions of operators, as in the audit.", ["action"], registry=registry
        )
        self._forgotten = Counter(
            "acceptd_pairs_forgotten", "Pairs without workers that made room for others.", registry=registry
        )

    def open(self, pair: str) -> None:
        """A pair is there: its counters begin at 0, since a rate needs a value before the first event."""
        self.streams.open(pair)
        for family in (self._refit_seconds, self._gaps, *self._totals.values()):
            family.labels(pair)
        for kind in DriftKind:
            self._drifts.labels(pair, kind)

    def forget(self, pair: str) -> None:
        """A pair is gone, and with it its labels."""
        self._forgotten.inc()
        self.streams.forget(pair)
        for family in (self._refit_seconds, self._gaps, self._tap_drops, self._drifts, *self._totals.values()):
            family.remove_by_labels({"pair": pair})

    def tap_dropped(self, pair: str) -> None:
        """A tap was full."""
        self._tap_drops.labels(pair).inc()

    def drift(self, pair: str, kind: DriftKind) -> None:
        """A change was named."""
        self._drifts.labels(pair, kind).inc()

    def refit(self, pair: str, seconds: float) -> None:
        """A round was closed in `seconds`."""
        self._refit_seconds.labels(pair).observe(seconds)

    def report(self, pair: str, before: types_pb2.WorkerTotals, now: types_pb2.WorkerTotals) -> None:
        """A worker's running totals went from `before` to `now`. What goes down is not counted."""
        for name, counter in self._totals.items():
            if (grown := getattr(now, name) - getattr(before, name)) > 0:
                counter.labels(pair).inc(grown)

    def gap(self, pair: str, batches: int) -> None:
        """A worker came back with a sequence that is `batches` further than the service has seen."""
        self._gaps.labels(pair).inc(batches)

    def refused(self, reason: str) -> None:
        """A call was not allowed; see `estimator_service.access.gate` for reasons."""
        self._refused.labels(reason).inc()

    def identity(self, what: str) -> None:
        """ "tokens" or "certificate" is in use: its counts begin at 0."""
        self._unusable.labels(what)
        for outcome in ("loaded", "failed"):
            self._reloads.labels(what, outcome)

    def certificate(self, not_after: float) -> None:
        """Until when the one in force is good: Unix seconds, NaN if no client can use it."""
        self._certificate_not_after.set(-1 if math.isnan(not_after) else not_after)

    def reloaded(self, what: str, outcome: str) -> None:
        """ "tokens" or "certificate" changed on disk, and was "loaded" or "failed" to."""
        self._reloads.labels(what, outcome).inc()
        self._unusable.labels(what).set(outcome == "failed")

    def operator_action(self, action: str) -> None:
        """An operator did something that the audit lists."""
        self._actions.labels(action).inc()

    def stream_ended(self, reason: str) -> None:
        """The service ended a stream; `reason` is the gRPC status name."""
        self._ended.labels(reason).inc()
