"""From a pair's live batches to a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from acceptd.codec import decode_batch
from estimator_service.lab.blocks import Blocks, concatenate
from estimator_service.lab.trace_writer import TraceWriter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from acceptd.codec import Observations
    from acceptd.v1 import estimator_pb2

#: Blocks held before a row group is written. Raising it costs memory; smaller row groups cost size.
ROW_GROUP: Final = 16_384

#: Workload labels a recording tells apart; rows of further ones get the label "".
MAX_WORKLOADS: Final = 256


class Recorder:
    """Writes batches of one pair to `path`; use as a context manager, the file is complete when it ends.

    num_positions: K. metadata: for the trace's description. The first batch decides whether entropy and margin are
    recorded; a later one without them is then left out and counted. blocks: rows taken. skipped: rows left out.
    """

    def __init__(self, path: Path, num_positions: int, metadata: dict[str, Any]) -> None:
        self.blocks = 0
        self.skipped = 0
        self._path, self._k, self._metadata = path, num_positions, metadata
        self._workloads: list[str] = [""]
        self._waiting: list[Blocks] = []
        self._held = 0
        self._arrivals = 0
        self._columns: tuple[str, ...] = ()
        self._writer: TraceWriter | None = None

    def add(self, batch: estimator_pb2.ObservationBatch, workload: str) -> None:
        """Takes one batch. Raises WireError if it breaks the protocol."""
        rows = decode_batch(batch, self._k)
        columns = _columns(rows)
        if not self._columns:
            self._columns = columns
        if not set(self._columns) <= set(columns):
            self.skipped += len(rows)
            return
        blocks = self._blocks(rows, workload)
        self.blocks += len(blocks)
        self._arrivals += 1
        self._waiting.append(blocks)
        self._held += len(blocks)
        if self._held >= ROW_GROUP:
            self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finishes the file, after an error too: what was recorded is kept. Without a block there is no file."""
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def _write(self) -> None:
        if self._writer is None:
            self._writer = TraceWriter(
                self._path,
                self._k,
                positions=self._columns,
                counts=("step", "segment", "explored"),
                numbers=("propensity",),
                metadata=self._metadata,
            )
        self._writer.write(concatenate(self._waiting))
        self._waiting, self._held = [], 0

    def _blocks(self, rows: Observations, workload: str) -> Blocks:
        if workload not in self._workloads and len(self._workloads) < MAX_WORKLOADS:
            self._workloads.append(workload)
        code = self._workloads.index(workload) if workload in self._workloads else 0
        count = len(rows)
        values = {"logit_qmax": rows.features, "entropy": rows.entropies, "margin": rows.margins}
        return Blocks(
            rows.accepted,
            rows.admitted,
            {name: self._scattered(values[name], rows) for name in self._columns},
            np.full(count, code, np.int32),
            np.full(count, np.nan, np.float32),
            rows.segments,
            self._workloads,
            np.full(count, self._arrivals, np.int64),
            None,
            rows.explored,
            rows.propensities,
        )

    def _scattered(self, values: NDArray[np.float32] | None, rows: Observations) -> NDArray[np.float32]:
        """Observed values [N] → [B, K], NaN elsewhere."""
        table = np.full((len(rows), self._k), np.nan, np.float32)
        table[np.arange(self._k) < rows.observed[:, None]] = values
        return table


def _columns(rows: Observations) -> tuple[str, ...]:
    optional = {"entropy": rows.entropies, "margin": rows.margins}
    return ("logit_qmax", *(name for name, values in optional.items() if values is not None))
