"""`acceptd demo`, whole: real processes, a kill -9 in the middle, and counts that must be exact."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from running import ENVIRONMENT, TRACE, Service, until


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "estimator_service.cli", "demo", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def kept() -> Any:
    done = demo("--speed", "150", "--json", "--keep")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    yield report
    os.kill(report["kept"]["pid"], signal.SIGTERM)
    until(lambda: not Path(f"/proc/{report['kept']['pid']}").exists())
    shutil.rmtree(Path(report["kept"]["store"]).parent)


def test_counts_are_exact_over_a_kill_in_the_middle(kept: Any) -> None:
    table = pq.read_table(TRACE, columns=["accepted", "admitted"])
    accepted, admitted = (np.asarray(table[name]).astype(int) for name in ("accepted", "admitted"))
    positions = np.arange(7)
    observed = (positions < np.minimum(accepted + 1, admitted)[:, None]).sum(axis=0)
    pair = kept["pair"]
    assert kept["counts_equal"] is True
    assert pair["blocks"] == table.num_rows == sum(worker["acknowledged"] for worker in kept["workers"])
    assert pair["observations_by_position"] == observed.tolist()
    assert pair["acceptances_by_position"] == (positions < accepted[:, None]).sum(axis=0).tolist()
    assert pair["rejects"] == {}
    assert kept["epochs"] == 2
    assert kept["outage_seconds"] > 1
    for worker in kept["workers"]:
        assert worker["connects"] >= 2
        assert worker["dropped"] == worker["refused"] == 0


def test_it_learned(kept: Any) -> None:
    """Predicted before learned from: better than the starting coefficients, and than the constant acceptance rate."""
    scores, pair = kept["scores"], kept["pair"]
    observed, accepted = sum(pair["observations_by_position"]), sum(pair["acceptances_by_position"])
    rate = accepted / observed
    constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert scores["live"]["log_loss"] < constant < scores["starting"]["log_loss"]
    assert scores["live"]["ece"] < scores["starting"]["ece"] / 3
    assert scores["live"]["auc"] > 0.6


def test_keep_leaves_the_service_running(kept: Any) -> None:
    service = Service(None, kept["kept"]["address"], kept["kept"]["metrics_address"])  # type: ignore[arg-type]
    shown = service.json("show", "smol")
    assert shown["observations_by_position"] == kept["pair"]["observations_by_position"]
    assert len(service.json("history", "smol", "-n", "10000")) >= kept["versions"]


def test_without_keep_nothing_is_left(tmp_path: Path) -> None:
    """The table for people; and no process, no file stays behind."""
    ENVIRONMENT["TMPDIR"] = str(tmp_path)
    try:
        done = demo("--speed", "0", "--workers", "2")
    finally:
        del ENVIRONMENT["TMPDIR"]
    assert done.returncode == 0, done.stderr
    assert "none lost, none twice" in done.stdout
    assert "24,128 blocks" in done.stdout
    until(lambda: not any(str(tmp_path) in line for line in running_commands()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ended_demo_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, `kill` and a closed terminal, while workers replay: no process, no file stays behind."""
    command = [sys.executable, "-m", "estimator_service.cli", "demo", "--workers", "2"]
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def ours() -> list[str]:
        return [line for line in running_commands() if str(tmp_path) in line]

    try:
        until(lambda: sum("vllm_client_hook.replay" in line for line in ours()) == 2)
        running.send_signal(number)
        # Again, as impatient people do: it must not cut the first one short.
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + number
    assert b"Traceback" not in err
    assert ours() == []
    assert list(tmp_path.iterdir()) == []


def running_commands() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended while we looked
            found.append(path.read_bytes().replace(b"\0", b" ").decode())
    return found


def test_no_recording_is_one_line() -> None:
    done = demo("--trace", "nowhere.parquet")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no recording at nowhere.parquet")
    assert len(done.stderr.splitlines()) == 1
