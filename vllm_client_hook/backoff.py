"""How long to wait before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True)
class BackoffSettings:
    """Seconds. The wait doubles from `first` up to `cap`; each is drawn from its upper half, so a fleet spreads out.

    Raising `cap` spares a service that is down for long, and delays the return of its workers by as much.
    """

    first: float = 0.25
    cap: float = 15.0


class Backoff:
    """Capped, jittered, exponential. `random` is passed in."""

    def __init__(self, settings: BackoffSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait after one more failure."""
        # 2^32 times any sensible first wait is past every cap; the bound keeps the power finite.
        wait = min(self._settings.cap, self._settings.first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return self._spread(wait)

    def exhausted(self) -> float:
        """Seconds to wait after a peer that is out of resources and did not say for how long: never at once."""
        self._failures += 1
        return self._spread(self._settings.cap)

    def asked(self, seconds: float) -> float:
        """Seconds to wait where the peer said how long: at least that, and up to a quarter more."""
        return max(0.0, seconds) * (1.0 + self._random.random() / 4.0)

    def _spread(self, wait: float) -> float:
        return wait * (0.5 + self._random.random() / 2.0)
