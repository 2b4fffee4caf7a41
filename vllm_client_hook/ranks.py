"""The tensor-parallel ranks of one worker: agreement at construction, one broadcast afterwards.

Agreement goes through the process group's key-value store, not through a collective: a rank without the hook never
enters a collective, and one that was left waiting in it would meet vLLM's own next collective instead.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Store(Protocol):
    """The part of torch.distributed.Store that the agreement needs."""

    def set(self, key: str, value: str) -> None:
        """Writes a key."""

    def get(self, key: str) -> bytes:
        """Reads a key that exists."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Returns when all keys exist; raises after `timeout`."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Sets `key` to `desired` if it is absent (`expected` empty) or equals `expected`; the value it has then."""


class Ranks(Protocol):
    """The tensor-parallel group as this rank sees it."""

    rank: int
    size: int

    def broadcast(self, tensor: Any) -> None:
        """Rank 0's tensor (same shape and dtype on all) into everyone's, enqueued on the current stream."""


class SingleRank:
    """No tensor parallelism."""

    rank: Final = 0
    size: Final = 1

    def broadcast(self, tensor: Any) -> None:
        """Nobody to tell."""


class GroupRanks:
    """A process group. `broadcast`: sends rank 0's tensor to all over the device group, on the current stream."""

    def __init__(self, rank: int, size: int, broadcast: Callable[[Any], object]) -> None:
        self.rank = rank
        self.size = size
        self._broadcast = broadcast

    def broadcast(self, tensor: Any) -> None:
        """Over the device group."""
        self._broadcast(tensor)


def agree(
    ranks: Ranks, store: Store | None, name: str, options: Mapping[str, object], *, timeout_seconds: float
) -> str:
    """Empty if every rank of the group is active with equal options, otherwise why all of them stay stock.

    `name` is equal on the ranks of one group and construction, and unlike any other's. `options` are compared as text.
    One compare-and-set decides for all: whichever rank gives up first writes the verdict, and rank 0 can then no
    longer write another. Takes at most `timeout_seconds` a rank.
    """
    if ranks.size == 1:
        return ""
    if store is None:
        return "no process-group store to agree through"
    mine = repr(sorted((key, str(value)) for key, value in options.items()))
    verdict_key = f"{name}/verdict"
    try:
        store.set(f"{name}/{ranks.rank}", mine)
        if ranks.rank == 0:
            others = [f"{name}/{rank}" for rank in range(1, ranks.size)]
            proposal = _compare(store, others, mine, timeout_seconds)
        else:
            proposal = _wait(store, verdict_key, timeout_seconds)
        return store.compare_set(verdict_key, "", proposal).decode().removeprefix(_ACTIVE)
    except Exception as error:
        return f"the ranks could not agree ({type(error).__name__}: {error})"


_ACTIVE = "active"


def _compare(store: Store, keys: list[str], mine: str, timeout_seconds: float) -> str:
    try:
        store.wait(keys, timedelta(seconds=timeout_seconds))
    except Exception:
        return f"a rank did not answer within {timeout_seconds:g} s (is the hook installed on every rank?)"
    for key in keys:
        theirs = store.get(key).decode()
        if theirs != mine:
            return f"rank {key.rsplit('/', 1)[-1]} differs: {theirs} against {mine}"
    return _ACTIVE


def _wait(store: Store, verdict_key: str, timeout_seconds: float) -> str:
    try:
        store.wait([verdict_key], timedelta(seconds=timeout_seconds))
    except Exception:
        return f"rank 0 did not answer within {timeout_seconds:g} s (is the hook installed on every rank?)"
    return store.get(verdict_key).decode()
