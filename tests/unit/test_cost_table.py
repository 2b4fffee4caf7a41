"""Cost tables on the wire: nothing is lost of a curve that fits, and nothing is taken that no worker can have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptd.cost_table import check_cost_table, encode_cost_table, milliseconds_at
from acceptd.errors import WireError
from acceptd.limits import MAX_COST_NOTICES, MAX_COST_POINTS, MAX_NOTICE_BYTES
from acceptd.v1 import types_pb2
from vllm_client_hook.costs import build_cost_table

#: vLLM's default sizes of captured graphs.
CAPTURED = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]


def message_of(table):
    return encode_cost_table(table.draft_ms, table.verify_ms, table.notices, can_trim=table.can_trim)


def test_a_profiled_table_arrives_as_it_is():
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.random(len(CAPTURED)))
    table = build_cost_table(
        [(size, 0.2 + size / 100) for size in (1, 8, 64, 256)],
        [*zip(CAPTURED, times, strict=True), (1024, times[-1] * 2), (8192, times[-1] * 9)],
        max_requests=256,
        max_tokens=8192,
        capture_limit=512,
    )
    message = message_of(table)
    check_cost_table(message)
    assert message.can_trim
    for curve, values in ((message.draft, table.draft_ms), (message.verify, table.verify_ms)):
        back = [milliseconds_at(curve, size) for size in range(len(values))]
        np.testing.assert_allclose(back, values, rtol=1e-6)


@given(st.lists(st.floats(0, 1e4), min_size=2, max_size=400))
def test_any_curve_that_fits_comes_back(values):
    curve = np.array(values)
    message = encode_cost_table(curve, curve, (), can_trim=True)
    check_cost_table(message)
    back = [milliseconds_at(message.verify, size) for size in range(len(values))]
    np.testing.assert_allclose(back, curve, atol=1e-4 * max(1.0, curve.max()))


def test_a_curve_with_too_many_bends_is_thinned_and_notices_are_cut():
    values = np.cumsum(np.random.default_rng(2).random(5000))
    message = encode_cost_table(values, values, ["é" * 500] * 40, can_trim=False)
    check_cost_table(message)
    assert len(message.verify.sizes) == MAX_COST_POINTS
    assert (message.verify.sizes[0], message.verify.sizes[-1]) == (0, 4999)
    assert len(message.notices) == MAX_COST_NOTICES
    assert max(len(notice.encode()) for notice in message.notices) <= MAX_NOTICE_BYTES


def good():
    curve = types_pb2.CostCurve(sizes=[0, 1, 8], milliseconds=[1.0, 1.0, 2.0])
    return types_pb2.CostTable(draft=curve, verify=curve, can_trim=True)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda m: m.ClearField("draft"), "costs.draft has 0 sizes"),
        (lambda m: m.verify.sizes.append(9), "costs.verify has 4 sizes and 3 milliseconds"),
        (lambda m: m.verify.sizes.__setitem__(2, 1), "costs.verify.sizes[2] is 1 after 1; accepted: ascending"),
        (lambda m: m.draft.milliseconds.__setitem__(1, float("nan")), "costs.draft.milliseconds[1] is nan"),
        (lambda m: m.draft.milliseconds.__setitem__(0, -1.0), "costs.draft.milliseconds[0] is -1.0"),
        (lambda m: m.verify.sizes.extend(range(9, 9 + 512)), "costs.verify has 515 points; accepted: 2 to 512"),
        (lambda m: m.notices.extend(["x"] * 17), "costs has 17 notices; accepted: at most 16"),
        (lambda m: m.notices.append("\x1b[2J"), "costs.notices[0][0] is '\\x1b'"),
        (lambda m: m.notices.append("x" * 257), "costs.notices[0] has 257 bytes"),
    ],
)
def test_what_no_worker_can_have_is_refused(break_it, says):
    message = good()
    check_cost_table(message)
    break_it(message)
    with pytest.raises(WireError) as error:
        check_cost_table(message)
    assert says in str(error.value)
    assert error.value.field.startswith("costs")
