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
from prometheus_client import CollectorRegistry, ProcessCollector

from acceptd.errors import ConfigError
from acceptd.limits import MAX_MESSAGE_BYTES
from acceptd.v1 import estimator_pb2, inspect_pb2, inspect_pb2_grpc
from estimator_service.access.certificates import Certificates
from estimator_service.access.gate import Gate
from estimator_service.access.gate_rpc import GateInterceptor
from estimator_service.access.tokens import Tokens
from estimator_service.clock import Clock, SystemClock
from estimator_service.fleet import Fleet
from estimator_service.heap import keep_freed_memory, shorten_collections
from estimator_service.inspect_rpc import InspectServicer
from estimator_service.metrics import Metrics
from estimator_service.rpc import EstimatorServicer
from estimator_service.storage.persistence import Persistence
from estimator_service.web.exposition import Exposition
from estimator_service.web.server import MetricsHttp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from estimator_service.config import Settings

logger = logging.getLogger(__name__)

#: Seconds between looks at what is due by time. Rounds, heartbeats and commits are late by at most this much.
_TICK_SECONDS = 0.05

#: Seconds between looks at the files of tokens and certificates.
_IDENTITY_SECONDS = 1.0

#: Bytes of a call's headers. A token has 51; what is larger is refused before any of it is looked at.
_MAX_HEADER_BYTES = 8 * 1024

#: Calls at once beside the workers' streams: people, their tools, and streams that have not said Hello.
_OTHER_RPCS = 256

#: A connection that is too old is cut this long after it was told so. A worker's stream never ends by itself, and what
#: was not answered is sent again on the next one; raising it lets a peer that may no longer connect go on for longer.
_CONNECTION_GRACE_MILLISECONDS = 5_000

_SERVED = (
    estimator_pb2.DESCRIPTOR.services_by_name["Estimator"].full_name,
    inspect_pb2.DESCRIPTOR.services_by_name["Inspect"].full_name,
)


class Server:
    """A started service. `address` and `metrics_address` are HOST:PORT with the ports that were bound."""

    def __init__(self, settings: Settings, clock: Clock, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.address = ""
        self.metrics_address = ""
        metrics = Metrics(registry)
        self._certificates = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            self._certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca, metrics)
        self._gate = Gate(Tokens(settings.tokens) if settings.tokens is not None else None, metrics, clock)
        self._clock = clock
        self._identity_due = clock.monotonic()
        # Last of what may fail: it locks the store.
        self._persistence = Persistence(settings, clock)
        self.fleet = Fleet(settings, clock, self._persistence.ledger, metrics)
        self._http = MetricsHttp(
            self.fleet,
            registry,
            gate=self._gate if settings.metrics_auth else None,
            tls=self._certificates.context if self._certificates and settings.metrics_tls else None,
        )
        registry.register(Exposition(self.fleet, asyncio.get_running_loop()))
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[GateInterceptor(self._gate)],
            options=[
                ("grpc.max_metadata_size", _MAX_HEADER_BYTES),
                ("grpc.absolute_max_metadata_size", _MAX_HEADER_BYTES),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
                # Without it gRPC answers every message that follows a pause with a PING, to size windows for bulk data:
                # a write, a read and the peer's answer more for each acknowledgement of small coefficients.
                ("grpc.http2.bdp_probe", 0),
                # A peer that vanished without a word gives its place back after these, milliseconds.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                *_connection_age(settings.max_connection_seconds),
            ],
            # Streams that have not said Hello count here, too.
            maximum_concurrent_rpcs=settings.max_workers + _OTHER_RPCS,
        )
        self._ticker: asyncio.Task[None] | None = None
        self._stopped = False

    @classmethod
    async def start(
        cls, settings: Settings, *, clock: Clock | None = None, registry: CollectorRegistry | None = None
    ) -> Self:
        """Restores, binds and serves. Raises ConfigError if the store or an address cannot be had."""
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self = cls(settings, clock or SystemClock(), registry)
        self._persistence.attach(self.fleet)
        # A round that was full when the process before ended is closed before new batches would join it.
        self.fleet.tick()
        keep_freed_memory()
        try:
            await self._bind()
        except BaseException:
            await self._server.stop(None)
            await self._http.stop()
            await self._persistence.close()
            raise
        self._ticker = asyncio.create_task(self._tick())
        logger.info("serving on %s", self.address)
        if not (settings.listen_address.loopback or settings.tokens or settings.tls_client_ca):
            logger.warning(
                "whoever reaches %s may do everything: neither tokens nor tls_client_ca is set", self.address
            )
        return self

    async def _bind(self) -> None:
        server, wanted = self._server, self.settings.listen_address
        server.add_generic_rpc_handlers((EstimatorServicer(self.fleet, self._gate).handler(),))
        inspect_pb2_grpc.add_InspectServicer_to_server(  # type: ignore[no-untyped-call]
            InspectServicer(self.fleet, self._gate), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*_SERVED, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            if self._certificates is None:
                port = server.add_insecure_port(str(wanted))
            else:
                port = server.add_secure_port(str(wanted), self._certificates.credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"listen = {self.settings.listen!r}: cannot be bound ({error}); accepted: a free address"
            ) from None
        self.address = str(wanted._replace(port=port))
        if (http := self.settings.metrics_address) is not None:
            await self._http.start(http)
            self.metrics_address = self._http.address
        await server.start()
        for service in ("", *_SERVED):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, reason: str = "the service is stopping") -> None:
        """Drains: streams are told and end, then what must outlive the process is written. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self._health.enter_graceful_shutdown()
        self.fleet.drain(reason)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.fleet.empty.wait(), self.settings.drain_seconds)
        await self._server.stop(grace=0.2)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._http.stop()
        await self._persistence.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _refresh_identity(self) -> None:
        now = self._clock.monotonic()
        if now < self._identity_due:
            return
        self._identity_due = now + _IDENTITY_SECONDS
        self._gate.refresh()
        if self._certificates is not None:
            self._certificates.refresh()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                self.fleet.tick()
                self._refresh_identity()
            except Exception:
                # One pair's trouble must not stop the heartbeats of all others.
                logger.exception("tick failed")


def _connection_age(seconds: float) -> list[tuple[str, int]]:
    """gRPC's options: the peer is told to open another connection, and has a while to end its streams on this one."""
    if not seconds:
        return []
    return [
        ("grpc.max_connection_age_ms", max(1, round(1000 * seconds))),
        ("grpc.max_connection_age_grace_ms", _CONNECTION_GRACE_MILLISECONDS),
    ]


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
        shorten_collections()
        if ready is not None:
            ready(server)
        await stop.wait()
        logger.info("draining")
