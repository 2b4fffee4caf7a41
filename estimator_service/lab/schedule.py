"""Which recorded block each slot of a batch plays at each step, at a concurrency other than the recorded one."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from acceptd.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks


@dataclass(frozen=True, eq=False)
class Schedule:
    """rows: int64[T, C], index of the block that slot c plays at step t. first: bool[T, C], a request's first one."""

    rows: NDArray[np.int64]
    first: NDArray[np.bool_]


def schedule(blocks: Blocks, concurrency: int, max_steps: int) -> Schedule:
    """Requests in order of appearance, each on the slot that is free first, until a slot stays empty.

    So every step has exactly `concurrency` requests. Where the trace would give more than `max_steps` steps, every
    n-th request is played, so that all its workloads take part. Raises ConfigError if it has too few requests.
    """
    if blocks.request is None:
        raise ConfigError("the trace has no column request; accepted: a trace that tells requests apart")
    order = np.argsort(blocks.request, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(blocks.request[order]) != 0])
    requests = sorted(np.split(order, starts[1:]), key=lambda rows: int(rows[0]))
    stride = -(-len(blocks) // (concurrency * max_steps))
    requests = requests[::stride]
    if len(requests) < concurrency:
        raise ConfigError(f"concurrency is {concurrency}; accepted: at most {len(requests)}, the trace's requests")
    free = [(0, slot) for slot in range(concurrency)]
    rows: list[list[NDArray[np.int64]]] = [[] for _ in free]
    for request in requests:
        time, slot = heapq.heappop(free)
        rows[slot].append(request)
        heapq.heappush(free, (time + len(request), slot))
    steps = min(free)[0]
    first = np.zeros((concurrency, steps + max(map(len, requests))), np.bool_)
    for slot, played in enumerate(rows):
        begins = np.cumsum([0, *map(len, played)])[:-1]
        first[slot, begins[begins < first.shape[1]]] = True
    return Schedule(
        np.stack([np.concatenate(played)[:steps] for played in rows], axis=1),
        np.ascontiguousarray(first[:, :steps].T),
    )
