"""A tree of our own values as bytes, and back. Compressed, with a format number and no checksum (stores add one)."""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Grows with every change of what a pair's state holds; other formats are refused.
FORMAT: Final = 3

#: Bytes of a snapshot before it is compressed; a pair at K = 64 has some 8 MB. Without it a few megabytes that expand a
#: thousandfold would be all it takes to end the service.
_MAX_BYTES: Final = 64 * 1024 * 1024

#: Records that are kept by column, all tables together: one for each worker that is remembered, and some more.
_MAX_RECORDS: Final = 8_192

#: Values that JSON holds as they are.
_PLAIN: Final = frozenset({type(None), bool, int, float, str})

_MAGIC: Final = b"acceptd-pair"
_LENGTH: Final = struct.Struct("<Q")


@dataclass
class Size:
    """Bytes that something takes, 0 while that is not known."""

    bytes: int = 0


class Packing:
    """A tree laid out; `bytes` compresses it, once, which takes most of the time and needs no interpreter lock.

    For one thread at a time. size: known once it was compressed; to be kept by who wants no more than that.
    """

    def __init__(self, body: bytes) -> None:
        self.size = Size()
        self._body = body
        self._packed = b""

    def __bytes__(self) -> bytes:
        if not self._packed:
            # Level 1: counts are mostly zeros, which it removes as well as slower levels do.
            self._packed, self._body = _MAGIC + bytes([FORMAT]) + zlib.compress(self._body, 1), b""
            self.size.bytes = len(self._packed)
        return self._packed


def pack(value: Any, kinds: dict[str, type]) -> Packing:
    """`value`: numbers, strings, None, arrays, tuples, lists, sets, dicts, and instances of `kinds` (name → class).

    What is packed may change afterwards.
    """
    arrays: list[NDArray[Any]] = []
    tree = _encode(value, arrays, {kind: name for name, kind in kinds.items()})
    columns = [(array.dtype.str, array.shape) for array in arrays]
    head = json.dumps({"tree": tree, "arrays": columns}).encode()
    return Packing(b"".join((_LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays))))


def unpack(data: bytes, kinds: dict[str, type]) -> Any:
    """The reverse of `bytes(pack(…))`. Raises ValueError if `data` is not a whole snapshot of this format."""
    if not data.startswith(_MAGIC) or len(data) <= len(_MAGIC):
        raise ValueError("not a snapshot of a pair")
    if data[len(_MAGIC)] != FORMAT:
        raise ValueError(f"snapshot has format {data[len(_MAGIC)]}; accepted: {FORMAT}")
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(data[len(_MAGIC) + 1 :], _MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError(f"snapshot is larger than {_MAX_BYTES} bytes; accepted: a pair's state")
        if not unpacker.eof:
            raise ValueError("snapshot is damaged: its end is missing")
        (size,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + size
        head = json.loads(body[_LENGTH.size : at])
        arrays = []
        for kind, shape in head["arrays"]:
            dtype = np.dtype(kind)
            count = math.prod(shape)
            # A copy: what is read from bytes could not be written to.
            arrays.append(np.frombuffer(body, dtype, count, at).reshape(shape).copy())
            at += count * dtype.itemsize
        return _Reader(arrays, kinds).value(head["tree"])
    except (zlib.error, struct.error, AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"snapshot is damaged: {error}") from error


def check_make(value: Any, like: Any, where: str) -> None:
    """Raises ValueError unless `value` is of the same make as `like`, as far as both go.

    Objects of one class have the same attributes; arrays the same type and shape, where a length of 0 in `like` stands
    for any. None is of any make.
    """
    if value is None or like is None:
        return
    if isinstance(like, np.ndarray):
        same = isinstance(value, np.ndarray) and value.dtype == like.dtype and value.ndim == like.ndim
        if not same or any(n not in (m, 0) for m, n in zip(value.shape, like.shape, strict=True)):
            raise ValueError(f"snapshot is damaged: {where} is not {like.dtype}{list(like.shape)}")
    elif hasattr(like, "__dict__"):
        own, expected = _own(value) if type(value) is type(like) else {}, _own(like)
        if own.keys() != expected.keys():
            raise ValueError(f"snapshot is damaged: {where} is no whole {type(like).__name__}")
        for name, item in own.items():
            check_make(item, expected[name], f"{where}.{name}")


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Attributes that make up an object of a dataclass; None for another class."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else None


def _own(value: Any) -> dict[str, Any]:
    """What makes up an object."""
    names = _names(type(value))  # type: ignore[arg-type]  # every class is hashable
    return vars(value) if names is None else {name: getattr(value, name) for name in names}


def _encode(value: Any, arrays: list[NDArray[Any]], names: dict[type, str]) -> Any:
    if type(value) in _PLAIN or isinstance(value, (int, float, str, np.generic)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, dict):
        if (kind := _kind_of_all(value)) is not None:
            return _encode_table(kind, value, arrays, names)
        return {"dict": [[_encode(k, arrays, names), _encode(v, arrays, names)] for k, v in value.items()]}
    for kind in (tuple, list, set):
        if isinstance(value, kind):
            items = sorted(value) if kind is set else value
            plain = _PLAIN.issuperset(map(type, items))
            return {kind.__name__: list(items) if plain else [_encode(item, arrays, names) for item in items]}
    own = [[k, v if type(v) in _PLAIN else _encode(v, arrays, names)] for k, v in _own(value).items()]
    return {"kind": names[type(value)], "own": {"dict": own}}


def _kind_of_all(value: dict[Any, Any]) -> type | None:
    """The dataclass that all values of a dict by name are of; None if they are not."""
    kinds = set(map(type, value.values()))
    if len(kinds) == 1 and set(map(type, value)) == {str} and is_dataclass(kind := next(iter(kinds))):
        return kind
    return None


def _encode_table(
    kind: type, value: dict[str, Any], arrays: list[NDArray[Any]], names: dict[type, str]
) -> dict[str, Any]:
    """Many objects of one dataclass, attribute by attribute: hundreds of workers have thousands of numbers."""
    columns = []
    for name in _names(kind) or ():
        column = [getattr(item, name) for item in value.values()]
        held = np.array(column) if set(map(type, column)) == {float} else column
        columns.append([name, _encode(held, arrays, names)])
    return {"kind": names[kind], "own": {"dict": columns}, "keys": list(value)}


class _Reader:
    """Of one snapshot. Records kept by column are counted: of a few bytes of a name becomes an object of hundreds."""

    def __init__(self, arrays: list[NDArray[Any]], kinds: dict[str, type]) -> None:
        self._arrays = arrays
        self._kinds = kinds
        self._records = _MAX_RECORDS

    def value(self, tree: Any) -> Any:
        """What `_encode` made this tree of."""
        if not isinstance(tree, dict):
            return tree
        if "array" in tree:
            return self._arrays[tree["array"]]
        if "dict" in tree:
            return {self.value(k): self.value(v) for k, v in tree["dict"]}
        for kind in (tuple, list, set):
            if kind.__name__ in tree:
                return kind(self.value(item) for item in tree[kind.__name__])
        made = self._kinds[tree["kind"]]
        own = self.value(tree["own"])
        if is_dataclass(made) and own.keys() != set(_names(made) or ()):
            raise ValueError(f"snapshot is damaged: {made.__name__} has {', '.join(map(str, own))}")
        return self._table(made, own, tree["keys"]) if "keys" in tree else _made(made, own)

    def _table(self, kind: type, own: dict[str, Any], keys: list[str]) -> dict[str, Any]:
        """The reverse of `_encode_table`."""
        if not is_dataclass(kind) or not isinstance(keys, list) or set(map(type, keys)) != {str}:
            raise ValueError(f"snapshot is damaged: records of {kind.__name__} have no names")
        self._records -= len(keys)
        if self._records < 0 or len(set(keys)) < len(keys):
            raise ValueError(f"snapshot is damaged: records of {kind.__name__} are more than there can be")
        columns = []
        for name, column in own.items():
            array = isinstance(column, np.ndarray) and column.ndim == 1
            if not (array or isinstance(column, list)) or len(column) != len(keys):
                raise ValueError(f"snapshot is damaged: {kind.__name__}.{name} is no column of {len(keys)}")
            columns.append(column.tolist() if array else column)
        rows = zip(*columns, strict=True)
        return {key: _made(kind, dict(zip(own, row, strict=True))) for key, row in zip(keys, rows, strict=True)}


def _made(kind: type, own: dict[str, Any]) -> Any:
    """An instance with these attributes."""
    value: Any = object.__new__(kind)
    for name, item in own.items():
        # Past a frozen dataclass's guard: the instance is still being made.
        object.__setattr__(value, name, item)
    return value
