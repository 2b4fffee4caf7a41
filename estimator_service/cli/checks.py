"""What usually goes wrong, as checks on what the service says. Each finding says what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from acceptd.v1 import inspect_pb2, types_pb2
from estimator_service import jsonable
from estimator_service.cli.output import count, counts, share

#: Clocks that differ by more make ages in tables and dashboards misleading; NTP keeps them within a fraction of it.
CLOCK_SECONDS: Final = 30.0

#: A connected worker that still holds an older version after this many seconds is not just on its way to it.
BEHIND_SECONDS: Final = 30.0

#: Share of blocks without a label that is worth a look. Padding and prefill are no loss and not counted.
EXCLUDED_SHARE: Final = 0.2

#: Effective observations below which a position lives on its prior and its neighbours.
THIN_EVIDENCE: Final = 50.0

#: Share of steps clamped, or with a budget of 0, that is worth a look.
STEP_SHARE: Final = 0.05

#: Releases the hook knows.
OLDEST_VLLM: Final = (0, 30)
FIRST_UNKNOWN_VLLM: Final = (0, 34)

_HARMLESS: Final = frozenset({"padded", "prefill"})


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """about: what was looked at. text: what was seen. advice: what to do, "" where there is nothing to do."""

    level: Level
    about: str
    text: str
    advice: str = ""


def check_pairs(pairs: Sequence[inspect_pb2.PairSummary], now: float) -> Iterator[Finding]:
    """The service as a whole. now: seconds since the epoch."""
    if not pairs:
        yield Finding(
            Level.NOTE,
            "pairs",
            "no worker has ever come",
            "set ACCEPTD_ADDRESS where vLLM runs, and read the hook's line in vLLM's log",
        )
        return
    yield Finding(Level.OK, "pairs", f"{len(pairs)} known, {sum(p.workers for p in pairs)} workers connected")
    ahead = max(pair.published_at_seconds for pair in pairs) - now
    if ahead > CLOCK_SECONDS:
        yield Finding(
            Level.NOTE, "clock", f"the service's clock is {ahead:.0f} s ahead of this machine's", "check NTP on both"
        )


def check_pair(
    state: inspect_pb2.PairState, workers: Sequence[inspect_pb2.WorkerState], now: float
) -> Iterator[Finding]:
    """One pair. workers: its own, connected or not."""
    name = state.summary.id
    connected = [worker for worker in workers if worker.connected]
    if not connected:
        yield Finding(Level.NOTE, name, "no worker is connected", "is vLLM running, and does it reach the service?")
    yield from _observations(name, state, bool(connected))
    yield from _refits(name, state)
    yield from _positions(name, state)
    yield from _steps(name, state)
    for notice in state.notices:
        yield Finding(Level.NOTE, name, notice)
    for worker in connected:
        yield from _worker(state, worker, now)


def _observations(name: str, state: inspect_pb2.PairState, connected: bool) -> Iterator[Finding]:
    excluded = {k: n for k, n in jsonable.exclusions(state.exclusions).items() if k not in _HARMLESS}
    total = state.blocks + sum(excluded.values())
    if not state.blocks:
        why = counts(excluded)
        yield Finding(
            Level.WRONG if connected else Level.NOTE,
            name,
            f"no observation was learned from; blocks without a label: {why}",
            _ADVICE.get(
                max(excluded, key=lambda k: excluded[k], default=""), "send requests; is adaptive verification on?"
            ),
        )
        return
    yield Finding(Level.OK, name, f"{count(state.blocks)} blocks, {count(sum(state.observations))} observations")
    if sum(excluded.values()) > EXCLUDED_SHARE * total:
        main = max(excluded, key=lambda k: excluded[k])
        yield Finding(
            Level.NOTE,
            name,
            f"{share(sum(excluded.values()), total)} of blocks give no label: {counts(excluded)}",
            _ADVICE.get(main, ""),
        )
    if any(state.rejects.values()):
        yield Finding(
            Level.NOTE,
            name,
            f"batches were refused: {counts(dict(state.rejects))}",
            "compare the workers' hook versions",
        )


def _refits(name: str, state: inspect_pb2.PairState) -> Iterator[Finding]:
    refit = state.refit
    if state.HasField("pinned"):
        yield Finding(
            Level.NOTE,
            name,
            f"pinned to {jsonable.version_text(state.pinned)}: fits are not published",
            f"`acceptd audit` says who did it; `acceptd unpin {name}` ends it",
        )
    elif refit.last_held:
        yield Finding(
            Level.NOTE,
            name,
            f"the latest fit was held back: {refit.last_held}",
            "the coefficients in force stay; traffic may just have moved",
        )
    elif refit.done:
        yield Finding(Level.OK, name, f"{count(refit.done)} refits, {sum(refit.held.values())} held back")


def _positions(name: str, state: inspect_pb2.PairState) -> Iterator[Finding]:
    thin = [str(k) for k, n in enumerate(state.coefficients.evidence) if n < THIN_EVIDENCE]
    if thin and state.refit.done:
        yield Finding(
            Level.NOTE,
            name,
            f"little evidence at position {', '.join(thin)}",
            "they follow their neighbours' trend; more exploration, or a smaller K, brings labels there",
        )


def _steps(name: str, state: inspect_pb2.PairState) -> Iterator[Finding]:
    totals = state.totals
    if not totals.steps:
        return
    if totals.clamped_steps > STEP_SHARE * totals.steps:
        yield Finding(
            Level.NOTE,
            name,
            f"{share(totals.clamped_steps, totals.steps)} of steps were cut to one sampler chunk",
            "lower the number of requests in flight, or K",
        )
    if totals.zero_budget_steps > STEP_SHARE * totals.steps:
        yield Finding(
            Level.NOTE,
            name,
            f"the budget was 0 in {share(totals.zero_budget_steps, totals.steps)} of steps",
            "drafting may not pay at this load",
        )
    if state.mode == types_pb2.MODE_TRIM and totals.scheduled and totals.verified == totals.scheduled:
        yield Finding(
            Level.NOTE,
            name,
            "nothing was ever trimmed",
            "the cost table may be flat or missing: verifying more costs nothing then",
        )


def _worker(state: inspect_pb2.PairState, worker: inspect_pb2.WorkerState, now: float) -> Iterator[Finding]:
    if worker.quarantined:
        yield Finding(
            Level.WRONG,
            worker.worker,
            f"not learned from: {worker.quarantined}",
            "compare its vLLM, model and hook with the others'",
        )
    if worker.last_rejected_update:
        yield Finding(
            Level.WRONG, worker.worker, f"refused an update: {worker.last_rejected_update}", "update its hook"
        )
    waited = now - max(state.summary.published_at_seconds, worker.connected_at_seconds)
    if worker.version_applied != state.coefficients.version and waited > BEHIND_SECONDS:
        held = jsonable.version_text(worker.version_applied)
        yield Finding(
            Level.NOTE,
            worker.worker,
            f"still holds version {held}",
            "an idle engine takes no steps, and applies nothing before the next request",
        )
    release = _release(worker.vllm_version)
    if release and not OLDEST_VLLM <= release < FIRST_UNKNOWN_VLLM:
        yield Finding(
            Level.WRONG, worker.worker, f"runs vLLM {worker.vllm_version}", "the hook knows vLLM >= 0.30, < 0.34"
        )


def check_versions(own: str, workers: Sequence[inspect_pb2.WorkerState]) -> Iterator[Finding]:
    """Versions of the hook beside this command's."""
    others = sorted({worker.hook_version for worker in workers if worker.connected} - {own, ""})
    if others:
        yield Finding(
            Level.NOTE,
            "versions",
            f"workers run acceptd {', '.join(others)}, this command is {own}",
            "upgrade the service first, then the workers",
        )


def _release(text: str) -> tuple[int, int] | None:
    parts = text.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal() else None


_ADVICE: Final = {
    "warmup": "the cost tables are not in place yet; if this stays, vLLM could not profile its graphs",
    "rejection_method": "use vLLM's standard rejection sampler",
    "queue_full": "the service was away or too slow for long; look at its log and its load",
    "invalid_draft": "the drafter returns placeholders; look at vLLM's log",
    "stale_prediction": "vLLM schedules verdicts without predictions: report it",
    "non_finite": "draft logits hold NaN or nothing but -inf: look at the draft's weights",
}
