"""How long a refused call asked to wait: google.rpc.RetryInfo in `grpc-status-details-bin`, read without its package.

The two messages involved are three fields deep, and their Python package is not a dependency of a vLLM environment.
Field numbers: google.rpc.Status.details = 3 (google.protobuf.Any: type_url = 1, value = 2),
google.rpc.RetryInfo.retry_delay = 1 (google.protobuf.Duration: seconds = 1, nanos = 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEY: Final = "grpc-status-details-bin"
_TYPE: Final = "google.rpc.RetryInfo"
_LENGTH_DELIMITED, _VARINT = 2, 0
_FIXED_BYTES: Final = {1: 8, 5: 4}


def retry_delay(trailing_metadata: Iterable[tuple[str, bytes | str]] | None) -> float | None:
    """Seconds of the RetryInfo in a call's trailing metadata; None: there is none, or it is not readable."""
    for key, value in trailing_metadata or ():
        if key == _KEY and isinstance(value, bytes):
            try:
                return _of_status(value)
            except (IndexError, ValueError):
                return None
    return None


def _of_status(status: bytes) -> float | None:
    for number, payload in _messages(status):
        if number == 3:
            detail = AnyMessage.FromString(payload)
            if detail.TypeName() == _TYPE:
                for inner, delay in _messages(detail.value):
                    if inner == 1:
                        duration = Duration.FromString(delay)
                        return duration.seconds + duration.nanos / 1e9
    return None


def _messages(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, payload) of each length-delimited field."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH_DELIMITED:
            length, at = _varint(raw, at)
            yield number, raw[at : at + length]
            at += length
        elif kind == _VARINT:
            _, at = _varint(raw, at)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
