"""A worker that speaks raw messages, and the rows it sends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import numpy as np

from acceptd.codec import UNKNOWN_SEGMENT, Observations, encode_batch, encode_pair_key, encode_version
from acceptd.types import PairKey, Version
from acceptd.v1 import estimator_pb2, estimator_pb2_grpc, inspect_pb2, inspect_pb2_grpc

KEY = PairKey("org/target-8b", "org/draft-1b", 4)
#: Seconds a test waits for something that must happen.
DEADLINE = 20.0


def rows(count: int, seed: int = 0, num_positions: int = 4) -> Observations:
    """Blocks drawn from slope 0.7 and intercepts -0.3."""
    rng = np.random.default_rng(seed)
    x = rng.normal(1.5, 2.0, (count, num_positions)).astype(np.float32)
    accept = rng.random((count, num_positions)) < 1 / (1 + np.exp(-(0.7 * x - 0.3)))
    accepted = np.where(accept.all(axis=1), num_positions, np.argmin(accept, axis=1)).astype(np.uint8)
    admitted = np.full(count, num_positions, np.uint8)
    observed = np.minimum(accepted.astype(int) + 1, admitted)
    return Observations(
        accepted,
        admitted,
        x[np.arange(num_positions)[None, :] < observed[:, None]],
        np.full(count, UNKNOWN_SEGMENT, np.uint8),
        admitted,
        np.ones(count, np.float32),
    )


async def state_of(channel: grpc.aio.Channel, pair: str = KEY.id) -> inspect_pb2.PairState:
    """What the service shows of a pair."""
    answer = await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=pair))
    return answer.state


class RawWorker:
    """One stream, message by message."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        worker: str = "w0",
        incarnation: int = 1,
        key: PairKey = KEY,
        metadata: Any = None,
    ) -> None:
        self.channel = channel
        self.stream: Any = estimator_pb2_grpc.EstimatorStub(channel).Stream(metadata=metadata)
        self.name, self.incarnation, self.key = worker, incarnation, key
        self._passed_over: list[estimator_pb2.StreamResponse] = []

    async def send(self, **message: Any) -> None:
        await self.stream.write(estimator_pb2.StreamRequest(**message))

    async def read(self) -> estimator_pb2.StreamResponse:
        """The next message; EOFError with the status when the stream has ended."""
        try:
            answer = await asyncio.wait_for(self.stream.read(), DEADLINE)
        except grpc.aio.AioRpcError as error:
            raise EOFError(f"{error.code()}: {error.details()}") from None
        if answer is grpc.aio.EOF:
            raise EOFError(f"{await self.stream.code()}: {await self.stream.details()}")
        return answer

    async def read_kind(self, kind: str) -> Any:
        """The next message of this kind; others are kept for later calls."""
        for i, answer in enumerate(self._passed_over):
            if answer.WhichOneof("message") == kind:
                return getattr(self._passed_over.pop(i), kind)
        async with asyncio.timeout(DEADLINE):
            while (answer := await self.read()).WhichOneof("message") != kind:
                self._passed_over.append(answer)
        return getattr(answer, kind)

    def hello(self, version: Version | None = None, **fields: Any) -> estimator_pb2.Hello:
        message = estimator_pb2.Hello(
            pair=encode_pair_key(self.key), worker=self.name, incarnation=self.incarnation, **fields
        )
        if version is not None:
            message.version.CopyFrom(encode_version(version))
        return message

    async def greet(self, version: Version | None = None, **fields: Any) -> estimator_pb2.Welcome:
        await self.send(hello=self.hello(version, **fields))
        answer = await self.read()
        assert answer.WhichOneof("message") == "welcome"
        return answer.welcome

    async def batch(
        self,
        sequence: int,
        data: Observations,
        version: Version | None = None,
        exclusions: dict[int, int] | None = None,
    ) -> estimator_pb2.BatchResult:
        await self.send(batch=encode_batch(sequence, version, data, exclusions))
        return await self.read_kind("batch_result")

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended; reads what is left of it."""
        with contextlib.suppress(EOFError):
            while True:
                await self.read()
        return await self.stream.code(), await self.stream.details()


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str) -> None:
    """Polls until the condition holds; fails at the deadline, saying what was awaited."""
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while asyncio.get_running_loop().time() < deadline:
        holds = condition()
        if await holds if isinstance(holds, Awaitable) else holds:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


def counts(batches: Iterable[Observations]) -> tuple[list[int], list[int]]:
    """(observations, acceptances) by position, counted by hand."""
    observed, accepted = np.zeros(4, int), np.zeros(4, int)
    for data in batches:
        for a, n in zip(data.accepted.tolist(), data.admitted.tolist(), strict=True):
            for k in range(min(a + 1, n)):
                observed[k] += 1
                accepted[k] += k < a
    return observed.tolist(), accepted.tolist()
