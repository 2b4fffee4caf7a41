"""The block that is broadcast: what goes in comes out, and nothing that must not be applied passes."""

import dataclasses

import numpy as np
import pytest

from acceptd.errors import IncompatiblePeer, WireError
from acceptd.limits import MAX_INTERCEPT, MAX_KNOTS, MAX_SLOPE
from acceptd.modes import Mode
from acceptd.segments import MAX_SEGMENTS
from acceptd.types import Coefficients, SegmentCoefficients, Version, prior
from vllm_client_hook import block as layout
from vllm_client_hook.block import block_words, decode, from_coefficients

K = 5


def full_block():
    parts = {s: SegmentCoefficients((0.5, 0.25, -0.125), (s / 8,) * K) for s in (0, 3)}
    value = Coefficients(
        Version(2**40 + 1, 2**33 + 7), SegmentCoefficients((0.75,), (0.5,) * K), (-2.0, 3.0), parts, (1.0,) * K
    )
    block = from_coefficients(value, index=12, generation=3)
    return dataclasses.replace(block, mode=Mode.SHADOW, exploration_rate=0.125, nonce=2**50 + 3, local=False)


def test_a_block_survives_encoding():
    block = full_block()
    words = block.encode()
    assert words.dtype == np.int32
    assert len(words) == block_words(K)
    back = decode(words, K)
    for field in dataclasses.fields(block):
        assert np.array_equal(getattr(back, field.name), getattr(block, field.name)), field.name


def test_segments_without_coefficients_hold_the_line():
    block = full_block()
    assert block.slopes[1].tolist() == [0.75] + [0] * MAX_KNOTS
    assert block.slopes[layout.LINE_SEGMENT].tolist() == [0.75] + [0] * MAX_KNOTS
    assert block.intercepts[layout.LINE_SEGMENT].tolist() == [0.5] * K
    assert block.knots.tolist() == [-2, 3] + [0] * (MAX_KNOTS - 2)


def test_log_odds_follow_the_formula():
    block = full_block()
    x = np.array([[-5.0, -2.0, 0.0, 3.5, 40.0]] * 2, np.float32)
    got = block.log_odds(x, np.array([3, 1], np.uint8))
    bent = [0.5 * v + 0.25 * max(v + 2, 0) - 0.125 * max(v - 3, 0) + 3 / 8 for v in x[0]]
    assert got[0].tolist() == pytest.approx(bent)
    assert got[1].tolist() == pytest.approx([0.75 * v + 0.5 for v in x[1]])


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (layout.KNOTS, np.nan, "knots"),
        (layout.KNOTS + 7, 41.0, "knots"),
        (layout.SLOPES, -0.5, "slopes"),
        (layout.SLOPES + 1, np.inf, "slopes"),
        (layout.SLOPES + 2, MAX_SLOPE, "slopes"),
        (layout.INTERCEPTS, MAX_INTERCEPT * 1.01, "intercepts"),
        (layout.INTERCEPTS + MAX_SEGMENTS * K - 1, -np.inf, "intercepts"),
        (layout.EXPLORATION, 1.5, "exploration_rate"),
        (layout.EXPLORATION, np.nan, "exploration_rate"),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_name(where, value, field):
    words = full_block().encode()
    words.view(np.float32)[where] = value
    with pytest.raises(WireError) as error:
        decode(words, K)
    assert error.value.field == field


def test_another_number_of_positions_or_mode_is_refused():
    words = full_block().encode()
    with pytest.raises(IncompatiblePeer):
        decode(words, K + 1)
    words[layout.MODE] = 9
    with pytest.raises(WireError, match="mode"):
        decode(words, K)


def test_the_prior_is_the_protocols():
    block = from_coefficients(prior(K))
    assert set(block.slopes[:, 0].tolist()) == {0.5}
    assert set(block.intercepts.ravel().tolist()) == {float(np.float32(-0.2))}
