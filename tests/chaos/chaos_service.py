"""The service as a process that is killed, stopped and started again at one address, under a wall clock that jumps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from acceptd.v1 import inspect_pb2, inspect_pb2_grpc

#: Seconds a test waits for something that must happen.
DEADLINE = 60.0

# The clock is handed to `serve` as the tests' clocks are: no setting and no variable of the service leads to it.
_PROGRAM = """
import asyncio, json, pathlib, sys, time
from estimator_service.clock import SystemClock
from estimator_service.config import load_settings
from estimator_service.server import serve
offset = pathlib.Path(sys.argv[2])
class JumpingClock(SystemClock):
    def wall(self):
        return time.time() + float(offset.read_text() or 0)
def ready(server):
    print(json.dumps([server.address, server.metrics_address]), flush=True)
asyncio.run(serve(load_settings(json.loads(sys.argv[1]), environ={}), ready=ready, clock=JumpingClock()))
"""


class ChaosService:
    """Strict durability. `directory` holds the clock's offset and the log; `store` may be on another disk."""

    def __init__(self, directory: Path, store: Path, **settings: Any) -> None:
        self.store = store
        self.offset = directory / "offset"
        self.offset.write_text("0")
        self.log = directory / "service.log"
        self.settings = {
            "listen": "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "store": str(store),
            "durability": "strict",
            "snapshot_seconds": 0.5,
            "flush_seconds": 0.02,
            "heartbeat_seconds": 0.5,
            **settings,
        }
        self.starts = 0
        self.start()
        self.settings["listen"] = self.address

    def start(self) -> None:
        self.starts += 1
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(self.settings), str(self.offset)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        line = self.process.stdout.readline()
        assert line, f"the service did not start: {self.process.wait()}\n{self.last_words()}"
        self.address, self.metrics_address = json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(DEADLINE)
        self.process.stdout.close()
        return status

    def close(self) -> None:
        """Whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()

    def last_words(self) -> str:
        return self.log.read_text()[-3000:]

    def health(self) -> str:
        """`status` of /healthz."""
        url = f"http://{self.metrics_address}/healthz"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE) as response:
                return json.loads(response.read())["status"]
        except urllib.error.HTTPError as error:
            return json.loads(error.read())["status"]

    def metric(self, name: str) -> float:
        """Sum over the labels of a metric."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=DEADLINE) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))

    def state(self, pair: str) -> Any:
        """What Inspect says of a pair, None while the service cannot be asked or does not know the pair."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.address, options) as channel:
            stub = inspect_pb2_grpc.InspectStub(channel)
            try:
                return stub.GetPair(inspect_pb2.GetPairRequest(pair=pair), timeout=5.0).state
            except grpc.RpcError:
                return None


def until(condition: Callable[[], Any], what: str, more: Callable[[], str] = str, seconds: float = DEADLINE) -> None:
    """Polls until the condition holds; fails at the deadline, saying what was awaited, and what `more` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}\n{more()}"
        time.sleep(0.02)
