"""State of a model pair: what its traffic has shown, and the coefficients that follow.

`PairModel` is the one object that the service's pair and the lab's replay both drive:

    model = PairModel(num_positions=K, settings=FitSettings())
    model.observe(rows, workload="", worker="w0", used=coefficients_in_force)   # any number of times
    if model.pending_blocks >= model.round_blocks(640):
        outcome = model.close_round(elapsed_seconds=12.0)
        if outcome.held is None and should_publish(in_force, outcome.coefficients[""], age_seconds=…, …):
            in_force = replace(outcome.coefficients[""], version=next_version)

It holds no clock, no randomness and no exact counters (those are the service's), and is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.limits import MAX_POSITIONS
from acceptd.types import Coefficients, SegmentCoefficients, Version, prior
from estimator_service.fit.calibration import CalibrationSums
from estimator_service.fit.dispersion import (
    Dispersion,
    ScoreSums,
    batch_scores,
    round_shift,
    sandwich_errors,
    typical_dispersion,
)
from estimator_service.fit.drift import KINDS as DRIFT_KINDS
from estimator_service.fit.drift import Drift, DriftDetector
from estimator_service.fit.forms import LINE, LINK, SEGMENTED, Choice, Points, fit_window, refine, to_coefficients
from estimator_service.fit.guard import Sample, reason_to_hold
from estimator_service.fit.histogram import NUM_SLOTS, Floats, Rows, grade, histogram_of_codes, sums_by
from estimator_service.fit.journal import Journal, Stretch, narrowed
from estimator_service.fit.knots import choose_knots
from estimator_service.fit.likelihood import Cells, Point, information_matrix, normal_equations
from estimator_service.fit.line import adequate_line, line_errors
from estimator_service.fit.predict import Compiled, segment_coefficients
from estimator_service.fit.report import Round, Shift
from estimator_service.fit.round import RoundNewton
from estimator_service.fit.scored import Scored
from estimator_service.fit.settings import FitSettings
from estimator_service.fit.snapshot import Packing, check_make, pack, unpack
from estimator_service.fit.staging import Batch, Group, Staging
from estimator_service.fit.trimming import Unbiased, inverse_propensity
from estimator_service.fit.windows import Learned, Windows
from estimator_service.fit.workers import Judge, WorkerRecord, recalibrate
from estimator_service.fit.workloads import WorkloadTables

#: The first rounds of a pair are these fractions of a full one, and the rest of it: the prior is a poor guess, and few
#: rows improve on it. More of them fit on fewer rows still.
_RAMP: Final = (16, 8, 4)

#: Notices about workers a round; more of them say the same.
_MAX_NOTICES: Final = 16

#: Observations from which workers are judged in one merge, or 64 times fewer for each worker if that is more. Raising
#: it costs time and names a fault on less of a difference.
_JUDGED: Final = 8_192


def ramped(target: int, rounds: int) -> int:
    """Blocks of the round that follows `rounds` closed ones, where a full one has `target`."""
    if rounds > len(_RAMP):
        return target
    lengths = [max(1, target // share) for share in _RAMP]
    return lengths[rounds] if rounds < len(_RAMP) else max(1, target - sum(lengths))


class PairModel:
    """Decayed statistics of one pair, and its open round.

    num_positions: K. settings: see `FitSettings`. Takes less than 2 MB at K = 16, whatever the traffic (above, in
    proportion to K), and some hundred bytes a worker.
    """

    def __init__(self, num_positions: int, settings: FitSettings | None = None) -> None:
        k = num_positions
        self.num_positions = k
        self.settings = settings or FitSettings()
        self._windows = Windows.empty(k)
        self._judge = Judge()
        self._choice = Choice()
        self._drift = DriftDetector(NUM_SLOTS, k)
        self._original = RoundNewton.initial(k)
        self._knots: tuple[float, ...] = ()
        self._base: Points | None = None
        self._points: Points | None = None
        self._rounds = 0
        start = prior(k)
        self._coefficients = {"": start}
        self._forms = dict.fromkeys(self._available(), start)
        self._compiled = Compiled(k)
        self._staging = Staging(k)
        self._clear_round()

    def _clear_round(self) -> None:
        self._journal = Journal(self.num_positions)
        self._calibration = CalibrationSums(self.num_positions)
        self._unbiased_calibration = CalibrationSums(self.num_positions)
        self._scores = ScoreSums.empty(self.num_positions)
        self._newest = np.zeros((3, 1, self.num_positions, NUM_BINS))
        self._sample = Sample.empty()
        self._blocks = self._observations = self._whole_blocks = 0
        self._drifts: tuple[Drift, ...] = ()
        self._notices: tuple[str, ...] = ()

    @property
    def pending_blocks(self) -> int:
        """Blocks in the open round, those of quarantined workers left out."""
        return self._blocks

    @property
    def pending_observations(self) -> int:
        """Graded draft tokens in the open round, those of quarantined workers left out."""
        return self._observations

    @property
    def rounds(self) -> int:
        """Rounds closed."""
        return self._rounds

    @property
    def coefficients(self) -> dict[str, Coefficients]:
        """Candidates of the last closed round by workload label, the prior before it; version `Version()`."""
        return dict(self._coefficients)

    @property
    def quarantined(self) -> dict[str, str]:
        """Worker → why its rows are not learned from."""
        return self._judge.quarantined

    def quarantine(self, worker: str) -> str:
        """Why this worker's rows are not learned from, "" if they are."""
        return self._judge.reason(worker)

    def round_blocks(self, target: int) -> int:
        """Blocks after which to close the open round; `target` are a full one, a pair's first rounds are shorter."""
        return target if self.settings.method == "round" else ramped(target, self._rounds)

    def observe(self, rows: Rows, *, used: Coefficients, workload: str = "", worker: str = "") -> None:
        """Take a decoded batch into the open round, and score the predictions that `used` made of its rows.

        rows: its arrays are kept, so they must not change any more. used: the version the batch was predicted with, of
        the worker's label.
        """
        learned = not self._judge.reason(worker)
        self._staging.add(Batch(rows, used, workload, worker, learned, bool(np.count_nonzero(rows.explored))))
        if learned:
            self._blocks += len(rows.accepted)
            self._observations += len(rows.features)
        if self._full:
            self._settle()
            self._merge()
        elif self._staging.full:
            self._settle()

    def close_round(self, elapsed_seconds: float, *, in_force: Mapping[str, Coefficients] | None = None) -> Round:
        """Judge the workers, merge the open round into the windows, refit, and start a new round.

        elapsed_seconds: since the previous close (or the start), from a monotonic clock. in_force: what is published
        now, by workload label; without it, what the previous call returned.
        """
        current = (in_force or self._coefficients).get("")
        self._windows.age(0.5 ** (max(0.0, elapsed_seconds) / self.settings.half_life_seconds))
        self._settle()
        if self._journal.observations:
            self._merge()
        shift = round_shift(self._scores, self.num_positions)
        outcome = self._original_round() if self.settings.method == "round" else self._refit(current, shift)
        self._rounds += 1
        self._clear_round()
        return outcome

    def merge(self, other: PairModel) -> None:
        """Add another model's statistics of the same pair: as if this one had seen its rows too. Counts as one window.

        Open rounds join; who leads in form, quarantines and the fits stay this one's. Raises ValueError if K differs.
        """
        if other.num_positions != self.num_positions:
            raise ValueError(f"K is {other.num_positions}; accepted: {self.num_positions}")
        other._settle()
        self._windows.add(other._windows)
        self._journal.extend(other._journal)
        self._calibration.extend(other._calibration)
        self._unbiased_calibration.extend(other._unbiased_calibration)
        self._scores = self._scores + other._scores
        self._blocks += other._blocks
        self._whole_blocks += other._whole_blocks
        self._observations += other._observations
        if self._full:
            self._settle()
            self._merge()

    def statistics(self) -> Floats:
        """Sums of n, accepted, x by (segment slot, position, bin), the long window's and the open round's together.

        float64[3, NUM_SLOTS, K, NUM_BINS]; the last slot holds rows of unknown segment.
        """
        self._settle()
        pending = self._journal.peek()
        long = self._windows.long
        total: Floats = long + histogram_of_codes(pending.code, pending.x, long[0].size).reshape(long.shape)
        return total

    def snapshot(self) -> Packing:
        """All state, the open round included, versioned and without a checksum (the store adds one)."""
        self._settle()
        return pack(self._state(), _KINDS)

    def to_bytes(self) -> bytes:
        """Its snapshot, compressed."""
        return bytes(self.snapshot())

    @classmethod
    def from_bytes(cls, data: bytes, settings: FitSettings | None = None) -> PairModel:
        """The model of a snapshot. Raises ValueError if it is not one of this version."""
        state = unpack(data, _KINDS)
        k = state.get("num_positions") if isinstance(state, dict) else None
        if not isinstance(k, int) or not 1 <= k <= MAX_POSITIONS:
            raise ValueError(f"snapshot is damaged: K is {k!r}; accepted: 1 to {MAX_POSITIONS}")
        model = cls(k, settings)
        expected = model._state()
        if state.keys() != expected.keys():
            raise ValueError(f"snapshot is damaged: it has {', '.join(map(str, state))}")
        for name, value in state.items():
            check_make(value, expected[name], name)
        vars(model).update(state)
        model._journal.check()
        return model

    def _state(self) -> dict[str, Any]:
        """What a snapshot holds."""
        return {name: value for name, value in vars(self).items() if name not in _TRANSIENT}

    def _settle(self) -> None:
        """Grade and score what is staged, and journal it in order of arrival."""
        size = self._staging.size
        self._journal.append([self._score(group) for group in self._staging.take()], size)

    @property
    def _full(self) -> bool:
        """Whether the journal is to be merged, which does not depend on what was graded already."""
        return self._journal.full(len(self._staging.batches), self._staging.size)

    def _score(self, group: Group) -> Stretch:
        k, rows = self.num_positions, group.rows
        graded = grade(rows, k)
        log_odds = self._compiled.log_odds(group.batches[0].used, graded.cell, graded.x)
        scored = Scored.of(graded.position, graded.accepted, log_odds, k, group.sizes)
        weight = inverse_propensity(rows, graded) if group.explored else None
        if group.batches[0].learned:
            self._calibration.add(scored)
            self._calibration.add_survival(graded.first, graded.observed, rows.accepted, scored.confidence)
            if weight is not None:
                self._unbiased_calibration.add(scored, weight)
            if self.settings.method == "round":
                self._original.add(graded.position, graded.x, graded.accepted, scored.confidence)
            self._whole_blocks += int(np.count_nonzero(rows.admitted == k))
        code = graded.cell * 2
        code += graded.accepted
        return group.stretch(code=narrowed(code, k), weight=weight, scores=batch_scores(scored, graded.x))

    def _merge(self) -> None:
        """Judge who sent the journal's rows, score the forms on them, and learn from what passed."""
        rows = self._judged()
        if rows is None:
            return
        sums = rows.sums(self.num_positions)
        sample = Sample.of(sums)
        if self._rounds:
            decay = 0.5 ** (sample.total / self.settings.half_life_observations)
            losses = {form: sample.loss(value) for form, value in self._forms.items()}
            self._choice.score(losses, sample.total, decay)
        self._windows.learn(rows, sums, self.settings)
        self._scores = self._scores + rows.scores
        self._newest, self._sample = sums.sum(axis=1, keepdims=True), sample
        named = self._drift.update(sums, untrimmed=self._whole_blocks >= _UNTRIMMED * self._blocks)
        self._drifts += () if named is None else (named,)

    def _judged(self) -> Learned | None:
        """The journal's rows of workers in good standing, by their judgement on these rows; None if there are none."""
        k = self.num_positions
        pending = self._journal.take()
        workers = len(pending.workers)
        # Every n-th row judges a worker as well as all: enough of them for each one's line.
        step = max(1, len(pending.code) // max(_JUDGED, workers * _JUDGED // 64))
        code, x = pending.code[::step].astype(np.int64), pending.x[::step].astype(np.float64)
        cell = code >> 1
        position = cell // NUM_BINS % k
        score = self._compiled.log_odds(self._coefficients[""], cell, x)
        found = recalibrate(pending.worker[pending.batch(step)], position, score, code & 1, shape=(workers, k))
        notices = self._notices + self._judge.judge(pending.workers, found, typical_dispersion(pending.scores, k))
        self._notices = tuple(dict.fromkeys(notices))[:_MAX_NOTICES]
        weights = self._judge.weights(pending.workers, sums_by(pending.worker, pending.sizes, workers))
        if not weights.any():
            return None
        by_row = None if (weights == 1.0).all() else weights[pending.worker][pending.batch()]
        kept = slice(None) if weights.all() or by_row is None else by_row > 0
        return Learned(
            pending.code[kept],
            pending.x[kept],
            None if by_row is None else by_row[kept],
            None if pending.weight is None else pending.weight[kept],
            None if len(pending.workloads) == 1 else pending.workload[pending.batch()][kept],
            pending.workloads,
            ScoreSums.of(pending.scores if weights.all() else pending.scores[weights[pending.worker] > 0], k),
        )

    def _available(self) -> tuple[str, ...]:
        settings = self.settings
        if settings.method != "auto" or not settings.knots:
            return (LINE,)
        return (LINE, LINK, SEGMENTED) if settings.segments else (LINE, LINK)

    def _refit(self, current: Coefficients | None, shift: Shift | None) -> Round:
        settings, windows = self.settings, self._windows
        if LINK in self._available():
            self._knots = choose_knots(windows.long[0].sum(axis=(0, 1)), self._knots)
        self._base = base = fit_window(windows.long, self._knots, settings, self._base)
        windowed = settings.recent_half_life_observations < settings.half_life_observations
        self._points = points = refine(windows.recent, base, self._points) if windowed else base
        evidence = windows.evidence
        errors = line_errors(base, points, windows, settings)
        line = adequate_line(points, self._sample, self._newest, settings)
        offsets = windows.unbiased.offsets(line)
        if line is not points.line:
            points = Points(line, points.information)
        available = self._available() if points.link is not None else (LINE,)
        form = self._choice.choose(available)
        self._forms = {name: to_coefficients(points, name, evidence, offsets) for name in available}
        if form != LINE and self._sample.total:
            limit = max(self._sample.constant_loss(), self._sample.loss(self._forms[LINE]))
            form = form if self._sample.loss(self._forms[form]) <= limit else LINE
        candidate = self._forms[form]
        self._coefficients = {"": candidate, **windows.workloads.coefficients(points, form, evidence, offsets)}
        return Round(
            coefficients=dict(self._coefficients),
            standard_errors=tuple(errors.tolist()),
            calibration=self._calibration.scores(),
            held=reason_to_hold(self._sample, candidate, current, settings.hold_tolerance),
            link=LINE if form == LINE else LINK,
            segmented=form == SEGMENTED,
            blocks=self._blocks,
            observations=self._observations,
            shift=shift,
            log_losses=self._choice.means(),
            forms=dict(self._forms),
            unbiased=self._unbiased_calibration.scores(),
            drifts=self._drifts,
            drift_scores=self._drift.scores,
            quarantined=self._judge.quarantined,
            notices=self._notices + windows.remarks(evidence) + self._drift.remarks(),
        )

    def _original_round(self) -> Round:
        self._original.step()
        state = self._original
        line = segment_coefficients(np.array([state.slope]), state.intercepts)
        windows = self._windows
        evidence = tuple(windows.evidence.tolist())
        point = Point(np.array([[state.slope]]), state.intercepts[None])
        normal = normal_equations(Cells.of(windows.long.sum(axis=1, keepdims=True)), point)
        information = information_matrix(normal) + np.eye(1 + self.num_positions)
        candidate = Coefficients(Version(), line, evidence=evidence)
        self._coefficients = {"": candidate}
        self._forms = {LINE: candidate}
        return Round(
            coefficients=dict(self._coefficients),
            standard_errors=tuple(sandwich_errors(information, windows.dispersion.variance()).tolist()),
            calibration=self._calibration.scores(),
            held=reason_to_hold(self._sample, candidate, None, self.settings.hold_tolerance),
            link="round",
            segmented=False,
            blocks=self._blocks,
            observations=self._observations,
            drifts=self._drifts,
            drift_scores=self._drift.scores,
            quarantined=self._judge.quarantined,
            notices=self._notices + self._drift.remarks(),
        )


#: Share of blocks verified whole from which a round counts as untrimmed; a few end early with their request.
_UNTRIMMED: Final = 0.95

#: Attributes that a snapshot leaves out.
_TRANSIENT: Final = frozenset({"settings", "_compiled", "_staging"})

#: What a snapshot may hold.
_KINDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        CalibrationSums,
        Choice,
        Coefficients,
        Dispersion,
        Journal,
        Judge,
        Point,
        Points,
        RoundNewton,
        Sample,
        ScoreSums,
        SegmentCoefficients,
        Stretch,
        Unbiased,
        Version,
        Windows,
        WorkerRecord,
        WorkloadTables,
        *DRIFT_KINDS,
    )
}
