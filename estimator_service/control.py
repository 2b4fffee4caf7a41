"""What operators can do to a pair. Knows no gRPC.

Nothing here changes a version that was handed out: going back publishes old coefficients under a new, higher version.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from acceptd.codec import decode_coefficients, decode_pair_key
from acceptd.errors import AcceptdError, WireError
from acceptd.modes import Mode
from acceptd.types import Version
from estimator_service.act import Act, situation
from estimator_service.pair import Pair
from estimator_service.pair_export import make_export, open_export, try_out
from estimator_service.publications import MAX_RECENT

if TYPE_CHECKING:
    from acceptd.v1 import inspect_pb2
    from estimator_service.fleet import Fleet
    from estimator_service.publication import Publication

logger = logging.getLogger(__name__)


class NotPossible(AcceptdError):
    """The pair is not in a state for this."""

    code = "FAILED_PRECONDITION"


class UnknownVersion(AcceptdError):
    """A version that the history does not hold."""

    code = "NOT_FOUND"


@dataclass(frozen=True)
class By:
    """Who asks: a name for the audit, and where from."""

    who: str
    peer: str


@dataclass(frozen=True)
class Done:
    """trouble: what keeps the action off the disk, "" if nothing."""

    pair: Pair
    trouble: str


class Control:
    """Each action takes effect at once and returns when it is on disk, or cannot be."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def pin(self, pair: Pair, version: Version, by: By) -> Done:
        """Puts the coefficients of a published version in force, and keeps them. Raises UnknownVersion."""
        found = await self._fleet.archive.version(pair, version)
        if found is None:
            raise UnknownVersion(
                f"version {version} of {pair.id} is not in its history; `acceptd history` lists what is"
            )
        return await self._pin(pair, found, "pin", by)

    async def rollback(self, pair: Pair, by: By) -> Done:
        """Pins the version before the one whose coefficients are in force. Raises NotPossible if there is none."""
        now = pair.publication.source
        for publication in await self._fleet.archive.history(pair, MAX_RECENT):
            if publication.origin is None and publication.version < now:
                return await self._pin(pair, publication, "rollback", by)
        raise NotPossible(f"{pair.id} has no version before {now} among its latest {MAX_RECENT}")

    async def unpin(self, pair: Pair, by: By) -> Done:
        """Lets fits be published again. Raises NotPossible if they are."""
        if pair.orders.pinned is None:
            raise NotPossible(f"{pair.id} is not pinned")
        before = situation(pair)
        pair.unpin()
        return await self._done(pair, "unpin", by, before, None)

    async def reset(self, pair: Pair, by: By) -> Done:
        """Starts the pair's estimates from the prior."""
        before = situation(pair)
        return await self._done(pair, "reset", by, before, pair.reset())

    async def set_mode(self, pair: Pair, mode: int | None, exploration_rate: float | None, by: By) -> Done:
        """None: as it is. Raises WireError for what is no mode or no share."""
        if mode is not None and mode not in set(Mode):
            raise WireError(f"mode is {mode}; accepted: {', '.join(map(repr, Mode))}", field="mode")
        if exploration_rate is not None and not (math.isfinite(exploration_rate) and 0 <= exploration_rate <= 1):
            raise WireError(f"exploration_rate is {exploration_rate}; accepted: 0 to 1", field="exploration_rate")
        if mode is None and exploration_rate is None:
            raise WireError("neither mode nor exploration_rate is set; accepted: one of them, or both", field="mode")
        before, orders = situation(pair), pair.orders
        pair.orders = replace(
            orders,
            mode=orders.mode if mode is None else Mode(mode).name.lower(),
            exploration_rate=orders.exploration_rate if exploration_rate is None else exploration_rate,
        )
        return await self._done(pair, "mode", by, before, None)

    def export(self, pair: Pair) -> inspect_pb2.PairExport:
        """All that the pair has learned."""
        return make_export(pair, self._fleet.clock.wall())

    async def import_(self, export: inspect_pb2.PairExport, replace_known: bool, by: By) -> Done:
        """Takes up a pair as another service exported it.

        Raises WireError for what is no whole export, NotPossible if the pair is known and not to be replaced, Busy if
        no pair fits any more.
        """
        header = open_export(export)
        key = decode_pair_key(export.key)
        coefficients = decode_coefficients(export.coefficients, key.num_speculative_tokens)
        pair = self._fleet.pairs.get(key.id)
        if pair is not None and not replace_known:
            raise NotPossible(f"{key.id} is known already; accepted: an import that replaces it")
        try_out(Pair(key, self._fleet.settings, self._fleet.clock, self._fleet.epoch), header, export.window)
        before = situation(pair) if pair is not None else {}
        if pair is None:
            pair = self._fleet.begin(key)
        publication = pair.take_over(header, export.window, coefficients)
        return await self._done(pair, "import", by, before, publication)

    async def _pin(self, pair: Pair, publication: Publication, action: str, by: By) -> Done:
        if self._fleet.pairs.get(pair.id) is not pair:
            raise NotPossible(f"{pair.id} was forgotten meanwhile")
        before = situation(pair)
        return await self._done(pair, action, by, before, pair.pin(publication, action))

    async def _done(
        self, pair: Pair, action: str, by: By, before: dict[str, object], publication: Publication | None
    ) -> Done:
        # Also without a publication: the mode goes out with the version in force.
        self._fleet.board.publish(pair.id, pair.publication)
        self._fleet.metrics.operator_action(action)
        act = Act(by.who, by.peer, action, before, situation(pair))
        logger.warning("%s (%s): %s %s: %s → %s", by.who, by.peer, action, pair.id, before, act.after)
        return Done(pair, await self._fleet.ledger.acted(pair, act, publication))
