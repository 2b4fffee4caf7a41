"""Columns of the trace format acceptd-trace/1 (docs/trace-format.md) and what each of them accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from acceptd.limits import MAX_LOG_ODDS

#: Value of `format` in a file's metadata. A change of meaning of any column needs a new number.
FORMAT: Final = "acceptd-trace/1"

#: Key of the file metadata that holds the JSON description.
METADATA_KEY: Final = b"acceptd"


@dataclass(frozen=True)
class Column:
    """One column: its name, whether a trace must have it, and the closed range of its values."""

    name: str
    required: bool = False
    low: float = 0.0
    high: float = float("inf")

    @property
    def accepted(self) -> str:
        """What the column takes, for messages."""
        if self.high == float("inf"):
            return f"finite, at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


#: One whole number a block.
COUNTS: Final = (
    Column("accepted", required=True),
    Column("admitted", required=True, low=1),
    Column("step"),
    Column("request"),
    Column("segment", high=255),
    Column("explored"),
)

#: One float32 a position, K a block.
POSITIONS: Final = (
    Column("logit_qmax", required=True, low=-MAX_LOG_ODDS, high=MAX_LOG_ODDS),
    Column("entropy"),
    Column("margin"),
    Column("logit_qsampled", low=-MAX_LOG_ODDS, high=MAX_LOG_ODDS),
    Column("oracle", high=1.0),
    Column("confidence", high=1.0),
)

#: One float32 a block.
NUMBERS: Final = (Column("temperature"), Column("propensity", high=1.0))

#: One string a block.
WORKLOAD: Final = Column("workload")
