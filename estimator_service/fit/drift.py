"""Names what changed at a pair: the pair itself, or only its workload.

*Pair drift*: the slope, or the tilt of a link that bends, moved by more than its noise and more than a workload moves
it. Another draft, another quantisation, another sampling method. *Workload drift*: it did not, but intercepts, or the
shares of confident and unconfident first drafts, did. Other prompts; the coefficients follow by themselves.

One round after another is scored at a frozen baseline, since coefficients that follow the data would hide the change,
and enters CUSUMs (`streams`). Intercepts answer to a moved slope too and often first, so workload drift is named only
once the slope had its say. After a name, a new baseline is learned from the rounds that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acceptd.bins import NUM_BINS
from estimator_service.fit.baseline import Baseline, Score
from estimator_service.fit.cusum import Cusum, estimate
from estimator_service.fit.round_noise import RoundNoise
from estimator_service.fit.streams import (
    COMMON,
    FIRST_POSITION,
    SLOPE,
    TILT,
    describe,
    evidence,
    known_by,
    num_streams,
    prior_dispersion,
    sizes,
)

Floats = NDArray[np.float64]

#: Standard error of the slope at which a baseline is fit to compare with, and at which it is final. Lower ones need
#: more rounds, during which nothing can be named, or during which a slow change is learned instead of named.
FIRST_ERROR: Final = 0.025
FINAL_ERROR: Final = 0.007

#: Where the slope cannot be known that well (saturated features), observations that serve in place of FIRST_ERROR and
#: FINAL_ERROR.
FIRST_OBSERVATIONS: Final = 50_000
FINAL_OBSERVATIONS: Final = 250_000

#: A young baseline is replaced once it would rest on this many times the observations. Lower values replace it more
#: often, each time with a chance that a change has just begun and is learned in.
GROWTH: Final = 2.0

#: A baseline that was not firm enough is fitted again once it has grown this much. Lower values cost more fits.
RETRY: Final = 1.25

#: Evidence of any change, as a share of what names it, above which a young baseline is not replaced: a change that has
#: just begun must not be learned in. Raising it replaces sooner, lowering it waits for a calmer round.
MAX_SUSPICION: Final = 0.25

#: Evidence that crosses the threshold but stays too small or too uncertain to name is given this many times the rounds
#: that the baseline rests on; then the baseline is learned anew. Raising it keeps a poor baseline longer.
PATIENCE: Final = 3.0

#: Rounds of a baseline at least: the first ones after a start hold the first tokens of many requests at once.
MIN_BASELINE_ROUNDS: Final = 5

#: Standard error of the slope over the rounds since something else moved: only then has the slope had its say, and
#: "workload" may be named. Lower ones confuse the kinds less and take longer. Twice the rounds if the slope is in
#: doubt.
VERDICT_ERROR: Final = 0.02

#: Where the slope cannot be known that well (saturated features, traffic of a new temperature), blocks since then that
#: serve in its place.
VERDICT_BLOCKS: Final = 6_000

#: Bins of x that are kept as one while a baseline is learned, to save memory. Means of x are kept, so what it loses is
#: of second order in the width; knots stay on edges.
_MERGED: Final = 2

#: Rounds for which a drift is news.
REMARK_ROUNDS: Final = 100


class DriftKind(StrEnum):
    """What changed."""

    PAIR = "pair"
    WORKLOAD = "workload"


@dataclass(frozen=True)
class Drift:
    """One named change.

    round: number of the round it was named in, from 1. onset: of the round it is thought to have begun in. slope,
    slope_error: change of the slope since. intercept, intercept_error: common change of the intercepts, nats, at the
    old slope. Errors are standard errors, over-dispersed, the baseline's own included. cause: the strongest sign.
    """

    kind: DriftKind
    round: int
    onset: int
    slope: float
    slope_error: float
    intercept: float
    intercept_error: float
    cause: str

    def __str__(self) -> str:
        return f"{self.kind} drift in round {self.round}, since about round {self.onset}: {self.cause}"


class DriftDetector:
    """Detector of one pair with S segments and K positions.

    State: O(K), most of it (6·S·K·NUM_BINS bytes) only while a baseline is young. No clock, no randomness.
    """

    def __init__(self, segments: int, positions: int) -> None:
        self._segments, self._positions = segments, positions
        self._streams = num_streams(positions)
        self._sizes = sizes(positions)
        self._dispersion = RoundNoise.start(prior_dispersion(positions))
        self._round = 0
        self._last: Drift | None = None
        self._start()

    def _start(self) -> None:
        """Forget the baseline and learn another; what is known of the noise stays."""
        self._baseline: Baseline | None = None
        self._cusum = Cusum.start(self._streams, FIRST_POSITION)
        self._dispersion.restart()
        self._learning: NDArray[np.float32] | None = np.zeros(
            (3, self._segments, self._positions, NUM_BINS // _MERGED), np.float32
        )
        self._learned_rounds = 0
        self._frozen_at = self._tried_at = 0.0
        self._frozen_rounds = 0

    @property
    def baseline(self) -> Baseline | None:
        """What rounds are compared with; None while there is too little to compare with."""
        return self._baseline

    @property
    def scores(self) -> dict[DriftKind, float]:
        """Evidence for each kind as a share of what names it: 0 none, 1 enough (if the change is large enough too)."""
        highest = self._cusum.statistic.max(axis=0) / self._cusum.threshold
        return {DriftKind.PAIR: float(highest[:COMMON].max()), DriftKind.WORKLOAD: float(highest[COMMON:].max())}

    def remarks(self) -> tuple[str, ...]:
        """The latest drift, one line, as long as it is news."""
        ago = self._round - self._last.round if self._last else REMARK_ROUNDS
        return (f"{self._last} ({ago} rounds ago)",) if ago < REMARK_ROUNDS else ()

    def update(self, sums: Floats, *, untrimmed: bool = True) -> Drift | None:
        """Add one round and return what it names, if anything.

        sums: (n, accepted, x) over the protocol's bins, float64[3, S, K, NUM_BINS], undecayed. untrimmed: whether every
        drafted block is in the round. Where the budget trims, the load decides which first drafts are seen, so their
        shares are then left alone.
        """
        self._round += 1
        named = None
        if self._baseline is not None:
            named = self._watch(self._baseline, self._baseline.score(sums), untrimmed)
            self._last = named or self._last
            if named is not None or self._baseline_was_off():
                self._start()
                return named
        # Rounds that speak for a change are not learned from; if it comes to nothing they are merely missed.
        if self._learning is not None and self._cusum.statistic.max() <= self._cusum.threshold / 2.0:
            self._learn(self._learning, sums)
        return named

    def _learn(self, learning: NDArray[np.float32], sums: Floats) -> None:
        """Add to the baseline to be; freeze it once it is firm enough, and each time it has grown by GROWTH."""
        learning += sums.reshape(*sums.shape[:3], -1, _MERGED).sum(axis=4)
        self._learned_rounds += 1
        observations = float(learning[0].sum())
        suspicion = self._cusum.statistic.max() / self._cusum.threshold
        if (
            self._learned_rounds < MIN_BASELINE_ROUNDS
            or observations < max(GROWTH * self._frozen_at, RETRY * self._tried_at)
            or suspicion > MAX_SUSPICION
        ):
            return
        self._tried_at = observations
        whole = np.zeros((*learning.shape[:3], NUM_BINS))
        whole[..., ::_MERGED] = learning
        candidate = Baseline.learn(whole)
        known = candidate.slope_information / self._dispersion.value[SLOPE]
        if known < FIRST_ERROR**-2.0 and observations < FIRST_OBSERVATIONS:
            return
        self._baseline, self._frozen_at, self._frozen_rounds = candidate, observations, self._learned_rounds
        self._dispersion.restart()
        self._cusum = Cusum.start(self._streams, FIRST_POSITION)
        if known >= FINAL_ERROR**-2.0 or observations >= FINAL_OBSERVATIONS:
            self._learning = None

    def _baseline_was_off(self) -> bool:
        """Whether there is evidence of a change that stays too small to name: a young baseline's own error, mostly."""
        crossed = self._cusum.statistic >= self._cusum.threshold
        return bool((crossed & (self._cusum.rounds > PATIENCE * self._frozen_rounds)).any())

    def _watch(self, baseline: Baseline, score: Score, untrimmed: bool) -> Drift | None:
        gradient, information, ratio = evidence(baseline, score, untrimmed)
        dispersion, known = self._dispersion.value, known_by(baseline)
        cusum = self._cusum
        cusum.update(ratio / dispersion, gradient, information, score.blocks)
        self._dispersion.update(gradient, information, cusum.statistic.max(axis=0) <= cusum.threshold / 2.0)
        alarms = cusum.alarms(dispersion, known, self._sizes)
        if alarms[:, :COMMON].any():
            alarms[:, COMMON:] = False
            return self._name(DriftKind.PAIR, alarms, dispersion, known)
        in_doubt = cusum.statistic[:, :COMMON].max() > cusum.threshold / 2.0
        needed = dispersion[SLOPE] / VERDICT_ERROR**2 * (2.0 if in_doubt else 1.0)
        alarms &= (cusum.witness_information[SLOPE] >= needed) | (cusum.blocks >= VERDICT_BLOCKS)
        return self._name(DriftKind.WORKLOAD, alarms, dispersion, known) if alarms.any() else None

    def _name(self, kind: DriftKind, alarms: NDArray[np.bool_], dispersion: Floats, known: Floats) -> Drift:
        """The change that the strongest of `alarms`, bool[2, M], saw."""
        assert self._baseline is not None  # noqa: S101
        cusum = self._cusum
        side, stream = np.unravel_index(np.argmax(np.where(alarms, cusum.statistic, -1.0)), alarms.shape)
        shift, error = (values[side, stream] for values in cusum.estimate(dispersion, known))
        change, errors = estimate(
            cusum.witness_gradient[:, side, stream],
            cusum.witness_information[:, side, stream],
            dispersion[:FIRST_POSITION],
            known[:FIRST_POSITION],
        )
        moved = TILT if stream == TILT else SLOPE
        return Drift(
            kind,
            self._round,
            self._round - int(cusum.rounds[side, stream]) + 1,
            float(change[moved]),
            float(errors[moved]),
            float(change[COMMON]),
            float(errors[COMMON]),
            describe(int(stream), self._baseline, float(shift), float(error)),
        )


#: What a detector holds, for snapshots of it (`snapshot.pack`).
KINDS: Final = (DriftDetector, Drift, Baseline, Cusum, RoundNoise)
