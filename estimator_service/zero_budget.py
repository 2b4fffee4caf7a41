"""How often a worker's budget was 0 of late, from its running totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acceptd.v1 import types_pb2

#: Steps over which the share is taken. More of them take longer to notice that drafting pays again; fewer let one quiet
#: minute speak for a pair.
SPAN_STEPS = 1000


class ZeroBudget:
    """steps, zero: of the latest span of at least `SPAN_STEPS` steps, and those in it whose budget was 0."""

    def __init__(self, before: types_pb2.WorkerTotals) -> None:
        self.steps = 0
        self.zero = 0
        self._begun_at = before.steps, before.zero_budget_steps

    def add(self, totals: types_pb2.WorkerTotals) -> None:
        """The worker's totals now. Totals that went down begin a new span."""
        steps, zero = totals.steps - self._begun_at[0], totals.zero_budget_steps - self._begun_at[1]
        if min(steps, zero) < 0:
            self._begun_at = totals.steps, totals.zero_budget_steps
        elif steps >= SPAN_STEPS:
            self.steps, self.zero = steps, zero
            self._begun_at = totals.steps, totals.zero_budget_steps
