"""A real `acceptd serve` process and the commands that talk to it, for whole-process tests."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_service.cli.app import run

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "examples" / "smollm2-skip3.parquet"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ACCEPTD_")}


@dataclass(frozen=True)
class Done:
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


def acceptd(*arguments: str) -> Done:
    """One command line, run in this process: a new interpreter for each would take most of a test's time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(list(arguments))
    return Done(status, out.getvalue(), err.getvalue())


@dataclass
class Service:
    """address: of gRPC. metrics_address: of HTTP, "" if off."""

    process: subprocess.Popen[str]
    address: str
    metrics_address: str

    def acceptd(self, *arguments: str, check: bool = True) -> str:
        """Standard output of a command that asks this service."""
        asks = [] if arguments[0] == "version" else ["--address", self.address]
        done = acceptd(*arguments, *asks)
        assert not check or done.status == 0, done.err
        return done.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.acceptd(*arguments, "--json"))

    def replay(self, shard: str, *options: str, worker: str = "w0") -> dict[str, Any]:
        """One worker process replays its shard, as fast as it goes; what it counted."""
        command = [sys.executable, "-m", "vllm_client_hook.replay", str(TRACE), "--address", self.address]
        command += ["--worker", worker, "--shard", shard, *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        counted: dict[str, Any] = json.loads(done.stdout)
        return counted

    @contextmanager
    def replaying(self, shard: str, *options: str, worker: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process that replays its shard until the block is left."""
        command = [sys.executable, "-m", "vllm_client_hook.replay", str(TRACE), "--address", self.address]
        command += ["--worker", worker, "--shard", shard, *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first truthy value of `condition`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"nothing came of it within {seconds:g} s")


@contextmanager
def serving(*flags: str) -> Iterator[Service]:
    """A service on free ports with these flags, ended when the block is left."""
    command = [sys.executable, "-m", "estimator_service.cli", "serve", "--json", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert process.stdout is not None
        opened = json.loads(process.stdout.readline())
        yield Service(process, opened["address"], opened["metrics_address"])
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
