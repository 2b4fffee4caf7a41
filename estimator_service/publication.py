"""What a pair publishes: one version, with the coefficients of each workload label."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acceptd.types import Coefficients, Version


@dataclass(frozen=True)
class Publication:
    """Immutable. `pooled` serves workers without a label and labels that are not in `by_workload`.

    cause: "prior", "refit", "restart", ... wall: seconds since the Unix epoch, shown only. published: monotonic seconds
    of this process, what ages are measured from.
    """

    pooled: Coefficients
    cause: str
    wall: float
    published: float
    by_workload: dict[str, Coefficients] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        """The one version all of them carry."""
        return self.pooled.version

    def of(self, workload: str) -> Coefficients:
        """Coefficients for workers with this label."""
        return self.by_workload.get(workload, self.pooled)
