"""A gRPC stream in as few instructions as a load generator can afford: frames written and read by hand (RFC 9113)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_HEADERS, _END_STREAM, _ACK = 4, 1, 1
#: Bytes received after which the peer is told that it may send as many more. Half of what it may have sent by default.
_WINDOW_BYTES = 32_768
#: Bytes taken from the socket at once.
_READ_BYTES = 65_536


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """RFC 7541, section 6.2.2; both below 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _call(path: str) -> bytes:
    """The HEADERS of a call."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return _frame(_HEADERS, _END_HEADERS, 1, b"".join(_literal(*field) for field in fields))


class Http2Stream:
    """One connection with one stream, for an event loop that calls `readable`.

    address: HOST:PORT of the service, in plain text. path: of the method. received: gets the stream and each message.
    """

    def __init__(self, address: str, path: str, received: Callable[[Http2Stream, bytes], None]) -> None:
        self.closed = False
        self._received = received
        self._frames = b""
        self._messages = b""
        self._consumed = 0
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write(_PREFACE + _frame(_SETTINGS, 0, 0) + _call(path))

    def fileno(self) -> int:
        """Of the socket."""
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """One message of the stream. What a worker has in flight fits into any window of the peer."""
        size = len(message)
        self._write(b"%b\0\0\0\0\0\1\0%b%b" % ((size + 5).to_bytes(3, "big"), size.to_bytes(4, "big"), message))

    def abort(self) -> None:
        """Drops the connection."""
        self.closed = True
        self._socket.close()

    def readable(self) -> None:
        """Takes what has come; `closed` if that was the end."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self.abort()
            return
        frames, at = self._frames + data, 0
        while not self.closed and len(frames) - at >= 9:
            end = at + 9 + int.from_bytes(frames[at : at + 3], "big")
            if len(frames) < end:
                break
            self._frame(frames[at + 3], frames[at + 4], frames[at + 9 : end])
            at = end
        self._frames = frames[at:]

    def _write(self, data: bytes) -> None:
        # Blocks where the peer takes nothing, which is then what there is to measure. An end is seen by who reads.
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def _frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _DATA:
            self._consumed += len(payload)
            if self._consumed >= _WINDOW_BYTES:
                more = struct.pack(">I", self._consumed)
                self._write(_frame(_WINDOW, 0, 0, more) + _frame(_WINDOW, 0, 1, more))
                self._consumed = 0
            self._message(payload)
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            self._write(_frame(_SETTINGS, _ACK, 0))
        elif kind in (_RESET, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            self.abort()

    def _message(self, payload: bytes) -> None:
        messages, at = self._messages + payload, 0
        while len(messages) - at >= 5:
            end = at + 5 + int.from_bytes(messages[at + 1 : at + 5], "big")
            if len(messages) < end:
                break
            self._received(self, messages[at + 5 : end])
            at = end
        self._messages = messages[at:]
