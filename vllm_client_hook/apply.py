"""New coefficients on all tensor-parallel ranks at the same step.

Every INTERVAL steps rank 0 broadcasts one fixed-size block, new or not, and every rank joins. LAG steps later each
rank waits for its own finished copy of it, looks at the same words, comes to the same verdict, and writes the block
that its kernels (and its captured graphs) read, in place. Mode and exploration rate change in the same moment. No
decision depends on a clock or a query outside rank 0.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from acceptd.errors import AcceptdError, StaleVersion
from acceptd.types import Version, prior
from vllm_client_hook.block import (
    HAS_COEFFICIENTS,
    OWN,
    STATUS,
    Block,
    block_words,
    decode,
    from_coefficients,
    nonce_of,
)
from vllm_client_hook.fallback import ROUND_STEPS, LocalRound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_client_hook.block import Words
    from vllm_client_hook.ranks import Ranks
    from vllm_client_hook.rows import Rows
    from vllm_client_hook.seams import Received, Uplink
    from vllm_client_hook.streams import Event, Streams

#: Steps between broadcasts. A broadcast of about a kilobyte; larger: fewer of them, later coefficients.
INTERVAL: Final = 8

#: Steps from a broadcast to its adoption: by then the copy is done, so waiting for it costs nothing.
LAG: Final = 2

#: Adoptions whose version is remembered for rows that were predicted with them. Rows of older ones are dropped.
REMEMBERED: Final = 64

logger = logging.getLogger("vllm.acceptd")


class Apply:
    """The block in force on this rank.

    words: int32[block_words(K)] on the device, at a fixed address; floats: the same memory as float32. in_force: the
    same on the host. versions: index → version of the coefficients remembered, None for the worker's own. steps: decode
    steps so far; adopted_at: the one of the last adoption. rejected: blocks that this rank refused. failures: exchanges
    that rank 0 joined with nothing because preparing them failed.
    """

    def __init__(self, num_positions: int, device: Any) -> None:
        self._num_positions = num_positions
        self._device = device
        self.words = torch.zeros(block_words(num_positions), dtype=torch.int32, device=device)
        self.floats = self.words.view(torch.float32)
        self.in_force: Block = from_coefficients(prior(num_positions))
        self.versions: Mapping[int, Version | None] = {0: None}
        self.generation = 0
        self.adopted_at = 0
        self.steps = 0
        self.rejected = 0
        self.failures = 0
        self._adoptions: OrderedDict[int, Version | None] = OrderedDict({0: None})
        self._served: Version | None = None
        self._bound = False
        self._event: Event | None = None
        self.reseed()

    def bind(
        self, ranks: Ranks, uplink: Uplink | None, streams: Streams, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Links the group and, on rank 0, the service."""
        self._ranks = ranks
        self._uplink = uplink
        self._streams = streams
        self._clock = clock
        size = (block_words(self._num_positions),)
        self._outgoing = streams.empty(size, torch.int32)
        self._incoming = torch.zeros(size, dtype=torch.int32, device=self._device)
        self._arrived = streams.empty(size, torch.int32)
        self._considered: tuple[object, ...] | None = None
        self._proposed_index = 0
        self._local = LocalRound()
        self._round_started = 0
        self._lost = False
        self._bound = True

    def unbind(self) -> None:
        """Joins no broadcast any more; all ranks do so between the same two steps."""
        self._bound = False

    def advance(self) -> None:
        """One decode step; on every rank at the same ones."""
        if not self._bound:
            return
        self.steps += 1
        phase = self.steps % INTERVAL
        if phase == 0:
            self._exchange()
        elif phase == LAG and self._event is not None:
            event, self._event = self._event, None
            event.synchronize()
            self._adopt()

    def learn(self, rows: Rows) -> None:
        """Rows that rank 0's tap brought; used only while the service is lost."""
        if self._lost:
            self._local.learn(rows)

    def next_generation(self) -> None:
        """Another pair from here on: what is under way is refused, and versions start anew."""
        self.generation += 1
        self._served = None
        # What was fitted for the old weights goes on serving, and is nobody's version of the new pair.
        self._adoptions = OrderedDict.fromkeys(self._adoptions)
        self.versions = dict(self._adoptions)

    def reseed(self) -> None:
        """Writes the block in force again from the host."""
        self.words.copy_(torch.from_numpy(self.in_force.encode()))

    def _exchange(self) -> None:
        words = self._prepared()
        if self._ranks.size == 1 and words is None:
            return
        if self._ranks.rank == 0:
            if words is None:
                self._outgoing.zero_()
            else:
                self._outgoing.copy_(torch.from_numpy(words))
            self._incoming.copy_(self._outgoing, non_blocking=True)
        self._ranks.broadcast(self._incoming)
        self._event = self._streams.copy([(self._arrived, self._incoming)])

    def _prepared(self) -> Words | None:
        """Rank 0: the words to broadcast, None if nothing is new. Never raises: the others wait in the broadcast."""
        if self._uplink is None:
            return None
        try:
            block = self._propose(self._uplink)
            return None if block is None else block.encode()
        except Exception:
            self.failures += 1
            if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                logger.exception(
                    "acceptd: preparing coefficients failed (%d times); those in force stay", self.failures
                )
            return None

    def _propose(self, uplink: Uplink) -> Block | None:
        received = uplink.latest()
        if received is not None and received.generation != self.generation:
            received = None
        self._mark_lost(received is None or self._clock() - received.renewed_at > received.max_age_seconds)
        block = self._own_round() if self._lost else None if received is None else self._from_service(received)
        if block is None:
            return None
        self._proposed_index = max(self._proposed_index, self.in_force.index) + 1
        return replace(block, index=self._proposed_index)

    def _from_service(self, received: Received) -> Block | None:
        key = (received.coefficients.version, received.nonce, received.mode, received.exploration_rate)
        if key == self._considered:
            return None
        self._considered = key
        try:
            received.coefficients.validate(self._num_positions)
            self._refuse_older(received.coefficients.version)
            block = replace(
                from_coefficients(received.coefficients, generation=self.generation),
                mode=received.mode,
                exploration_rate=received.exploration_rate,
                nonce=received.nonce,
            )
            return decode(block.encode(), self._num_positions)
        except AcceptdError as error:
            self._answer(received.nonce, str(error))
            return None

    def _own_round(self) -> Block | None:
        if self.steps - self._round_started < ROUND_STEPS:
            return None
        self._round_started = self.steps
        block = self._local.refit(self.in_force)
        if block is None:
            return None
        return replace(block, version=OWN, local=True, nonce=0, generation=self.generation)

    def _mark_lost(self, lost: bool) -> None:
        if lost and not self._lost:
            self._local.forget()
            self._round_started = self.steps
        if self._lost and not lost:
            self._considered = None  # back: what it says now replaces the worker's own round
        self._lost = lost

    def _adopt(self) -> None:
        words = self._arrived.numpy()
        if not words[STATUS] & HAS_COEFFICIENTS:
            return
        try:
            block = decode(words, self._num_positions)
            self._check(block)
        except AcceptdError as error:
            self.rejected += 1
            self._answer(nonce_of(words), str(error))
            return
        self.words.copy_(self._arrived, non_blocking=True)
        self.in_force = block
        self.adopted_at = self.steps
        if not block.local:
            self._served = block.version
        self._adoptions[block.index] = None if block.local else block.version
        while len(self._adoptions) > REMEMBERED:
            self._adoptions.popitem(last=False)
        self.versions = dict(self._adoptions)
        self._answer(block.nonce)

    def _check(self, block: Block) -> None:
        """The same on every rank: it looks at the block and at what earlier blocks left behind."""
        if block.generation != self.generation:
            raise StaleVersion(f"weights generation {block.generation}; in force: {self.generation}")
        if not block.local:
            self._refuse_older(block.version)

    def _refuse_older(self, version: Version) -> None:
        if self._served is not None and version < self._served:
            raise StaleVersion(f"version {version} sorts before {self._served}, which is in force")

    def _answer(self, nonce: int, rejected: str = "") -> None:
        if self._uplink is not None and nonce:
            self._uplink.answer(nonce, self._served, rejected)
