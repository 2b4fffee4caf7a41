"""A call that is refused for now: RESOURCE_EXHAUSTED with RetryInfo, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from acceptd.retry_info import STATUS_DETAILS_KEY, encode_retry_info

if TYPE_CHECKING:
    from estimator_service.metrics import Metrics


def retry_metadata(code: grpc.StatusCode, message: str, seconds: float) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that say when to try again."""
    return ((STATUS_DETAILS_KEY, encode_retry_info(code.value[0], message, seconds)),)


async def refuse_for_now(
    context: grpc.aio.ServicerContext[Any, Any], metrics: Metrics, reason: str, message: str, seconds: float
) -> NoReturn:
    """Ends the call. reason: label of the count, one of a few words. seconds: when to try again."""
    metrics.refused(reason)
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    await context.abort(code, message, retry_metadata(code, message, seconds))
    raise AssertionError("abort raises")
