"""What closing a round tells: candidate coefficients, how sure they are, and how well the past ones predicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from acceptd.types import Coefficients
from estimator_service.fit.drift import Drift, DriftKind


@dataclass(frozen=True)
class Calibration:
    """Scores of predictions against labels, each row at the coefficients it was predicted with.

    log_loss: nats an observation. auc: area under the ROC curve, NaN where one class is missing. ece: expected
    calibration error over 15 equal-width bins. gap: mean predicted minus observed. The *_by_position tuples have K
    values, NaN where a position had no labels. survival_ece: the same error of the products of confidences, the
    probability that a block is accepted through a position. reliability: 15 (count, mean predicted, mean observed).
    """

    log_loss: float
    auc: float
    ece: float
    gap: float
    observations: int
    log_loss_by_position: tuple[float, ...]
    auc_by_position: tuple[float, ...]
    ece_by_position: tuple[float, ...]
    gap_by_position: tuple[float, ...]
    survival_ece: float
    reliability: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Shift:
    """How far the round lies from the coefficients in force at its start: one Newton step at them, for drift.

    slope, slope_error: dimensionless. intercepts, intercept_errors: [K] nats, NaN without labels. Errors are
    over-dispersed.
    """

    slope: float
    slope_error: float
    intercepts: tuple[float, ...]
    intercept_errors: tuple[float, ...]


@dataclass(frozen=True)
class Round:
    """Outcome of `PairModel.close_round`.

    coefficients: candidates by workload label, "" (all labels together) always among them; their version is the
        placeholder `Version()`, publishing sets it. Finite, bounded, float32-exact.
    standard_errors: [1 + K] of the unlabelled straight line, slope first, over-dispersed.
    calibration: of the round's rows, None if it had none.
    held: why the candidates must not be published, None if they may.
    link: "line", "link" or "round". segmented: whether segments have their own coefficients.
    shift: how far this round lies from the line in force, for drift; None without rows.
    forms: candidate of every form fitted ("line", "link", "link+segments") for all labels together.
    unbiased: calibration on explored and shadow rows alone, weighted by 1/propensity; None without such rows.
    log_losses: decayed prequential log-loss of each form tried ("line", "link", "link+segments", ...), nats.
    drifts: changes named in this round. drift_scores: evidence for each kind as a share of what names it.
    quarantined: worker → reason, of all that are set aside now. notices: one line each, for people.
    blocks, observations: graded in this round, those of quarantined workers left out.
    """

    coefficients: dict[str, Coefficients]
    standard_errors: tuple[float, ...]
    calibration: Calibration | None
    held: str | None
    link: str
    segmented: bool
    blocks: int
    observations: int
    shift: Shift | None = None
    log_losses: dict[str, float] = field(default_factory=dict)
    forms: dict[str, Coefficients] = field(default_factory=dict)
    unbiased: Calibration | None = None
    drifts: tuple[Drift, ...] = ()
    drift_scores: dict[DriftKind, float] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
