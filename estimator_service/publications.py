"""What one pair published: the publication in force, the recent ones, and versions that only count up."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from acceptd.types import Coefficients, Version, prior
from estimator_service.fit.publish import should_publish
from estimator_service.publication import Publication

if TYPE_CHECKING:
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.fit.report import Calibration

#: Publications kept in memory, to score rows with the version they were predicted with; rows of an older one are scored
#: with the one in force. Some 10 kB each with every workload label in use.
MAX_RECENT = 256


class Publications:
    """Begins with the prior in force. `epoch` is the store's; versions count up within it.

    Coefficients that are not sound raise WireError, and what is in force stays.
    """

    def __init__(self, num_positions: int, settings: Settings, clock: Clock, epoch: int) -> None:
        self.epoch = epoch
        self._num_positions = num_positions
        self._settings = settings
        self._clock = clock
        self._prior = prior(num_positions)
        self._recent: OrderedDict[Version, Publication] = OrderedDict()
        self.in_force = self._issue(Publication(prior(num_positions, Version(epoch, 0)), "prior", *self._now()))

    def knows(self, version: Version | None, held: Version) -> bool:
        """Whether rows predicted with `version` may be learned from. `held`: what their worker said it holds.

        None is the worker's own prior. An earlier epoch's version counts as known up to what the worker came with:
        this store may have lost its last second, or another replica published it.
        """
        if version is None or version in self._recent:
            return True
        if version.epoch == self.in_force.version.epoch:
            return version <= self.in_force.version
        return version <= held and version.epoch < self.epoch

    def used(self, version: Version | None, workload: str) -> Coefficients:
        """What rows were predicted with: `version`'s coefficients for the label, for None the worker's own prior."""
        if version is None:
            return self._prior
        return self._recent.get(version, self.in_force).of(workload)

    def get(self, version: Version) -> Publication:
        """The publication of `version`; where it is not in memory, the one in force."""
        return self._recent.get(version, self.in_force)

    def recent(self) -> list[Publication]:
        """Publications in memory, newest first."""
        return list(reversed(self._recent.values()))

    def suffice(self, candidates: dict[str, Coefficients]) -> bool:
        """Whether a sound fit need not go out: it says what is in force already, and that is fresh enough."""
        current = self.in_force
        if current.version.counter == 0:
            return False
        age = self._clock.monotonic() - current.published
        return not any(
            should_publish(
                current.of(label),
                value,
                age_seconds=age,
                max_age_seconds=self._settings.publish_max_age_seconds,
                min_change=self._settings.publish_min_change,
            )
            for label, value in candidates.items()
        )

    def publish(
        self, cause: str, coefficients: dict[str, Coefficients], calibration: Calibration | None = None
    ) -> Publication:
        """Puts coefficients, by workload label and with "" for the pooled ones, in force under the next version."""
        version = self._next_version()
        by_workload = {label: replace(value, version=version) for label, value in coefficients.items()}
        pooled = by_workload.pop("")
        return self._issue(Publication(pooled, cause, *self._now(), by_workload, calibration))

    def publish_again(self, publication: Publication, cause: str) -> Publication:
        """Puts an earlier publication's coefficients in force under the next version."""
        return self._issue(publication.again(self._next_version(), cause, *self._now()))

    def outrank(self, held: Version) -> Publication | None:
        """Publishes the same coefficients again if a worker holds a version that does not sort before theirs.

        Returns what it published. The prior is never published so: it would replace something fitted.
        """
        current = self.in_force
        if current.version.counter == 0:
            if current.version.epoch < self.epoch:
                again = current.again(Version(self.epoch, 0), "prior", *self._now())
                self._issue(replace(again, origin=None))
            return None
        if held < current.version or held in self._recent:
            return None
        return self.publish_again(current, "restart")

    def restore(self, publications: list[Publication]) -> None:
        """Takes over the history of earlier processes, oldest first; the newest is in force."""
        for publication in publications:
            self._issue(publication)

    def _issue(self, publication: Publication) -> Publication:
        for value in (publication.pooled, *publication.by_workload.values()):
            value.validate(self._num_positions)
        self.in_force = publication
        self._recent[publication.version] = publication
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return publication

    def _next_version(self) -> Version:
        current = self.in_force.version
        return Version(self.epoch, current.counter + 1 if current.epoch == self.epoch else 1)

    def _now(self) -> tuple[float, float]:
        return self._clock.wall(), self._clock.monotonic()
