"""The composition root: settings in, a running service out.

In-process, on free ports, without a store:

    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": ""})
    async with await Server.start(settings) as server:
        channel = grpc.aio.insecure_channel(server.address)

`serve` runs one until it is told to stop, as `acceptd serve` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from acceptd.errors import ConfigError
from acceptd.limits import MAX_MESSAGE_BYTES
from acceptd.v1 import estimator_pb2, inspect_pb2, inspect_pb2_grpc
from estimator_service.clock import Clock, SystemClock
from estimator_service.fleet import Fleet
from estimator_service.inspect_rpc import InspectServicer
from estimator_service.ledger import Ledger
from estimator_service.metrics import Metrics
from estimator_service.rpc import EstimatorServicer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from estimator_service.config import Settings

logger = logging.getLogger(__name__)

#: Seconds between looks at what is due by time. Rounds, heartbeats and commits are late by at most this much.
_TICK_SECONDS = 0.05

_SERVED = (
    estimator_pb2.DESCRIPTOR.services_by_name["Estimator"].full_name,
    inspect_pb2.DESCRIPTOR.services_by_name["Inspect"].full_name,
)


class Server:
    """A started service. `address` and `metrics_address` are HOST:PORT with the ports that were bound."""

    def __init__(
        self, settings: Settings, fleet: Fleet, server: grpc.aio.Server, health_servicer: health.aio.HealthServicer
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.address = ""
        self.metrics_address = ""
        self._server = server
        self._health = health_servicer
        self._ticker: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, settings: Settings, *, clock: Clock | None = None, registry: CollectorRegistry | None = None
    ) -> Self:
        """Binds, restores and serves. Raises ConfigError if an address cannot be bound."""
        clock = clock or SystemClock()
        metrics = Metrics(registry or CollectorRegistry())
        fleet = Fleet(settings, clock, Ledger(), metrics)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers((EstimatorServicer(fleet).handler(),))
        inspect_pb2_grpc.add_InspectServicer_to_server(InspectServicer(fleet), server)  # type: ignore[no-untyped-call]
        health_servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        reflection.enable_server_reflection((*_SERVED, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        self = cls(settings, fleet, server, health_servicer)
        wanted = settings.listen_address
        try:
            port = server.add_insecure_port(str(wanted))
        except RuntimeError as error:
            raise ConfigError(
                f"listen = {settings.listen!r}: cannot be bound ({error}); accepted: a free address"
            ) from None
        self.address = str(wanted._replace(port=port))
        await server.start()
        for service in ("", *_SERVED):
            await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._ticker = asyncio.create_task(self._tick())
        logger.info("serving on %s", self.address)
        return self

    async def stop(self, reason: str = "the service is stopping") -> None:
        """Drains: streams are told and end, then what must outlive the process is written. Idempotent."""
        await self._health.enter_graceful_shutdown()
        self.fleet.drain(reason)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.fleet.empty.wait(), self.settings.drain_seconds)
        await self._server.stop(grace=0.2)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                self.fleet.tick()
            except Exception:
                # One pair's trouble must not stop the heartbeats of all others.
                logger.exception("tick failed")


async def serve(
    settings: Settings,
    *,
    clock: Clock | None = None,
    registry: CollectorRegistry | None = None,
    ready: Callable[[Server], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serves until `stop` is set, SIGTERM or SIGINT. `ready` is called once the ports are bound.

    Raises ConfigError for an address that cannot be bound.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    async with await Server.start(settings, clock=clock, registry=registry) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not in a thread other than the main one, where signals cannot be handled.
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, stop.set)
        if ready is not None:
            ready(server)
        await stop.wait()
        logger.info("draining")
