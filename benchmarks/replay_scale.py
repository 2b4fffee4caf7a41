"""A replay of ten million observations: wall time and peak memory, beside their limits of 60 s and 1 GB.

    python -m benchmarks.replay_scale [--observations N] [--json]

Writes a synthetic trace to a temporary directory, then runs `acceptd replay` on it in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.result import below
from estimator_service.lab.blocks import Blocks
from estimator_service.lab.trace_writer import TraceWriter

K = 8
WORKLOADS = ["code", "prose", "chat", "math"]
TEMPERATURES = [0.0, 0.3, 0.7, 1.0]
CHUNK = 65_536
LIMIT_SECONDS, LIMIT_GIGABYTES = 60.0, 1.0

ENTRY = "from estimator_service.cli.entry import main; main()"


def write(path: Path, observations: int) -> int:
    """A trace with at least this many observations; returns how many. Acceptance is about 0.7 a position."""
    rng = np.random.default_rng(0)
    written = 0
    with TraceWriter(path, K, positions=("logit_qmax", "oracle"), metadata={"pair": "synthetic"}) as writer:
        while written < observations:
            x = rng.normal(2.0, 2.5, (CHUNK, K)).astype(np.float32)
            oracle = 1.0 / (1.0 + np.exp(-(0.6 * x - 0.2)))
            accepted = np.cumprod(rng.random((CHUNK, K)) < oracle, axis=1).sum(axis=1).astype(np.uint8)
            workload = np.full(CHUNK, written * len(WORKLOADS) // observations, np.int32)
            blocks = Blocks(
                accepted,
                np.full(CHUNK, K, np.uint8),
                {"logit_qmax": x, "oracle": oracle.astype(np.float32)},
                workload,
                rng.choice(np.array(TEMPERATURES, np.float32), CHUNK),
                np.full(CHUNK, 3, np.uint8),
                WORKLOADS,
            )
            writer.write(blocks)
            written += int(blocks.observed.sum())
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--observations", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("arguments", nargs="*", help="more arguments for acceptd replay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "synthetic.parquet"
        observations = write(path, options.observations)
        start = time.monotonic()
        command = [sys.executable, "-c", ENTRY, "replay", str(path), "--json", *options.arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        seconds = time.monotonic() - start
        if done.returncode:
            sys.stderr.write(done.stderr)
            return 1
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    estimators = json.loads(done.stdout)["estimators"]
    assert all(scores["observations"] == observations for scores in estimators.values())
    results = [
        below("replay of 10 M observations", seconds, LIMIT_SECONDS, "s"),
        below("its peak memory", usage.ru_maxrss * 1024 / 1e9, LIMIT_GIGABYTES, "GB"),
    ]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print(f"{observations:,} observations, {len(estimators)} estimators, {usage.ru_utime:.0f} s of CPU time")
        for result in results:
            print(f"{result.name:30} {result.value:8.2f} {result.unit:3} {result.goal}")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
