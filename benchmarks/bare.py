"""What gRPC itself takes for the same traffic: an echo, and a push to every stream that each one answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from acceptd import codec
from acceptd.types import prior
from acceptd.v1 import estimator_pb2
from benchmarks.refit import K

ECHO: Final = "/benchmark.Bare/Echo"
FAN_OUT: Final = "/benchmark.Bare/FanOut"

#: A push as the service sends it.
PUSH: Final = estimator_pb2.StreamResponse(
    update=estimator_pb2.CoefficientUpdate(coefficients=codec.encode_coefficients(prior(K)), nonce=1, mode=1)
).SerializeToString()


class Bare:
    """Handlers that take and give bytes, with nothing behind them."""

    def __init__(self) -> None:
        #: Seconds from the latest push to each answer.
        self.answers: list[float] = []
        self._pushed = 0.0
        self._wakes: set[asyncio.Event] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        stream = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            "benchmark.Bare", {"Echo": stream(self._echo), "FanOut": stream(self._fan_out)}
        )

    def push(self) -> int:
        """Has `PUSH` written to every stream; how many there are."""
        self._pushed = time.perf_counter()
        for wake in self._wakes:
            wake.set()
        return len(self._wakes)

    async def _echo(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def _fan_out(self, requests: AsyncIterator[bytes], context: Any) -> None:
        wake = asyncio.Event()
        self._wakes.add(wake)
        reader = asyncio.create_task(self._note(requests))
        try:
            while True:
                await wake.wait()
                wake.clear()
                await context.write(PUSH)
        finally:
            self._wakes.discard(wake)
            reader.cancel()

    async def _note(self, requests: AsyncIterator[bytes]) -> None:
        async for _ in requests:
            self.answers.append(time.perf_counter() - self._pushed)
