"""How noisy the statistics really are: rows of one request correlate, so errors come from the variance between batches.

Each batch contributes the score (gradient of the straight line's log-likelihood) at what its rows were predicted with.
Scores of batches are independent or nearly so, whatever happens within one; their scatter M about their mean replaces
the information I of independent rows in the sandwich H⁻¹ M H⁻¹ (White, Econometrica 50(1), 1982; clustered: Liang and
Zeger, Biometrika 73(1), 1986).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from estimator_service.fit.histogram import Floats
from estimator_service.fit.report import Shift
from estimator_service.fit.scored import Scored


def batch_scores(rows: Scored, x: Floats) -> Floats:
    """What each of C batches says about noise: float64[C, 3·K + 3]. x: float64[N].

    Columns: its size; the score, slope first (1 + K); the information of independent rows: of the slope, its K cross
    terms with the intercepts, and the intercepts' (K).
    """
    residual = rows.accepted - rows.confidence
    weight = rows.confidence * rows.confidence
    np.subtract(rows.confidence, weight, out=weight)
    weight_x = weight * x
    score, cross, own = (rows.by_position(column) for column in (residual, weight_x, weight))
    residual *= x
    slope, square = rows.by_batch(residual), rows.by_batch(weight_x * x)
    return np.concatenate((rows.sizes[:, None], slope[:, None], score, square[:, None], cross, own), axis=1)


def typical_dispersion(batches: Floats, num_positions: int) -> float:
    """Over-dispersion of the median batch, at least 1; batches: float64[M, 3·K + 3] from `batch_scores`.

    A faulty worker's batches disagree with the coefficients, which reads as noise; as long as they are fewer than half,
    a median does not see them.
    """
    k = num_positions
    # What all batches share is an error of the coefficients, not noise.
    shared = _median(batches[:, 1 : 2 + k] / batches[:, :1])
    score = batches[:, 1 : 2 + k] - batches[:, :1] * shared
    information = np.concatenate((batches[:, 2 + k : 3 + k], batches[:, 3 + 2 * k :]), axis=1)
    known = information > 1.0
    ratio = np.where(known, score**2 / np.where(known, information, 1.0), 0.0).sum(axis=1)
    count = known.sum(axis=1)
    if not count.any():
        return 1.0
    # Median of χ² with f degrees of freedom, over f: (1 − 2/(9 f))³ (Wilson and Hilferty, PNAS 17, 1931).
    freedom = np.maximum(count, 1)
    expected = freedom * (1.0 - 2.0 / (9.0 * freedom)) ** 3
    return max(1.0, float(_median((ratio / expected)[count > 0])))


def _median(values: Floats) -> Floats:
    """Along the first axis, not empty. numpy's own takes ten times as long on the few batches of a merge."""
    ordered = np.sort(values, axis=0)
    middle: Floats = 0.5 * (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2])
    return middle


@dataclass
class ScoreSums:
    """Sums over batches of a pair with K positions. P = 1 + K parameters: slope, then intercepts.

    score: [P]; outer: [P, P], Σ u uᵀ; sized: [P], Σ n·u; size, size_squared, batches: Σ n, Σ n², count;
    information: [P, P] of independent rows.
    """

    score: Floats
    outer: Floats
    sized: Floats
    information: Floats
    size: float = 0.0
    size_squared: float = 0.0
    batches: float = 0.0

    @staticmethod
    def empty(num_positions: int) -> ScoreSums:
        """No batches yet."""
        p = 1 + num_positions
        return ScoreSums(np.zeros(p), np.zeros((p, p)), np.zeros(p), np.zeros((p, p)))

    @staticmethod
    def of(batches: Floats, num_positions: int) -> ScoreSums:
        """Of M batches, float64[M, 3·K + 3] from `batch_scores`."""
        k = num_positions
        sizes, scores = batches[:, 0], batches[:, 1 : 2 + k]
        square, cross, diagonal = np.split(batches[:, 2 + k :].sum(axis=0), (1, 1 + k))
        information = np.zeros((1 + k, 1 + k))
        information[0, :1], information[0, 1:], information[1:, 0] = square, cross, cross
        index = np.arange(1, 1 + k)
        information[index, index] = diagonal
        return ScoreSums(
            scores.sum(axis=0),
            scores.T @ scores,
            sizes @ scores,
            information,
            float(sizes.sum()),
            float(sizes @ sizes),
            float(len(batches)),
        )

    def __add__(self, other: ScoreSums) -> ScoreSums:
        """Both: their batches are different ones."""
        return ScoreSums(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    def scatter(self) -> Floats:
        """Variance of the summed score, [P, P], about the mean score an observation. 0 with fewer than two batches."""
        if self.batches < 2:
            return np.zeros_like(self.outer)
        mean = self.score / self.size
        centred = self.outer - np.outer(self.sized, mean) - np.outer(mean, self.sized)
        centred += self.size_squared * np.outer(mean, mean)
        value: Floats = centred * (self.batches / (self.batches - 1.0))
        return value


@dataclass
class Dispersion:
    """Decayed scatter of scores beside the information it would equal if rows were independent. [P, P] each."""

    scatter: Floats
    information: Floats
    batches: float = 0.0

    @staticmethod
    def empty(num_positions: int) -> Dispersion:
        """Nothing known: factor 1."""
        p = 1 + num_positions
        return Dispersion(np.zeros((p, p)), np.zeros((p, p)))

    def merge(self, sums: ScoreSums, decay: float) -> None:
        """Weigh what is there by `decay` (its variance by decay²), then add a round's batches."""
        self.scatter = self.scatter * decay**2 + sums.scatter()
        self.information = self.information * decay**2 + sums.information
        self.batches = self.batches * decay + sums.batches

    def age(self, decay: float) -> None:
        """Forget by time: as if that share of the batches had been seen."""
        self.scatter, self.information = self.scatter * decay, self.information * decay
        self.batches *= decay

    def add(self, other: Dispersion) -> None:
        """Another window's: its batches are different ones."""
        self.scatter = self.scatter + other.scatter
        self.information = self.information + other.information
        self.batches += other.batches

    @property
    def factor(self) -> float:
        """Mean over-dispersion of the parameters that have data, at least 1."""
        if self.batches < 2:
            return 1.0
        information = self.information.diagonal()
        have = information > 0
        if not have.any():
            return 1.0
        ratio = self.scatter.diagonal()[have] / information[have]
        # A mean over P parameters of B batches: pulled to 1 as B is small, when it says little.
        return max(1.0, float((ratio.mean() * self.batches + 4.0) / (self.batches + 4.0)))

    def variance(self) -> Floats:
        """Variance of the summed, decayed score, [P, P]: the scatter, steadied by factor·information as B is small."""
        weight = self.batches / (self.batches + len(self.scatter))
        value: Floats = weight * self.scatter + (1.0 - weight) * self.factor * self.information
        return value


def sandwich_errors(hessian: Floats, variance: Floats) -> Floats:
    """Standard errors [P] of the solution of a score equation: sqrt diag H⁻¹ V H⁻¹. hessian: [P, P], definite."""
    inverse = np.linalg.inv(hessian)
    # The diagonal of H⁻¹ V H⁻¹ alone; both are symmetric.
    squares = np.vecdot(inverse @ variance, inverse)
    errors: Floats = np.sqrt(np.maximum(squares, 0.0))
    return errors


def round_shift(scores: ScoreSums, num_positions: int) -> Shift | None:
    """One Newton step of a round's own rows from the line, with errors; None without rows."""
    if not scores.batches:
        return None
    have = np.diag(scores.information) > 0
    ridge = scores.information + np.diag(np.where(have, 1e-9, 1.0))
    step = np.linalg.solve(ridge, scores.score)
    dispersion = Dispersion.empty(num_positions)
    dispersion.merge(scores, 0.0)
    errors = sandwich_errors(ridge, dispersion.variance())
    step, errors = (np.where(have, values, np.nan) for values in (step, errors))
    return Shift(float(step[0]), float(errors[0]), tuple(step[1:].tolist()), tuple(errors[1:].tolist()))
