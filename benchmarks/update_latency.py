"""Publish to applied in the uplink, beside a bare gRPC echo of the same bytes between the same two processes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np

from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2
from benchmarks.bare import ECHO, PUSH
from benchmarks.refit import K
from benchmarks.result import Result, beside
from benchmarks.service_process import Service, service
from vllm_client_hook.pushes import Pushes
from vllm_client_hook.uplink import Capabilities, Uplink

ROUNDS = 1500
PAUSE = 0.002


class StampedPushes(Pushes):
    """Notes when a push lies ready for the worker's main thread."""

    arrivals: queue.Queue[float] = queue.Queue()

    def take(self, update: estimator_pb2.CoefficientUpdate, generation: int) -> None:
        """A push, and the time at which it was checked and in place."""
        super().take(update, generation)
        self.arrivals.put(time.perf_counter())


class StampedUplink(Uplink):
    """An uplink with stamped pushes."""

    def _reset(self) -> None:
        super()._reset()
        self._session.pushes = StampedPushes(self._introduction.pair.num_speculative_tokens, self._clock)


def run() -> Iterator[Result]:
    """Alternates a publish and an echo, so that both meet the same machine."""
    with service(core=0, heartbeat_seconds=600.0, coefficients_max_age_seconds=1200.0) as running:
        updates, echoes = _measure(running)
    for name, quantile, goal in (("p50", 50, 2.0), ("p99", 99, 3.0)):
        ours, bare = np.percentile(updates, quantile), np.percentile(echoes, quantile)
        yield beside(
            f"publish to applied by the uplink, {name}, beside a bare echo", ours * 1e3, bare * 1e3, "ms", at_most=goal
        )


def _measure(running: Service) -> tuple[list[float], list[float]]:
    uplink = StampedUplink(
        running.address, PairKey("target", "draft", K), worker="bench", capabilities=Capabilities(8, 8)
    )
    outgoing: queue.Queue[bytes] = queue.Queue()
    echoed: queue.Queue[float] = queue.Queue()
    with grpc.insecure_channel(running.bare_address) as channel:
        replies = channel.stream_stream(ECHO)(iter(outgoing.get, None))
        threading.Thread(target=lambda: _drain(replies, echoed), daemon=True).start()
        uplink.latest()
        StampedPushes.arrivals.get(timeout=10)
        updates, echoes = [], []
        for _ in range(ROUNDS):
            published = running.publish()
            updates.append(StampedPushes.arrivals.get(timeout=10) - published)
            time.sleep(PAUSE)
            sent = time.perf_counter()
            outgoing.put(PUSH)
            echoes.append(echoed.get(timeout=10) - sent)
            time.sleep(PAUSE)
        replies.cancel()
    uplink.close()
    return updates, echoes


def _drain(replies: Iterator[bytes], echoed: queue.Queue[float]) -> None:
    try:
        for _ in replies:
            echoed.put(time.perf_counter())
    except grpc.RpcError:
        return
