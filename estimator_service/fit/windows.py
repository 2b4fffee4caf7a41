"""What a pair remembers: decayed sums over a long and a recent window, and what else ages with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acceptd.bins import NUM_BINS
from estimator_service.fit.dispersion import Dispersion
from estimator_service.fit.histogram import NUM_SLOTS, Floats
from estimator_service.fit.learned import Learned
from estimator_service.fit.settings import FitSettings
from estimator_service.fit.trimming import Unbiased
from estimator_service.fit.workloads import WorkloadTables


@dataclass
class Windows:
    """Statistics of a pair with K positions.

    long, recent: sums of n, accepted, x by (segment slot, position, bin), float64[3, NUM_SLOTS, K, NUM_BINS].
    dispersion, recent_dispersion: noise of their scores.
    """

    num_positions: int
    long: Floats
    recent: Floats
    workloads: WorkloadTables
    unbiased: Unbiased
    dispersion: Dispersion
    recent_dispersion: Dispersion

    @staticmethod
    def empty(num_positions: int) -> Windows:
        """Nothing seen."""
        k = num_positions
        shape = (3, NUM_SLOTS, k, NUM_BINS)
        return Windows(
            k,
            np.zeros(shape),
            np.zeros(shape),
            WorkloadTables(k),
            Unbiased.empty(k),
            Dispersion.empty(k),
            Dispersion.empty(k),
        )

    def learn(self, rows: Learned, sums: Floats, settings: FitSettings) -> None:
        """Weigh what is there by the half-lives in observations, then add rows; `sums` are `rows.sums`."""
        k, n = self.num_positions, float(sums[0].sum())
        decay = 0.5 ** (n / settings.half_life_observations)
        recent_decay = 0.5 ** (n / settings.recent_half_life_observations)
        self.long = self.long * decay + sums
        self.recent = self.recent * recent_decay + sums
        if rows.explored is not None:
            code = rows.code.astype(np.int64) % (2 * k * NUM_BINS)
            self.unbiased.merge(code, rows.x, rows.explored.astype(np.float64), decay=decay)
        else:
            count = sums if rows.weight is None else rows.counts(k)
            self.unbiased.merge_biased(count[0].sum(axis=(0, 2)), decay=decay)
        self.dispersion.merge(rows.scores, decay)
        self.recent_dispersion.merge(rows.scores, recent_decay)
        for i, label in enumerate(rows.labels):
            if label:
                own = sums if rows.label is None else rows.sums(k, rows.label == i)
                if own[0].any():
                    self.workloads.merge(label, own, settings.recent_half_life_observations)

    def age(self, decay: float) -> None:
        """Weigh everything by `decay`, for time that has passed."""
        self.long *= decay
        self.recent *= decay
        self.workloads.age(decay)
        for part in (self.unbiased, self.dispersion, self.recent_dispersion):
            part.age(decay)

    def add(self, other: Windows) -> None:
        """Another model's, of other rows."""
        self.long = self.long + other.long
        self.recent = self.recent + other.recent
        self.workloads.add(other.workloads)
        self.unbiased.add(other.unbiased)
        self.dispersion.add(other.dispersion)
        self.recent_dispersion.add(other.recent_dispersion)

    @property
    def evidence(self) -> Floats:
        """Effective observations of each position, float64[K]."""
        value: Floats = self.long[0].sum(axis=(0, 2))
        return value

    def remarks(self, evidence: Floats) -> tuple[str, ...]:
        """What about the statistics deserves attention, one line each. evidence: their own, worked out already."""
        bare = [str(k) for k, n in enumerate(evidence.tolist()) if n < 1.0] if evidence.any() else []
        remarks = [f"no labels at position {', '.join(bare)}: its intercept follows the others'"] if bare else []
        refused = sorted(self.workloads.refused)
        if refused:
            remarks.append(f"too many workload labels, served by the pair's coefficients: {', '.join(refused)}")
        return tuple(remarks)
