"""Cuts a slice of a recorded trace small enough to ship: the first share of each workload's steps, every column.

python examples/make_trace_slice.py SOURCE.parquet examples/smollm2-skip3.parquet --share 0.6
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def cut(trace: pa.Table, share: float) -> pa.Table:
    """The rows of the first `share` of each workload's decode steps, in the order of `trace`."""
    kept = []
    for workload in pc.unique(trace["workload"]).to_pylist():
        rows = trace.filter(pc.equal(trace["workload"], workload))
        steps = pc.unique(rows["step"]).sort()
        last = steps[max(1, round(len(steps) * share)) - 1]
        kept.append(rows.filter(pc.less_equal(rows["step"], last)))
    return pa.concat_tables(kept).replace_schema_metadata(trace.schema.metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--share", type=float, default=0.6)
    arguments = parser.parse_args()
    trace = cut(pq.read_table(arguments.source), arguments.share)
    # A dictionary pays for the workload's name alone: hardly a float stands twice.
    pq.write_table(trace, arguments.target, compression="zstd", compression_level=19, use_dictionary=["workload"])
    print(f"{arguments.target}: {trace.num_rows} blocks, {arguments.target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
