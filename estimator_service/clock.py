"""Time as the service sees it, passed in so that tests decide what it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must not be mixed up."""

    def monotonic(self) -> float:
        """Seconds that only grow: ages, rounds, half-lives, rates, leases."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, may jump: shown to people, decided with never."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()
