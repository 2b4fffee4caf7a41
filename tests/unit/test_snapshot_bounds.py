"""A snapshot from elsewhere: what it may take, whatever it says of itself."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from estimator_service.fit.snapshot import FORMAT, pack, unpack

HEAD = b"acceptd-pair" + bytes([FORMAT])
LIMIT = 64 * 1024 * 1024


def test_what_was_packed_comes_back():
    value = {"a": np.arange(5.0), "b": (1, None, "x"), "c": {3, 4}}
    again = unpack(bytes(pack(value, {})), {})
    assert again["a"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (again["b"], again["c"]) == (value["b"], value["c"])


def bomb():
    return zlib.compress(bytes(4 * LIMIT), 1)


def forged(kind, shape):
    """An array that says what it is and holds nothing."""
    head = json.dumps({"tree": {"array": 0}, "arrays": [[kind, shape]]}).encode()
    return zlib.compress(struct.pack("<Q", len(head)) + head)


@pytest.mark.parametrize(
    "make",
    [
        bomb,
        lambda: bomb()[:99],
        lambda: b"",
        lambda: b"\x78",
        lambda: forged("<f8", [2**50]),
        lambda: forged("<f8", [2**31, 2**31]),
        lambda: forged("|O", [1]),
    ],
)
def test_a_few_bytes_do_not_become_gigabytes(make):
    data = HEAD + make()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"."):
            unpack(data, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * LIMIT
