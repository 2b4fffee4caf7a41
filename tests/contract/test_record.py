"""`acceptd record` against a real service: the file holds what the workers sent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import numpy as np
from raw_worker import DEADLINE, KEY, RawWorker, rows, until

from acceptd.codec import Observations
from estimator_service.lab.record import ROW_GROUP
from estimator_service.lab.trace import Trace

ENTRY = "from estimator_service.cli.entry import main; main()"


def recording(address, *arguments):
    """The command in a process of its own.

    Not by the loop: uvloop forks with code of its own to run in the child, which dies or hangs there now and then when
    gRPC has threads in this process.
    """
    return subprocess.Popen(
        [sys.executable, "-c", ENTRY, "record", KEY.id[:6], "--address", address, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def ended(process):
    out, error = await asyncio.to_thread(process.communicate, timeout=DEADLINE)
    return process.returncode, out, error


def sent(count, seed, segment):
    plain = rows(count, seed)
    return Observations(
        plain.accepted,
        plain.admitted,
        plain.features,
        np.full(count, segment, np.uint8),
        plain.explored,
        plain.propensities,
        np.abs(plain.features),
        np.abs(plain.features) + 1,
    )


def is_tapped(server):
    return lambda: bool(server.fleet.taps._open)


async def test_the_trace_holds_what_workers_sent(start, connect, tmp_path):
    server = await start()
    code, chat = RawWorker(connect(server.address), "w0"), RawWorker(connect(server.address), "w1")
    await code.greet(workload="code")
    await chat.greet(workload="chat")
    path = tmp_path / "live.parquet"
    process = recording(server.address, "-o", path, "--blocks", 600, "--json")
    await until(is_tapped(server), "the command has opened its tap")
    batches = [(code, sent(300, 1, 3)), (chat, sent(200, 2, 0)), (code, sent(100, 3, 3))]
    await code.batch(1, batches[0][1])
    await chat.batch(1, batches[1][1])
    # Without the entropy and margin of the others: left out and counted.
    await chat.batch(2, rows(7, 4))
    await code.batch(2, batches[2][1])
    status, out, error = await ended(process)
    assert (status, error) == (0, "")
    assert json.loads(out) == {
        "file": str(path),
        "pair": KEY.id,
        "blocks": 600,
        "dropped_blocks": 0,
        "skipped_blocks": 7,
    }

    trace = Trace(path)
    assert (trace.pair, trace.num_positions, trace.metadata["key"]["target"]) == (KEY.id, 4, KEY.target)
    (blocks,) = trace.rounds(1000, ["entropy", "margin"])
    expected = [data for _, data in batches]
    back = blocks.observations()
    for name in ("accepted", "admitted", "features", "segments", "explored", "propensities"):
        np.testing.assert_array_equal(getattr(back, name), np.concatenate([getattr(e, name) for e in expected]))
    for column, name in (("entropy", "entropies"), ("margin", "margins")):
        found = blocks.positions[column][blocks.observed]
        np.testing.assert_array_equal(found, np.concatenate([getattr(e, name) for e in expected]))
    assert [blocks.workloads[w] for w in blocks.workload] == ["code"] * 300 + ["chat"] * 200 + ["code"] * 100


async def test_a_limit_of_blocks_ends_it(start, connect, tmp_path):
    server = await start()
    worker = RawWorker(connect(server.address))
    await worker.greet()
    process = recording(server.address, "-o", tmp_path / "a.parquet", "--blocks", 150)
    await until(is_tapped(server), "the command has opened its tap")
    for sequence in range(1, 4):
        await worker.batch(sequence, rows(100, sequence))
    status, out, _ = await ended(process)
    assert status == 0
    assert out.strip().replace("\n", "").startswith("wrote 200 blocks of")
    assert Trace(tmp_path / "a.parquet").num_blocks == 200
    await until(lambda: not server.fleet.taps._open, "the tap is closed")


async def test_what_was_recorded_is_kept_when_the_service_goes_away(start, connect, tmp_path):
    server = await start()
    worker = RawWorker(connect(server.address))
    await worker.greet()
    process = recording(server.address, "-o", tmp_path / "a.parquet")
    await until(is_tapped(server), "the command has opened its tap")
    await worker.batch(1, rows(100, 1))
    await until(lambda: not any(tap._waiting for taps in server.fleet.taps._open.values() for tap in taps), "all sent")
    await server.stop()
    status, out, error = await ended(process)
    assert (status, error) == (0, "")
    assert "wrote 100 blocks" in out
    assert Trace(tmp_path / "a.parquet").num_blocks == 100


async def test_a_signal_ends_it_with_a_complete_file(start, connect, tmp_path):
    server = await start()
    worker = RawWorker(connect(server.address))
    await worker.greet()
    path = tmp_path / "a.parquet"
    process = recording(server.address, "-o", path, "--json")
    await until(is_tapped(server), "the command has opened its tap")
    await worker.batch(1, rows(ROW_GROUP // 3, 1))
    await worker.batch(2, rows(ROW_GROUP // 3, 2))
    await worker.batch(3, rows(ROW_GROUP // 3 + 3, 3))
    await until(lambda: any(tmp_path.iterdir()), "a row group is written")
    process.send_signal(signal.SIGTERM)
    status, out, error = await ended(process)
    assert (status, error) == (0, "")
    assert json.loads(out)["blocks"] == Trace(path).num_blocks == ROW_GROUP // 3 * 3 + 3


async def test_no_traffic_no_file(start, connect, tmp_path):
    server = await start()
    await RawWorker(connect(server.address)).greet()
    status, out, error = await ended(recording(server.address, "-o", tmp_path / "a.parquet", "--seconds", 1))
    assert (status, out) == (1, "")
    assert error == f"error: no worker of {KEY.id} sent a batch meanwhile; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


async def test_an_existing_file_and_an_unknown_pair_are_refused(start, tmp_path):
    server = await start()
    path = tmp_path / "a.parquet"
    status, _, error = await ended(recording(server.address, "-o", path))
    assert status == 1
    assert error.startswith("error: no pair 'target'")
    path.write_text("mine")
    status, _, error = await ended(recording(server.address, "-o", path))
    assert (status, error) == (1, f"error: {path} exists; accepted: another name, or --force\n")
    assert path.read_text() == "mine"
