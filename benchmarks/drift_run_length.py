"""Rounds of stationary traffic before drift detection names something: `python -m benchmarks.drift_run_length`.

Recorded requests of one workload, drawn again and again, whole, by 64 seats: their correlation within and across rounds
stays. With no false alarm in R rounds the mean run length is at least R/3 at 95 % (exponential run lengths).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acceptd.bins import NUM_BINS
from acceptd.segments import segment_of
from estimator_service.fit.drift import DriftDetector
from estimator_service.fit.histogram import NUM_SLOTS, bins_of, histogram

TRACE = Path(__file__).parents[1] / "examples" / "smollm2-skip3.parquet"
SEATS = 64


class Pool:
    """Blocks of one workload (None: of all), ready to be summed by round."""

    def __init__(self, path: Path, workload: str | None) -> None:
        trace = pq.read_table(path, columns=["workload", "request", "temperature", "accepted", "logit_qmax"])
        if workload is not None:
            trace = trace.filter(pc.equal(trace["workload"], workload))
        accepted = trace["accepted"].to_numpy().astype(np.int64)
        features = np.array(trace["logit_qmax"].to_pylist(), np.float64)
        self.positions = features.shape[1]
        segment = np.array([int(segment_of(value)) for value in trace["temperature"].to_pylist()])
        position = np.arange(self.positions)
        self.seen = position < np.minimum(accepted + 1, self.positions)[:, None]
        cell = (segment[:, None] * self.positions + position) * NUM_BINS
        self.cell = cell + bins_of(features.ravel()).reshape(features.shape)
        self.features = features
        self.label = (position < accepted[:, None]).astype(np.float64)
        request = trace["request"].to_numpy()
        order = np.argsort(request, kind="stable")
        self.requests = np.split(order, np.flatnonzero(np.diff(request[order])) + 1)

    def stream(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Row numbers, int64[steps · SEATS], step by step."""
        mean = np.mean([len(rows) for rows in self.requests])
        seats = []
        for _ in range(SEATS):
            picked = rng.integers(len(self.requests), size=int(1.2 * steps / mean) + 50)
            seat = np.concatenate([self.requests[i] for i in picked])
            late = rng.integers(len(self.requests[picked[0]]))
            seats.append(seat[late : late + steps])
        return np.stack(seats, axis=1).ravel()

    def sums(self, rows: np.ndarray) -> np.ndarray:
        """A round, float64[3, S, K, NUM_BINS]."""
        seen = self.seen[rows]
        shape = (3, NUM_SLOTS, self.positions, NUM_BINS)
        cell, x, label = (values[rows][seen] for values in (self.cell, self.features, self.label))
        return histogram(cell, x, label, int(np.prod(shape[1:]))).reshape(shape)


def alarms(pool: Pool, rounds: int, blocks: int, seed: int) -> list[str]:
    """What is named in `rounds` stationary rounds."""
    rng = np.random.default_rng(seed)
    detector = DriftDetector(NUM_SLOTS, pool.positions)
    found = []
    for _ in range(0, rounds, 1_000):
        rows = pool.stream(rng, 1_000 * blocks // SEATS)
        for start in range(0, len(rows), blocks):
            if (drift := detector.update(pool.sums(rows[start : start + blocks]))) is not None:
                found.append(str(drift))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--rounds", type=int, default=100_000, help="of each workload, in thousands")
    parser.add_argument("--blocks", type=int, default=640, help=f"a round, a multiple of {SEATS}")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    workloads = pc.unique(pq.read_table(arguments.trace, columns=["workload"])["workload"]).to_pylist()
    total = named = 0
    for workload in (None, *workloads):
        found = alarms(Pool(arguments.trace, workload), arguments.rounds, arguments.blocks, arguments.seed)
        total, named = total + arguments.rounds, named + len(found)
        print(
            f"{workload or 'all workloads mixed'}: {len(found)} named in {arguments.rounds} rounds", *found, sep="\n  "
        )
    # Upper 95 % limit of a Poisson mean, by the count seen (Garwood, Biometrika 28, 1936).
    from scipy.stats import chi2

    print(f"{named} false alarms in {total} rounds of {arguments.blocks} blocks")
    least = 2 * total / chi2.ppf(0.95, 2 * named + 2)
    print(f"mean run length: {total / max(named, 1):.3g} rounds, at least {least:.3g} at 95 %")


if __name__ == "__main__":
    main()
