"""What a worker does with its predictions; the values of `Mode` in types.proto."""

from __future__ import annotations

from enum import IntEnum


class Mode(IntEnum):
    """Mode of a pair's workers, set in the service and applied by all ranks of a worker on the same step."""

    TRIM = 1  # verify only the budgeted draft tokens
    SHADOW = 2  # predict, decide and report, but verify everything
    OFF = 3  # verify everything
