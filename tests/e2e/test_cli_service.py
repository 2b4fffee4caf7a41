"""The commands against a real service that a real worker process has fed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq
import pytest
from running import ENVIRONMENT, TRACE, Service, serving, until

from estimator_service.cli.client import InspectClient


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    # Rounds end by blocks alone: two commands in a row see the same state, however long the second one takes.
    rounds = ["--round-blocks", "500", "--round-min-seconds", "0", "--round-seconds", "3600"]
    with serving("--metrics-listen", "127.0.0.1:0", "--publish-max-age-seconds", "3600", *rounds) as running:
        running.replay("0/8", worker="w0")
        yield running


def bits(values: list[float]) -> list[bytes]:
    return [struct.pack("<f", value) for value in values]


def test_show_json_has_the_bits_of_the_coefficients(service: Service) -> None:
    shown = service.json("show", "smol")
    with InspectClient(service.address) as client:
        state = client.pair(shown["id"])
    assert state.refit.done > 0
    line = state.coefficients.line
    coefficients = shown["coefficients"]
    version = state.coefficients.version
    assert coefficients["version"] == {"epoch": version.epoch, "counter": version.counter}
    assert bits([coefficients["slope"]]) == bits(list(line.slopes))
    assert bits(coefficients["intercepts"]) == bits(list(line.intercepts))
    # Every number is one that float32 holds: nothing was rounded in between.
    for value in [coefficients["slope"], *coefficients["intercepts"]]:
        assert struct.unpack("<f", struct.pack("<f", value))[0] == value


def test_counts_are_those_of_the_trace(service: Service) -> None:
    table = pq.read_table(TRACE, columns=["request", "accepted", "admitted"])
    mine = np.asarray(table["request"]) % 8 == 0
    accepted, admitted = (np.asarray(table[name])[mine].astype(int) for name in ("accepted", "admitted"))
    positions = np.arange(7)
    observed = positions < np.minimum(accepted + 1, admitted)[:, None]
    shown = service.json("show", "smol")
    assert shown["blocks"] == mine.sum()
    assert shown["observations_by_position"] == observed.sum(axis=0).tolist()
    assert shown["acceptances_by_position"] == (positions < accepted[:, None]).sum(axis=0).tolist()
    assert shown["rejects"] == {}


def test_pairs_and_prefixes(service: Service) -> None:
    (pair,) = service.json("pairs")
    assert pair["key"]["num_speculative_tokens"] == 7
    assert service.json("show", pair["id"])["id"] == service.json("show", "smollm2")["id"] == pair["id"]
    assert pair["id"] in service.acceptd("pairs")
    assert service.acceptd("show", "nothing", check=False) == ""


def test_show_is_for_people(service: Service) -> None:
    text = service.acceptd("show", "smol")
    shown = service.json("show", "smol")
    assert f"slope    {shown['coefficients']['slope']:.4f}" in text
    rows = {row.split()[0]: row.split() for row in text.splitlines() if row.strip()[:1].isdigit()}
    for k, intercept in enumerate(shown["coefficients"]["intercepts"]):
        assert rows[str(k)][1] == f"{intercept:+.4f}"
        assert rows[str(k)][4] == f"{shown['observations_by_position'][k]:,}"
    assert f"{shown['blocks']:,} blocks" in text


def test_history_goes_from_the_prior_to_what_is_in_force(service: Service) -> None:
    entries = service.json("history", "smol", "-n", "1000")
    versions = [(e["coefficients"]["version"]["epoch"], e["coefficients"]["version"]["counter"]) for e in entries]
    assert versions == sorted(versions, reverse=True)
    assert len(set(versions)) == len(versions)
    assert entries[0]["coefficients"] == service.json("show", "smol")["coefficients"]
    assert len(service.json("history", "smol", "-n", "1")) == 1


def test_watch_once(service: Service) -> None:
    assert service.json("watch", "smol", "--once")["id"] == service.json("show", "smol")["id"]
    line = service.acceptd("watch", "smol", "--once")
    assert len(line.splitlines()) == 1
    assert "slope" in line


def test_watch_in_a_terminal(service: Service) -> None:
    """A pseudo-terminal of 80 columns: the live view, not the lines."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    command = [sys.executable, "-m", "estimator_service.cli", "watch", "smol", "--once", "--address", service.address]
    process = subprocess.Popen(command, stdout=follower, env={**ENVIRONMENT, "TERM": "xterm"})
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(leader, 65536):
            shown += chunk
    os.close(leader)
    assert process.wait(timeout=30) == 0
    text = shown.decode()
    assert "observations/s" in text
    assert "●" in text
    for intercept in service.json("show", "smol")["coefficients"]["intercepts"]:
        assert f"{intercept:+.3f}" in text


def test_workers_are_listed_while_they_are_there(service: Service) -> None:
    with service.replaying("1/8", "--loop", "--speed", "100", worker="busy") as process:
        found = until(lambda: [w for w in service.json("workers") if w["worker"] == "busy" and w["blocks"]])
        assert found[0]["connected"]
        assert len(found[0]["incarnation"]) == 16
        assert found[0]["max_segments"] == 5
        assert found[0]["hook_version"] == service.json("version")["acceptd"]
        assert "busy" in service.acceptd("workers", "--pair", "smol")
        process.terminate()
        assert process.wait(timeout=30) == 0
    until(lambda: not [w for w in service.json("workers") if w["worker"] == "busy" and w["connected"]])


def test_doctor_finds_a_healthy_service_healthy(service: Service) -> None:
    findings = service.json("doctor")
    assert {finding["level"] for finding in findings} <= {"ok", "note"}
    assert findings[0]["about"] == "service"
    assert service.address in findings[0]["text"]
    assert "blocks" in service.acceptd("doctor")


def test_what_the_images_health_check_and_prometheus_ask_for(service: Service) -> None:
    with urllib.request.urlopen(f"http://{service.metrics_address}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://{service.metrics_address}/metrics", timeout=10) as answer:
        assert "acceptd_slope" in answer.read().decode()


def test_sigterm_drains_and_exits_0() -> None:
    with serving("--metrics-listen", "") as running:
        assert running.json("pairs") == []
        assert "No worker" in running.acceptd("pairs")
        assert running.terminate() == 0
