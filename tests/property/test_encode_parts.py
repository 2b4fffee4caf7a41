"""One message of many pieces is that of the same rows in one piece."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acceptd.codec import UNKNOWN_SEGMENT, Observations, decode_batch, encode_batch, encode_parts
from acceptd.types import Version

K = 3


@st.composite
def pieces(draw):
    """Rows as senders may bring them: views with strides and other dtypes among them."""
    count = draw(st.integers(1, 5))
    explored = np.array(draw(st.lists(st.sampled_from([0, 0, 1, 2]), min_size=count, max_size=count)))
    many = np.arange(2 * count, dtype=draw(st.sampled_from([np.float32, np.float64])))
    return Observations(
        accepted=np.zeros(count, np.uint8),
        admitted=np.full(count, K, draw(st.sampled_from([np.uint8, np.int64]))),
        features=many[::2] + draw(st.integers(0, 9)),
        segments=np.full(count, draw(st.sampled_from([3, UNKNOWN_SEGMENT]))),
        explored=explored,
        propensities=np.where(explored > 0, 0.25, 0.0),
        entropies=many[1::2] if draw(st.booleans()) else None,
        margins=many[:count],
    )


@given(st.lists(pieces(), min_size=1, max_size=5))
def test_the_message_does_not_depend_on_the_pieces(parts):
    def whole(name):
        columns = [getattr(part, name) for part in parts]
        return None if any(column is None for column in columns) else np.concatenate(columns)

    joined = Observations(*map(whole, Observations.__dataclass_fields__))
    message = encode_parts(7, Version(2, 3), parts, {4: 2, 1: 9})
    assert message == encode_batch(7, Version(2, 3), joined, {4: 2, 1: 9})
    assert (message.sequence, message.version.epoch, message.version.counter) == (7, 2, 3)
    assert [(one.reason, one.blocks) for one in message.exclusions] == [(1, 9), (4, 2)]
    assert bool(message.entropies) == (joined.entropies is not None)
    if (joined.segments == UNKNOWN_SEGMENT).any() and not (joined.segments == UNKNOWN_SEGMENT).all():
        return
    decoded = decode_batch(message, K)
    for name in ("accepted", "admitted", "features", "segments", "explored", "propensities", "margins"):
        assert getattr(decoded, name).tolist() == getattr(joined, name).tolist()
