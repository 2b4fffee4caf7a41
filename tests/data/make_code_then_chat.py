"""Cuts code_then_chat.npz out of a recorded trace: what drift detection needs of two workloads.

python tests/data/make_code_then_chat.py TRACE.parquet

accepted: uint8[B], of K = 7 admitted. request: uint16[B]. x: float16[N], logit q_max of the observed positions, row by
row. code: number of leading blocks that are code; the others are chat. In time order, temperature 1.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

K = 7

trace = pq.read_table(sys.argv[1], columns=["workload", "request", "accepted", "logit_qmax"])
workload = np.array(trace["workload"].to_pylist())
rows = np.flatnonzero((workload == "code") | (workload == "chat"))
accepted = trace["accepted"].to_numpy()[rows]
x = np.array(trace["logit_qmax"].to_pylist(), np.float16)[rows]
request = np.unique(trace["request"].to_numpy()[rows], return_inverse=True)[1]
target = Path(__file__).with_name("code_then_chat.npz")
np.savez_compressed(
    target,
    accepted=accepted.astype(np.uint8),
    request=request.astype(np.uint16),
    x=x[np.arange(K) < np.minimum(accepted + 1, K)[:, None]],
    code=np.int64((workload == "code").sum()),
)
print(f"{target}: {len(rows)} blocks, {target.stat().st_size} bytes")
