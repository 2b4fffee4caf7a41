"""A bound on how often the same thing is logged: peers that flap or are refused must not fill a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Lines of one kind an interval, and the interval in seconds. Raising the first shows more of a burst.
_LINES = 20
_SECONDS = 10.0


@dataclass
class _Window:
    began: float
    lines: int = 0


class LogLimit(logging.Filter):
    """Lets `_LINES` records of one message template through every `_SECONDS`, then counts them.

    The first record after a quiet interval says how many were left out. Templates are constants of the code, so the
    memory is bounded. clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[object, _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        now = self._clock()
        window = self._windows.setdefault(record.msg, _Window(now))
        if now - window.began >= _SECONDS:
            left_out = window.lines - _LINES
            window.began, window.lines = now, 0
            if left_out > 0:
                record.msg = f"{record.msg} (and {left_out} more like this before)"
        window.lines += 1
        return window.lines <= _LINES
