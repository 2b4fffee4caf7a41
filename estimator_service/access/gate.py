"""Who is let in. Every refusal is counted by reason and logged, at most one line a reason in a while."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final

from acceptd.errors import ConfigError, NotAllowed
from estimator_service.access.identity import ANYONE, Caller, Role, needed_role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from acceptd.types import PairKey
    from estimator_service.access.tokens import Tokens
    from estimator_service.clock import Clock
    from estimator_service.metrics import Metrics

logger = logging.getLogger(__name__)

#: Seconds between two lines about the same reason; the next says how many there were meanwhile.
_LOG_SECONDS: Final = 10.0
#: Characters of a method's name that are logged: a stranger chose it.
_MAX_METHOD: Final = 100
#: Characters of a token. Ours have 51; longer ones are not worth hashing.
_MAX_TOKEN: Final = 512


class Refusal(NotAllowed):
    """reason: "role" (another role is needed) or "pair" (a worker's token is bound to others)."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class NoIdentity(Refusal):
    """reason: "no_token", "unknown_token" or "revoked"."""

    code = "UNAUTHENTICATED"


class Gate:
    """Lives on the event loop. tokens: None: everybody may do everything."""

    def __init__(self, tokens: Tokens | None, metrics: Metrics, clock: Clock) -> None:
        self._tokens = tokens
        self._metrics = metrics
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}
        self._numbers = itertools.count()
        self._guests: dict[int, tuple[Caller, Callable[[Refusal], None]]] = {}
        if tokens is not None:
            metrics.identity("tokens")
            self._note(tokens)

    def admit(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Who calls the gRPC method. Raises Refusal."""
        needed = needed_role(method)
        if needed is None or self._tokens is None:
            return ANYONE
        return self.bearer([value for key, value in metadata if key == "authorization"], needed)

    def bearer(self, credentials: list[str | bytes], needed: Role) -> Caller:
        """Who sent these Authorization headers, if they have the role. Raises Refusal."""
        if self._tokens is None:
            return ANYONE
        if not credentials:
            raise NoIdentity("no token; accepted: authorization: Bearer TOKEN", "no_token")
        scheme, _, token = str(credentials[0]).partition(" ")
        token = token.strip()
        known = len(credentials) == 1 and scheme.lower() == "bearer" and len(token) <= _MAX_TOKEN
        caller = self._tokens.find(token) if known else None
        if caller is None:
            raise NoIdentity("the token is not one of this service's", "unknown_token")
        if not caller.may(needed):
            raise Refusal(f"token {caller.name} has the role {caller.role}; this needs {needed}", "role")
        return caller

    def check_pair(self, caller: Caller, key: PairKey) -> None:
        """Raises Refusal unless the worker's token is bound to the pair."""
        if caller.role is not None and not caller.serves(key):
            raise Refusal(f"token {caller.name} is bound to {', '.join(caller.pairs)}; the pair is {key.id}", "pair")

    def refused(self, refusal: Refusal, what: str, peer: str) -> None:
        """Counts and logs. what: the method or path; peer: where from."""
        self._metrics.refused(refusal.reason)
        now = self._clock.monotonic()
        last, missed = self._logged.get(refusal.reason, (-_LOG_SECONDS, 0))
        if now - last < _LOG_SECONDS:
            self._logged[refusal.reason] = last, missed + 1
            return
        self._logged[refusal.reason] = now, 0
        more = f" (and {missed} more of this kind before)" if missed else ""
        logger.warning("refused %r to %s: %s%s", what[:_MAX_METHOD], peer, refusal, more)

    # Long calls

    def enter(self, caller: Caller, leave: Callable[[Refusal], None]) -> int:
        """Notes a long call; `leave` is called once if its token is taken away. Returns what `left` takes."""
        number = next(self._numbers)
        if caller.role is not None:
            self._guests[number] = caller, leave
        return number

    def left(self, number: int) -> None:
        """The call has ended."""
        self._guests.pop(number, None)

    @staticmethod
    def _note(tokens: Tokens) -> None:
        if len(tokens):
            logger.info("tokens: %d read from %s", len(tokens), tokens.path)
        else:
            logger.warning("tokens: none in %s; nobody can get in", tokens.path)

    def refresh(self) -> None:
        """Reads the tokens anew if their file has changed, and ends the calls of those that are gone."""
        if self._tokens is None:
            return
        try:
            changed = self._tokens.refresh()
        except ConfigError as error:
            self._metrics.reloaded("tokens", "failed")
            logger.error("%s; the tokens read before stay", error)
            return
        if not changed:
            return
        self._metrics.reloaded("tokens", "loaded")
        self._note(self._tokens)
        revoked = [number for number, (caller, _) in self._guests.items() if not self._tokens.holds(caller)]
        if revoked:
            logger.warning("tokens: %d open calls end, whose tokens are gone or changed", len(revoked))
        for number in revoked:
            caller, leave = self._guests.pop(number)
            refusal = NoIdentity(f"token {caller.name} was revoked, or its rights were changed", "revoked")
            self._metrics.refused(refusal.reason)
            leave(refusal)
