"""State of a model pair: what its traffic has shown, and the coefficients that follow.

`PairModel` is the one object that the service's pair and the lab's replay both drive:

    model = PairModel(num_positions=K, settings=FitSettings())
    model.observe(rows, workload="", worker="w0", used=coefficients_in_force)   # any number of times
    outcome = model.close_round(elapsed_seconds=12.0)
    if outcome.held is None and should_publish(in_force, outcome.coefficients[""]):
        in_force = replace(outcome.coefficients[""], version=next_version)

It holds no clock, no randomness and no exact counters (those are the service's), and is not thread-safe.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from acceptd.bins import NUM_BINS
from acceptd.limits import PRIOR_INTERCEPT, PRIOR_SLOPE
from acceptd.types import Coefficients, Version, prior
from estimator_service.fit.calibration import CalibrationSums
from estimator_service.fit.histogram import NUM_SLOTS, grade, histogram
from estimator_service.fit.newton import Cells, Floats, Point, Prior, fit, normal_equations
from estimator_service.fit.predict import Predictor, segment_coefficients
from estimator_service.fit.report import Round
from estimator_service.fit.settings import FitSettings

if TYPE_CHECKING:
    from acceptd.codec import Observations


#: Layout of a snapshot.
_FORMAT: Final = 1


class PairModel:
    """Decayed statistics of one pair, and its open round.

    num_positions: K. settings: see `FitSettings`.
    """

    def __init__(self, num_positions: int, settings: FitSettings | None = None) -> None:
        self.num_positions = num_positions
        self.settings = settings or FitSettings()
        self._window = np.zeros((3, NUM_SLOTS, num_positions, NUM_BINS))
        self._open = np.zeros_like(self._window)
        self._calibration = CalibrationSums(num_positions)
        self._blocks = 0
        self._observations = 0
        self._coefficients = {"": prior(num_positions)}

    @property
    def pending_blocks(self) -> int:
        """Blocks in the open round."""
        return self._blocks

    @property
    def pending_observations(self) -> int:
        """Graded draft tokens in the open round."""
        return self._observations

    @property
    def coefficients(self) -> dict[str, Coefficients]:
        """Candidates of the last closed round by workload label, the prior before it; version `Version()`."""
        return dict(self._coefficients)

    def observe(self, rows: Observations, *, used: Coefficients, workload: str = "", worker: str = "") -> None:
        """Take a decoded batch into the open round, and score the predictions that `used` made of its rows."""
        graded = grade(rows)
        log_odds = Predictor.of(used).log_odds(graded.segment, graded.position, graded.x)
        confidence = self._calibration.add(graded.position, log_odds, graded.accepted)
        self._calibration.add_survival(graded.row, graded.position, confidence, rows.accepted)
        slots = self.num_positions * NUM_BINS
        cell = graded.segment * slots + graded.cell
        self._open += histogram(cell, graded.x, graded.accepted, NUM_SLOTS * slots).reshape(self._open.shape)
        self._blocks += len(rows)
        self._observations += len(graded.x)

    def close_round(self, elapsed_seconds: float, *, in_force: Mapping[str, Coefficients] | None = None) -> Round:
        """Judge the workers, merge the open round into the window, refit, and start a new round.

        elapsed_seconds: since the previous close (or the start), from a monotonic clock. in_force: what is published
        now, by workload label; without it, what the previous call returned.
        """
        settings = self.settings
        decay = 0.5 ** (
            self._observations / settings.half_life_observations + elapsed_seconds / settings.half_life_seconds
        )
        self._window = self._window * decay + self._open
        calibration = self._calibration.scores()
        n, accepted, sum_x = self._window.sum(axis=1, keepdims=True)
        cells = Cells.of(n, accepted, sum_x)
        k = self.num_positions
        line = Prior(
            np.full((1, 1), PRIOR_SLOPE),
            np.full((1, 1), settings.slope_deviation**-2),
            np.full((1, k), PRIOR_INTERCEPT),
            np.full((1, k), settings.intercept_deviation**-2),
        )
        point = fit(cells, line, Point(line.slopes, line.intercepts))
        coefficients = Coefficients(
            Version(),
            segment_coefficients(point.slopes[0], point.intercepts[0]),
            evidence=tuple(n.sum(axis=(0, 2)).tolist()),
        )
        self._coefficients = {"": coefficients}
        blocks, observations = self._blocks, self._observations
        self._open = np.zeros_like(self._window)
        self._calibration = CalibrationSums(k)
        self._blocks = self._observations = 0
        return Round(
            coefficients=dict(self._coefficients),
            standard_errors=tuple(_standard_errors(cells, line, point).tolist()),
            calibration=calibration,
            held=None,
            link="line",
            segmented=False,
            blocks=blocks,
            observations=observations,
        )

    def to_bytes(self) -> bytes:
        """All state as a versioned snapshot, without a checksum (the store adds one)."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, format=np.int64(_FORMAT), window=self._window, open=self._open)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, settings: FitSettings | None = None) -> PairModel:
        """The model of a snapshot. Raises ValueError if it is not one of this version."""
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            if int(stored["format"]) != _FORMAT:
                raise ValueError(f"snapshot has format {int(stored['format'])}; accepted: {_FORMAT}")
            model = cls(stored["window"].shape[2], settings)
            model._window, model._open = stored["window"], stored["open"]
        return model


def _standard_errors(cells: Cells, line: Prior, point: Point) -> Floats:
    normal = normal_equations(cells, point)
    c = normal.c[0] + line.intercept_precision[0]
    ratio = normal.b[0, :, 0] / c
    slope = 1.0 / (normal.a[0, 0, 0] + line.slope_precision[0, 0] - (ratio * normal.b[0, :, 0]).sum())
    errors: Floats = np.sqrt(np.concatenate(([slope], 1.0 / c + ratio**2 * slope)))
    return errors
