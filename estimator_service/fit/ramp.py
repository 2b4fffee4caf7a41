"""The ramp of a pair's rounds: the first ones are shorter than those that follow."""

from __future__ import annotations

from typing import Final

#: The first rounds of a pair are these fractions of a full one, and the rest of it: the prior is a poor guess, and few
#: rows improve on it. More of them fit on fewer rows still.
_RAMP: Final = (16, 8, 4)


def ramped(target: int, rounds: int) -> int:
    """Blocks of the round that follows `rounds` closed ones, where a full one has `target`."""
    if rounds > len(_RAMP):
        return target
    lengths = [max(1, target // share) for share in _RAMP]
    return lengths[rounds] if rounds < len(_RAMP) else max(1, target - sum(lengths))
