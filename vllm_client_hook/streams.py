"""Side-stream copies and their completion, behind a seam: CUDA has them, a CPU does not need them, tests delay them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class Event(Protocol):
    """Completion of what was enqueued before it."""

    def query(self) -> bool:
        """Whether it has completed; never waits."""

    def synchronize(self) -> None:
        """Waits until it has completed."""


class Streams(Protocol):
    """One side stream of a device."""

    def side(self) -> AbstractContextManager[None]:
        """Inside, work is enqueued on the side stream, after all that the current stream holds so far."""

    def record(self) -> Event:
        """An event after the work enqueued so far; called inside `side()`."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A host tensor that copies can reach asynchronously (pinned where that exists)."""


class HostStreams:
    """CPU tensors: a copy is done when the call returns."""

    @contextmanager
    def side(self) -> Iterator[None]:
        """No other stream."""
        yield

    def record(self) -> Event:
        """Already complete."""
        return _Done()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Plain memory."""
        return torch.zeros(shape, dtype=dtype)


class CudaStreams:
    """A CUDA device's side stream. Used from the main thread alone: a query from another can break a capture."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    @contextmanager
    def side(self) -> Iterator[None]:
        """The side stream, after the current one."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def record(self) -> Event:
        """A CUDA event on the side stream."""
        event: Event = torch.cuda.Event()
        event.record()  # type: ignore[attr-defined]
        return event

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Pinned memory."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)


class _Done:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


def streams_of(device: Any) -> Streams:
    """The streams of a torch device."""
    return CudaStreams(device) if torch.device(device).type == "cuda" else HostStreams()
