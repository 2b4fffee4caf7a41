"""Classes of what a snapshot of a pair may hold."""

from __future__ import annotations

from typing import Final

from acceptd.types import Coefficients, SegmentCoefficients, Version
from estimator_service.fit.calibration import CalibrationSums
from estimator_service.fit.dispersion import Dispersion, ScoreSums
from estimator_service.fit.drift import KINDS as DRIFT_KINDS
from estimator_service.fit.forms import Choice, Points
from estimator_service.fit.guard import Sample
from estimator_service.fit.journal import Journal, Stretch
from estimator_service.fit.likelihood import Point
from estimator_service.fit.round import RoundNewton
from estimator_service.fit.trimming import Unbiased
from estimator_service.fit.windows import Windows
from estimator_service.fit.workers import Judge, WorkerRecord
from estimator_service.fit.workloads import WorkloadTables

#: By name, which is what a snapshot says.
KINDS: Final[dict[str, type]] = {
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
