"""One pair: its window, when it is refitted, and what of that is published."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from acceptd.types import Coefficients, PairKey, Version, prior
from acceptd.v1.estimator_pb2 import RejectReason
from acceptd.v1.types_pb2 import ExclusionReason, Mode
from estimator_service.counters import Counters
from estimator_service.drift_log import DriftLog
from estimator_service.fit.model import PairModel
from estimator_service.fit.publish import should_publish
from estimator_service.fit.settings import FitSettings
from estimator_service.orders import Orders
from estimator_service.publication import Publication

if TYPE_CHECKING:
    from collections.abc import Iterable

    from acceptd.codec import Observations
    from acceptd.v1.types_pb2 import ExclusionCount
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.fit.drift import Drift
    from estimator_service.fit.report import Round
    from estimator_service.fit.snapshot import Packing

#: Publications kept in memory, to score rows with the version they were predicted with; rows of an older one are scored
#: with the one in force. Some 10 kB each with every workload label in use.
MAX_RECENT = 256

_EXCLUSION_REASONS = frozenset(ExclusionReason.values())


_MODES = {"trim": Mode.MODE_TRIM, "shadow": Mode.MODE_SHADOW, "off": Mode.MODE_OFF}


@dataclass(frozen=True)
class Decision:
    """What came of one round. `held`: why its coefficients were not published, "" if they were.

    elapsed: seconds since the previous round was closed. in_force: the version before. drifts: changes it named.
    """

    elapsed: float
    in_force: Version
    held: str
    publication: Publication | None
    drifts: tuple[Drift, ...] = ()


class Pair:
    """Window, exact counters and published coefficients of one pair.

    The caller serialises calls. `epoch` is the store's; versions of this pair count up within it.
    """

    def __init__(
        self, key: PairKey, settings: Settings, clock: Clock, epoch: int, first_seen: float | None = None
    ) -> None:
        self.key = key
        self.id = key.id
        self.first_seen = clock.wall() if first_seen is None else first_seen
        self.num_positions = key.num_speculative_tokens
        #: Monotonic seconds of its latest batch or worker.
        self.last_active = clock.monotonic()
        self.counters = Counters.zero(self.num_positions)
        self.orders = Orders()
        self.epoch = epoch
        self.refits_done = 0
        self.refits_held: Counter[str] = Counter()
        self.last_held = ""
        self.last_refit_seconds = 0.0
        self.last_round: Round | None = None
        self.drift_log = DriftLog()
        self._settings = settings
        self._clock = clock
        self._model = self._new_model()
        self._prior = prior(self.num_positions)
        self._round_began = clock.monotonic()
        self._first_pending: float | None = None
        self._recent: OrderedDict[Version, Publication] = OrderedDict()
        self.publication = self._issue(Publication(prior(self.num_positions, Version(epoch, 0)), "prior", *self._now()))

    @property
    def blank(self) -> bool:
        """Whether nothing was learned and nothing ordered."""
        return not self.counters.blocks and self.orders == Orders()

    # What workers send

    def knows(self, version: Version | None, held: Version) -> bool:
        """Whether rows predicted with `version` may be learned from. `held`: what their worker said it holds.

        None is the worker's own prior. An earlier epoch's version counts as known up to what the worker came with:
        this store may have lost its last second, or another replica published it.
        """
        if version is None or version in self._recent:
            return True
        if version.epoch == self.publication.version.epoch:
            return version <= self.publication.version
        return version <= held and version.epoch < self.epoch

    def apply(
        self,
        rows: Observations,
        exclusions: Iterable[ExclusionCount],
        version: Version | None,
        workload: str,
        worker: str,
    ) -> str:
        """Learns from checked rows, once. Returns "", or why they were set aside: their worker is in quarantine.

        The model still judges such rows, so that the worker can be released; nothing of the batch is counted.
        """
        set_aside = self._model.quarantine(worker)
        self._model.observe(rows, workload=workload, worker=worker, used=self._used(version, workload))
        if set_aside:
            self.reject(RejectReason.REJECT_REASON_QUARANTINED, len(rows))
        else:
            self._count(rows, exclusions)
        self.last_active = self._clock.monotonic()
        if self._first_pending is None:
            self._first_pending = self.last_active
        return set_aside

    def _count(self, rows: Observations, exclusions: Iterable[ExclusionCount]) -> None:
        self.counters.add(rows)
        for item in exclusions:
            # One that only a newer hook knows is counted as unspecified, so that reasons stay a bounded set.
            reason = item.reason if item.reason in _EXCLUSION_REASONS else 0
            self.counters.exclude(reason, item.blocks)

    def reject(self, reason: int, rows: int) -> None:
        """Counts a batch that was refused."""
        self.counters.rejects[reason] += 1
        self.counters.rows_rejected += rows

    @property
    def quarantined(self) -> dict[str, str]:
        """Workers that are not learned from now, with the reason."""
        return self._model.quarantined

    # Rounds

    @property
    def pending_blocks(self) -> int:
        """Blocks in the open round."""
        return self._model.pending_blocks

    def due(self) -> bool:
        """Whether the round is to be closed now. Never without new blocks."""
        if self._first_pending is None:
            return False
        now = self._clock.monotonic()
        if now - self._round_began < self._settings.round_min_seconds:
            return False
        full = self.pending_blocks >= self._model.round_blocks(self._settings.round_blocks)
        return full or now - self._first_pending >= self._settings.round_seconds

    def close_round(self) -> Decision:
        """Refits and publishes, or says why not."""
        elapsed = self._clock.monotonic() - self._round_began
        in_force = self.publication
        closed = self._close(elapsed, in_force)
        held = closed.held or ("pinned" if self.orders.pinned else self._idle(closed.coefficients))
        publication = None
        if not held:
            version = self._next_version()
            by_workload = {label: replace(value, version=version) for label, value in closed.coefficients.items()}
            pooled = by_workload.pop("")
            publication = self._issue(Publication(pooled, "refit", *self._now(), by_workload, closed.calibration))
        self._settle(held)
        return Decision(elapsed, in_force.version, held, publication, closed.drifts)

    def postpone_round(self) -> None:
        """After a refit that failed: the round stays open, and is tried again when the next would be due."""
        self._round_began = self._clock.monotonic()
        self._first_pending = None
        self._settle("error")

    def replay_round(self, elapsed: float, in_force: Version, held: str) -> None:
        """Closes a round as an earlier process did. What it published comes from the history."""
        self._close(elapsed, self._recent.get(in_force, self.publication))
        self._settle(held)

    def _close(self, elapsed: float, in_force: Publication) -> Round:
        began = self._clock.monotonic()
        closed = self._model.close_round(elapsed, in_force={"": in_force.pooled, **in_force.by_workload})
        self._round_began = self._clock.monotonic()
        self.last_refit_seconds = self._round_began - began
        self.last_round = closed
        # A round that is replayed after a restart names its changes again, at the time of the restart.
        self.drift_log.add(closed.drifts, self._clock.wall())
        self._first_pending = None
        self.refits_done += 1
        return closed

    def _settle(self, held: str) -> None:
        self.last_held = held
        if held:
            self.refits_held[held] += 1

    def _idle(self, candidates: dict[str, Coefficients]) -> str:
        """Why a sound fit need not go out: it says what is in force already, and that is fresh enough."""
        current = self.publication
        if current.version.counter == 0:
            return ""
        age = self._clock.monotonic() - current.published
        for label, value in candidates.items():
            if should_publish(
                current.of(label),
                value,
                age_seconds=age,
                max_age_seconds=self._settings.publish_max_age_seconds,
                min_change=self._settings.publish_min_change,
            ):
                return ""
        return "unchanged"

    # What operators ask for

    @property
    def mode(self) -> Mode:
        """Of the pair's workers."""
        return _MODES[self.orders.mode or self._settings.mode]

    @property
    def exploration_rate(self) -> float:
        """Share of drafted slots that they verify beyond the budget."""
        ordered = self.orders.exploration_rate
        return self._settings.exploration_rate if ordered is None else ordered

    def pin(self, publication: Publication, cause: str) -> Publication:
        """Publishes the coefficients of an earlier publication, and no fit from now on."""
        self.orders = replace(self.orders, pinned=publication.source)
        return self._issue(publication.again(self._next_version(), cause, *self._now()))

    def unpin(self) -> None:
        """Lets the next fit be published."""
        self.orders = replace(self.orders, pinned=None)

    def reset(self) -> Publication:
        """Forgets what was learned, publishes the prior and every fit from now on. Exact counters stay."""
        self.orders = replace(self.orders, pinned=None)
        self._model = self._new_model()
        self._first_pending = None
        self._round_began = self._clock.monotonic()
        self.last_round = None
        return self._issue(Publication(prior(self.num_positions, self._next_version()), "reset", *self._now()))

    def take_over(self, header: dict[str, Any], window: bytes, coefficients: Coefficients) -> Publication:
        """Continues from another service's `state`, and publishes its coefficients."""
        orders = self.orders
        self.restore({**header, "orders": replace(orders, pinned=None).to_json()}, window)
        self.last_round = None
        pooled = replace(coefficients, version=self._next_version())
        return self._issue(Publication(pooled, "import", *self._now()))

    # Publications

    def outrank(self, held: Version) -> Publication | None:
        """Publishes the same coefficients again if a worker holds a version that does not sort before theirs.

        Returns what it published. The prior is never published so: it would replace something fitted.
        """
        current = self.publication
        if current.version.counter == 0:
            if current.version.epoch < self.epoch:
                self._issue(replace(self._again("prior", Version(self.epoch, 0)), origin=None))
            return None
        if held < current.version or held in self._recent:
            return None
        return self._issue(self._again("restart", self._next_version()))

    def restore_publications(self, publications: list[Publication]) -> None:
        """Takes over the history of earlier processes, oldest first; the newest is in force."""
        for publication in publications:
            self._issue(publication)

    def recent(self) -> list[Publication]:
        """Publications in memory, newest first."""
        return list(reversed(self._recent.values()))

    def _again(self, cause: str, version: Version) -> Publication:
        return self.publication.again(version, cause, *self._now())

    def _issue(self, publication: Publication) -> Publication:
        for value in (publication.pooled, *publication.by_workload.values()):
            value.validate(self.num_positions)
        self.publication = publication
        self._recent[publication.version] = publication
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return publication

    def _next_version(self) -> Version:
        current = self.publication.version
        return Version(self.epoch, current.counter + 1 if current.epoch == self.epoch else 1)

    def _used(self, version: Version | None, workload: str) -> Coefficients:
        if version is None:
            return self._prior
        return self._recent.get(version, self.publication).of(workload)

    def _now(self) -> tuple[float, float]:
        return self._clock.wall(), self._clock.monotonic()

    # Snapshots

    def snapshot(self) -> tuple[dict[str, Any], Packing]:
        """(counters and rounds as plain values, the window)."""
        header = {
            "counters": self.counters.to_json(),
            "refits_done": self.refits_done,
            "refits_held": dict(self.refits_held),
            "last_held": self.last_held,
            "drifts": self.drift_log.to_json(),
            "orders": self.orders.to_json(),
        }
        return header, self._model.snapshot()

    def state(self) -> tuple[dict[str, Any], bytes]:
        """Its snapshot, with the window's bytes."""
        header, window = self.snapshot()
        return header, bytes(window)

    def restore(self, header: dict[str, Any], window: bytes) -> None:
        """Continues from what `state` gave."""
        self.counters = Counters.from_json(header["counters"])
        self.refits_done = header["refits_done"]
        self.refits_held = Counter(header["refits_held"])
        self.last_held = header["last_held"]
        # Absent from what an earlier version wrote.
        self.drift_log = DriftLog.from_json(header.get("drifts", []))
        # Snapshots of 0.1 have none.
        self.orders = Orders.from_json(header["orders"]) if "orders" in header else Orders()
        self._model = PairModel.from_bytes(window, self._fit_settings())
        self._first_pending = self._clock.monotonic() if self.pending_blocks else None

    def _new_model(self) -> PairModel:
        return PairModel(self.num_positions, self._fit_settings())

    def _fit_settings(self) -> FitSettings:
        return FitSettings(
            method=self._settings.method,
            knots=self._settings.knots,
            segments=self._settings.segments,
            half_life_observations=self._settings.half_life_observations,
            recent_half_life_observations=self._settings.recent_half_life_observations,
            half_life_seconds=self._settings.half_life_seconds,
            hold_tolerance=self._settings.hold_tolerance,
        )
