"""What a worker says about itself every few seconds: running totals, and once a stream its cost table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from acceptd.v1 import estimator_pb2, types_pb2
from vllm_client_hook import rows
from vllm_client_hook.trimming_cost import UNITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class WorkerReports:
    """due: when the next one goes out, monotonic seconds. costs: the table to tell, not to be changed.

    The main thread sets single references, the sending side reads them: neither waits for the other.
    """

    def __init__(self, interval: float, costs: types_pb2.CostTable | None = None) -> None:
        self.due = 0.0
        self.costs = costs
        self._told: types_pb2.CostTable | None = None
        self._totals: dict[str, float] = {}
        self._interval = interval

    def new_stream(self) -> None:
        """The service knows no costs on it yet."""
        self._told = None

    def add(self, totals: Mapping[str, float]) -> None:
        """Running totals by the field names of `WorkerTotals`."""
        self._totals = {**self._totals, **totals}

    def next_message(self, now: float, exclusions: Mapping[int, int], mode: int) -> estimator_pb2.WorkerReport:
        """The report of this moment; the next is due an interval later."""
        self.due = now + self._interval
        totals = types_pb2.WorkerTotals(
            exclusions=[
                types_pb2.ExclusionCount(reason=reason, blocks=blocks)  # type: ignore[arg-type]
                for reason, blocks in sorted(exclusions.items())
            ]
        )
        for name, value in self._totals.items():
            setattr(totals, name, value)
        report = estimator_pb2.WorkerReport(totals=totals, mode=mode)  # type: ignore[arg-type]
        costs = self.costs
        if costs is not None and costs is not self._told:
            report.costs.CopyFrom(costs)
            self._told = costs
        return report


def totals_of(counters: Sequence[int]) -> dict[str, float]:
    """Totals that rows bring (`vllm_client_hook.rows`), by the field names of `WorkerTotals`."""
    return {name: counters[at] for name, at in _TOTALS.items()} | {
        name: counters[at] / UNITS for name, at in _JUDGED.items()
    }


def exclusions_of(counters: Sequence[int]) -> dict[int, int]:
    """Blocks without a label that rows tell of, by ExclusionReason."""
    return {reason: counters[reason] for reason in _REASONS if counters[reason]}


_TOTALS: Final = {"verified": rows.VERIFIED, "accepted": rows.ACCEPTED, "explored": rows.EXPLORED}
_JUDGED: Final = {"judged_lost": rows.JUDGED_LOST, "judged_blocks": rows.JUDGED_BLOCKS}
_REASONS: Final = tuple(number for number in types_pb2.ExclusionReason.values() if number)
