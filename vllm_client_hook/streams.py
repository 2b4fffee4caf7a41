"""Side-stream copies and their completion, behind a seam: CUDA has them, a CPU does not need them, tests delay them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class Event(Protocol):
    """Completion of copies."""

    def query(self) -> bool:
        """Whether they are complete; never waits."""

    def synchronize(self) -> None:
        """Waits until they are complete."""


class Streams(Protocol):
    """One side stream of a device."""

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Event:
        """Copies each (host target, device source) after all that the current stream holds so far; does not wait."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A zeroed host tensor that copies reach asynchronously (pinned where that exists)."""


class HostStreams:
    """CPU tensors: a copy is complete when the call returns."""

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Event:
        """Copies at once."""
        for target, source in pairs:
            target.copy_(source)
        return _Done()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Plain memory."""
        return torch.zeros(shape, dtype=dtype)


class CudaStreams:
    """A CUDA device's side stream. Used from the main thread alone: a query from another can break a capture."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Event:
        """On the side stream, after the current one."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event(blocking=True)  # whoever waits for it sleeps
            event.record()
        return event  # type: ignore[no-any-return]

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
