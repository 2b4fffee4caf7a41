"""Bytes below gRPC: lengths that promise gigabytes, frames that may not be, headers without end. They cost nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
from pathlib import Path

import grpc
import pytest
from raw_worker import DEADLINE, RawWorker, rows

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
END_HEADERS = 4
STREAM = "/acceptd.v1.Estimator/Stream"
GET_PAIR = "/acceptd.v1.Inspect/GetPair"

#: Bytes the service may have more in memory after all of it: what an allocator keeps of a thousand streams. Far below
#: what any of the lengths promises.
SLACK = 64_000_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """RFC 9113, section 4.1. length: what the frame claims."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """RFC 7541, section 6.2.2: a field that enters no table, its strings as they are."""

    def text(data: bytes) -> bytes:
        if len(data) < 127:
            return bytes([len(data)]) + data
        rest, out = len(data) - 127, bytearray([127])
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        return bytes(out) + bytes([rest]) + data

    return b"\x00" + text(name.encode()) + text(value.encode())


def call(path: str, stream: int = 1) -> bytes:
    """The HEADERS of a call."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return frame(HEADERS, END_HEADERS, stream, b"".join(literal(*field) for field in fields))


def exchange(address: str, data: bytes, awaited: bytes | None = None) -> bytes:
    """What the service answers until it ends the connection, has said what is awaited, or says nothing for a while."""
    host, port = address.rsplit(":", 1)
    answer = b""
    with socket.create_connection((host, int(port)), DEADLINE) as peer:
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            peer.sendall(PREFACE + frame(SETTINGS, 0, 0) + data)
        peer.settimeout(0.3 if awaited is None else DEADLINE)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while chunk := peer.recv(65536):
                answer += chunk
                if len(answer) > 1_000_000 or (awaited is not None and awaited in answer):
                    break
    return answer


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


ATTACKS = {
    # A message of 4 GB less a byte, of which a little comes; the same, compressed; and on a call that is no stream.
    "message of 4 GB": call(STREAM) + frame(DATA, 0, 1, b"\x00\xff\xff\xff\xff" + bytes(100)),
    "compressed message of 4 GB": call(STREAM) + frame(DATA, 0, 1, b"\x01\xff\xff\xff\xff" + bytes(100)),
    "request of 4 GB": call(GET_PAIR) + frame(DATA, 0, 1, b"\x00\xff\xff\xff\xff"),
    # Just above the limit of a message, and what it holds claims 4 GB inside.
    "message over the limit": call(STREAM) + frame(DATA, 0, 1, b"\x00" + struct.pack(">I", 8 * 1024 * 1024 + 1)),
    "field of 4 GB": call(STREAM) + frame(DATA, 0, 1, b"\x00\x00\x00\x00\x06" + b"\x0a\xff\xff\xff\xff\x0f"),
    "frame of 16 MB": call(STREAM) + frame(DATA, 0, 1, bytes(100), length=2**24 - 1),
    "settings of 16 MB": frame(SETTINGS, 0, 0, bytes(100), length=2**24 - 1),
    "headers without end": frame(HEADERS, 0, 1, literal("a", "b" * 10_000))
    + b"".join(frame(CONTINUATION, 0, 1, literal("a", "b" * 10_000)) for _ in range(200)),
    "field of 4 GB in the headers": frame(HEADERS, END_HEADERS, 1, b"\x00\x7f\xff\xff\xff\xff\x0f"),
    "a thousand streams": b"".join(call(STREAM, 1 + 2 * i) for i in range(1000)),
    "pings": b"".join(frame(PING, 0, 0, bytes(8)) for _ in range(2000)),
}


@pytest.mark.timeout(180)
async def test_lengths_that_are_claimed_cost_nothing_and_nobody_else_notices(spawn, connect):
    service = spawn(hello_seconds=1.0)
    worker = RawWorker(connect(service.address), "good")
    await worker.greet()
    assert (await worker.batch(1, rows(50, 1))).rows_accepted == 50
    for data in ATTACKS.values():
        exchange(service.address, data)
    base, sequence = resident(service.process.pid), 1
    random_ = random.Random(7)
    for _ in range(2):
        for name, data in ATTACKS.items():
            exchange(service.address, data)
            # And cut off or changed somewhere.
            at = random_.randrange(len(data))
            exchange(service.address, data[:at] + random_.randbytes(4) + data[at + random_.randint(0, 4) :][:5000])
            assert resident(service.process.pid) - base < SLACK, name
        sequence += 1
        assert (await worker.batch(sequence, rows(50, sequence))).rows_accepted == 50
    assert service.process.poll() is None


@pytest.mark.parametrize("name", ["message of 4 GB", "message over the limit", "field of 4 GB"])
async def test_the_refusal_is_a_status(start, connect, name):
    """The peer is told, in trailers that hold the status as text."""
    server = await start()
    answer = await asyncio.to_thread(exchange, server.address, ATTACKS[name], b"grpc-status")
    codes = {
        "message of 4 GB": grpc.StatusCode.RESOURCE_EXHAUSTED,
        "message over the limit": grpc.StatusCode.RESOURCE_EXHAUSTED,
        "field of 4 GB": grpc.StatusCode.FAILED_PRECONDITION,
    }
    assert b"grpc-status" in answer
    code = answer[answer.index(b"grpc-status") + len(b"grpc-status") :]
    assert code[: 1 + code[0]][1:] == str(codes[name].value[0]).encode()
