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
from dataclasses import replace
from typing import Any, Final

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.limits import MAX_POSITIONS
from acceptd.types import Coefficients, prior
from estimator_service.fit.calibration import CalibrationSums
from estimator_service.fit.dispersion import ScoreSums, round_shift, typical_dispersion
from estimator_service.fit.drift import Drift, DriftDetector
from estimator_service.fit.forms import LINE, LINK, SEGMENTED, Choice, Points, enabled_forms
from estimator_service.fit.guard import Sample, reason_to_hold
from estimator_service.fit.histogram import NUM_SLOTS, Floats, Rows, histogram_of_codes, sums_by
from estimator_service.fit.journal import Journal, Stretch
from estimator_service.fit.kinds import KINDS
from estimator_service.fit.learned import Learned
from estimator_service.fit.predict import Compiled
from estimator_service.fit.ramp import ramped
from estimator_service.fit.refit import refit
from estimator_service.fit.report import Round, Shift
from estimator_service.fit.round import RoundNewton
from estimator_service.fit.scored_group import ScoredGroup
from estimator_service.fit.settings import FitSettings
from estimator_service.fit.snapshot import Packing, check_make, pack, unpack
from estimator_service.fit.staging import Batch, Group, Staging
from estimator_service.fit.windows import Windows
from estimator_service.fit.worker_lines import worker_lines
from estimator_service.fit.workers import Judge

#: Notices about workers a round; more of them say the same.
_MAX_NOTICES: Final = 16

#: Share of blocks verified whole from which a round counts as untrimmed; a few end early with their request.
_UNTRIMMED: Final = 0.95

#: Attributes that a snapshot leaves out.
_TRANSIENT: Final = frozenset({"settings", "_compiled", "_staging"})


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
        self._forms = dict.fromkeys(enabled_forms(self.settings), start)
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
        return pack(self._state(), KINDS)

    def to_bytes(self) -> bytes:
        """Its snapshot, compressed."""
        return bytes(self.snapshot())

    @classmethod
    def from_bytes(cls, data: bytes, settings: FitSettings | None = None) -> PairModel:
        """The model of a snapshot. Raises ValueError if it is not one of this version."""
        state = unpack(data, KINDS)
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
        found = ScoredGroup.of(group, self._compiled, self.num_positions)
        if group.batches[0].learned:
            rows, graded, scored = group.rows, found.graded, found.scored
            self._calibration.add(scored)
            self._calibration.add_survival(graded.first, graded.observed, rows.accepted, scored.confidence)
            if found.weight is not None:
                self._unbiased_calibration.add(scored, found.weight)
            if self.settings.method == "round":
                self._original.add(graded.position, graded.x, graded.accepted, scored.confidence)
            self._whole_blocks += int(np.count_nonzero(rows.admitted == self.num_positions))
        return found.stretch()

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
        found = worker_lines(pending, self._coefficients[""], self._compiled, k)
        notices = self._notices + self._judge.judge(pending.workers, found, typical_dispersion(pending.scores, k))
        self._notices = tuple(dict.fromkeys(notices))[:_MAX_NOTICES]
        counts = sums_by(pending.worker, pending.sizes, len(pending.workers))
        weights = self._judge.weights(pending.workers, counts)
        return Learned.of(pending, weights, k) if weights.any() else None

    def _refit(self, current: Coefficients | None, shift: Shift | None) -> Round:
        found = refit(
            self._windows,
            self.settings,
            self._choice,
            knots=self._knots,
            base=self._base,
            points=self._points,
            newest=self._newest,
            sample=self._sample,
        )
        self._knots, self._base, self._points = found.knots, found.base, found.points
        self._coefficients, self._forms = found.coefficients, found.forms
        link = LINE if found.form == LINE else LINK
        return replace(
            self._outcome(link, current, found.errors, self._windows.remarks(found.evidence)),
            segmented=found.form == SEGMENTED,
            shift=shift,
            log_losses=self._choice.means(),
            forms=dict(self._forms),
            unbiased=self._unbiased_calibration.scores(),
        )

    def _original_round(self) -> Round:
        self._original.step()
        candidate = self._original.coefficients(self._windows.evidence)
        self._coefficients, self._forms = {"": candidate}, {LINE: candidate}
        return self._outcome("round", None, self._original.errors(self._windows))

    def _outcome(self, link: str, current: Coefficients | None, errors: Floats, remarks: tuple[str, ...] = ()) -> Round:
        """What every method tells of the open round, its candidates found. current: what they may not do worse than."""
        return Round(
            coefficients=dict(self._coefficients),
            standard_errors=tuple(errors.tolist()),
            calibration=self._calibration.scores(),
            held=reason_to_hold(self._sample, self._coefficients[""], current, self.settings.hold_tolerance),
            link=link,
            segmented=False,
            blocks=self._blocks,
            observations=self._observations,
            drifts=self._drifts,
            drift_scores=self._drift.scores,
            quarantined=self._judge.quarantined,
            notices=self._notices + remarks + self._drift.remarks(),
        )
