"""Observations through gRPC into a pair's window a CPU second, beside binning the same batches in numpy.

Both are CPU time, taken in turn in stretches after a warm-up: of the whole service process (gRPC's threads, decoding,
scoring, judging, refits, publishing), which is pinned to one core, and of one thread that bins the batch. On an idle
core that is observations a second; on a busy machine wall time would measure its other users.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

import grpc
import numpy as np

from acceptd import codec
from acceptd.bins import EDGES, NUM_BINS
from acceptd.codec import Observations
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2
from acceptd.v1.estimator_pb2_grpc import EstimatorStub
from benchmarks.refit import K, blocks
from benchmarks.result import Result, beside, reported
from benchmarks.service_process import service

ROWS = 4096
#: Batches of one stretch, and of one round: at this rate `round_min_seconds` lets a pair refit once in about as many.
BATCHES = 80
WARM_UP = 1
STRETCHES = 7
IN_FLIGHT = 8


def run() -> Iterator[Result]:
    """The service alone on a core, fed ready-made messages by this process from another."""
    rows = blocks(np.random.default_rng(2), ROWS)
    observations = int(rows.observed.sum()) * BATCHES
    through, binning, wall = [], [], []
    with (
        service(core=0, round_blocks=BATCHES * ROWS, commit_seconds=1.0) as running,
        _Feed(running.address, rows) as feed,
    ):
        for stretch in range(WARM_UP + STRETCHES):
            before, began = running.cpu_seconds(), time.perf_counter()
            feed.send(BATCHES)
            taken, elapsed = running.cpu_seconds() - before, time.perf_counter() - began
            alone = _cpu_seconds(lambda: bin_alone(rows))
            if stretch >= WARM_UP:
                through.append(observations / taken)
                binning.append(observations / alone)
                wall.append(observations / elapsed)
    name = "observations through gRPC a CPU second of the service, beside numpy binning alone"
    yield beside(name, median(through), median(binning), "1/s", at_least=0.35)
    yield reported("service CPU time an observation", 1e9 / median(through), "ns")
    yield reported("observations through gRPC a second of wall time, as the machine was", median(wall), "1/s")


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


def _cpu_seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(BATCHES):
        call()
    return time.thread_time() - began


class _Feed:
    """One worker's stream, IN_FLIGHT batches ahead of the answers. Every batch holds the same rows."""

    def __init__(self, address: str, rows: Observations) -> None:
        self._channel = grpc.insecure_channel(address)
        self._template = codec.encode_batch(1, None, rows)
        self._room = threading.Semaphore(IN_FLIGHT)
        self._wanted = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        self._failure = ""

    def __enter__(self) -> _Feed:
        self._responses = EstimatorStub(self._channel).Stream(self._requests())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._responses.cancel()
        self._channel.close()

    def send(self, batches: int) -> None:
        """Sends that many, and waits for the last answer. Raises RuntimeError if one was refused."""
        self._wanted.release(batches)
        for _ in range(batches):
            self._answered.acquire()
            if self._failure:
                raise RuntimeError(self._failure)

    def _requests(self) -> Iterator[estimator_pb2.StreamRequest]:
        pair = codec.encode_pair_key(PairKey("target", "draft", K))
        yield estimator_pb2.StreamRequest(
            hello=estimator_pb2.Hello(pair=pair, worker="bench", incarnation=1, hook_version="bench")
        )
        while True:
            self._wanted.acquire()
            self._room.acquire()
            request = estimator_pb2.StreamRequest(batch=self._template)
            yield request
            self._template.sequence += 1

    def _read(self) -> None:
        last = 0
        try:
            for response in self._responses:
                if response.HasField("batch_result"):
                    if response.batch_result.rows_rejected:
                        self._failure = f"refused: {response.batch_result}"
                    # One answer may be to several batches.
                    batches, last = response.batch_result.last_sequence - last, response.batch_result.last_sequence
                    self._room.release(batches)
                    self._answered.release(batches)
        except grpc.RpcError as error:
            self._failure = f"the stream ended: {error}"
            self._answered.release()
