"""One pair: its window, when it is refitted, and what of that is published."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from acceptd.types import Coefficients, PairKey, Version, prior
from acceptd.v1.estimator_pb2 import RejectReason
from acceptd.v1.types_pb2 import ExclusionReason, Mode
from estimator_service.counters import Counters
from estimator_service.drift_log import DriftLog
from estimator_service.fit.model import PairModel
from estimator_service.fit.settings import FitSettings
from estimator_service.orders import Orders
from estimator_service.publications import Publications

if TYPE_CHECKING:
    from collections.abc import Iterable

    from acceptd.codec import Observations
    from acceptd.v1.types_pb2 import ExclusionCount
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.fit.drift import Drift
    from estimator_service.fit.report import Round
    from estimator_service.fit.snapshot import Packing
    from estimator_service.publication import Publication

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
    """Window, rounds, orders and exact counters of one pair. The caller serialises calls.

    epoch: the store's, see `Publications`.
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
        self.publications = Publications(self.num_positions, settings, clock, epoch)
        self.refits_done = 0
        self.refits_held: Counter[str] = Counter()
        self.last_held = ""
        self.last_refit_seconds = 0.0
        self.last_round: Round | None = None
        self.drift_log = DriftLog()
        self._settings = settings
        self._clock = clock
        self._model = self._new_model()
        self._round_began = clock.monotonic()
        self._first_pending: float | None = None

    @property
    def publication(self) -> Publication:
        """The one in force."""
        return self.publications.in_force

    @property
    def blank(self) -> bool:
        """Whether nothing was learned and nothing ordered."""
        return not self.counters.blocks and self.orders == Orders()

    # What workers send

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
        self._model.observe(rows, workload=workload, worker=worker, used=self.publications.used(version, workload))
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
        held = closed.held or ("pinned" if self.orders.pinned else "")
        if not held and self.publications.suffice(closed.coefficients):
            held = "unchanged"
        publication = None
        if not held:
            publication = self.publications.publish("refit", closed.coefficients, closed.calibration)
        self._settle(held)
        return Decision(elapsed, in_force.version, held, publication, closed.drifts)

    def postpone_round(self) -> None:
        """After a refit that failed: the round stays open, and is tried again when the next would be due."""
        self._round_began = self._clock.monotonic()
        self._first_pending = None
        self._settle("error")

    def replay_round(self, elapsed: float, in_force: Version, held: str) -> None:
        """Closes a round as an earlier process did. What it published comes from the history."""
        self._close(elapsed, self.publications.get(in_force))
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
        return self.publications.publish_again(publication, cause)

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
        return self.publications.publish("reset", {"": prior(self.num_positions)})

    def take_over(self, header: dict[str, Any], window: bytes, coefficients: Coefficients) -> Publication:
        """Continues from another service's `state`, and publishes its coefficients."""
        orders = self.orders
        self.restore({**header, "orders": replace(orders, pinned=None).to_json()}, window)
        self.last_round = None
        return self.publications.publish("import", {"": coefficients})

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
