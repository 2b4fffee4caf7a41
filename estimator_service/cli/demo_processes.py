"""The processes of `acceptd demo`: a real service on free loopback ports, and workers that replay a trace to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from estimator_service.cli.client import CommandFailed, InspectClient

#: Seconds within which a started service must answer. Only a machine under heavy load needs more than two.
START_SECONDS: Final = 60.0

#: Seconds after SIGTERM until a process is killed: the service's own drain takes three at most.
STOP_SECONDS: Final = 10.0

_POLL: Final = 0.05

#: What ends the demo: Ctrl-C, `kill`, a terminal that is closed.
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """Within, a signal that would end this process raises SystemExit instead, once: its children are to be stopped.

    Further ones are ignored, since stopping them takes seconds and must not be cut short. Main thread only.
    """

    def end_once(number: int, frame: FrameType | None) -> None:
        for ending in _ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {ending: signal.signal(ending, end_once) for ending in _ENDINGS}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listened on a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class DemoService:
    """One `acceptd serve`, restarted on the same ports with the same store in `folder`.

    Durability is strict: what the service acknowledged is in the store, so that not even kill -9 loses a count.
    """

    def __init__(self, folder: Path) -> None:
        grpc_port, metrics_port = free_ports(2)
        self.address = f"127.0.0.1:{grpc_port}"
        self.metrics_address = f"127.0.0.1:{metrics_port}"
        self.store = folder / "acceptd.sqlite"
        self.log = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._process.pid if self._process else 0

    def to_json(self) -> dict[str, str | int]:
        """Where it is, for programs that use it after the demo."""
        addresses = {"address": self.address, "metrics_address": self.metrics_address}
        return {**addresses, "pid": self.pid, "store": str(self.store)}

    def start(self) -> None:
        """Starts it and waits until it answers. Raises CommandFailed with the last line of its log."""
        settings = {
            "listen": self.address,
            "metrics-listen": self.metrics_address,
            "store": str(self.store),
            "durability": "strict",
            # Small batches, so that coefficients are used soon after they were learned from.
            "flush-rows": "64",
            "flush-seconds": "0.2",
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (our own command)
                [sys.executable, "-m", "estimator_service.cli", "serve", *flags],
                stdout=log,
                stderr=log,
                env=environment(),
                # With --keep it outlives the demo, and Ctrl-C is for the demo to handle.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with InspectClient(self.address) as client:
                    client.pairs()
            except CommandFailed:
                time.sleep(_POLL)
            else:
                return
        self.stop()
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise CommandFailed(f"the demo's service did not start: {lines[-1]} (log: {self.log})")

    def kill(self) -> None:
        """kill -9, as a machine that loses power would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not go."""
        if self._process is not None:
            end(self._process)


class DemoWorkers:
    """`count` worker processes that together replay `trace` once, to the service at `address`."""

    def __init__(self, trace: Path, address: str, count: int, speed: float, folder: Path) -> None:
        self.predictions = [folder / f"worker-{i}.npy" for i in range(count)]
        self._folder = folder
        self._processes = [
            self._start(i, [str(trace), "--address", address, "--shard", f"{i}/{count}", "--speed", str(speed)])
            for i in range(count)
        ]

    def _start(self, i: int, arguments: list[str]) -> subprocess.Popen[bytes]:
        arguments += ["--worker", f"worker-{i}", "--predictions", str(self.predictions[i])]
        with self._log(i).open("wb") as log:
            return subprocess.Popen(  # noqa: S603  (our own command)
                [sys.executable, "-m", "vllm_client_hook.replay", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
            )

    def _log(self, i: int) -> Path:
        return self._folder / f"worker-{i}.log"

    @property
    def running(self) -> bool:
        """Whether any of them still replays. Raises CommandFailed if one failed."""
        for i, process in enumerate(self._processes):
            if process.poll():
                lines = self._log(i).read_text(errors="replace").strip().splitlines()
                raise CommandFailed(
                    f"worker-{i} ended with status {process.returncode}: {(lines or ['no message'])[-1]}"
                )
        return any(process.returncode is None for process in self._processes)

    def results(self) -> list[dict[str, Any]]:
        """What each of them counted, once none is running."""
        return [json.loads(process.communicate()[0]) for process in self._processes]

    def stop(self) -> None:
        """Ends those that still run."""
        for process in self._processes:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL after STOP_SECONDS. Idempotent."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def environment() -> dict[str, str]:
    """This process's environment without settings of acceptd that are meant for another service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ACCEPTD_")}
