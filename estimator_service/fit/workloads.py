"""Intercepts of workload labels: an operator's label moves the level of acceptance; the slope is the pair's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.types import Coefficients
from estimator_service.fit.forms import LINE, SEGMENTED, Points, to_coefficients
from estimator_service.fit.hierarchy import WORKLOAD, fit_groups
from estimator_service.fit.histogram import Floats
from estimator_service.fit.likelihood import Cells, Point
from estimator_service.fit.predict import segment_coefficients

#: Labels a pair keeps apart, "" not counted; workers with further ones are served the pair's coefficients. Each costs
#: memory for its tables.
MAX_LABELS: Final = 7

#: Positions that (label, segment) tables may have in all, 3 KB each; further segments of a label follow its line.
#: Raising it gives more labels segments of their own.
_TABLE_POSITIONS: Final = 128

#: Tables at least and at most, whatever K: one for each label, and no more than a refit has time for.
_FEWEST_TABLES, _MOST_TABLES = MAX_LABELS + 1, 24


@dataclass
class WorkloadTables:
    """Decayed sums by label: `tables[label, segment slot]` float64[3, K, NUM_BINS]."""

    num_positions: int
    tables: dict[tuple[str, int], Floats] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels kept apart, sorted."""
        return tuple(sorted({label for label, _ in self.tables}))

    def merge(self, label: str, sums: Floats, half_life: float) -> None:
        """Sums [3, S, K, NUM_BINS] of a label's rows. Its tables age by its own rows alone.

        Where all places are taken, a label takes that of one whose rows have faded to fewer than these.
        """
        by_slot = sums[0].sum(axis=(1, 2))
        if label not in self.labels and len(self.labels) >= MAX_LABELS and not self._displace(float(by_slot.sum())):
            if len(self.refused) < MAX_LABELS:
                self.refused.add(label)
            return
        self.refused.discard(label)
        decay = 0.5 ** (float(by_slot.sum()) / half_life)
        for key in self.tables:
            if key[0] == label:
                self.tables[key] = self.tables[key] * decay
        # The commonest segment first: if tables run out, the label has at least that.
        for slot in np.argsort(-by_slot, kind="stable")[: np.count_nonzero(by_slot)].tolist():
            reserved = self._missing() if label in self.labels else 0
            if (label, slot) in self.tables or len(self.tables) < self._room - reserved:
                self.tables[label, slot] = self.tables.get((label, slot), 0.0) + sums[:, slot]

    def add(self, other: WorkloadTables) -> None:
        """Another pair's tables, as far as there is room."""
        for (label, slot), table in sorted(other.tables.items()):
            sums = np.zeros((3, slot + 1, *table.shape[1:]))
            sums[:, slot] = table
            self.merge(label, sums, float("inf"))

    def _displace(self, observations: float) -> bool:
        """Drops the label with the least evidence if that is less than `observations`; whether it did."""
        evidence = dict.fromkeys(self.labels, 0.0)
        for (label, _), table in self.tables.items():
            evidence[label] += float(table[0].sum())
        least = min(evidence, key=evidence.__getitem__)
        if evidence[least] >= observations:
            return False
        self.tables = {key: table for key, table in self.tables.items() if key[0] != least}
        return True

    @property
    def _room(self) -> int:
        """Tables at most."""
        return min(max(_TABLE_POSITIONS // self.num_positions, _FEWEST_TABLES), _MOST_TABLES)

    def _missing(self) -> int:
        """Tables to hold back for labels that have none yet."""
        return MAX_LABELS - len(self.labels)

    def age(self, decay: float) -> None:
        """Weigh everything by `decay`. Once a round, whose refusals are told then."""
        self.refused = set()
        for key in self.tables:
            self.tables[key] = self.tables[key] * decay

    def coefficients(self, points: Points, form: str, evidence: Floats, offsets: Floats) -> dict[str, Coefficients]:
        """Of each label, in the form of the pair's."""
        keys = sorted(self.tables)
        if not keys:
            return {}
        labels = self.labels
        index = {label: i for i, label in enumerate(labels)}
        pooled = np.zeros((3, len(labels), self.num_positions, NUM_BINS))
        for key in keys:
            pooled[:, index[key[0]]] += self.tables[key]
        lines = fit_groups(Cells.of(pooled), points.line, WORKLOAD)
        found = {}
        for label in labels:
            line = Point(points.line.slopes, lines.intercepts[[index[label]]])
            shift = line.intercepts[0] - points.line.intercepts[0]
            own = replace(points, line=line)
            found[label] = to_coefficients(own, form, evidence, offsets)
            if form == LINE:
                continue
            source = points.segments if form == SEGMENTED else points.link
            if source is None:
                continue
            slots = [slot for name, slot in keys if name == label]
            rows = [min(slot, len(source.slopes) - 1) for slot in slots]
            parent = Point(source.slopes[rows], source.intercepts[rows] + shift)
            stacked = np.stack([self.tables[label, slot] for slot in slots], axis=1)
            fitted = fit_groups(Cells.of(stacked, points.knots), parent, WORKLOAD)
            segments = {
                slot: segment_coefficients(
                    source.slopes[min(slot, len(source.slopes) - 1)],
                    source.intercepts[min(slot, len(source.slopes) - 1)] + shift + offsets,
                )
                for slot in found[label].segments
            }
            for i, slot in enumerate(slots):
                if slot in segments:
                    segments[slot] = segment_coefficients(fitted.slopes[i], fitted.intercepts[i] + offsets)
            found[label] = replace(found[label], segments=segments)
        return found
