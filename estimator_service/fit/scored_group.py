"""A group of batches, graded and scored by the version that it was predicted with."""

from __future__ import annotations

from dataclasses import dataclass

from estimator_service.fit.dispersion import batch_scores
from estimator_service.fit.histogram import Floats, Graded, grade
from estimator_service.fit.journal import Stretch, narrowed
from estimator_service.fit.predict import Compiled
from estimator_service.fit.scored import Scored
from estimator_service.fit.staging import Group
from estimator_service.fit.trimming import inverse_propensity


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """N observations of a pair with K positions. weight: float64[N], inverse propensities; None if none is explored."""

    num_positions: int
    group: Group
    graded: Graded
    scored: Scored
    weight: Floats | None

    @staticmethod
    def of(group: Group, compiled: Compiled, num_positions: int) -> ScoredGroup:
        """Grade and score all of it."""
        graded = grade(group.rows, num_positions)
        log_odds = compiled.log_odds(group.batches[0].used, graded.cell, graded.x)
        scored = Scored.of(graded.position, graded.accepted, log_odds, num_positions, group.sizes)
        weight = inverse_propensity(group.rows, graded) if group.explored else None
        return ScoredGroup(num_positions, group, graded, scored, weight)

    def stretch(self) -> Stretch:
        """As it is journalled."""
        code = self.graded.cell * 2
        code += self.graded.accepted
        scores = batch_scores(self.scored, self.graded.x)
        return self.group.stretch(code=narrowed(code, self.num_positions), weight=self.weight, scores=scores)
