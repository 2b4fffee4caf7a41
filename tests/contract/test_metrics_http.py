"""The HTTP port against peers that say nothing, or do not listen."""

from __future__ import annotations

import asyncio
import os
import socket

from prometheus_client import CollectorRegistry, Gauge
from raw_worker import until

from estimator_service.config import load_settings, parse_address
from estimator_service.server import Server
from estimator_service.web import server as metrics_http


async def ask(server, path):
    """The answer's first line."""
    address = parse_address(server.metrics_address)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line


def open_files():
    return len(os.listdir("/proc/self/fd"))


async def test_connections_that_say_nothing_keep_no_probe_out(start):
    """An orchestrator restarts a service whose /healthz does not answer."""
    server = await start(metrics_listen="127.0.0.1:0")
    address = parse_address(server.metrics_address)
    silent = [await asyncio.open_connection(address.host, address.port) for _ in range(40)]
    for _ in range(3):
        assert (await ask(server, "/healthz")).startswith(b"HTTP/1.1 200")
    for _, writer in silent:
        writer.close()


async def test_a_stop_with_silent_connections_is_quick_and_quiet():
    """Browsers open connections ahead of need. The loop's handler is called for exceptions that nobody took."""
    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}, environ={})
    server = await Server.start(settings)
    troubles = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    address = parse_address(server.metrics_address)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    assert (await ask(server, "/healthz")).startswith(b"HTTP/1.1 200")
    before = asyncio.all_tasks()
    await asyncio.wait_for(server.stop(), 5)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert not [task for task in before - {asyncio.current_task()} if not task.done()]
    assert troubles == []
    writer.close()


async def test_a_peer_that_does_not_read_is_cut_off(monkeypatch):
    monkeypatch.setattr(metrics_http, "_SECONDS", 3.0)
    registry = CollectorRegistry()
    gauge = Gauge("test_large", "More than the kernel's buffers take.", ["i"], registry=registry)
    for i in range(100_000):
        gauge.labels(f"{i:0100d}")
    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}, environ={})
    async with await Server.start(settings, registry=registry) as server:
        address = parse_address(server.metrics_address)
        before = open_files()
        with socket.create_connection((address.host, address.port)) as deaf:
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await until(lambda: open_files() == before + 2, "the service has the connection")
            await until(lambda: open_files() == before + 1, "the service has let it go")
        assert (await ask(server, "/healthz")).startswith(b"HTTP/1.1 200")
