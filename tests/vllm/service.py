"""The real service as a process of its own, with the interpreter that it is installed in."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("ACCEPTD_SERVICE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))

#: Small rounds and short waits, so that few decode steps see many versions; strict: what was answered is stored.
SETTINGS = {
    "round-blocks": 16,
    "round-seconds": 0.5,
    "publish-min-change": 0,
    "flush-rows": 16,
    "flush-seconds": 0.2,
    "heartbeat-seconds": 1,
    "durability": "strict",
    "log-level": "warning",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(*arguments: object) -> list[str]:
    return [PYTHON, "-m", "estimator_service.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCEPTD_", "VLLM_", "TRITON_"))}
    return kept | {"PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}"}


class Service:
    def __init__(self, directory: Path, **settings: object) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._directory = directory
        self._settings = SETTINGS | settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = [text for name, value in self._settings.items() for text in (f"--{name}", value)]
        with (self._directory / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                command(
                    "serve",
                    "--listen",
                    self.address,
                    "--metrics-listen",
                    "",
                    "--store",
                    self._directory / "store.sqlite",
                    *flags,
                ),
                env=environment(),
                stdout=log,
                stderr=log,
            )
        host, port = self.address.split(":")
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self._directory / "service.log").read_text()) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """As a machine would: no warning."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=20)

    def ask(self, *arguments: object) -> object:
        """The JSON that a command of `acceptd` prints."""
        done = subprocess.run(
            command(*arguments, "--address", self.address, "--json"),
            env=environment(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments}: {done.stdout.decode()}{done.stderr.decode()}")
        return json.loads(done.stdout)
