"""Pairs and workers as the messages of the Inspect API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acceptd.codec import encode_coefficients, encode_pair_key, encode_version
from acceptd.v1 import inspect_pb2, types_pb2
from acceptd.v1.estimator_pb2 import RejectReason
from estimator_service.counters import MAX_UINT64

if TYPE_CHECKING:
    from estimator_service.drift_log import DriftEvent
    from estimator_service.fit.report import Calibration
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair
    from estimator_service.publication import Publication

#: Share of the latest steps with a budget of 0 from which on drafting is said not to pay. A lower one says so of pairs
#: that draft for nothing only at their busiest.
_NEAR_ZERO = 0.9

_SUMMED = tuple(field.name for field in types_pb2.WorkerTotals.DESCRIPTOR.fields if field.name != "exclusions")


def reject_name(reason: int) -> str:
    """Short name of a RejectReason: "malformed"."""
    return RejectReason.Name(reason).removeprefix("REJECT_REASON_").lower()


def exclusion_name(reason: int) -> str:
    """Short name of an ExclusionReason: "penalties"."""
    return types_pb2.ExclusionReason.Name(reason).removeprefix("EXCLUSION_REASON_").lower()


def pair_summary(fleet: Fleet, pair: Pair) -> inspect_pb2.PairSummary:
    """One line of `acceptd pairs`."""
    publication = pair.publication
    return inspect_pb2.PairSummary(
        id=pair.id,
        key=encode_pair_key(pair.key),
        version=encode_version(publication.version),
        workers=len(fleet.sessions_of(pair)),
        observations=int(pair.counters.observations.sum()),
        published_at_seconds=publication.wall,
    )


def pair_state(fleet: Fleet, pair: Pair) -> inspect_pb2.PairState:
    """Everything there is to see of a pair."""
    counters, last = pair.counters, pair.last_round
    totals = _totals(fleet, pair)
    state = inspect_pb2.PairState(
        summary=pair_summary(fleet, pair),
        coefficients=encode_coefficients(pair.publication.pooled),
        standard_errors=last.standard_errors if last else (),
        observations=counters.observations.tolist(),
        acceptances=counters.acceptances.tolist(),
        blocks=counters.blocks,
        exclusions=[
            types_pb2.ExclusionCount(reason=reason, blocks=blocks)  # type: ignore[arg-type]
            for reason, blocks in sorted(counters.exclusions.items())
        ],
        rejects={reject_name(reason): n for reason, n in counters.rejects.items()},
        refit=inspect_pb2.RefitState(
            done=pair.refits_done,
            held=pair.refits_held,
            last_held=pair.last_held,
            last_seconds=pair.last_refit_seconds,
            pending_blocks=pair.pending_blocks,
            published_link=last.link if last else "",
        ),
        mode=pair.mode,
        exploration_rate=pair.exploration_rate,
        notices=[*(last.notices if last else ()), *_budget_notices(fleet, pair), *_cost_notices(fleet, pair)],
        totals=totals,
        drifts=[drift_entry(event) for event in pair.drift_log.newest_first()],
    )
    if pair.orders.pinned is not None:
        state.pinned.CopyFrom(encode_version(pair.orders.pinned))
    if last and last.calibration:
        state.calibration.CopyFrom(calibration_message(last.calibration))
    return state


def history_entry(publication: Publication) -> inspect_pb2.HistoryEntry:
    """One line of `acceptd history`."""
    entry = inspect_pb2.HistoryEntry(
        coefficients=encode_coefficients(publication.pooled),
        published_at_seconds=publication.wall,
        cause=publication.cause,
    )
    if publication.origin is not None:
        entry.origin.CopyFrom(encode_version(publication.origin))
    if publication.calibration is not None:
        entry.calibration.CopyFrom(calibration_message(publication.calibration))
    return entry


def calibration_message(value: Calibration) -> inspect_pb2.Calibration:
    """Calibration → message."""
    return inspect_pb2.Calibration(
        log_loss=value.log_loss,
        auc=value.auc,
        ece=value.ece,
        gap=value.gap,
        observations=value.observations,
        log_loss_by_position=value.log_loss_by_position,
        auc_by_position=value.auc_by_position,
        ece_by_position=value.ece_by_position,
        gap_by_position=value.gap_by_position,
        survival_ece=value.survival_ece,
        reliability=[
            inspect_pb2.ReliabilityBin(observations=count, predicted=predicted, observed=observed)
            for count, predicted, observed in value.reliability
        ],
    )


def drift_entry(event: DriftEvent) -> inspect_pb2.DriftEntry:
    """Named change → message."""
    return inspect_pb2.DriftEntry(
        at_seconds=event.at,
        kind=event.kind,
        cause=event.cause,
        slope=event.slope,
        slope_error=event.slope_error,
        intercept=event.intercept,
        intercept_error=event.intercept_error,
        delay_rounds=event.delay,
    )


def worker_states(fleet: Fleet, pair: Pair | None) -> list[inspect_pb2.WorkerState]:
    """Connected workers of `pair`, None: of all pairs."""
    states = []
    for session in fleet.sessions.values():
        if pair is not None and session.pair is not pair:
            continue
        worker, hello = session.worker, session.hello
        state = inspect_pb2.WorkerState(
            worker=worker.name,
            incarnation=worker.incarnation,
            pair=session.pair.id,
            workload=hello.workload,
            peer=session.peer,
            connected_at_seconds=session.connected_at,
            connected=not session.closed,
            blocks=worker.blocks,
            last_sequence=worker.last_sequence,
            quarantined=session.pair.quarantined.get(worker.name, ""),
            last_rejected_update=worker.last_rejected_update,
            capabilities=hello.capabilities,
            mode=worker.report.mode,
            hook_version=hello.hook_version,
            vllm_version=hello.vllm_version,
        )
        if session.applied is not None:
            state.version_applied.CopyFrom(encode_version(session.applied))
        states.append(state)
    return sorted(states, key=lambda state: (state.pair, state.worker, state.incarnation))


def worker_costs(fleet: Fleet, pair: Pair | None, name: str) -> list[inspect_pb2.WorkerCosts]:
    """What steps take on connected workers of `pair` (None: of all) called `name` ("": any), by pair and worker."""
    found = []
    for session in fleet.sessions.values():
        worker = session.worker
        if (pair is None or session.pair is pair) and name in {"", worker.name}:
            found.append(
                inspect_pb2.WorkerCosts(
                    worker=worker.name, incarnation=worker.incarnation, pair=session.pair.id, costs=session.costs
                )
            )
    return sorted(found, key=lambda item: (item.pair, item.worker, item.incarnation))


def _cost_notices(fleet: Fleet, pair: Pair) -> list[str]:
    """What the workers' cost tables say about trimming at all."""
    sessions = fleet.sessions_of(pair)
    flat = sum(session.cannot_trim for session in sessions)
    if not flat:
        return []
    return [f"cannot trim: on {flat} of {len(sessions)} workers verifying less is hardly cheaper (acceptd costs)"]


def _budget_notices(fleet: Fleet, pair: Pair) -> list[str]:
    """What the workers' budgets of late say about drafting at all."""
    spans = [session.zero_budget for session in fleet.sessions_of(pair)]
    steps, zero = sum(span.steps for span in spans), sum(span.zero for span in spans)
    if not steps or zero < _NEAR_ZERO * steps:
        return []
    return [f"drafting does not pay here: in {zero / steps:.0%} of the latest steps no draft token was worth verifying"]


def _totals(fleet: Fleet, pair: Pair) -> types_pb2.WorkerTotals:
    """Sum over the connected workers' latest reports."""
    total = types_pb2.WorkerTotals()
    exclusions: dict[int, int] = {}
    for session in fleet.sessions_of(pair):
        totals = session.worker.report.totals
        for name in _SUMMED:
            value = getattr(total, name) + getattr(totals, name)
            setattr(total, name, value if isinstance(value, float) else min(value, MAX_UINT64))
        for item in totals.exclusions:
            exclusions[item.reason] = min(exclusions.get(item.reason, 0) + item.blocks, MAX_UINT64)
    for reason, blocks in sorted(exclusions.items()):
        total.exclusions.add(reason=reason, blocks=blocks)
    return total
