"""Real workers' uplinks against a real service that is killed, stopped and robbed of its store (strict durability)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest

from acceptd.codec import UNKNOWN_SEGMENT, Observations
from acceptd.types import PairKey, Version
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from vllm_client_hook.backoff import BackoffSettings
from vllm_client_hook.outbound import GradedColumns
from vllm_client_hook.uplink import Uplink, UplinkSettings

K = 4
PAIR = PairKey("org/target", "org/draft", K)
WORKERS = 4
DEADLINE = 30.0

_PROGRAM = """
import asyncio, json, sys
from estimator_service.config import load_settings
from estimator_service.server import serve
def ready(server):
    print(json.dumps([server.address, server.metrics_address]), flush=True)
asyncio.run(serve(load_settings(json.loads(sys.argv[1]), environ={}), ready=ready))
"""


class Service:
    """A process that comes back at the same address."""

    def __init__(self, store) -> None:
        self.flags = {
            "listen": "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "store": str(store),
            "durability": "strict",
            "round_blocks": 200,
            # Every round is published: each process must be seen to.
            "publish_min_change": 0.0,
            "snapshot_seconds": 0.3,
            "flush_rows": 64,
            "flush_seconds": 0.05,
            "heartbeat_seconds": 0.2,
        }
        self.start()
        self.flags["listen"] = self.address

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(self.flags)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.address, self.metrics_address = json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def health(self) -> dict:
        with urllib.request.urlopen(f"http://{self.metrics_address}/healthz", timeout=DEADLINE) as response:
            return json.loads(response.read())

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=DEADLINE) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))


class Worker(threading.Thread):
    """Grades blocks all the time and applies what is pushed, as a vLLM worker does."""

    def __init__(self, index: int, address: str) -> None:
        super().__init__(name=f"worker-{index}", daemon=True)
        self.uplink = Uplink(
            address,
            PAIR,
            worker=f"w{index}",
            settings=UplinkSettings(backoff=BackoffSettings(first=0.02, cap=0.2), report_interval=0.5),
            random=random.Random(index),
        )
        self.observations, self.acceptances = np.zeros(K, int), np.zeros(K, int)
        self.versions: list[Version] = []
        self.stopping = threading.Event()
        self._rng = np.random.default_rng(index)
        self._nonce = None

    def run(self) -> None:
        while not self.stopping.wait(0.01):
            received = self.uplink.latest()
            if received is not None and received.nonce != self._nonce:
                self._nonce = received.nonce
                self.versions.append(received.coefficients.version)
                self.uplink.answer(received.nonce, received.coefficients.version)
            self.uplink.offer(GradedColumns(self.versions[-1] if self.versions else None, self._blocks(8)))

    def _blocks(self, count: int) -> Observations:
        x = self._rng.normal(1.5, 2, (count, K)).astype(np.float32)
        accept = self._rng.random((count, K)) < 1 / (1 + np.exp(0.2 - 0.6 * x))
        accepted = np.where(accept.all(axis=1), K, np.argmin(accept, axis=1)).astype(np.uint8)
        observed = np.minimum(accepted.astype(int) + 1, K)
        for k in range(K):
            self.observations[k] += (observed > k).sum()
            self.acceptances[k] += (accepted > k).sum()
        admitted = np.full(count, K, np.uint8)
        return Observations(
            accepted,
            admitted,
            x[np.arange(K)[None, :] < observed[:, None]],
            np.full(count, UNKNOWN_SEGMENT, np.uint8),
            admitted,
            np.ones(count, np.float32),
        )


def eventually(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        threading.Event().wait(0.02)


@pytest.fixture
def service(tmp_path):
    running = Service(tmp_path / "store.sqlite")
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGCONT)
        running.kill()


def shown(service):
    """The pair's state."""
    with grpc.insecure_channel(service.address) as channel:
        stub = inspect_pb2_grpc.InspectStub(channel)
        return stub.GetPair(inspect_pb2.GetPairRequest(pair=PAIR.id)).state


@pytest.mark.timeout(180)
def test_totals_equal_what_was_sent_whatever_happened_to_the_service(service, tmp_path):
    """Nothing lost, nothing counted twice, no version goes back, no thread dies."""
    workers = [Worker(i, service.address) for i in range(WORKERS)]
    for worker in workers:
        worker.start()

    def progress():
        """Everybody gets answers again."""
        before = [worker.uplink.stats()["acknowledged"] for worker in workers]
        eventually(
            lambda: all(w.uplink.stats()["acknowledged"] > b for w, b in zip(workers, before, strict=True)),
            "all workers are answered",
        )

    progress()
    for fault in ("kill", "stop", "kill", "rob", "kill", "cut", "kill"):
        if fault == "kill":
            service.kill()
            service.start()
        elif fault == "stop":
            service.process.send_signal(signal.SIGSTOP)
            threading.Event().wait(1.0)
            service.process.send_signal(signal.SIGCONT)
        else:
            failures = service.metric("acceptd_store_failures_total")
            if fault == "rob":
                (tmp_path / "store.sqlite").rename(tmp_path / "elsewhere.sqlite")
            else:
                for name in ("store.sqlite", "store.sqlite-wal"):
                    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 3)
            eventually(lambda: service.metric("acceptd_store_failures_total") > failures, "the loss is noticed")  # noqa: B023
            eventually(lambda: service.health()["status"] == "ok", "it commits again")
        progress()

    eventually(lambda: shown(service).coefficients.version.epoch == 5, "the fifth process publishes")
    for worker in workers:
        worker.stopping.set()
        worker.join(DEADLINE)
        assert not worker.is_alive()
        assert worker.uplink.flush(DEADLINE)
    state = shown(service)
    for worker in workers:
        stats = worker.uplink.stats()
        assert (stats["refused"], stats["dropped"]) == (0, 0), stats
        assert stats["acknowledged"] == stats["offered"]
        assert worker.versions == sorted(worker.versions)
        worker.uplink.close()
    assert list(state.observations) == sum(worker.observations for worker in workers).tolist()
    assert list(state.acceptances) == sum(worker.acceptances for worker in workers).tolist()
    assert state.coefficients.version.counter > 0
