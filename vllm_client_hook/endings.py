"""What the end of a stream means: whether to come back, and after how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from acceptd.retry_info import retry_after

if TYPE_CHECKING:
    from vllm_client_hook.backoff import Backoff

#: Codes that end the worker's attempts when they answer its Hello: the same Hello would be refused again.
_FINAL: Final = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)

#: Codes after which the next attempt waits for the back-off's cap: trying soon cannot help.
_SLOW: Final = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)


@dataclass(frozen=True)
class Ending:
    """line: code and details, for people. wait: seconds before the next attempt; None: there is none."""

    line: str
    wait: float | None


def ending_of(error: Any, backoff: Backoff, *, welcomed: bool, drain_after: float | None) -> Ending:
    """Of a stream that ended with `error` (a grpc.RpcError that is also a call), or None: the service closed it.

    drain_after: seconds from a Drain, None if there was none.
    """
    code = error.code() if error is not None else grpc.StatusCode.OK
    details = (error.details() or "") if error is not None else "the service closed the stream"
    line = f"{code.name}: {details}"
    if not welcomed and code in _FINAL:
        return Ending(line, None)
    asked = drain_after
    if asked is None and error is not None:
        asked = retry_after(error.trailing_metadata())
    if asked is not None:
        return Ending(line, backoff.asked(asked))
    return Ending(line, backoff.exhausted() if code in _SLOW else backoff.failed())
