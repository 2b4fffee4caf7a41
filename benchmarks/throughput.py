"""Observations a second through gRPC into a pair's window, on one core, beside binning the same batches in numpy."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import numpy as np

from acceptd import codec
from acceptd.bins import EDGES, NUM_BINS
from acceptd.codec import Observations
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2
from acceptd.v1.estimator_pb2_grpc import EstimatorStub
from benchmarks.refit import K, blocks
from benchmarks.result import Result, beside, median_seconds
from benchmarks.service_process import service

ROWS = 4096
BATCHES = 400
IN_FLIGHT = 8


def run() -> Iterator[Result]:
    """The service alone on a core, fed ready-made messages by this process from another."""
    rows = blocks(np.random.default_rng(2), ROWS)
    observations = int(rows.observed.sum())
    binning = observations / median_seconds(lambda: bin_alone(rows), repeats=100)
    with service(core=0, round_blocks=20 * ROWS) as running:
        taken = _feed(running.address, rows)
        cpu = running.cpu_seconds()
    through = observations * BATCHES / taken
    yield beside(
        "observations through gRPC on one core, beside numpy binning alone", through, binning, "1/s", at_least=0.35
    )
    yield Result(
        "service CPU time an observation",
        cpu / (observations * BATCHES) * 1e9,
        0.0,
        float("nan"),
        "reported",
        "ns",
        True,
    )


def bin_alone(rows: Observations) -> np.ndarray:
    """n, accepted and Σx by (position, bin): what any implementation must at least do with a batch."""
    observed = rows.observed
    start = np.cumsum(observed) - observed
    position = np.arange(len(rows.features)) - np.repeat(start, observed)
    label = position < np.repeat(rows.accepted, observed)
    cell = position * NUM_BINS + np.searchsorted(_EDGES, rows.features, side="right") - 1
    size = K * NUM_BINS
    return np.stack(
        [
            np.bincount(cell, minlength=size),
            np.bincount(cell, weights=label, minlength=size),
            np.bincount(cell, weights=rows.features, minlength=size),
        ]
    )


_EDGES = np.asarray(EDGES)


def _feed(address: str, rows: Observations) -> float:
    """Seconds from the first batch sent to the last result, IN_FLIGHT batches ahead."""
    template = codec.encode_batch(1, None, rows)
    requests = []
    for sequence in range(1, BATCHES + 1):
        template.sequence = sequence
        requests.append(estimator_pb2.StreamRequest(batch=template))
    hello = estimator_pb2.Hello(
        pair=codec.encode_pair_key(PairKey("target", "draft", K)), worker="bench", incarnation=1, hook_version="bench"
    )
    import threading

    room = threading.Semaphore(IN_FLIGHT)
    began = 0.0

    def sending() -> Iterator[estimator_pb2.StreamRequest]:
        nonlocal began
        yield estimator_pb2.StreamRequest(hello=hello)
        welcomed.wait(10)
        began = time.perf_counter()
        for request in requests:
            room.acquire()
            yield request

    welcomed = threading.Event()
    with grpc.insecure_channel(address) as channel:
        responses = EstimatorStub(channel).Stream(sending())
        for response in responses:
            if response.HasField("welcome"):
                welcomed.set()
            elif response.HasField("batch_result"):
                if response.batch_result.rows_rejected:
                    raise RuntimeError(f"refused: {response.batch_result}")
                room.release()
                if response.batch_result.sequence == BATCHES:
                    responses.cancel()
                    return time.perf_counter() - began
    raise RuntimeError("the stream ended early")
