"""The changes that a pair's rounds named, with the time at which they did."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from estimator_service.fit.drift import Drift

#: Changes remembered a pair, oldest forgotten first. A pair that names more is one whose traffic never settles; each
#: costs some 200 bytes of every snapshot and every answer about the pair.
MAX_DRIFTS: Final = 64


@dataclass(frozen=True)
class DriftEvent:
    """at: wall-clock seconds of its naming. delay: rounds from its estimated onset to there. The rest as in `Drift`."""

    at: float
    kind: str
    cause: str
    slope: float
    slope_error: float
    intercept: float
    intercept_error: float
    delay: int


class DriftLog:
    """At most MAX_DRIFTS events of one pair."""

    def __init__(self) -> None:
        self._events: deque[DriftEvent] = deque(maxlen=MAX_DRIFTS)

    def add(self, drifts: Iterable[Drift], at: float) -> None:
        """Notes what a round named."""
        for drift in drifts:
            self._events.append(
                DriftEvent(
                    at,
                    str(drift.kind),
                    drift.cause,
                    drift.slope,
                    drift.slope_error,
                    drift.intercept,
                    drift.intercept_error,
                    max(drift.round - drift.onset, 0),
                )
            )

    def newest_first(self) -> list[DriftEvent]:
        """All events."""
        return list(reversed(self._events))

    def to_json(self) -> list[list[Any]]:
        """Plain values, oldest first."""
        return [list(vars(event).values()) for event in self._events]

    @classmethod
    def from_json(cls, value: list[list[Any]]) -> DriftLog:
        """What `to_json` gave. Raises TypeError for anything else."""
        log = cls()
        log._events.extend(DriftEvent(*item) for item in value)
        return log
