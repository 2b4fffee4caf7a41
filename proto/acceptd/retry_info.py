"""RetryInfo in a status: how a server says when a refused call may be tried again (google.rpc.Status in the
trailing metadata `grpc-status-details-bin`, the convention of gRPC's richer error model).

The two messages are read and written by hand: they have five fields, and no package has to be added for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

#: Trailing metadata that carries the serialized google.rpc.Status.
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"

_TYPE_NAME: Final = "google.rpc.RetryInfo"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers. google.rpc.Status: code 1, message 2, details 3. google.rpc.RetryInfo: retry_delay 1.
_CODE, _MESSAGE, _DETAILS, _RETRY_DELAY = 1, 2, 3, 1


def encode_retry_info(code: int, message: str, seconds: float) -> bytes:
    """A google.rpc.Status with a RetryInfo of `seconds`. `code` is the status' number.

    >>> retry_after([(STATUS_DETAILS_KEY, encode_retry_info(8, "busy", 2.5))])
    2.5
    """
    delay = Duration()
    delay.FromNanoseconds(round(seconds * 1e9))
    detail = AnyMessage(
        type_url=f"type.googleapis.com/{_TYPE_NAME}", value=_field(_RETRY_DELAY, delay.SerializeToString())
    )
    status = _varint(_CODE << 3 | _VARINT) + _varint(code)
    return status + _field(_MESSAGE, message.encode()) + _field(_DETAILS, detail.SerializeToString())


def retry_after(metadata: Iterable[Any] | None) -> float | None:
    """Seconds to wait before the next try, from a call's trailing metadata; None if it says nothing about that.

    Negative or unreadable delays count as nothing said.
    """
    for key, value in metadata or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            try:
                return _delay(value)
            except (DecodeError, ValueError, IndexError):
                return None
    return None


def _delay(status: bytes) -> float | None:
    for number, raw in _fields(status):
        if number != _DETAILS:
            continue
        detail = AnyMessage.FromString(raw)
        # Any prefix: only what follows the last slash names the type.
        if detail.TypeName() != _TYPE_NAME:
            continue
        for inner, delay in _fields(detail.value):
            if inner == _RETRY_DELAY:
                seconds = Duration.FromString(delay).ToNanoseconds() / 1e9
                return seconds if seconds >= 0 else None
    return None


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, value) of the length-delimited fields; others are passed over. Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError("field runs past the end")
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind == _VARINT:
            _, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} does not occur in proto3")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("varint of more than 10 bytes")
