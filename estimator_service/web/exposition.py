"""States of the fleet as Prometheus metrics, read at each scrape.

Label sets are bounded: pair by `max_pairs`, position by K, segment by the protocol, reason by its enumeration. Workers
and requests are never labels.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

import acceptd
from acceptd.segments import Segment
from acceptd.v1.estimator_pb2 import RejectReason
from acceptd.v1.types_pb2 import Mode
from estimator_service.state import exclusion_name, reject_name
from estimator_service.web.fleet_view import FleetView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from estimator_service.fleet import Fleet
    from estimator_service.web.fleet_view import PairView

#: Each has a series from the pair's start on, since an increase needs a value before the first event.
_REJECT_REASONS = tuple(reason for reason in RejectReason.values() if reason)
#: Seconds a scrape waits for the event loop.
_LOOP_SECONDS = 5.0


class Exposition(Collector):
    """Collector over a fleet. `collect` may be called from any thread while the fleet's loop runs."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop) -> None:
        self._fleet = fleet
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """Nothing: names do not depend on what is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        view = self._view()
        yield from _service_families(view)
        yield from _coefficient_families(view.pairs)
        yield from _count_families(view.pairs)
        yield from _calibration_families(view.pairs)
        yield from _reliability_families(view.pairs)
        yield from _state_families(view.pairs)
        yield from _order_families(view.pairs)

    def _view(self) -> FleetView:
        try:
            if asyncio.get_running_loop() is self._loop:
                return FleetView.of(self._fleet)
        except RuntimeError:
            pass
        future: concurrent.futures.Future[FleetView] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(lambda: future.set_result(FleetView.of(self._fleet)))
        return future.result(_LOOP_SECONDS)


def _service_families(view: FleetView) -> Iterator[Metric]:
    yield InfoMetricFamily("acceptd_build", "Version of acceptd.", {"version": acceptd.__version__})
    yield GaugeMetricFamily("acceptd_epoch", "Epoch of the store; grows at every start.", view.epoch)
    yield GaugeMetricFamily("acceptd_pairs", "Pairs known.", len(view.pairs))
    yield GaugeMetricFamily(
        "acceptd_incarnations", "Worker processes whose high-water mark is remembered.", view.remembered
    )
    yield GaugeMetricFamily(
        "acceptd_store_up", "1 while the store commits, 0 while it cannot.", 0 if view.trouble else 1
    )
    yield CounterMetricFamily("acceptd_store_commits", "Transactions committed.", view.commits)
    yield CounterMetricFamily("acceptd_store_failures", "Transactions that failed.", view.failures)


def _coefficient_families(pairs: Sequence[PairView]) -> Iterator[Metric]:
    slope = GaugeMetricFamily("acceptd_slope", "Slope of the straight line in force.", labels=["pair"])
    slope_error = GaugeMetricFamily(
        "acceptd_slope_standard_error", "Its standard error, over-dispersed.", labels=["pair"]
    )
    intercept = GaugeMetricFamily(
        "acceptd_intercept", "Intercept of the straight line in force, nats.", labels=["pair", "position"]
    )
    intercept_error = GaugeMetricFamily(
        "acceptd_intercept_standard_error", "Its standard error, over-dispersed, nats.", labels=["pair", "position"]
    )
    segment_slope = GaugeMetricFamily(
        "acceptd_segment_slope",
        "Slope of a segment's own coefficients in force, by piece of the link from low x to high.",
        labels=["pair", "segment", "piece"],
    )
    segment_intercept = GaugeMetricFamily(
        "acceptd_segment_intercept",
        "Intercept of a segment's own coefficients in force, nats.",
        labels=["pair", "segment", "position"],
    )
    evidence = GaugeMetricFamily(
        "acceptd_evidence", "Effective number of observations behind the coefficients.", labels=["pair", "position"]
    )
    epoch = GaugeMetricFamily("acceptd_version_epoch", "Epoch of the version in force.", labels=["pair"])
    counter = GaugeMetricFamily("acceptd_version_counter", "Counter of the version in force.", labels=["pair"])
    age = GaugeMetricFamily(
        "acceptd_coefficients_age_seconds", "Time since the version was published.", labels=["pair"]
    )
    for pair in pairs:
        pooled = pair.publication.pooled
        slope.add_metric([pair.id], pooled.line.slopes[0])
        _by_position(intercept, [pair.id], pooled.line.intercepts)
        _by_position(evidence, [pair.id], pooled.evidence)
        for segment, values in pooled.segments.items():
            _by_position(segment_intercept, [pair.id, _segment_name(segment)], values.intercepts)
            # The coefficients hold changes of slope at the knots.
            _by_position(segment_slope, [pair.id, _segment_name(segment)], list(accumulate(values.slopes)))
        if pair.last_round is not None:
            slope_error.add_metric([pair.id], pair.last_round.standard_errors[0])
            _by_position(intercept_error, [pair.id], pair.last_round.standard_errors[1:])
        epoch.add_metric([pair.id], pooled.version.epoch)
        counter.add_metric([pair.id], pooled.version.counter)
        age.add_metric([pair.id], pair.age)
    yield from (
        slope,
        slope_error,
        intercept,
        intercept_error,
        segment_slope,
        segment_intercept,
        evidence,
        epoch,
        counter,
        age,
    )


def _count_families(pairs: Sequence[PairView]) -> Iterator[Metric]:
    observations = CounterMetricFamily(
        "acceptd_observations", "Graded draft tokens learned from.", labels=["pair", "position"]
    )
    acceptances = CounterMetricFamily("acceptd_acceptances", "Of these, accepted.", labels=["pair", "position"])
    blocks = CounterMetricFamily("acceptd_blocks", "Blocks learned from.", labels=["pair"])
    exclusions = CounterMetricFamily(
        "acceptd_excluded_blocks", "Blocks without a label, by reason.", labels=["pair", "reason"]
    )
    rejects = CounterMetricFamily("acceptd_rejected_batches", "Batches refused, by reason.", labels=["pair", "reason"])
    rejected_rows = CounterMetricFamily("acceptd_rejected_rows", "Rows of refused batches.", labels=["pair"])
    done = CounterMetricFamily("acceptd_refits", "Rounds refitted.", labels=["pair"])
    held = CounterMetricFamily("acceptd_refits_held", "Refits not published, by reason.", labels=["pair", "reason"])
    pending = GaugeMetricFamily("acceptd_pending_blocks", "Blocks gathered towards the next round.", labels=["pair"])
    workers = GaugeMetricFamily("acceptd_workers", "Connected workers.", labels=["pair"])
    quarantined = GaugeMetricFamily("acceptd_workers_quarantined", "Workers not learned from.", labels=["pair"])
    cannot_trim = GaugeMetricFamily(
        "acceptd_workers_cannot_trim",
        "Connected workers on which verifying less is hardly cheaper.",
        labels=["pair"],
    )
    for pair in pairs:
        counters = pair.counters
        _by_position(observations, [pair.id], counters.observations.tolist())
        _by_position(acceptances, [pair.id], counters.acceptances.tolist())
        blocks.add_metric([pair.id], counters.blocks)
        _by_reason(exclusions, pair.id, {exclusion_name(reason): n for reason, n in counters.exclusions.items()})
        _by_reason(rejects, pair.id, {reject_name(reason): counters.rejects[reason] for reason in _REJECT_REASONS})
        rejected_rows.add_metric([pair.id], counters.rows_rejected)
        done.add_metric([pair.id], pair.refits_done)
        _by_reason(held, pair.id, pair.refits_held)
        pending.add_metric([pair.id], pair.pending_blocks)
        workers.add_metric([pair.id], pair.workers)
        quarantined.add_metric([pair.id], pair.quarantined)
        cannot_trim.add_metric([pair.id], pair.cannot_trim)
    yield from (observations, acceptances, blocks, exclusions, rejects, rejected_rows)
    yield from (done, held, pending, workers, quarantined, cannot_trim)


def _calibration_families(pairs: Sequence[PairView]) -> Iterator[Metric]:
    scores = {
        "log_loss": "Log-loss of the latest round, nats an observation.",
        "auc": "Area under the ROC curve of the latest round.",
        "ece": "Expected calibration error of the latest round.",
        "gap": "Mean predicted minus observed acceptance of the latest round.",
    }
    for name, text in scores.items():
        family = GaugeMetricFamily(f"acceptd_{name}", text, labels=["pair"])
        by_position = GaugeMetricFamily(f"acceptd_position_{name}", f"By position: {text}", labels=["pair", "position"])
        for pair in pairs:
            calibration = pair.last_round.calibration if pair.last_round else None
            if calibration is not None:
                family.add_metric([pair.id], getattr(calibration, name))
                _by_position(by_position, [pair.id], getattr(calibration, f"{name}_by_position"))
        yield from (family, by_position)
    survival = GaugeMetricFamily(
        "acceptd_survival_ece",
        "Expected calibration error of the survival products of the latest round.",
        labels=["pair"],
    )
    for pair in pairs:
        if pair.last_round and pair.last_round.calibration:
            survival.add_metric([pair.id], pair.last_round.calibration.survival_ece)
    yield survival


def _reliability_families(pairs: Sequence[PairView]) -> Iterator[Metric]:
    labels = ["pair", "bin"]
    observations = GaugeMetricFamily(
        "acceptd_reliability_observations", "Observations of the latest round by bin of confidence.", labels=labels
    )
    predicted = GaugeMetricFamily("acceptd_reliability_predicted", "Mean confidence in the bin.", labels=labels)
    observed = GaugeMetricFamily("acceptd_reliability_observed", "Acceptance in the bin.", labels=labels)
    for pair in pairs:
        calibration = pair.last_round.calibration if pair.last_round else None
        for i, (count, mean, rate) in enumerate(calibration.reliability if calibration else ()):
            observations.add_metric([pair.id, str(i)], count)
            if count > 0:
                predicted.add_metric([pair.id, str(i)], mean)
                observed.add_metric([pair.id, str(i)], rate)
    yield from (observations, predicted, observed)


def _state_families(pairs: Sequence[PairView]) -> Iterator[Metric]:
    score = GaugeMetricFamily(
        "acceptd_drift_score",
        "Evidence for a change since the baseline, by kind; at 1 it is named if the change is large enough.",
        labels=["pair", "kind"],
    )
    mode = GaugeMetricFamily("acceptd_mode", "1 for the mode that workers are told.", labels=["pair", "mode"])
    form = GaugeMetricFamily("acceptd_form", "1 for the form that is published.", labels=["pair", "form"])
    for pair in pairs:
        name = Mode.Name(pair.mode).removeprefix("MODE_").lower()
        mode.add_metric([pair.id, name], 1)
        if pair.last_round is not None:
            for kind, value in pair.last_round.drift_scores.items():
                score.add_metric([pair.id, kind], value)
            segmented = "+segments" if pair.last_round.segmented else ""
            form.add_metric([pair.id, pair.last_round.link + segmented], 1)
    yield from (score, mode, form)


def _segment_name(segment: int) -> str:
    """Short name of a segment: "greedy"; its number if this service does not know it."""
    try:
        return Segment(segment).name.lower()
    except ValueError:
        return str(segment)


def _order_families(pairs: Sequence[PairView]) -> Iterator[Metric]:
    pinned = GaugeMetricFamily(
        "acceptd_pinned", "1 while an operator keeps fits from being published.", labels=["pair"]
    )
    rate = GaugeMetricFamily(
        "acceptd_exploration_rate", "Share of drafted tokens that workers verify beyond the budget.", labels=["pair"]
    )
    for pair in pairs:
        pinned.add_metric([pair.id], pair.pinned)
        rate.add_metric([pair.id], pair.exploration_rate)
    yield from (pinned, rate)


def _by_position(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], values: Sequence[float]) -> None:
    for position, value in enumerate(values):
        if not math.isnan(value):
            family.add_metric([*labels, str(position)], value)


def _by_reason(family: CounterMetricFamily, pair: str, counts: dict[str, int]) -> None:
    for reason, count in sorted(counts.items()):
        family.add_metric([pair, reason], count)
