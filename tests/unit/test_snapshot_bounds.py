"""A snapshot from elsewhere: what it may take, whatever it says of itself."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from estimator_service.fit.snapshot import FORMAT, pack, unpack

HEAD = b"acceptd-pair" + bytes([FORMAT])
LIMIT = 64 * 1024 * 1024


@dataclass
class Kept:
    """Some record."""

    number: float
    label: str
    count: int


class Loose:
    """No dataclass: it may have any attributes."""


KINDS = {"Kept": Kept, "Loose": Loose}


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


def table(kind, names, array):
    """One record by column, which all are one array, far longer than the record has values."""
    own = {"dict": [[name, {"array": 0}] for name in names]}
    tree = {"kind": kind, "own": own, "keys": ["x"]}
    head = json.dumps({"tree": tree, "arrays": [["|u1", [array]]]}).encode()
    return zlib.compress(struct.pack("<Q", len(head)) + head + bytes(array))


def tables(count, keys):
    """Many tables of names that take a few bytes each."""
    arrays = [["<f8", [keys]]]
    own = {"dict": [["number", {"array": 0}], ["label", {"array": 0}], ["count", {"array": 0}]]}
    each = {"kind": "Kept", "own": own, "keys": [str(i) for i in range(keys)]}
    head = json.dumps({"tree": {"list": [each] * count}, "arrays": arrays}).encode()
    return zlib.compress(struct.pack("<Q", len(head)) + head + bytes(8 * keys))


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
        lambda: table("Loose", [f"a{i}" for i in range(20)], 8_000_000),
        lambda: table("Kept", ["number", "label", "count"], 30_000_000),
        lambda: tables(1000, 1000),
    ],
)
def test_a_few_bytes_do_not_become_gigabytes(make):
    data = HEAD + make()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"."):
            unpack(data, KINDS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * LIMIT


def test_what_was_packed_may_change_before_it_is_compressed():
    value = {"a": np.arange(5.0), "b": [1, 2]}
    packing = pack(value, {})
    value["a"] += 1
    value["b"].append(3)
    assert packing.size.bytes == 0
    data = bytes(packing)
    assert packing.size.bytes == len(data)
    again = unpack(data, {})
    assert (again["a"].tolist(), again["b"]) == ([0.0, 1.0, 2.0, 3.0, 4.0], [1, 2])


def test_records_by_name_are_kept_by_column():
    value = {"x": Kept(0.1, "a", 1), "y": Kept(-0.0, "b", 2**60), "z": Kept(1e-320, "", 0)}
    again = unpack(bytes(pack(value, KINDS)), KINDS)
    assert repr(again) == repr(value)
    assert list(again) == ["x", "y", "z"]


@pytest.mark.parametrize(
    "change",
    [
        {"keys": ["x"]},
        {"keys": ["x", "y", "z"]},
        {"keys": [["x"], ["y"]]},
        {"keys": 3},
        {"own": {"dict": [["number", {"array": 0}], ["label", {"list": ["a"]}], ["count", {"list": [1, 2]}]]}},
        {"own": {"dict": [["number", {"array": 0}], ["label", 7], ["count", {"list": [1, 2]}]]}},
        {"own": {"dict": [["number", {"array": 0}], ["count", {"list": [1, 2]}]]}},
        {"own": 5},
        {"kind": "Other"},
    ],
)
def test_columns_that_do_not_fit_are_refused(change):
    body = zlib.decompress(bytes(pack({"x": Kept(0.5, "a", 1), "y": Kept(1.5, "b", 2)}, KINDS))[len(HEAD) :])
    (size,) = struct.unpack_from("<Q", body)
    head = json.loads(body[8 : 8 + size])
    head["tree"] |= change
    text = json.dumps(head).encode()
    data = HEAD + zlib.compress(struct.pack("<Q", len(text)) + text + body[8 + size :])
    with pytest.raises(ValueError, match="damaged"):
        unpack(data, KINDS)
