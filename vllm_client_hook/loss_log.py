"""What the log says while there is no stream: why, once, and again when the reason is another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

#: Seconds between two lines. An outage takes many attempts, whose reasons may alternate; raising it lets a reason that
#: came later, such as a token that was taken away, stay unsaid for longer.
_SECONDS: Final = 60.0


class LossLog:
    """Of one uplink. address: of the service. clock: monotonic seconds."""

    def __init__(self, address: str, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._address = address
        self._log = log
        self._clock = clock
        self.found()

    def found(self) -> None:
        """There is a stream: the next loss is said at once."""
        self._said = ""
        self._at = -math.inf

    def lost(self, why: str) -> None:
        """There is none."""
        now = self._clock()
        if why == self._said or now - self._at < _SECONDS:
            return
        self._said, self._at = why, now
        self._log.warning("acceptd: no stream to %s (%s); trying again", self._address, why)
