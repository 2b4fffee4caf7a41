"""Prequential replay: every estimator predicts a round before any of them learns from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from estimator_service.lab.cells import Cells
from estimator_service.lab.estimators.base import Ramping
from estimator_service.lab.scores import Scores, log_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from acceptd.types import Coefficients
    from estimator_service.lab.blocks import Blocks
    from estimator_service.lab.estimators.base import Estimator
    from estimator_service.lab.trace import Trace

#: Blocks a round at least, unless told otherwise: ten decode steps of 64 requests.
DEFAULT_ROUND: Final = 640

#: Rounds a long trace is cut into, unless told otherwise: refits are what takes the time, and a busy service closes
#: larger rounds too.
_MOST_ROUNDS: Final = 1000

#: What the share of the gap closed is measured between.
BASELINE: Final = "round"
LIMIT: Final = "oracle"


@dataclass
class Course:
    """One estimator's way through the trace, a value a round: observations, log-loss summed (nats), coefficients."""

    observations: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    coefficients: list[Coefficients | None] = field(default_factory=list)


@dataclass
class Replay:
    """The outcome: by estimator the scores and the course; the cells they refer to; the round's size in blocks.

    workloads: of the first block of each round.
    """

    trace: str
    round_size: int
    cells: Cells
    scores: dict[str, Scores]
    courses: dict[str, Course]
    workloads: list[str]

    def gap_closed(self, name: str) -> float | None:
        """Share of the log-loss gap between `round` and the oracle that `name` closes; None without either."""
        if BASELINE not in self.scores or LIMIT not in self.scores:
            return None
        worst, best = (self.scores[n].overall().log_loss for n in (BASELINE, LIMIT))
        own = self.scores[name].overall().log_loss
        return (worst - own) / (worst - best) if worst > best else None

    def as_json(self) -> dict[str, Any]:
        """What `acceptd replay --json` prints; docs/lab.md describes the fields."""
        return {
            "trace": self.trace,
            "round": self.round_size,
            "estimators": {name: self._estimator(name) for name in self.scores},
        }

    def _estimator(self, name: str) -> dict[str, Any]:
        scores = self.scores[name]
        by_workload: dict[str, Any] = {}
        for number, cell in enumerate(self.cells.found):
            entry = by_workload.setdefault(cell.workload, {"by_temperature": {}})
            entry["by_temperature"][cell.temperature] = scores.cells([number]).as_json()
        for workload in by_workload:
            by_workload[workload] |= scores.cells(self.cells.of(workload)).as_json()
        return {
            **scores.overall().as_json(),
            "gap_closed": self.gap_closed(name),
            "without_first": scores.without_first().as_json(),
            "by_position": [summary.as_json() for summary in scores.positions()],
            "by_workload": by_workload,
        }


def default_round(trace: Trace) -> int:
    """Blocks a round for this trace: `DEFAULT_ROUND`, larger for one of more than 640,000 blocks."""
    return max(DEFAULT_ROUND, -(-trace.num_blocks // _MOST_ROUNDS))


def replay(
    trace: Trace,
    estimators: Mapping[str, Estimator],
    *,
    round_size: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Replay:
    """Runs `estimators` over `trace`, `round_size` blocks a round. `on_progress` gets the blocks just done.

    Raises TraceError at the first bad value of the trace.
    """
    cells = Cells()
    scores = {name: Scores(trace.num_positions) for name in estimators}
    courses = {name: Course() for name in estimators}
    workloads = []
    for blocks in trace.rounds(round_size, ("oracle", "confidence")):
        row, position = np.nonzero(blocks.observed)
        label = blocks.label[row, position]
        cell = cells.number(blocks)[row]
        workloads.append(blocks.workloads[int(blocks.workload[0])])
        for name, estimator in estimators.items():
            in_force = estimator.coefficients()
            predicted = _predict_and_learn(estimator, blocks, round_size)
            scores[name].add(predicted, label, position.astype(np.uint8), cell)
            course = courses[name]
            course.observations.append(len(label))
            course.loss.append(float(log_loss(predicted, label).sum()))
            course.coefficients.append(in_force)
        on_progress(len(blocks))
    return Replay(str(trace.path), round_size, cells, scores, courses, workloads)


def _predict_and_learn(estimator: Estimator, blocks: Blocks, round_size: int) -> NDArray[np.float64]:
    """P(accept) of a round's observed positions, row by row. Each part is learned from once it is predicted."""
    parts = []
    start = 0
    while start < len(blocks):
        size = estimator.next_round(round_size) if isinstance(estimator, Ramping) else len(blocks)
        part = blocks[start : start + size]
        parts.append(estimator.predict(part)[part.observed])
        estimator.learn(part)
        start += size
    return np.concatenate(parts)
