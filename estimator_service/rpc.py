"""The worker stream over gRPC: messages to the session and from its outbox, errors to statuses."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from acceptd.codec import decode_pair_key
from acceptd.errors import AcceptdError, IncompatiblePeer, WireError
from acceptd.v1 import estimator_pb2
from estimator_service.access.gate import Refusal
from estimator_service.access.identity import CALLER
from estimator_service.fleet import Busy
from estimator_service.log_limit import LogLimit
from estimator_service.outbox import Ending
from estimator_service.refusal_rpc import retry_metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from estimator_service.access.gate import Gate
    from estimator_service.fleet import Fleet
    from estimator_service.outbox import Outbox
    from estimator_service.session import Session

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())

SERVICE = "acceptd.v1.Estimator"

#: Time an ended stream has to send what is ready. Raising it lets a peer that does not read hold its place longer.
_LAST_WORDS_SECONDS = 1.0


def decode_request(data: bytes) -> estimator_pb2.StreamRequest | None:
    """The message, None if the bytes are none: gRPC would end the stream without saying why.

    Without fields that this service does not know: Hello and reports are kept, and would keep megabytes of them.
    """
    try:
        message = estimator_pb2.StreamRequest.FromString(data)
    except DecodeError:
        return None
    message.DiscardUnknownFields()
    return message


class EstimatorServicer:
    """`acceptd.v1.Estimator`. One reader (this coroutine) and one sender a stream."""

    def __init__(self, fleet: Fleet, gate: Gate) -> None:
        self._fleet = fleet
        self._counts = fleet.metrics.streams
        self._gate = gate

    def handler(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        stream = grpc.stream_stream_rpc_method_handler(
            self.stream,
            request_deserializer=self._decode,
            # What is sent is encoded already.
            response_serializer=self._sent,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Stream": stream})

    def _decode(self, data: bytes) -> estimator_pb2.StreamRequest | None:
        self._counts.received += len(data)
        return decode_request(data)

    def _sent(self, data: bytes) -> bytes:
        self._counts.sent += len(data)
        return data

    async def stream(
        self,
        _: AsyncIterator[estimator_pb2.StreamRequest | None],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """One worker, from Hello to the end of its stream. Reads through `context`, which takes a step less."""
        try:
            session = await self._greet(context)
        except Refusal as refusal:
            self._gate.refused(refusal, f"/{SERVICE}/Stream", context.peer())
            await self._abort(context, _ending(refusal))
            return
        except AcceptdError as error:
            await self._abort(context, _ending(error))
            return
        outbox = session.outbox
        guest = self._gate.enter(CALLER.get(), lambda refusal: session.end(_ending(refusal)))
        sender = asyncio.ensure_future(_send(outbox, context))
        reader = asyncio.ensure_future(_receive(session, context))
        ended = asyncio.ensure_future(outbox.wait_for_ending())
        try:
            await asyncio.wait((sender, ended), return_when=asyncio.FIRST_COMPLETED)
            # A peer that does not read must not keep an ended stream alive.
            await asyncio.wait((sender,), timeout=_LAST_WORDS_SECONDS)
        finally:
            for task in (sender, reader, ended):
                task.cancel()
            await asyncio.gather(sender, reader, ended, return_exceptions=True)
            self._gate.left(guest)
            self._fleet.disconnect(session)
        if outbox.ending is not None and outbox.ending.code != "OK":
            await self._abort(context, outbox.ending)

    async def _greet(self, context: grpc.aio.ServicerContext[Any, Any]) -> Session:
        if self._fleet.draining:
            raise Draining("the service is stopping")
        try:
            async with asyncio.timeout(self._fleet.settings.hello_seconds):
                request = await context.read()
        except TimeoutError:
            raise NoHello(f"no Hello within {self._fleet.settings.hello_seconds:g} s") from None
        if not isinstance(request, estimator_pb2.StreamRequest) or not request.HasField("hello"):
            kind = request.WhichOneof("message") if isinstance(request, estimator_pb2.StreamRequest) else None
            raise NoHello(f"first message is {kind or 'empty or not a StreamRequest'}; accepted: hello")
        self._gate.check_pair(CALLER.get(), decode_pair_key(request.hello.pair))
        # Taking over a worker's name ends its stream and moves its marks.
        if (before := self._fleet.pair_of(request.hello)) is not None:
            self._gate.check_pair(CALLER.get(), before.key)
        session = await self._fleet.connect(request.hello, context.peer())
        await context.write(estimator_pb2.StreamResponse(welcome=session.welcome()).SerializeToString())
        return session

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any], ending: Ending) -> None:
        self._fleet.metrics.stream_ended(ending.code)
        logger.info("stream of %s ended: %s: %s", context.peer(), ending.code, ending.message)
        code = grpc.StatusCode[ending.code]
        seconds = ending.retry_after
        await context.abort(
            code, ending.message, () if seconds is None else retry_metadata(code, ending.message, seconds)
        )


class Draining(AcceptdError):
    """The service takes no more streams."""

    code = "UNAVAILABLE"
    retry = True


class NoHello(IncompatiblePeer):
    """A stream that does not begin with Hello."""


def _ending(error: AcceptdError) -> Ending:
    return Ending(error.code, str(error), error.retry_after if isinstance(error, Busy) else None)


async def _send(outbox: Outbox, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Sends what there is until the stream ends."""
    while True:
        while (message := outbox.take()) is not None:
            await context.write(message)
        if outbox.ending is not None:
            return
        await outbox.wait()


async def _receive(session: Session, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Hands messages to the session until the worker or the session ends the stream."""
    outbox = session.outbox
    while (request := await context.read()) is not grpc.aio.EOF:
        if not outbox.room:
            await outbox.wait_for_room()
        if session.closed:
            return
        try:
            if request is None:
                raise WireError("message is not a StreamRequest", field="message")
            session.handle(request)
        except AcceptdError as error:
            session.end(_ending(error))
            return
        except Exception:
            logger.exception("a message of worker %r of %s failed", session.worker.name, session.pair.id)
            session.end(Ending("INTERNAL", "a message failed inside the service; its log says how"))
            return
    outbox.finish()
