"""A worker's cost table ↔ its message. A curve travels as the points between which it is straight."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptd.errors import MalformedBatch, TooLarge, WireError
from acceptd.limits import MAX_COST_NOTICES, MAX_COST_POINTS, MAX_NOTICE_BYTES
from acceptd.names import check_printable, printable
from acceptd.v1 import types_pb2

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A bend below this share of the curve's largest value is rounding.
_STRAIGHT = 1e-9


def encode_cost_table(
    draft_ms: NDArray[np.float64], verify_ms: NDArray[np.float64], notices: Iterable[str], *, can_trim: bool
) -> types_pb2.CostTable:
    """Table → message. draft_ms: float64[requests + 1], verify_ms: float64[tokens + 1], indexed by size.

    The message gives back every value by linear interpolation, unless a curve bends at more than `MAX_COST_POINTS`
    sizes: then it holds as many of them, evenly chosen. Notices are cut to the protocol's bounds.
    """
    kept = [printable(notice).encode()[:MAX_NOTICE_BYTES].decode(errors="ignore") for notice in notices]
    return types_pb2.CostTable(
        draft=_encode_curve(draft_ms),
        verify=_encode_curve(verify_ms),
        notices=kept[:MAX_COST_NOTICES],
        can_trim=can_trim,
    )


def check_cost_table(message: types_pb2.CostTable) -> None:
    """Raises WireError, MalformedBatch or TooLarge, with the field and the index, for what no worker can have.

    Notices are for terminals: no control characters.
    """
    for name, curve in (("draft", message.draft), ("verify", message.verify)):
        _check_curve(f"costs.{name}", curve)
    if len(message.notices) > MAX_COST_NOTICES:
        raise TooLarge(
            f"costs has {len(message.notices)} notices; accepted: at most {MAX_COST_NOTICES}", field="costs.notices"
        )
    for i, notice in enumerate(message.notices):
        if (length := len(notice.encode())) > MAX_NOTICE_BYTES:
            raise TooLarge(
                f"costs.notices[{i}] has {length} bytes; accepted: at most {MAX_NOTICE_BYTES}",
                field="costs.notices",
                index=i,
            )
        check_printable(f"costs.notices[{i}]", notice)


def milliseconds_at(curve: types_pb2.CostCurve, size: float) -> float:
    """The curve at `size`; NaN outside of it."""
    return float(np.interp(size, curve.sizes, curve.milliseconds, left=math.nan, right=math.nan))


def _encode_curve(values: NDArray[np.float64]) -> types_pb2.CostCurve:
    bends = np.abs(np.diff(values, 2)) > _STRAIGHT * np.abs(values).max(initial=0.0)
    sizes: Any = np.unique([0, *(1 + np.flatnonzero(bends)), len(values) - 1])
    if len(sizes) > MAX_COST_POINTS:
        sizes = sizes[np.linspace(0, len(sizes) - 1, MAX_COST_POINTS).round().astype(np.intp)]
    return types_pb2.CostCurve(sizes=sizes.tolist(), milliseconds=values[sizes].tolist())


def _check_curve(name: str, curve: types_pb2.CostCurve) -> None:
    points = len(curve.sizes)
    if points > MAX_COST_POINTS:
        raise TooLarge(f"{name} has {points} points; accepted: 2 to {MAX_COST_POINTS}", field=name)
    if points < 2 or len(curve.milliseconds) != points:
        raise MalformedBatch(
            f"{name} has {points} sizes and {len(curve.milliseconds)} milliseconds; "
            f"accepted: as many of each, 2 to {MAX_COST_POINTS}",
            field=name,
        )
    for i, (before, after) in enumerate(pairwise(curve.sizes), 1):
        if after <= before:
            raise MalformedBatch(
                f"{name}.sizes[{i}] is {after} after {before}; accepted: ascending", field=f"{name}.sizes", index=i
            )
    for i, value in enumerate(curve.milliseconds):
        if not 0.0 <= value < math.inf:
            raise WireError(
                f"{name}.milliseconds[{i}] is {value}; accepted: finite, at least 0",
                field=f"{name}.milliseconds",
                index=i,
            )
