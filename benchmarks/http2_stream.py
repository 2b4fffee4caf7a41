"""A gRPC stream in as few instructions as a load generator can afford: frames written and read by hand (RFC 9113)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from acceptd.v1 import estimator_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_HEADERS, _END_STREAM, _ACK = 4, 1, 1
#: Bytes received after which the peer is told that it may send as many more. Half of what it may have sent by default.
_WINDOW_BYTES = 32_768


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """RFC 7541, section 6.2.2; both below 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


_CALL = _frame(
    _HEADERS,
    _END_HEADERS,
    1,
    b"".join(
        _literal(*field)
        for field in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/acceptd.v1.Estimator/Stream"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    ),
)


class Http2Stream(asyncio.Protocol):
    """One connection with one stream of the worker's protocol. `received` gets each message, `ended` the end."""

    def __init__(
        self, received: Callable[[estimator_pb2.StreamResponse], None], ended: Callable[[Http2Stream], None]
    ) -> None:
        self.closed = False
        self._received = received
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._frames = bytearray()
        self._messages = bytearray()
        self._consumed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_PREFACE + _frame(_SETTINGS, 0, 0) + _CALL)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._ended(self)

    def send(self, message: bytes) -> None:
        """One message of the stream. What a worker has in flight fits into any window of the peer."""
        if self._transport is not None and not self.closed:
            self._transport.write(_frame(_DATA, 0, 1, b"\x00" + struct.pack(">I", len(message)) + message))

    def abort(self) -> None:
        """Drops the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        frames = self._frames
        frames += data
        at = 0
        while len(frames) - at >= 9:
            size = int.from_bytes(frames[at : at + 3], "big")
            if len(frames) - at < 9 + size:
                break
            kind, flags = frames[at + 3], frames[at + 4]
            self._frame(kind, flags, bytes(frames[at + 9 : at + 9 + size]))
            at += 9 + size
        del frames[:at]

    def _frame(self, kind: int, flags: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == _DATA:
            self._consumed += len(payload)
            if self._consumed >= _WINDOW_BYTES:
                more = struct.pack(">I", self._consumed)
                self._transport.write(_frame(_WINDOW, 0, 0, more) + _frame(_WINDOW, 0, 1, more))
                self._consumed = 0
            self._message(payload)
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0))
        elif kind in (_RESET, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            self.abort()

    def _message(self, payload: bytes) -> None:
        messages = self._messages
        messages += payload
        at = 0
        while len(messages) - at >= 5:
            size = int.from_bytes(messages[at + 1 : at + 5], "big")
            if len(messages) - at < 5 + size:
                break
            self._received(estimator_pb2.StreamResponse.FromString(bytes(messages[at + 5 : at + 5 + size])))
            at += 5 + size
        del messages[:at]
