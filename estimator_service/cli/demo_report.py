"""What `acceptd demo` shows at its end: the fit, counts beside an exact count of the trace, scores before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from acceptd import codec
from acceptd.types import Coefficients, prior
from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.cli.output import count, facts, number, table
from estimator_service.fit.calibration import CalibrationSums
from estimator_service.fit.predict import Predictor
from estimator_service.fit.scored import Scored
from estimator_service.lab.blocks import Blocks, concatenate
from estimator_service.lab.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.fit.report import Calibration


@dataclass(frozen=True)
class Recording:
    """A trace in memory, with what can be counted in it exactly. description: the file's own."""

    path: Path
    blocks: Blocks
    description: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises TraceError where the file is no trace."""
        trace = Trace(path)
        return cls(path, concatenate(list(trace.chunks())), trace.metadata)

    @property
    def observations(self) -> list[int]:
        """Labels a position."""
        return [int(n) for n in self.blocks.observed.sum(axis=0)]

    @property
    def acceptances(self) -> list[int]:
        """Labels that are 1, a position."""
        return [int(n) for n in (self.blocks.observed & self.blocks.label).sum(axis=0)]

    def scores(self, log_odds: NDArray[np.floating[Any]]) -> Calibration:
        """Of predictions float[B, K] in nats, over all labels."""
        row, position = np.nonzero(self.blocks.observed)
        k, label = self.blocks.num_positions, self.blocks.label[row, position]
        sums = CalibrationSums(k)
        sums.add(Scored.of(position, label, log_odds[row, position].astype(np.float64), k))
        found = sums.scores()
        if found is None:
            raise ValueError(f"{self.path} holds no labels")
        return found

    def predicted_by(self, coefficients: Coefficients) -> NDArray[np.float64]:
        """float64[B, K]: log-odds of every position at `coefficients`."""
        k = self.blocks.num_positions
        segments = np.repeat(self.blocks.segment.astype(np.int64), k)
        positions = np.tile(np.arange(k), len(self.blocks))
        predictor = Predictor.of(coefficients)
        return predictor.log_odds(segments, positions, self.blocks.x.ravel().astype(np.float64)).reshape(-1, k)

    def predicted_live(self, shards: Sequence[Path]) -> NDArray[np.float32]:
        """float32[B, K]: log-odds that the workers predicted with, each block before it was learned from."""
        out = np.empty_like(self.blocks.x)
        assert self.blocks.request is not None  # noqa: S101  (the workers split the trace by it)
        for i, path in enumerate(shards):
            out[self.blocks.request % len(shards) == i] = np.load(path)
        return out


@dataclass(frozen=True)
class Report:
    """All that the demo found out. seconds: replay alone. outage_seconds: from the kill until the service answered."""

    recording: Recording
    state: inspect_pb2.PairState
    history: Sequence[inspect_pb2.HistoryEntry]
    workers: Sequence[dict[str, Any]]
    shards: Sequence[Path]
    seconds: float
    outage_seconds: float

    @property
    def exact(self) -> bool:
        """Whether the service counted each label of the trace once: none lost, none twice."""
        return (
            list(self.state.observations) == self.recording.observations
            and list(self.state.acceptances) == self.recording.acceptances
            and self.state.blocks == len(self.recording.blocks)
        )

    def scores(self) -> dict[str, Calibration]:
        """By coefficients: the starting ones, those in force when each block's turn came, and the last ones."""
        k = self.recording.blocks.num_positions
        last = codec.decode_coefficients(self.state.coefficients, k)
        return {
            "starting": self.recording.scores(self.recording.predicted_by(prior(k))),
            "live": self.recording.scores(self.recording.predicted_live(self.shards)),
            "last": self.recording.scores(self.recording.predicted_by(last)),
        }

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        scores = {
            name: {"log_loss": s.log_loss, "auc": s.auc, "ece": s.ece, "gap": s.gap}
            for name, s in self.scores().items()
        }
        return {
            "trace": str(self.recording.path),
            "pair": jsonable.pair_state(self.state),
            "versions": len(self.history),
            "epochs": len({entry.coefficients.version.epoch for entry in self.history}),
            "exact": {
                "blocks": len(self.recording.blocks),
                "observations_by_position": self.recording.observations,
                "acceptances_by_position": self.recording.acceptances,
            },
            "counts_equal": self.exact,
            "scores": scores,
            "workers": list(self.workers),
            "seconds": self.seconds,
            "outage_seconds": self.outage_seconds,
        }

    def view(self) -> Group:
        """For people."""
        return Group(self._facts(), Text(), self._positions(), self._scores(), self._verdict())

    def _facts(self) -> Any:
        line, errors = self.state.coefficients.line, self.state.standard_errors
        slope = f"{number(line.slopes[0], 4)} ± {number(errors[0] if errors else None, 4)}"
        epochs = [entry.coefficients.version.epoch for entry in self.history]
        by_epoch = ", ".join(f"{epochs.count(e)} in epoch {e}" for e in sorted(set(epochs)))
        description = self.recording.description
        return facts(
            [
                ("pair", f"{description.get('target')} ← {description.get('draft')}, K = {description.get('K')}"),
                ("slope", f"{slope}  (starts at {number(prior(1).line.slopes[0], 1)})"),
                ("refits", f"{count(self.state.refit.done)}, the last in {1e3 * self.state.refit.last_seconds:.2f} ms"),
                ("versions", f"{len(self.history)} ({by_epoch})"),
                ("workers", f"{len(self.workers)}, {count(self.state.blocks)} blocks in {self.seconds:.1f} s"),
                ("restart", f"kill -9 half-way, back after {self.outage_seconds:.1f} s from the same store"),
            ]
        )

    def _positions(self) -> Any:
        out = table(">position", ">intercept", ">±", ">observed", ">in the trace", ">accepted", ">in the trace")
        errors = list(self.state.standard_errors[1:])
        rows = zip(
            self.state.coefficients.line.intercepts,
            self.state.observations,
            self.recording.observations,
            self.state.acceptances,
            self.recording.acceptances,
            strict=True,
        )
        for k, (intercept, *counted) in enumerate(rows):
            error = number(errors[k] if k < len(errors) else None, 4)
            out.add_row(str(k), number(intercept, 4, sign=True), error, *map(count, counted))
        out.add_section()
        columns = (self.state.observations, self.recording.observations, self.state.acceptances)
        totals = [*map(sum, columns), sum(self.recording.acceptances)]
        out.add_row("all", "", "", *map(count, totals))
        return out

    def _scores(self) -> Any:
        out = table("predicted with", ">log-loss", ">AUC", ">ECE", ">predicted − observed")
        names = {
            "starting": "the coefficients every worker starts with",
            "live": "those in force when the block's turn came",
            "last": "the last ones, looking back on all of it",
        }
        for name, scores in self.scores().items():
            out.add_row(
                names[name],
                number(scores.log_loss, 4),
                number(scores.auc, 4),
                number(scores.ece, 4),
                number(scores.gap, 4, sign=True),
            )
        return out

    def _verdict(self) -> Text:
        if self.exact:
            return Text("✓ every label of the trace was counted once: none lost, none twice", style="green")
        return Text("✗ the service's counts differ from the trace's", style="red")
