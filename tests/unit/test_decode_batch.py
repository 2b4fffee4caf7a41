"""Decoding takes exactly the rows that the layout allows: every pair of bytes, against the layout's own words."""

from __future__ import annotations

import numpy as np
import pytest

from acceptd.codec import decode_batch
from acceptd.errors import MalformedBatch, NonFiniteValue
from acceptd.limits import MAX_LOG_ODDS, MAX_POSITIONS
from acceptd.v1.estimator_pb2 import ObservationBatch


def _row(accepted: int, admitted: int) -> ObservationBatch:
    """A row among good ones, with as many features as it has observations if it is good."""
    observations = 1 + min(accepted + 1, admitted) + 1
    return ObservationBatch(
        sequence=1,
        accepted=bytes((0, accepted, 1)),
        admitted=bytes((1, admitted, 1)),
        features=np.zeros(observations, "<f4").tobytes(),
    )


@pytest.mark.parametrize("num_positions", [1, 2, 7, MAX_POSITIONS])
def test_every_accepted_beside_every_admitted(num_positions: int) -> None:
    for admitted in range(256):
        for accepted in range(256):
            message = _row(accepted, admitted)
            if not 1 <= admitted <= num_positions:
                at_fault = "admitted"
            elif accepted > admitted:
                at_fault = "accepted"
            else:
                assert len(decode_batch(message, num_positions).features) == 2 + min(accepted + 1, admitted)
                continue
            with pytest.raises(MalformedBatch) as raised:
                decode_batch(message, num_positions)
            assert (raised.value.field, raised.value.index) == (at_fault, 1)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.nan, NonFiniteValue),
        (np.inf, NonFiniteValue),
        (-np.inf, NonFiniteValue),
        (MAX_LOG_ODDS * 1.001, MalformedBatch),
        (-MAX_LOG_ODDS * 1.001, MalformedBatch),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("largest", [0.0, MAX_LOG_ODDS, -MAX_LOG_ODDS])
def test_a_feature_out_of_range_is_found_wherever_it_is(
    value: float, error: type[Exception], place: int, largest: float
) -> None:
    features = np.full(3, largest, "<f4")
    message = ObservationBatch(accepted=bytes(3), admitted=bytes((1, 1, 1)), features=features.tobytes())
    assert decode_batch(message, 4).features.tolist() == features.tolist()
    features[place] = value
    message.features = features.tobytes()
    with pytest.raises(error) as raised:
        decode_batch(message, 4)
    assert (raised.value.field, raised.value.index) == ("features", place)  # type: ignore[attr-defined]


def test_columns_that_were_left_out_cannot_be_written_to() -> None:
    message = ObservationBatch(accepted=bytes(2), admitted=bytes((1, 1)), features=np.zeros(2, "<f4").tobytes())
    rows = decode_batch(message, 4)
    for column in (rows.segments, rows.explored, rows.propensities):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
