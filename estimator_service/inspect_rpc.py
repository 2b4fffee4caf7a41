"""The API for people over gRPC."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from acceptd.codec import decode_version
from acceptd.errors import TooLarge
from acceptd.v1 import inspect_pb2
from estimator_service.access.identity import CALLER
from estimator_service.control import Control
from estimator_service.control_rpc import ControlMethods
from estimator_service.refusal_rpc import refuse_for_now
from estimator_service.state import history_entry, pair_state, pair_summary, worker_costs, worker_states

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from estimator_service.access.gate import Gate, Refusal
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair

#: Shortest interval of WatchPair, seconds: bounds what one watcher costs.
_MIN_INTERVAL = 0.1
#: Streams of WatchPair at once. They never end by themselves; raising it leaves fewer calls to everybody else.
_MAX_WATCHERS = 128
#: Longest time without a message to a watcher that asked for changes alone: it notices a dead connection by it.
_QUIET_SECONDS = 5.0
#: When whom these bounds refuse may come again: people, who look for minutes.
_RETRY_SECONDS = 5.0
_DEFAULT_HISTORY, _MAX_HISTORY = 100, 10_000
#: Cost tables in one answer: about 20 kB each at most.
_MAX_COSTS = 64
#: Versions in one answer: up to 6 kB each where K = 64. Raising it holds up others for longer, and must fit a message.
_HISTORY_PAGE = 200
#: Candidates named in an error.
_MAX_CANDIDATES = 8

Context = grpc.aio.ServicerContext[Any, Any]


class InspectServicer(ControlMethods):
    """`acceptd.v1.Inspect`: what people read here, what they change in `ControlMethods`."""

    def __init__(self, fleet: Fleet, gate: Gate) -> None:
        self._fleet = fleet
        self._gate = gate
        self._control = Control(fleet)
        self._watchers = 0

    async def ListPairs(self, request: inspect_pb2.ListPairsRequest, context: Context) -> inspect_pb2.ListPairsResponse:
        """All pairs, by id."""
        pairs = sorted(self._fleet.pairs.values(), key=lambda pair: pair.id)
        return inspect_pb2.ListPairsResponse(pairs=[pair_summary(self._fleet, pair) for pair in pairs])

    async def GetPair(self, request: inspect_pb2.GetPairRequest, context: Context) -> inspect_pb2.GetPairResponse:
        """One pair's state."""
        pair = await self._find(request.pair, context)
        return inspect_pb2.GetPairResponse(state=pair_state(self._fleet, pair))

    async def WatchPair(
        self, request: inspect_pb2.WatchPairRequest, context: Context
    ) -> AsyncIterator[inspect_pb2.WatchPairResponse]:
        """The state now, and again on each publication or interval. A slow watcher skips states."""
        pair = await self._find(request.pair, context)
        interval = request.interval_seconds
        if interval and not _MIN_INTERVAL <= interval <= 3600:
            message = f"interval_seconds is {interval}; accepted: 0, or {_MIN_INTERVAL} to 3600"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if self._watchers >= _MAX_WATCHERS:
            message = f"{self._watchers} watch pairs; accepted: {_MAX_WATCHERS} at once"
            await refuse_for_now(context, self._fleet.metrics, "too_many_watchers", message, _RETRY_SECONDS)
        self._watchers += 1
        changed = asyncio.Event()
        watch = self._fleet.board.watch(pair.id, changed.set)
        revoked: list[Refusal] = []
        guest = self._gate.enter(CALLER.get(), revoked.append)
        try:
            while not revoked and not self._fleet.draining and self._fleet.pairs.get(pair.id) is pair:
                changed.clear()
                yield inspect_pb2.WatchPairResponse(state=pair_state(self._fleet, pair))
                try:
                    async with asyncio.timeout(interval or _QUIET_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1
            watch.close()
            self._gate.left(guest)
        if revoked:
            await context.abort(grpc.StatusCode[revoked[0].code], str(revoked[0]))

    async def GetHistory(
        self, request: inspect_pb2.GetHistoryRequest, context: Context
    ) -> inspect_pb2.GetHistoryResponse:
        """Published versions, newest first, a page at a time."""
        pair = await self._find(request.pair, context)
        if request.limit > _MAX_HISTORY:
            message = f"limit is {request.limit}; accepted: 0 to {_MAX_HISTORY}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        limit = min(request.limit or _DEFAULT_HISTORY, _HISTORY_PAGE)
        before = decode_version(request.before) if request.HasField("before") else None
        publications = await self._fleet.archive.history(pair, limit, before)
        return inspect_pb2.GetHistoryResponse(entries=[history_entry(publication) for publication in publications])

    async def ListWorkers(
        self, request: inspect_pb2.ListWorkersRequest, context: Context
    ) -> inspect_pb2.ListWorkersResponse:
        """Connected workers, of one pair or of all."""
        pair = await self._find(request.pair, context) if request.pair else None
        return inspect_pb2.ListWorkersResponse(workers=worker_states(self._fleet, pair))

    async def GetCosts(self, request: inspect_pb2.GetCostsRequest, context: Context) -> inspect_pb2.GetCostsResponse:
        """Cost tables of connected workers, of one pair or of all; at most `_MAX_COSTS`."""
        pair = await self._find(request.pair, context) if request.pair else None
        found = worker_costs(self._fleet, pair, request.worker)
        return inspect_pb2.GetCostsResponse(workers=found[:_MAX_COSTS], omitted=max(0, len(found) - _MAX_COSTS))

    async def TapPair(
        self, request: inspect_pb2.TapPairRequest, context: Context
    ) -> AsyncIterator[inspect_pb2.TapPairResponse]:
        """Copies of the pair's batches from now on. A slow caller misses some and is told how many."""
        pair = await self._find(request.pair, context)
        try:
            tap = self._fleet.taps.open(pair.id)
        except TooLarge as error:
            await refuse_for_now(context, self._fleet.metrics, "too_many_taps", str(error), _RETRY_SECONDS)
        revoked: list[Refusal] = []

        def leave(refusal: Refusal) -> None:
            revoked.append(refusal)
            tap.wake()

        guest = self._gate.enter(CALLER.get(), leave)
        try:
            yield inspect_pb2.TapPairResponse(pair=pair_summary(self._fleet, pair))
            while not revoked and not self._fleet.draining and self._fleet.pairs.get(pair.id) is pair:
                message = await tap.take()
                if message is not None:
                    yield message
        finally:
            self._fleet.taps.close(pair.id, tap)
            self._gate.left(guest)
        if revoked:
            await context.abort(grpc.StatusCode[revoked[0].code], str(revoked[0]))

    async def _find(self, prefix: str, context: Context) -> Pair:
        pairs = self._fleet.pairs
        if prefix in pairs:
            return pairs[prefix]
        if not prefix:
            # A variable that a script forgot to set must not reset the one pair there is.
            message = f"pair is empty; accepted: an id or a unique prefix of {_some(sorted(pairs)) or 'none yet'}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        found = sorted(id_ for id_ in pairs if id_.startswith(prefix))
        if len(found) == 1:
            return pairs[found[0]]
        if found:
            message = f"{prefix!r} begins {len(found)} pairs: {_some(found)}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        message = f"no pair {prefix!r}; known: {_some(sorted(pairs)) or 'none yet'}"
        await context.abort(grpc.StatusCode.NOT_FOUND, message)
        raise AssertionError("abort raises")


def _some(ids: list[str]) -> str:
    more = f" and {len(ids) - _MAX_CANDIDATES} more" if len(ids) > _MAX_CANDIDATES else ""
    return ", ".join(ids[:_MAX_CANDIDATES]) + more
