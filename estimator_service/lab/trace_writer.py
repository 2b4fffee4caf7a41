"""Writing traces: append blocks, get an acceptd-trace/1 file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from estimator_service.lab import columns

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks


class TraceWriter:
    """Writes blocks to `path` as they come; the file appears under its name when it is complete.

    num_positions: K. positions, counts, numbers: names of the columns to write of those in `columns.POSITIONS`,
    `COUNTS` and `NUMBERS`, beside accepted, admitted and workload. metadata: more keys for the description (`format`
    and `K` are set here).
    """

    def __init__(
        self,
        path: Path,
        num_positions: int,
        *,
        positions: tuple[str, ...] = ("logit_qmax",),
        counts: tuple[str, ...] = (),
        numbers: tuple[str, ...] = ("temperature",),
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._k = num_positions
        self._positions = positions
        self._counts = counts
        description = {**(metadata or {}), "format": columns.FORMAT, "K": num_positions}
        fields = [pa.field(name, _COUNT_TYPES[name]) for name in counts]
        fields.append(pa.field("workload", pa.dictionary(pa.int32(), pa.string())))
        fields += [pa.field(name, pa.float32()) for name in numbers]
        fields += [pa.field("admitted", pa.uint8()), pa.field("accepted", pa.uint8())]
        fields += [pa.field(name, pa.list_(pa.float32(), num_positions)) for name in positions]
        self._schema = pa.schema(fields, metadata={columns.METADATA_KEY: json.dumps(description).encode()})
        self._writer = pq.ParquetWriter(self._partial, self._schema, compression="zstd")
        self.blocks = 0

    def write(self, blocks: Blocks) -> None:
        """Appends `blocks`; NaN in a position column becomes null. One row group a call."""
        arrays = [self._column(blocks, field) for field in self._schema]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self.blocks += len(blocks)

    def close(self) -> None:
        """Finishes the file and puts it under its name."""
        self._writer.close()
        os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Removes what was written."""
        self._writer.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _column(self, blocks: Blocks, field: pa.Field) -> pa.Array:
        if field.name in blocks.positions:
            return self._list(blocks.positions[field.name])
        if field.name == "workload":
            return pa.DictionaryArray.from_arrays(blocks.workload, pa.array(list(blocks.workloads), pa.string()))
        return pa.array(getattr(blocks, field.name), field.type)

    def _list(self, values: NDArray[np.float32]) -> pa.Array:
        absent = np.isnan(values).ravel()
        flat = pa.array(values.ravel(), pa.float32(), mask=absent if absent.any() else None)
        return pa.FixedSizeListArray.from_arrays(flat, self._k)


_COUNT_TYPES = {"step": pa.int32(), "request": pa.int32(), "segment": pa.uint8(), "explored": pa.uint8()}
