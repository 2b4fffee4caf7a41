"""The HTTP side: /metrics, /healthz and the status page. A few GETs, one answer a connection, everything bounded."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from prometheus_client.exposition import choose_encoder

from acceptd.errors import ConfigError
from estimator_service.access.gate import NoIdentity, Refusal
from estimator_service.access.identity import Role
from estimator_service.web.message import Answer, Request
from estimator_service.web.status_page import StatusPage

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from estimator_service.access.gate import Gate
    from estimator_service.config import Address
    from estimator_service.fleet import Fleet

logger = logging.getLogger(__name__)

#: Bytes of a request, line and headers together. Prometheus sends under 1 kB.
_MAX_REQUEST: Final = 16 * 1024
#: Connections at once. One more takes the place of the oldest that has not said what it wants, so that those who say
#: nothing do not keep a probe of /healthz out; if all have, it is turned away with 503. A scraper needs one.
_MAX_CONNECTIONS: Final = 16
#: Seconds that answers under way have when the service stops.
_LAST_SECONDS: Final = 1.0
#: Seconds for a request to arrive, and for its answer to be taken.
_SECONDS: Final = 10.0
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


#: Paths that ask for no token: orchestrators probe them.
_OPEN: Final = frozenset({"/healthz"})


class MetricsHttp:
    """Serves `registry` and the fleet's health. `address` is HOST:PORT once started.

    gate: asks for a reader's token, None: nobody does. tls: None: plain HTTP.
    """

    def __init__(
        self,
        fleet: Fleet,
        registry: CollectorRegistry,
        *,
        gate: Gate | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._gate = gate
        self._tls = tls
        self.address = ""
        self._fleet = fleet
        self._registry = registry
        #: Connections, and of them those whose request has not arrived, oldest first.
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._routes: dict[str, Callable[[Request], Awaitable[Answer]]] = {
            "/metrics": self._metrics,
            "/healthz": self._health,
            **StatusPage(fleet).routes,
        }

    async def start(self, address: Address) -> None:
        """Binds. Raises ConfigError if that cannot be done."""
        try:
            self._server = await asyncio.start_server(
                self._serve, address.host, address.port, limit=_MAX_REQUEST, ssl=self._tls
            )
        except OSError as error:
            raise ConfigError(
                f"metrics_listen = '{address}': cannot be bound ({error.strerror or error}); accepted: a free address"
            ) from None
        self.address = str(address._replace(port=self._server.sockets[0].getsockname()[1]))

    async def stop(self) -> None:
        """Takes no more requests, and ends every connection: browsers hold some open to ask nothing."""
        if self._server is None:
            return
        self._server.close()
        _abort(self._silent)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), _LAST_SECONDS)
        _abort(self._open)
        await self._idle.wait()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = self._make_room()
        self._open[writer] = None
        self._idle.clear()
        try:
            async with asyncio.timeout(_SECONDS):
                peer = str(writer.get_extra_info("peername"))
                head_only, answer = False, Answer(503, b"busy\n")
                if room:
                    self._silent[writer] = None
                    head_only, answer = await self._answer(reader, writer, peer)
                if writer.is_closing():
                    # Cut off meanwhile, by the peer or to make room.
                    return
                fields = (
                    ("Content-Type", answer.content_type),
                    ("Content-Length", str(len(answer.body))),
                    ("Connection", "close"),
                    ("X-Content-Type-Options", "nosniff"),
                    *answer.headers,
                )
                head = "".join(f"{name}: {value}\r\n" for name, value in fields)
                writer.write(f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n{head}\r\n".encode())
                if not head_only:
                    writer.write(answer.body)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError) as error:
            logger.debug("HTTP: %r", error)
        finally:
            self._silent.pop(writer, None)
            del self._open[writer]
            # A peer that does not read would keep a connection that is merely closed, with what is left to send.
            writer.transport.abort()
            if not self._open:
                self._idle.set()

    def _make_room(self) -> bool:
        """Whether another connection is taken."""
        if len(self._open) < _MAX_CONNECTIONS:
            return True
        if not self._silent:
            return False
        oldest = next(iter(self._silent))
        del self._silent[oldest]
        oldest.transport.abort()
        return True

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> tuple[bool, Answer]:
        """(whether the body stays here, the answer)."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return False, Answer(400, b"accepted: an HTTP request of at most 16 KiB\n")
        self._silent.pop(writer, None)
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        if method not in {"GET", "HEAD"}:
            return False, Answer(405, b"accepted: GET\n")
        route = self._routes.get(path)
        if route is None:
            return False, Answer(404, f"accepted: {', '.join(self._routes)}\n".encode())
        headers = {name.strip().lower(): value.strip() for name, _, value in (item.partition(":") for item in fields)}
        if path not in _OPEN and (refused := self._refuse(headers, path, peer)) is not None:
            return False, refused
        return method == "HEAD", await route(Request(dict(reversed(parse_qsl(query))), headers))

    def _refuse(self, headers: dict[str, str], path: str, peer: str) -> Answer | None:
        """The answer to somebody without a reader's token, None if this is a reader or none is asked for."""
        if self._gate is None:
            return None
        given: list[str | bytes] = [_bearer(headers["authorization"])] if "authorization" in headers else []
        try:
            self._gate.bearer(given, Role.READER)
        except Refusal as refusal:
            self._gate.refused(refusal, path, peer)
            status = 401 if isinstance(refusal, NoIdentity) else 403
            # Browsers ask for a password then: the token is the password, of any user.
            # One header each, as Chromium reads no list.
            ask = (
                ("WWW-Authenticate", 'Basic realm="acceptd: any user, a reader\'s token as password"'),
                ("WWW-Authenticate", "Bearer"),
            )
            return Answer(status, f"{refusal}\n".encode(), headers=ask)
        return None

    async def _metrics(self, request: Request) -> Answer:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Rendering takes a while with many pairs: off the loop that answers workers.
        body = await asyncio.get_running_loop().run_in_executor(None, encode, self._registry)
        return Answer(200, body, content_type)

    async def _health(self, request: Request) -> Answer:
        trouble = self._fleet.ledger.delivery.trouble
        status = "draining" if self._fleet.draining else "degraded" if trouble else "ok"
        body = {
            "status": status,
            "store": trouble or "ok",
            "pairs": len(self._fleet.pairs),
            "workers": len(self._fleet.sessions),
        }
        return Answer(503 if self._fleet.draining else 200, json.dumps(body).encode() + b"\n", "application/json")


def _abort(writers: dict[asyncio.StreamWriter, None]) -> None:
    for writer in writers:
        writer.transport.abort()


def _bearer(header: str) -> str:
    """Basic credentials as the bearer token that their password is; others as they are."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        _, _, password = base64.b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")
    except ValueError:
        return header
    return f"Bearer {password}"
