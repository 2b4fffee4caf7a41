"""Coefficients that the service pushed: the newest one, and what became of each.

The uplink's thread puts pushes in; the worker's main thread reads `latest` and says what it did with them. What both
touch is single references and a deque, so neither waits for the other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from acceptd import codec
from acceptd.errors import WireError
from acceptd.modes import Mode
from acceptd.types import Version
from acceptd.v1 import estimator_pb2
from vllm_client_hook.seams import Received

if TYPE_CHECKING:
    from collections.abc import Callable

#: Versions whose verdict is remembered, so that a push repeated on a new stream is answered at once. Answers that wait
#: to be sent are bounded by the same number.
MAX_VERDICTS: Final = 32

#: Seconds that coefficients stay trusted without a heartbeat, until a Welcome says otherwise.
DEFAULT_MAX_AGE: Final = 600.0

_MODES: Final = frozenset(int(mode) for mode in Mode)


class Pushes:
    """Of one pair. latest: None until the first good push. in_force: version the worker said it uses, None its own.

    stale, malformed: pushes refused here, before the worker saw them.
    """

    def __init__(self, num_positions: int, clock: Callable[[], float]) -> None:
        self.latest: Received | None = None
        self.in_force: Version | None = None
        self.max_age = DEFAULT_MAX_AGE
        self.taken = self.stale = self.malformed = 0
        self._num_positions = num_positions
        self._clock = clock
        self._nonce = 0
        self._versions: OrderedDict[int, Version] = OrderedDict()
        self._verdicts: OrderedDict[Version, tuple[Version, str]] = OrderedDict()
        self._open: dict[Version, int] = {}
        self._answers: deque[Version] = deque(maxlen=MAX_VERDICTS)

    def new_stream(self) -> None:
        """Nonces start anew with each stream: what was pushed on the old one is not answered on this one."""
        self._open = {}

    def take(self, update: estimator_pb2.CoefficientUpdate, generation: int) -> None:
        """A push. Older than what is held, or malformed: refused with the reason, and what is held stays."""
        raw = update.coefficients.version
        version = Version(raw.epoch, raw.counter)
        self.taken += 1
        self._open[version] = update.nonce
        held = self.latest.coefficients.version if self.latest else self.in_force
        if held is not None and version < held:
            self.stale += 1
            self._decide(version, held, f"version {version} sorts before {held}, which is in force")
            return
        try:
            coefficients = codec.decode_coefficients(update.coefficients, self._num_positions)
        except WireError as error:
            self.malformed += 1
            self._decide(version, held or Version(), str(error))
            return
        self._nonce += 1
        _remember(self._versions, self._nonce, version)
        self.latest = Received(
            coefficients=coefficients,
            nonce=self._nonce,
            mode=Mode(update.mode) if update.mode in _MODES else Mode.TRIM,
            exploration_rate=min(max(update.exploration_rate, 0.0), 1.0),
            renewed_at=self._clock(),
            max_age_seconds=self.max_age,
            generation=generation,
        )
        if version in self._verdicts:
            self._answers.append(version)

    @property
    def answers(self) -> bool:
        """Whether verdicts wait to be sent."""
        return bool(self._answers)

    @property
    def held(self) -> Version | None:
        """For Hello: the version in force, or a newer one that the worker has yet to judge.

        A service that lost its last moments might otherwise offer what sorts before the latter.
        """
        newest = self.latest.coefficients.version if self.latest is not None else None
        if newest is None or newest in self._verdicts:
            return self.in_force
        return newest if self.in_force is None else max(self.in_force, newest)

    def renew(self) -> None:
        """A heartbeat: the service is there, and what is held is still its word."""
        if self.latest is not None:
            self.latest = replace(self.latest, renewed_at=self._clock())

    def answer(self, nonce: int, version: Version | None, rejected: str) -> None:
        """The worker's verdict on the push that `latest` named `nonce`; `version`: in force now, None its own."""
        pushed = self._versions.get(nonce)
        if pushed is not None:
            self.in_force = version
            self._decide(pushed, version or Version(), rejected)

    def applied(self, version: Version) -> None:
        """The verdict by version, for callers that hold no nonce."""
        self.in_force = version
        self._decide(version, version, "")

    def rejected(self, version: Version, reason: str) -> None:
        """The other verdict; what was in force stays."""
        self._decide(version, self.in_force or Version(), reason)

    def next_status(self) -> estimator_pb2.UpdateStatus | None:
        """The next verdict to send on this stream; None: there is none."""
        while self._answers:
            pushed = self._answers.popleft()
            nonce = self._open.pop(pushed, None)
            verdict = self._verdicts.get(pushed)
            # Pushed on a stream that is gone: if the service still wants to know, it pushes again.
            if nonce is not None and verdict is not None:
                in_force, rejected = verdict
                return estimator_pb2.UpdateStatus(
                    nonce=nonce, version=codec.encode_version(in_force), rejected=rejected
                )
        return None

    def _decide(self, pushed: Version, in_force: Version, rejected: str) -> None:
        _remember(self._verdicts, pushed, (in_force, rejected))
        self._answers.append(pushed)


def _remember(table: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    table[key] = value
    while len(table) > MAX_VERDICTS:
        table.popitem(last=False)
