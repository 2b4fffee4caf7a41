"""The service's Inspect API as the commands use it: one channel, a deadline on every call, failures in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import grpc

from acceptd.errors import AcceptdError
from acceptd.limits import MAX_MESSAGE_BYTES
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc

#: Seconds a call may take. All answers come from memory or one indexed query; raising it only delays the error line.
DEADLINE: Final = 10.0


class CommandFailed(AcceptdError):
    """A command could not do what was asked. The message is the line the person reads."""


class InspectClient:
    """Inspect calls to `address` (HOST:PORT). Use as a context manager; raises CommandFailed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
        )
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
            for response in self._stub.WatchPair(inspect_pb2.WatchPairRequest(pair=pair, interval_seconds=interval)):
                yield response.state
        except grpc.RpcError as error:
            raise self._failed(error) from error

    def tap(self, pair: str, seconds: float | None) -> Iterator[inspect_pb2.TapPairResponse]:
        """The pair's batches as the service applies them, for `seconds` (None: until it stops). The first has none."""
        call = self._stub.TapPair(inspect_pb2.TapPairRequest(pair=pair), timeout=seconds)
        try:
            yield from call
        except grpc.RpcError as error:
            if seconds is None or call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._failed(error) from error
        finally:
            call.cancel()

    def history(self, pair: str, limit: int) -> inspect_pb2.GetHistoryResponse:
        """Published versions, newest first, at most `limit`."""
        request = inspect_pb2.GetHistoryRequest(pair=pair, limit=limit)
        answer: inspect_pb2.GetHistoryResponse = self._call(self._stub.GetHistory, request)
        return answer

    def workers(self, pair: str) -> inspect_pb2.ListWorkersResponse:
        """Workers of one pair, or of all ("")."""
        request = inspect_pb2.ListWorkersRequest(pair=pair)
        answer: inspect_pb2.ListWorkersResponse = self._call(self._stub.ListWorkers, request)
        return answer

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=DEADLINE)
        except grpc.RpcError as error:
            raise self._failed(error) from error

    def _failed(self, error: Any) -> CommandFailed:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            return CommandFailed(
                f"no acceptd service answers at {self.address}; start one with `acceptd serve`, "
                "or name another with --address or ACCEPTD_ADDRESS"
            )
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
