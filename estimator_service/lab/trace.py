"""Reading traces: Parquet, a bounded number of rows at a time, everything checked before it is used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acceptd.codec import UNKNOWN_SEGMENT
from acceptd.errors import AcceptdError
from acceptd.limits import MAX_POSITIONS
from acceptd.segments import segment_of
from estimator_service.lab import columns
from estimator_service.lab.blocks import Blocks, concatenate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from estimator_service.lab.columns import Column

#: Rows decoded at a time. Memory of a pass over a trace grows with it: 65,536 x K = 8 x 6 float32 columns are 13 MB.
CHUNK_ROWS = 65_536

#: How far a value may lie outside its range and is clamped: sums in 16-bit or float32 miss 0 or 1 by a little.
ROUNDING = 1e-3

#: Workloads a trace may tell apart. Roles keep 400 kB a workload at K = 8.
MAX_WORKLOADS = 256

#: What pyarrow raises on files that are damaged or no Parquet.
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)


class TraceError(AcceptdError):
    """A trace that cannot be read. The message names file, column, row and what is accepted."""

    code = "INVALID_ARGUMENT"


class Trace:
    """An acceptd-trace/1 file. Opening reads the description alone; `chunks` and `rounds` stream the rows.

    num_positions: K. num_blocks: rows. names: columns of the format that the file has. metadata: the JSON description.
    Raises TraceError where the file is not such a trace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise TraceError(f"{path}: no such file; accepted: a Parquet file of {columns.FORMAT}")
        try:
            self._file = pq.ParquetFile(path)
            schema = self._file.schema_arrow
            names = frozenset(schema.names)
        except _UNREADABLE as error:
            raise TraceError(f"{path}: {_first_line(error)}; accepted: a Parquet file of {columns.FORMAT}") from error
        self.metadata = self._metadata(schema.metadata or {})
        self.num_positions = self._num_positions()
        self.num_blocks: int = self._file.metadata.num_rows
        if not self.num_blocks:
            raise TraceError(f"{path}: no block; accepted: at least one")
        known = [*columns.COUNTS, *columns.NUMBERS, *columns.POSITIONS, columns.WORKLOAD]
        for column in known:
            if column.required and column.name not in names:
                raise TraceError(f"{path}: column {column.name} is missing; accepted: {columns.FORMAT}")
        self.names = frozenset(column.name for column in known if column.name in names)
        self.workloads: list[str] = []
        self._check_types(schema)

    @property
    def pair(self) -> str:
        """The pair's name, "" where the file does not say."""
        return str(self.metadata.get("pair", ""))

    def chunks(self, positions: Iterable[str] = (), rows: int = CHUNK_ROWS) -> Iterator[Blocks]:
        """The blocks in order, at most `rows` at a time, with `logit_qmax` and the columns named in `positions`.

        Names that the file does not have are left out. Raises TraceError at the first bad value.
        """
        wanted = {"logit_qmax", *positions}
        taken = [c for c in columns.POSITIONS if c.name in self.names and c.name in wanted]
        names = [c.name for c in (*columns.COUNTS, *columns.NUMBERS, columns.WORKLOAD, *taken)]
        first_row = 0
        try:
            batches = self._file.iter_batches(rows, columns=[name for name in names if name in self.names])
            for batch in batches:
                if len(batch):
                    yield self._blocks(batch, taken, first_row)
                    first_row += len(batch)
        except _UNREADABLE as error:
            message = f"{self.path}: row {first_row}: {_first_line(error)}; accepted: an intact Parquet file"
            raise TraceError(message) from error

    def rounds(self, size: int, positions: Iterable[str] = ()) -> Iterator[Blocks]:
        """The blocks in order, `size` at a time; the last round may be shorter. Raises TraceError as `chunks`."""
        waiting: list[Blocks] = []
        held = 0
        for chunk in self.chunks(positions):
            waiting.append(chunk)
            held += len(chunk)
            if held < size:
                continue
            whole = concatenate(waiting)
            full = held - held % size
            for start in range(0, full, size):
                yield whole[start : start + size]
            waiting, held = ([whole[full:held]], held - full) if held > full else ([], 0)
        if waiting:
            yield concatenate(waiting)

    def _metadata(self, raw: dict[bytes, bytes]) -> dict[str, Any]:
        accepted = f'metadata "acceptd" with JSON that has "format": "{columns.FORMAT}" and "K"'
        try:
            value = json.loads(raw[columns.METADATA_KEY])
        except (KeyError, ValueError) as error:
            raise TraceError(f"{self.path}: no readable description; accepted: {accepted}") from error
        if not isinstance(value, dict) or value.get("format") != columns.FORMAT:
            found = value.get("format") if isinstance(value, dict) else value
            raise TraceError(f"{self.path}: format is {found!r}; accepted: {accepted}")
        return value

    def _num_positions(self) -> int:
        value = self.metadata.get("K")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_POSITIONS:
            raise TraceError(f"{self.path}: K in the metadata is {value!r}; accepted: 1 to {MAX_POSITIONS}")
        return value

    def _check_types(self, schema: pa.Schema) -> None:
        expected = [
            *((c, pa.types.is_integer, "whole numbers") for c in columns.COUNTS),
            *((c, _is_floats, "float32 lists of K values") for c in columns.POSITIONS),
            *((c, pa.types.is_floating, "float32") for c in columns.NUMBERS),
            (columns.WORKLOAD, _is_text, "strings"),
        ]
        for column, holds, accepted in expected:
            if column.name in self.names:
                kind = schema.field(column.name).type
                if not holds(kind):
                    raise TraceError(f"{self.path}: column {column.name} is {kind}; accepted: {accepted}")
                if pa.types.is_fixed_size_list(kind) and kind.list_size != self.num_positions:
                    raise TraceError(
                        f"{self.path}: column {column.name} has {kind.list_size} values a row; "
                        f"accepted: K = {self.num_positions}, as the metadata says"
                    )

    def _blocks(self, batch: pa.RecordBatch, taken: list[Column], first_row: int) -> Blocks:
        count = len(batch)
        counts = {c.name: self._counts(batch, c, first_row) for c in columns.COUNTS if c.name in self.names}
        accepted, admitted = counts["accepted"], counts["admitted"]
        k = self.num_positions
        self._reject(admitted > k, "admitted", admitted, first_row, f"1 to K = {k}")
        self._reject(accepted > admitted, "accepted", accepted, first_row, "at most the row's admitted")
        observed = np.arange(k) < np.minimum(accepted + 1, admitted)[:, None]
        numbers = {c.name: self._numbers(batch, c, first_row) for c in columns.NUMBERS if c.name in self.names}
        temperature = numbers.get("temperature", np.full(count, np.nan, np.float32))
        explored = counts.get("explored")
        if explored is not None:
            self._reject(explored > admitted, "explored", explored, first_row, "at most the row's admitted")
        segment = counts["segment"].astype(np.uint8) if "segment" in counts else _segments(temperature)
        return Blocks(
            accepted.astype(np.uint8),
            admitted.astype(np.uint8),
            {c.name: self._positions(batch, c, observed, first_row) for c in taken},
            self._workload(batch, first_row) if "workload" in self.names else np.zeros(count, np.int32),
            temperature,
            segment,
            self.workloads or [""],
            counts.get("step"),
            counts.get("request"),
            None if explored is None else explored.astype(np.uint8),
            numbers.get("propensity"),
        )

    def _counts(self, batch: pa.RecordBatch, column: Column, first_row: int) -> NDArray[np.int64]:
        array = batch.column(column.name)
        self._reject_null(array, column.name, first_row)
        values: NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        bad = (values < column.low) | (values > column.high)
        self._reject(bad, column.name, values, first_row, column.accepted)
        return values

    def _numbers(self, batch: pa.RecordBatch, column: Column, first_row: int) -> NDArray[np.float32]:
        array = batch.column(column.name)
        self._reject_null(array, column.name, first_row)
        values: NDArray[np.float32] = array.cast(pa.float32()).to_numpy(zero_copy_only=False)
        bad = ~(np.isfinite(values) & (values >= column.low) & (values <= column.high))
        self._reject(bad, column.name, values, first_row, column.accepted)
        return values

    def _workload(self, batch: pa.RecordBatch, first_row: int) -> NDArray[np.int32]:
        array = batch.column("workload")
        self._reject_null(array, "workload", first_row)
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        indices = array.indices.to_numpy(zero_copy_only=False)
        codes = np.zeros(len(array.dictionary), np.int32)
        # A dictionary may hold names that no row uses; those that are used count in order of appearance.
        used, first = np.unique(indices, return_index=True)
        for index in used[np.argsort(first)]:
            name = array.dictionary[int(index)].as_py()
            if name not in self.workloads:
                if len(self.workloads) == MAX_WORKLOADS:
                    raise TraceError(
                        f"{self.path}: column workload, row {first_row + int(first[used == index][0])} is {name!r}, "
                        f"one too many; accepted: {MAX_WORKLOADS} different ones"
                    )
                self.workloads.append(name)
            codes[index] = self.workloads.index(name)
        return np.asarray(codes[indices])

    def _positions(
        self, batch: pa.RecordBatch, column: Column, observed: NDArray[np.bool_], first_row: int
    ) -> NDArray[np.float32]:
        array = batch.column(column.name)
        self._reject_null(array, column.name, first_row)
        k = self.num_positions
        if not pa.types.is_fixed_size_list(array.type):
            lengths = array.value_lengths().to_numpy(zero_copy_only=False)
            self._reject(lengths != k, column.name, lengths, first_row, f"K = {k} values a row", verb="has length")
        flat = array.flatten()
        values: NDArray[np.float32] = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(-1, k)
        absent = np.asarray(flat.is_null()).reshape(-1, k) if flat.null_count else np.zeros((1, k), np.bool_)
        in_range = np.isfinite(values) & (values >= column.low - ROUNDING) & (values <= column.high + ROUNDING)
        bad = np.where(absent, observed, ~in_range)
        if bad.any():
            row, position = np.unravel_index(int(np.argmax(bad)), bad.shape)
            null = absent.shape == bad.shape and absent[row, position]
            raise TraceError(
                f"{self.path}: column {column.name}, row {first_row + row}, position {position} is "
                f"{'null where a label stands' if null else values[row, position]}; accepted: {column.accepted}"
            )
        return np.asarray(np.clip(values, column.low, column.high))

    def _reject_null(self, array: pa.Array, name: str, first_row: int) -> None:
        if array.null_count:
            row = int(np.argmax(np.asarray(array.is_null())))
            raise TraceError(
                f"{self.path}: column {name}, row {first_row + row} is null; accepted: a value in every row"
            )

    def _reject(
        self,
        bad: NDArray[np.bool_],
        name: str,
        values: NDArray[Any],
        first_row: int,
        accepted: str,
        *,
        verb: str = "is",
    ) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(
                f"{self.path}: column {name}, row {first_row + row} {verb} {values[row]}; accepted: {accepted}"
            )


def _segments(temperature: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The segment of each row by temperature alone: a trace without the column says nothing about cut-offs."""
    distinct, inverse = np.unique(temperature, return_inverse=True)
    codes = [UNKNOWN_SEGMENT if np.isnan(t) else int(segment_of(round(float(t), 6))) for t in distinct]
    return np.asarray(np.array(codes, np.uint8)[inverse])


def _is_floats(kind: pa.DataType) -> bool:
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
