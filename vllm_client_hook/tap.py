"""Brings packed rows off the device: pages filled on the main stream, copied on a side stream, handed to the uplink.

A page is written again only after its copy was seen complete, so nothing waits: while no page is free, steps keep
filling the current one, and rows that no longer fit are counted by the kernel. Runs on rank 0 alone; no decision that
ranks share depends on when a copy completes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_client_hook.rows import NUM_COUNTERS, STALE_PREDICTION, Rows
from vllm_client_hook.slots import Page, Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from acceptd.types import Version
    from vllm_client_hook.streams import Event, Streams

#: Steps a page collects. Larger: fewer copies, later labels, larger pages.
INTERVAL: Final = 8

#: Pages: one being filled, one being copied, one in reserve for a copy that is late.
PAGES: Final = 3

#: Most rows a page holds. 8 steps of 1024 requests; each row has 12 + 4 K bytes, three times on the device and host.
MAX_PAGE_ROWS: Final = 8192


@dataclass
class _Slot:
    page: Page
    totals: Any
    host_records: Any
    host_head: Any
    host_totals: Any
    #: The same three as numpy sees them: host memory stays where it is.
    seen_records: NDArray[np.int32]
    seen_head: NDArray[np.int32]
    seen_totals: NDArray[np.int64]


@dataclass
class _Copy:
    slot: _Slot
    event: Event
    versions: Mapping[int, Version | None]
    generation: int


class Tap:
    """Pages and their copies. `offer` receives rows in order; it must not block."""

    def __init__(self, slots: Slots, streams: Streams, offer: Callable[[Rows], None]) -> None:
        self._slots = slots
        self._streams = streams
        self._offer = offer
        self._capacity = min(INTERVAL * slots.max_num_reqs, MAX_PAGE_ROWS)
        self._free = deque(self._new_slot() for _ in range(PAGES))
        self._current = self._free.popleft()
        self._copies: deque[_Copy] = deque()
        self._totals = torch.zeros(NUM_COUNTERS, dtype=torch.int64, device=slots.device)
        self._seen = np.zeros(NUM_COUNTERS, np.int64)
        self._dropped_versions = 0
        self._steps = 0
        self._upper = 0
        #: Index → version of the coefficients remembered, oldest first; set by whoever adopts them.
        self.versions: Mapping[int, Version | None] = {}
        self.generation = 0

    @property
    def page(self) -> Page:
        """The page that this step's rows go to."""
        return self._current.page

    @property
    def totals(self) -> Any:
        """int64[NUM_COUNTERS] on the device."""
        return self._totals

    def advance(self, num_rows: int) -> None:
        """A step of at most `num_rows` new rows was packed."""
        self._upper = min(self._upper + num_rows, self._capacity)
        self._steps += 1
        if self._copies:
            self._collect(wait=False)
        if self._steps >= INTERVAL and self._free:
            self._ship()

    def flush(self) -> None:
        """Hands over everything packed so far; waits for the device."""
        self._collect(wait=True)
        self._ship()
        self._collect(wait=True)

    def reseed(self) -> None:
        """After the device's memory was discarded: empty pages, the totals that were last seen."""
        self._collect(wait=True)
        for slot in (self._current, *self._free):
            slot.page.head.zero_()
        self._upper = self._steps = 0
        self._totals.copy_(torch.from_numpy(self._seen))

    def _new_slot(self) -> _Slot:
        slots, streams = self._slots, self._streams
        page = Page(self._capacity, slots.num_positions, slots.device, full=slots.full)
        totals = torch.zeros(NUM_COUNTERS, dtype=torch.int64, device=slots.device)
        shapes = (tuple(page.records.shape), torch.int32), ((1,), torch.int32), ((NUM_COUNTERS,), torch.int64)
        host = [streams.empty(shape, dtype) for shape, dtype in shapes]
        return _Slot(page, totals, *host, *(tensor.numpy() for tensor in host))

    def _ship(self) -> None:
        slot, upper = self._current, self._upper
        # Steps go on counting while the copy runs; it reads what stands now.
        slot.totals.copy_(self._totals)
        records = slot.host_records, slot.page.records
        if upper < self._capacity:
            records = records[0][:upper], records[1][:upper]
        event = self._streams.copy([records, (slot.host_head, slot.page.head), (slot.host_totals, slot.totals)])
        self._copies.append(_Copy(slot, event, self.versions, self.generation))
        self._current = self._free.popleft()
        self._steps = self._upper = 0

    def _collect(self, *, wait: bool) -> None:
        while self._copies:
            copy = self._copies[0]
            if wait:
                copy.event.synchronize()
            elif not copy.event.query():
                return
            self._copies.popleft()
            slot = copy.slot
            records = slot.seen_records[: int(slot.seen_head[0])].copy()
            counters = slot.seen_totals.copy()
            self._seen = counters
            slot.page.head.zero_()
            self._free.append(slot)
            # A slot that rested for long may hold a prediction of coefficients nobody remembers; indices only grow.
            index, oldest = records[:, 2], next(iter(copy.versions), 0)
            if len(index) and index.min() < oldest:
                known = index >= oldest
                self._dropped_versions += int((~known).sum())
                records = records[known]
            if self._dropped_versions:
                counters = counters.copy()
                counters[STALE_PREDICTION] += self._dropped_versions
            rows = Rows(records, self._slots.num_positions, copy.versions, counters, copy.generation, self._slots.full)
            self._offer(rows)
