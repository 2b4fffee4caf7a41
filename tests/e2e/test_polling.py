"""Which of gRPC's threads reads the sockets of a served port: an installed gRPC that drops the choice shows here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import ENVIRONMENT, acceptd, until

#: Source files that gRPC's trace of sockets names.
IN_PLACE, EVENT_ENGINE = "tcp_posix.cc", "posix_engine_listener.cc"
TRACE = {"GRPC_VERBOSITY": "DEBUG", "GRPC_TRACE": "tcp,event_engine_endpoint"}


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., str]:
    """What gRPC tells of its sockets while a service answers one command."""

    def serve(**environment: str) -> str:
        ready, log = tmp_path / "ready", tmp_path / "log"
        command = [sys.executable, "-m", "estimator_service.cli", "serve", "--listen", "127.0.0.1:0"]
        command += ["--metrics-listen", "", "--json"]
        without = {name: value for name, value in ENVIRONMENT.items() if name != "GRPC_EXPERIMENTS"}
        with ready.open("w") as out, log.open("w") as error:
            process = subprocess.Popen(command, stdout=out, stderr=error, env={**without, **TRACE, **environment})
        try:
            until(lambda: ready.read_text().endswith("\n"))
            assert acceptd("pairs", "--address", json.loads(ready.read_text())["address"]).status == 0
        finally:
            process.terminate()
            process.wait(20)
        return log.read_text()

    return serve


def test_sockets_are_read_in_place(traced: Callable[..., str]) -> None:
    told = traced()
    assert IN_PLACE in told
    assert EVENT_ENGINE not in told


def test_what_the_environment_says_stays(traced: Callable[..., str]) -> None:
    told = traced(GRPC_EXPERIMENTS="event_engine_listener")
    assert EVENT_ENGINE in told
