"""Coefficients are checked all at once and, where something is wrong, value by value: both say the same."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptd.errors import NonFiniteValue, WireError
from acceptd.limits import MAX_INTERCEPT, MAX_LOG_ODDS, MAX_SLOPE
from acceptd.types import Coefficients, SegmentCoefficients, Version

K = 4
values = st.one_of(
    st.floats(-0.5, 2.0, width=32),
    st.sampled_from([math.nan, math.inf, -math.inf, 13.0, -13.0, 1e308, -1e308, 4.5, 41.0]),
)
GOOD = SegmentCoefficients((0.5, 0.25, -0.125, 0.5), (0.5, 0.25, -0.25, -12.0))


@st.composite
def coefficients(draw):
    """Valid ones, of which a few values, or one length, were changed."""
    parts = {
        "line.slopes": [0.5],
        "line.intercepts": [0.5, 0.0, -0.5, 12.0],
        "knots": [-2.0, 0.0, 40.0],
        "segments[0].slopes": list(GOOD.slopes),
        "segments[0].intercepts": list(GOOD.intercepts),
        "segments[3].slopes": list(GOOD.slopes),
        "segments[3].intercepts": list(GOOD.intercepts),
    }
    for name in draw(st.lists(st.sampled_from(sorted(parts)), max_size=3)):
        at = draw(st.integers(0, len(parts[name])))
        if at < len(parts[name]):
            parts[name][at] = draw(values)
        elif draw(st.booleans()):
            parts[name].append(draw(values))
        elif parts[name]:
            parts[name].pop()
    return parts


def is_valid(parts):
    """The definition, in plain words of Python."""
    knots = parts["knots"]

    def number(value, low, high):
        return math.isfinite(value) and low <= value <= high

    def segment(name, count):
        slopes, intercepts = parts[f"{name}.slopes"], parts[f"{name}.intercepts"]
        return (
            len(slopes) == count
            and len(intercepts) == K
            and all(map(math.isfinite, slopes))
            and all(-1e-5 <= math.fsum(slopes[: j + 1]) <= MAX_SLOPE + 1e-5 for j in range(count))
            and all(number(x, -MAX_INTERCEPT, MAX_INTERCEPT) for x in intercepts)
        )

    return (
        all(number(x, -MAX_LOG_ODDS, MAX_LOG_ODDS) for x in knots)
        and all(a < b for a, b in pairwise(knots))
        and segment("line", 1)
        and all(segment(f"segments[{s}]", 1 + len(knots)) for s in (0, 3))
    )


@given(coefficients())
def test_what_is_wrong_is_refused_and_nothing_else(parts):
    held = {
        name: SegmentCoefficients(tuple(parts[f"{name}.slopes"]), tuple(parts[f"{name}.intercepts"]))
        for name in ("line", "segments[0]", "segments[3]")
    }
    subject = Coefficients(
        Version(1, 1), held["line"], tuple(parts["knots"]), {0: held["segments[0]"], 3: held["segments[3]"]}
    )
    if is_valid(parts):
        subject.validate(K)
        return
    with pytest.raises(WireError) as refused:
        subject.validate(K)
    field, index = refused.value.field, refused.value.index
    assert field in parts
    if isinstance(refused.value, NonFiniteValue):
        assert not math.isfinite(parts[field][index])
