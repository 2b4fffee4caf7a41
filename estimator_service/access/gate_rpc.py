"""The gate before gRPC: no handler runs for a call that is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from estimator_service.access.gate import Refusal
from estimator_service.access.identity import CALLER

if TYPE_CHECKING:
    from estimator_service.access.gate import Gate

Handler = Any


class GateInterceptor(grpc.aio.ServerInterceptor):
    """Sets `CALLER` for the handler, or answers UNAUTHENTICATED or PERMISSION_DENIED in its place."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler of the call, or one that refuses it."""
        method: Any = handler_call_details.method
        name = method.decode("latin-1") if isinstance(method, bytes) else str(method)
        try:
            CALLER.set(self._gate.admit(name, handler_call_details.invocation_metadata or ()))
        except Refusal as refusal:
            return self._refuse(refusal, name)
        return await continuation(handler_call_details)

    def _refuse(self, refusal: Refusal, method: str) -> Handler:
        async def refuse(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[bytes]:
            self._gate.refused(refusal, method, context.peer())
            await context.abort(grpc.StatusCode[refusal.code], str(refusal))
            yield b""

        # On the wire a stream is any kind of call.
        return grpc.stream_stream_rpc_method_handler(refuse)


def caller_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """For the audit: the token's name, else the client certificate's, else "anonymous"."""
    caller = CALLER.get()
    if caller.role is None:
        for name in context.auth_context().get("x509_common_name", ()):
            return f"certificate {name.decode('utf-8', 'replace')[:128]!r}"
    return caller.name
