"""Operators' calls over gRPC: messages to `Control`, errors to statuses."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import grpc

from acceptd.codec import decode_version
from acceptd.errors import AcceptdError
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.access.gate_rpc import caller_name
from estimator_service.control import By
from estimator_service.state import pair_state

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from estimator_service.control import Control, Done
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair

_DEFAULT_AUDIT, _MAX_AUDIT = 100, 10_000

Context = grpc.aio.ServicerContext[Any, Any]


class ControlMethods(inspect_pb2_grpc.InspectServicer):
    """The methods of `acceptd.v1.Inspect` that change something, and those that go with them."""

    _fleet: Fleet
    _control: Control

    @abstractmethod
    async def _find(self, prefix: str, context: Context) -> Pair:
        """The pair with this id or unique prefix; ends the call if there is none."""

    async def PinPair(self, request: inspect_pb2.PinPairRequest, context: Context) -> inspect_pb2.PinPairResponse:
        """Keeps an earlier version's coefficients in force."""
        pair = await self._find(request.pair, context)
        version = decode_version(request.version)
        return inspect_pb2.PinPairResponse(**await self._act(self._control.pin(pair, version, _by(context)), context))

    async def UnpinPair(self, request: inspect_pb2.UnpinPairRequest, context: Context) -> inspect_pb2.UnpinPairResponse:
        """Lets fits be published."""
        pair = await self._find(request.pair, context)
        return inspect_pb2.UnpinPairResponse(**await self._act(self._control.unpin(pair, _by(context)), context))

    async def RollbackPair(
        self, request: inspect_pb2.RollbackPairRequest, context: Context
    ) -> inspect_pb2.RollbackPairResponse:
        """Goes back by one version, and stays there."""
        pair = await self._find(request.pair, context)
        return inspect_pb2.RollbackPairResponse(**await self._act(self._control.rollback(pair, _by(context)), context))

    async def ResetPair(self, request: inspect_pb2.ResetPairRequest, context: Context) -> inspect_pb2.ResetPairResponse:
        """Starts from the prior."""
        pair = await self._find(request.pair, context)
        return inspect_pb2.ResetPairResponse(**await self._act(self._control.reset(pair, _by(context)), context))

    async def SetMode(self, request: inspect_pb2.SetModeRequest, context: Context) -> inspect_pb2.SetModeResponse:
        """Mode and exploration rate of the pair's workers."""
        pair = await self._find(request.pair, context)
        mode = request.mode if request.HasField("mode") else None
        rate = request.exploration_rate if request.HasField("exploration_rate") else None
        action = self._control.set_mode(pair, mode, rate, _by(context))
        return inspect_pb2.SetModeResponse(**await self._act(action, context))

    async def ExportPair(
        self, request: inspect_pb2.ExportPairRequest, context: Context
    ) -> inspect_pb2.ExportPairResponse:
        """What the pair has learned."""
        pair = await self._find(request.pair, context)
        return inspect_pb2.ExportPairResponse(export=self._control.export(pair))

    async def ImportPair(
        self, request: inspect_pb2.ImportPairRequest, context: Context
    ) -> inspect_pb2.ImportPairResponse:
        """Takes up what another service exported."""
        action = self._control.import_(request.export, request.replace, _by(context))
        return inspect_pb2.ImportPairResponse(**await self._act(action, context))

    async def ListAudit(self, request: inspect_pb2.ListAuditRequest, context: Context) -> inspect_pb2.ListAuditResponse:
        """What operators did, newest first. A pair that is known no longer is named by its whole id."""
        if request.limit > _MAX_AUDIT:
            message = f"limit is {request.limit}; accepted: 0 to {_MAX_AUDIT}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        records = await self._fleet.archive.audit(request.pair, request.limit or _DEFAULT_AUDIT)
        if request.pair and not records:
            pair = await self._find(request.pair, context)
            records = await self._fleet.archive.audit(pair.id, request.limit or _DEFAULT_AUDIT)
        entries = [
            inspect_pb2.AuditEntry(
                at_seconds=record.at,
                who=record.who,
                peer=record.peer,
                action=record.action,
                pair=record.pair,
                before=record.before,
                after=record.after,
            )
            for record in records
        ]
        return inspect_pb2.ListAuditResponse(entries=entries)

    async def _act(self, action: Awaitable[Done], context: Context) -> dict[str, Any]:
        """Fields of the answer."""
        try:
            done = await action
        except AcceptdError as error:
            await context.abort(grpc.StatusCode[error.code], str(error))
            raise AssertionError("abort raises") from error
        return {
            "state": pair_state(self._fleet, done.pair),
            "durability": inspect_pb2.Durability(trouble=done.trouble),
        }


def _by(context: Context) -> By:
    return By(caller_name(context), context.peer())
