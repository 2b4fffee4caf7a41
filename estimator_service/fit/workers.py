"""Judging workers: is what one reports still the same experiment as what the others report?

Each worker's rows are scored by the coefficients of all. Its own straight line through those scores (Cox, Biometrika
45, 1958: a recalibration), with an intercept a position, separates two cases: a *shift* of intercepts is another
workload, which is reported and kept; a *slope* of another sign or size, or an AUC below one half once the intercepts
are re-centred, is a fault: labels inverted, features scaled. Such a worker is quarantined: judged on, not learned from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Final

import numpy as np

from estimator_service.fit.arrowhead import solve_arrowhead
from estimator_service.fit.histogram import Floats, Ints, sums_by
from estimator_service.fit.predict import sigmoid

#: Workers remembered; the one unheard of for longest goes. 100 bytes each.
MAX_WORKERS: Final = 4_096

#: A recalibration slope below the first or above the second, times the median worker's, is a fault. Within one pair
#: workloads differ by a tenth; temperatures nobody told apart by a half. Closer bounds would set honest workers aside.
_LOWEST, _HIGHEST = 1 / 3, 3.0

#: Standard errors (over-dispersed) by which a bound must be passed. Raising it names faults later.
_ERRORS: Final = 3.0

#: The same for a slope below 0 or an AUC below one half: honest workers are a whole slope away from there.
_SIGN_ERRORS: Final = 2.5

#: Weight of a worker's earlier rounds in its next judgement. Raising it judges on more evidence, and releases later.
_MEMORY: Final = 0.8

#: Clean judgements in a row after which a quarantined worker is released.
_RELEASE: Final = 3

#: A worker with fewer observations in a round is not judged in it: its part is small whatever they say.
_MIN_OBSERVATIONS: Final = 30

#: Part of a round one worker may have, against the median of all (of three or more): rows beyond it weigh less.
_CAP: Final = 4.0

#: Shift of a worker's intercepts from the others', nats, worth a notice.
_NOTICE_SHIFT: Final = 0.5

_SCORE_BINS: Final = 16
_SCORE_RANGE: Final = 8.0
_STEPS: Final = 6


@dataclass
class WorkerRecord:
    """What is remembered of one worker: decayed sums of `Recalibration`'s values, weighted by information.

    reason: why it is in quarantine, "" if it is not. clean: judgements in a row without fault since.
    """

    information: float = 0.0
    slope: float = 0.0
    shift: float = 0.0
    shift_information: float = 0.0
    won: float = 0.0
    compared: float = 0.0
    scarcer: float = 0.0
    reason: str = ""
    clean: int = 0

    def remember(self, sums: Iterable[float]) -> None:
        """Add a judgement's sums, in the order of the fields, to those before it, which fade."""
        for name, value in zip(_SUMS, sums, strict=True):
            setattr(self, name, getattr(self, name) * _MEMORY + value)


_SUMS: Final = ("information", "slope", "shift", "shift_information", "won", "compared", "scarcer")


@dataclass(frozen=True)
class Recalibration:
    """A worker's own line through the others' scores: slope and mean shift of intercepts, with information. [W] each.

    won, compared: pairs of an accepted and a rejected row of one position in the right order, and all. scarcer: rows of
    the rarer label. n: observations.
    """

    slope: Floats
    information: Floats
    shift: Floats
    shift_information: Floats
    won: Floats
    compared: Floats
    scarcer: Floats
    n: Floats


def recalibrate(
    worker: Ints, position: Ints, score: Floats, accepted: Ints, *, shape: tuple[int, int]
) -> Recalibration:
    """Fits of W workers on N observations. score: float64[N], log-odds by the coefficients of all; shape: (W, K).

    worker, position, accepted (0 or 1): int64[N]. Those with too few observations to be judged have 0 for all but n.
    """
    workers, k = shape
    total = sums_by(worker, None, workers)
    heard = total >= _MIN_OBSERVATIONS
    if heard.all():
        return _recalibrate(worker, position, score, accepted, shape=shape)
    own = heard[worker]
    place = np.cumsum(heard) - 1
    found = _recalibrate(
        place[worker[own]], position[own], score[own], accepted[own], shape=(int(np.count_nonzero(heard)), k)
    )
    columns = {item.name: np.zeros(workers) for item in fields(found)}
    for name, values in columns.items():
        values[heard] = getattr(found, name)
    return Recalibration(**{**columns, "n": total})


def _recalibrate(
    worker: Ints, position: Ints, score: Floats, accepted: Ints, *, shape: tuple[int, int]
) -> Recalibration:
    workers, k = shape
    step = _SCORE_BINS / (2 * _SCORE_RANGE)
    index = ((score + _SCORE_RANGE) * step).clip(0, _SCORE_BINS - 1).astype(np.int64)
    cell = (worker * k + position) * _SCORE_BINS + index
    size = workers * k * _SCORE_BINS
    counts = sums_by(cell, None, size)
    passed, summed = sums_by(cell, accepted, size), sums_by(cell, score, size)
    lost = (counts - passed).reshape(workers, k, _SCORE_BINS)
    won_over = np.cumsum(lost, axis=2) - 0.5 * lost
    by_position = passed.reshape(workers, k, _SCORE_BINS)
    won = (by_position * won_over).sum(axis=(1, 2))
    accepts, rejects = by_position.sum(axis=2), lost.sum(axis=2)
    used = np.flatnonzero(counts)
    n = counts[used]
    y = passed[used]
    group = used // _SCORE_BINS
    z = summed[used] / n
    slope = np.zeros(workers)
    shifts = np.log((accepts + 0.5) / (rejects + 0.5))
    row = group // k
    # Weak priors (slope 1 ± 3, shift 0 ± 3): a worker with one kind of label has a finite line.
    own = 1 / 9.0
    for _ in range(_STEPS):
        p = sigmoid(slope[row] * z + shifts.ravel()[group])
        w, r = n * p * (1 - p), y - n * p
        a = own + sums_by(row, w * z * z, workers)
        b = sums_by(group, w * z, workers * k).reshape(workers, k)
        c = own + sums_by(group, w, workers * k).reshape(workers, k)
        g = sums_by(row, r * z, workers) - own * (slope - 1.0)
        h = sums_by(group, r, workers * k).reshape(workers, k) - own * shifts
        du, dv = solve_arrowhead(a[:, None, None], b[:, :, None], c, g[:, None], h)
        slope += du[:, 0].clip(-1.0, 1.0)
        shifts += dv.clip(-2.0, 2.0)
    information = a - (b * b / c).sum(axis=1)
    # The shift at the slope of all: what re-centring had to move, weighed by position.
    p = sigmoid(z)
    shift_information = own + sums_by(row, n * p * (1 - p), workers)
    shift = sums_by(row, y - n * p, workers) / shift_information
    total = (accepts + rejects).sum(axis=1)
    scarcer = np.minimum(accepts.sum(axis=1), rejects.sum(axis=1))
    return Recalibration(
        slope, information, shift, shift_information, won, (accepts * rejects).sum(axis=1), scarcer, total
    )


@dataclass
class Judge:
    """Records of a pair's workers. Bounded; O(1) numbers a worker. dispersion: over the latest rounds."""

    records: dict[str, WorkerRecord] = field(default_factory=dict)
    rounds: int = 0
    dispersion: float = 1.0

    @property
    def quarantined(self) -> dict[str, str]:
        """Worker → reason."""
        return {name: record.reason for name, record in sorted(self.records.items()) if record.reason}

    def judge(self, names: tuple[str, ...], found: Recalibration, dispersion: float) -> tuple[str, ...]:
        """Update the records with a round's fits, workers in the order of `names`. Returns notices.

        dispersion: over-dispersion of the round's typical batch, >= 1.
        """
        self.rounds += 1
        self.dispersion = dispersion if self.rounds == 1 else _MEMORY * self.dispersion + (1 - _MEMORY) * dispersion
        heard = np.flatnonzero(found.n >= _MIN_OBSERVATIONS)
        columns = (
            found.information,
            found.information * found.slope,
            found.shift_information * found.shift,
            found.shift_information,
            found.won,
            found.compared,
            found.scarcer,
        )
        for name in names:
            # Taken out and put back at the end: the records stay in order of when they were last heard of.
            record = self.records.pop(name, None)
            self.records[name] = record or WorkerRecord()
        judged = [names[i] for i in heard.tolist()]
        for name, *sums in zip(judged, *(column[heard].tolist() for column in columns), strict=True):
            self.records[name].remember(sums)
        while len(self.records) > MAX_WORKERS:
            del self.records[next(iter(self.records))]
        if len(self.records) < 2 or not judged:
            return ()
        return self._decide(judged)

    def _decide(self, judged: list[str]) -> tuple[str, ...]:
        peers = [record for record in self.records.values() if record.information > 0]
        typical = median([r.slope / r.information for r in peers]) if len(peers) >= 3 else 1.0
        level = median([r.shift / r.shift_information for r in peers])
        reasons = {name: _fault(self.records[name], max(typical, 0.0), self.dispersion) for name in judged}
        # Where half of all differ from the coefficients, the coefficients are what is wrong.
        if sum(1 for reason in reasons.values() if reason) * 2 > len(peers):
            return ("most workers disagree with the coefficients: none is quarantined",)
        notices = []
        for name, reason in reasons.items():
            record = self.records[name]
            if reason:
                record.reason, record.clean = reason, 0
                continue
            if record.reason:
                record.clean += 1
                if record.clean >= _RELEASE:
                    record.reason, record.clean = "", 0
                continue
            shift = record.shift / record.shift_information - level
            error = (self.dispersion / record.shift_information) ** 0.5
            if abs(shift) > max(_NOTICE_SHIFT, _ERRORS * error):
                notices.append(f"worker {name}: intercepts differ by {shift:+.2f} nats: set a workload label")
        return tuple(notices)

    def weights(self, names: tuple[str, ...], observations: Floats) -> Floats:
        """Weight of each worker's rows in the merge: 0 in quarantine, below 1 beyond the cap. float64[W]."""
        weights = np.ones(len(names))
        if quarantined := self.quarantined:
            weights[[name in quarantined for name in names]] = 0.0
        counts = observations[(weights > 0) & (observations > 0)]
        if len(counts) >= 3:
            weights *= np.minimum(1.0, _CAP * np.median(counts) / np.maximum(observations, 1.0))
        return weights

    def reason(self, name: str) -> str:
        """Why a worker is in quarantine, "" if it is not."""
        record = self.records.get(name)
        return record.reason if record else ""


def _fault(record: WorkerRecord, typical: float, dispersion: float) -> str:
    """Why a worker's record is a fault, "" if it is none."""
    if record.information <= 0:
        return ""
    slope = record.slope / record.information
    error = (dispersion / record.information) ** 0.5
    auc = record.won / record.compared if record.compared else 0.5
    # Largest variance of a Mann-Whitney statistic with m rows of the rarer label: 1/(4 m).
    auc_error = (dispersion / (4.0 * max(record.scarcer, 1.0))) ** 0.5
    told = f"slope {slope:.2f} of the others', AUC {auc:.2f}"
    if slope + _SIGN_ERRORS * error < 0 or (slope < 0 and auc + _SIGN_ERRORS * auc_error < 0.5):
        return f"labels disagree with the features ({told})"
    if slope + _ERRORS * error < _LOWEST * typical:
        return f"{'labels disagree with the features' if slope < 0 else 'features too large'} ({told})"
    if slope - _ERRORS * error > _HIGHEST * max(typical, _LOWEST):
        return f"features too small ({told})"
    return ""
