"""The service's Inspect API as the commands use it: one channel, a deadline on every call, failures in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import grpc

from acceptd.errors import AcceptdError
from acceptd.names import printable
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc, types_pb2
from estimator_service.cli.target import Target

#: Seconds a call may take. All answers come from memory or one indexed query; raising it only delays the error line.
DEADLINE: Final = 10.0


class CommandFailed(AcceptdError):
    """A command could not do what was asked. The message is the line the person reads."""


class InspectClient:
    """Inspect calls to a service, by HOST:PORT alone or as `target` says. A context manager; raises CommandFailed."""

    def __init__(self, target: Target | str) -> None:
        target = Target(target) if isinstance(target, str) else target
        self.address = target.address
        self._tls = bool(target.identity.ca_file)
        #: Whether it has answered before, so that it was there and let this client in.
        self._answered = False
        self._metadata = target.metadata()
        self._channel = target.open()
        self._stub: Any = inspect_pb2_grpc.InspectStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def pairs(self) -> inspect_pb2.ListPairsResponse:
        """All pairs."""
        answer: inspect_pb2.ListPairsResponse = self._call(self._stub.ListPairs, inspect_pb2.ListPairsRequest())
        return answer

    def pair(self, pair: str) -> inspect_pb2.PairState:
        """The state of the pair with this id or unique prefix."""
        answer: inspect_pb2.GetPairResponse = self._call(self._stub.GetPair, inspect_pb2.GetPairRequest(pair=pair))
        return answer.state

    def watch(self, pair: str, interval: float) -> Iterator[inspect_pb2.PairState]:
        """The pair's state now, then every `interval` seconds (0: on change), until the service goes away."""
        try:
            request = inspect_pb2.WatchPairRequest(pair=pair, interval_seconds=interval)
            for response in self._stub.WatchPair(request, metadata=self._metadata):
                self._answered = True
                yield response.state
        except grpc.RpcError as error:
            raise self._failed(error) from error

    def tap(self, pair: str, seconds: float | None) -> Iterator[inspect_pb2.TapPairResponse]:
        """The pair's batches as the service applies them, for `seconds` (None: until it stops). The first has none."""
        call = self._stub.TapPair(inspect_pb2.TapPairRequest(pair=pair), timeout=seconds, metadata=self._metadata)
        try:
            for response in call:
                self._answered = True
                yield response
        except grpc.RpcError as error:
            if seconds is None or call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._failed(error) from error
        finally:
            call.cancel()

    def history(self, pair: str, limit: int) -> inspect_pb2.GetHistoryResponse:
        """Published versions, newest first, at most `limit`: as many answers as that takes, in one."""
        found = inspect_pb2.GetHistoryResponse()
        request = inspect_pb2.GetHistoryRequest(pair=pair, limit=limit)
        while request.limit:
            answer: inspect_pb2.GetHistoryResponse = self._call(self._stub.GetHistory, request)
            if not answer.entries:
                break
            found.MergeFrom(answer)
            request.limit = limit - len(found.entries)
            request.before.CopyFrom(answer.entries[-1].coefficients.version)
        return found

    def workers(self, pair: str) -> inspect_pb2.ListWorkersResponse:
        """Workers of one pair, or of all ("")."""
        request = inspect_pb2.ListWorkersRequest(pair=pair)
        answer: inspect_pb2.ListWorkersResponse = self._call(self._stub.ListWorkers, request)
        return answer

    def costs(self, pair: str, worker: str) -> inspect_pb2.GetCostsResponse:
        """Cost tables of workers of one pair, or of all ("")."""
        request = inspect_pb2.GetCostsRequest(pair=pair, worker=worker)
        answer: inspect_pb2.GetCostsResponse = self._call(self._stub.GetCosts, request)
        return answer

    def pin(self, pair: str, version: types_pb2.Version) -> inspect_pb2.PinPairResponse:
        """Keeps an earlier version's coefficients in force."""
        request = inspect_pb2.PinPairRequest(pair=pair, version=version)
        answer: inspect_pb2.PinPairResponse = self._call(self._stub.PinPair, request)
        return answer

    def unpin(self, pair: str) -> inspect_pb2.UnpinPairResponse:
        """Lets fits be published."""
        request = inspect_pb2.UnpinPairRequest(pair=pair)
        answer: inspect_pb2.UnpinPairResponse = self._call(self._stub.UnpinPair, request)
        return answer

    def rollback(self, pair: str) -> inspect_pb2.RollbackPairResponse:
        """Back by one version, and no further fit."""
        request = inspect_pb2.RollbackPairRequest(pair=pair)
        answer: inspect_pb2.RollbackPairResponse = self._call(self._stub.RollbackPair, request)
        return answer

    def reset(self, pair: str) -> inspect_pb2.ResetPairResponse:
        """From the prior."""
        request = inspect_pb2.ResetPairRequest(pair=pair)
        answer: inspect_pb2.ResetPairResponse = self._call(self._stub.ResetPair, request)
        return answer

    def set_mode(self, request: inspect_pb2.SetModeRequest) -> inspect_pb2.SetModeResponse:
        """Mode and exploration rate."""
        answer: inspect_pb2.SetModeResponse = self._call(self._stub.SetMode, request)
        return answer

    def export(self, pair: str) -> inspect_pb2.PairExport:
        """What the pair has learned."""
        request = inspect_pb2.ExportPairRequest(pair=pair)
        answer: inspect_pb2.ExportPairResponse = self._call(self._stub.ExportPair, request)
        return answer.export

    def import_(self, export: inspect_pb2.PairExport, *, replace: bool) -> inspect_pb2.ImportPairResponse:
        """Takes up what another service exported."""
        request = inspect_pb2.ImportPairRequest(export=export, replace=replace)
        answer: inspect_pb2.ImportPairResponse = self._call(self._stub.ImportPair, request)
        return answer

    def audit(self, pair: str, limit: int) -> inspect_pb2.ListAuditResponse:
        """What operators did, newest first; "" for all pairs."""
        request = inspect_pb2.ListAuditRequest(pair=pair, limit=limit)
        answer: inspect_pb2.ListAuditResponse = self._call(self._stub.ListAudit, request)
        return answer

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            answer = method(request, timeout=DEADLINE, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failed(error) from error
        self._answered = True
        return answer

    def _failed(self, error: Any) -> CommandFailed:
        code, details = error.code(), printable(error.details() or "")
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._unavailable(details)
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return CommandFailed(f"{self.address}: {details}; name one with --token-file or ACCEPTD_TOKEN_FILE")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return CommandFailed(
                f"the service at {self.address} did not answer within {DEADLINE:g} s; look at its log and its load"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return CommandFailed(
                f"what answers at {self.address} is no acceptd service, or an older one ({details}); "
                "`acceptd version` says what this command is"
            )
        return CommandFailed(details or f"{self.address} answered {code.name}")

    def _unavailable(self, details: str) -> CommandFailed:
        if "SSL" in details or "Ssl" in details or "certificate" in details:
            return CommandFailed(
                f"the TLS handshake with {self.address} failed ({details}); "
                "look at --ca and, where the service asks for one, --cert and --key"
            )
        if self._answered:
            return CommandFailed(f"the service at {self.address} went away ({details})")
        if "Socket closed" in details or "Connection reset" in details:
            wants = "a client certificate (--cert and --key) of an authority that it trusts, not expired"
            return CommandFailed(
                f"what listens at {self.address} closed the connection ({details}); it may want "
                + (wants if self._tls else f"TLS (--ca), or {wants}")
            )
        return CommandFailed(
            f"no acceptd service answers at {self.address}; start one with `acceptd serve`, "
            "or name another with --address or ACCEPTD_ADDRESS"
        )
