"""Traces with a known truth for the lab's tests."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SLOPE = 0.6
INTERCEPTS = (-0.5, -0.1, 0.2, 0.4)
K = len(INTERCEPTS)


def sigmoid(values):
    return 1.0 / (1.0 + np.exp(-values))


def columns(blocks, seed=0, *, slope=SLOPE, intercepts=INTERCEPTS, workload="code", temperature=1.0, spread=0.0):
    """A dictionary of columns of `blocks` independent blocks; 16 blocks a request, sharing an offset of the log-odds.

    spread: standard deviation of that offset, nats.
    """
    rng = np.random.default_rng(seed)
    positions = len(intercepts)
    x = rng.normal(1.0, 2.0, (blocks, positions)).astype(np.float32)
    request = np.arange(blocks) % max(1, blocks // 16)
    offset = rng.normal(0.0, spread, request.max() + 1)[request]
    oracle = sigmoid(slope * x + np.array(intercepts) + offset[:, None])
    accepted = np.cumprod(rng.random((blocks, positions)) < oracle, axis=1).sum(1)
    return {
        "workload": np.full(blocks, workload),
        "temperature": np.full(blocks, temperature, np.float32),
        "request": request,
        "admitted": np.full(blocks, positions),
        "accepted": accepted,
        "logit_qmax": x,
        "entropy": (3.0 - 0.3 * x.clip(-9, 9)).astype(np.float32),
        "margin": np.abs(x),
        "logit_qsampled": (x - rng.exponential(1.0, x.shape)).astype(np.float32),
        "oracle": oracle.astype(np.float32),
    }


def write(path, parts, leave_out=(), pair="synthetic"):
    """Writes the concatenation of `parts` as a trace; returns the path and the joined columns."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name not in leave_out}
    positions = joined["logit_qmax"].shape[1]
    arrays = {}
    for name, values in joined.items():
        if values.ndim == 2:
            flat = pa.array(values.astype(np.float32).ravel())
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, positions)
        else:
            arrays[name] = pa.array(values)
    description = json.dumps({"format": "acceptd-trace/1", "K": positions, "pair": pair})
    pq.write_table(pa.table(arrays).replace_schema_metadata({"acceptd": description}), path)
    return path, joined


def observed(joined):
    """Indices (row, position) of the labels, and the labels."""
    positions = joined["logit_qmax"].shape[1]
    depth = np.minimum(joined["accepted"] + 1, joined["admitted"])
    row, position = np.nonzero(np.arange(positions) < depth[:, None])
    return row, position, position < joined["accepted"][row]
