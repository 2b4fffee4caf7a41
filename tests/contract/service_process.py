"""A service as its own process, to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

_PROGRAM = """
import asyncio, json, sys
from estimator_service.config import load_settings
from estimator_service.server import serve
settings = load_settings(json.loads(sys.argv[1]), environ={})
def ready(server):
    print(json.dumps([server.address, server.metrics_address]), flush=True)
asyncio.run(serve(settings, ready=ready))
"""


class ServiceProcess:
    """Started when constructed; `address` is what it bound."""

    def __init__(self, **flags: Any) -> None:
        flags = {"listen": "127.0.0.1:0", "metrics_listen": "", "drain_seconds": 1.0, "answer_seconds": 0, **flags}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(flags)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the service did not start: {self.process.wait()}"
        self.address, self.metrics_address = json.loads(line)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def close(self) -> None:
        """Whatever state it is in."""
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
