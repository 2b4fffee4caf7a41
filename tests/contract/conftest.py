"""A real service on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import uvloop
from secured import Tokens
from service_process import ServiceProcess

from estimator_service.config import load_settings
from estimator_service.server import Server

Start = Callable[..., Awaitable[Server]]

_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `acceptd serve` runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts services with the settings given; stops what is still running."""
    servers: list[Server] = []

    async def start_(**flags: Any) -> Server:
        # One answer a batch: `RawWorker` sends the next when it has that of the one before.
        defaults = {"listen": "127.0.0.1:0", "metrics_listen": "", "drain_seconds": 1.0, "answer_seconds": 0}
        server = await Server.start(load_settings({**defaults, **flags}, environ={}))
        servers.append(server)
        return server

    yield start_
    for server in servers:
        await server.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], grpc.aio.Channel]]:
    """Channels, closed at the end."""
    channels: list[grpc.aio.Channel] = []

    def connect_(address: str) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(address, _OPTIONS)
        channels.append(channel)
        return channel

    yield connect_
    for channel in channels:
        await channel.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., ServiceProcess]]:
    """Starts services as processes; kills what is still there."""
    processes: list[ServiceProcess] = []

    def spawn_(**flags: Any) -> ServiceProcess:
        processes.append(ServiceProcess(**flags))
        return processes[-1]

    yield spawn_
    for process in processes:
        process.close()


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """A file of tokens, one of each role and two workers'."""
    return Tokens(tmp_path / "tokens")


@pytest.fixture
def ca() -> trustme.CA:
    """An authority."""
    return trustme.CA()


@pytest.fixture
async def secure() -> AsyncIterator[Callable[[str, grpc.ChannelCredentials], grpc.aio.Channel]]:
    """TLS channels, closed at the end."""
    channels: list[grpc.aio.Channel] = []

    def connect_(address: str, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
        channels.append(grpc.aio.secure_channel(address, credentials, _OPTIONS))
        return channels[-1]

    yield connect_
    for channel in channels:
        await channel.close()
