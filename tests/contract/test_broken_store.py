"""What survives where the store is damaged or the disk is full or read-only."""

from __future__ import annotations

import asyncio
import resource
import sqlite3

import grpc
import pytest
from raw_worker import RawWorker, counts, rows, state_of, until

from acceptd.codec import encode_batch
from acceptd.errors import ConfigError
from acceptd.v1.estimator_pb2 import RejectReason
from estimator_service.storage import recovery as store_recovery


@pytest.mark.parametrize("damage", ["truncate", "garbage", "empty"])
async def test_a_damaged_store_is_set_aside(start, connect, tmp_path, caplog, damage):
    path = tmp_path / "store.sqlite"
    server = await start(store=path, round_blocks=100, round_min_seconds=0)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await worker.batch(1, rows(120, 1))
    before = await state_of(connect(server.address))
    await server.stop()
    data = path.read_bytes()
    path.write_bytes({"truncate": data[: len(data) // 2], "garbage": b"x" * 8192, "empty": b""}[damage])

    server = await start(store=path)
    assert "set aside" in caplog.text
    assert "last good copy" in caplog.text
    assert len(list(tmp_path.glob("store.sqlite.damaged-*"))) >= 1
    after = await state_of(connect(server.address))
    assert after.coefficients == before.coefficients
    assert after.observations == before.observations


async def test_a_damaged_snapshot_falls_back_to_the_one_before_and_its_journal(start, connect, tmp_path, caplog):
    path = tmp_path / "store.sqlite"
    flags = {"store": path, "durability": "strict", "round_blocks": 10_000, "snapshot_seconds": 0.05}
    server = await start(**flags)
    worker = RawWorker(connect(server.address))
    await worker.greet()

    def snapshots(count):
        def reached():
            with sqlite3.connect(path) as reader:
                return reader.execute("SELECT max(ticket) FROM snapshots").fetchone()[0] or 0

        return lambda: reached() >= count

    for i in range(1, 4):
        await worker.batch(i, rows(30, i))
        await until(snapshots(server.fleet.ledger.ticket), "a snapshot after the batch")
    await server.stop()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE snapshots SET window = x'00' WHERE ticket = (SELECT max(ticket) FROM snapshots)")
    connection.close()
    server = await start(**flags)
    assert "is damaged; continuing from the one before" in caplog.text
    state = await state_of(connect(server.address))
    assert (list(state.observations), list(state.acceptances)) == counts([rows(30, i) for i in range(1, 4)])


@pytest.mark.parametrize("durability", ["strict", "relaxed"])
async def test_a_store_that_cannot_be_written_is_reported_and_recovers(start, connect, tmp_path, durability):
    """Stands for a full or read-only disk: the file is gone."""
    path = tmp_path / "store.sqlite"
    server = await start(store=path, durability=durability, round_blocks=50, round_min_seconds=0, commit_seconds=0.05)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(20, 1))
    ledger = server.fleet.ledger
    # With the batch's round: its commit would fail before the next batch arrives.
    await until(lambda: ledger.delivery.commits > 0 and ledger.delivery.committed == ledger.ticket, "all is committed")
    path.rename(tmp_path / "elsewhere.sqlite")
    if durability == "strict":
        await worker.send(batch=encode_batch(2, None, rows(60, 2)))
        await until(lambda: ledger.delivery.failures > 0, "a failure is noticed")
        result = await worker.read_kind("batch_result")
        assert (result.sequence, result.rows_accepted) == (2, 60)
    else:
        result = await worker.batch(2, rows(60, 2))
        assert result.rows_accepted == 60
        await until(lambda: ledger.delivery.failures > 0, "a failure is noticed")
    assert (await worker.read_kind("update")).coefficients.version.counter == 1
    await until(lambda: ledger.delivery.trouble is None, "commits again")
    await server.stop()

    server = await start(store=path)
    state = await state_of(connect(server.address))
    assert (list(state.observations), list(state.acceptances)) == counts([rows(20, 1), rows(60, 2)])
    worker = RawWorker(connect(server.address))
    assert (await worker.greet()).last_sequence == 2


@pytest.mark.parametrize(
    ("limit", "why"),
    [("PRAGMA max_page_count = 1", "disk is full"), ("PRAGMA query_only = 1", "readonly database")],
    ids=["full", "read-only"],
)
async def test_a_full_or_read_only_disk_does_not_stop_serving(start, connect, tmp_path, caplog, limit, why):
    path = tmp_path / "store.sqlite"
    server = await start(
        store=path,
        method="round",
        round_blocks=50,
        round_min_seconds=0,
        commit_seconds=0.05,
        metrics_listen="127.0.0.1:0",
    )
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(20, 1))
    ledger = server.fleet.ledger
    await until(lambda: ledger.delivery.commits > 0, "a first commit")
    # The limit holds for this connection alone: the disk has room again when the file is opened anew.
    await asyncio.wrap_future(ledger.delivery.writer.call(lambda store: store._execute(limit)))
    sequence = 1
    while not ledger.delivery.failures:
        sequence += 1
        assert (await worker.batch(sequence, rows(50, sequence))).rows_accepted == 50
    assert (await state_of(channel)).blocks == 20 + 50 * (sequence - 1)
    await until(lambda: ledger.delivery.trouble is None and ledger.delivery.commits > 1, "commits again")
    assert why in caplog.text
    assert server.fleet.metrics.registry.get_sample_value("acceptd_store_failures_total") >= 1
    applied = [rows(20, 1)] + [rows(50, i) for i in range(2, sequence + 1)]
    await server.stop()
    server = await start(store=path)
    state = await state_of(connect(server.address))
    assert (list(state.observations), list(state.acceptances)) == counts(applied)


async def test_a_start_on_a_full_disk_knows_what_was_committed_last(start, spawn, connect, tmp_path):
    """After kill −9 that lies in the write-ahead log, whose index needs a file of its own."""
    flags = {
        "store": str(tmp_path / "store.sqlite"),
        "durability": "strict",
        "round_blocks": 60,
        "round_min_seconds": 0,
    }
    service = spawn(**flags)
    worker = RawWorker(connect(service.address))
    await worker.greet()
    for i in range(1, 6):
        await worker.batch(i, rows(40, i))
    expected = counts([rows(40, i) for i in range(1, 6)])
    service.kill()

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        server = await start(**flags)
        channel = connect(server.address)
        state = await state_of(channel)
        worker = RawWorker(channel)
        welcome = await worker.greet()
        assert server.fleet.ledger.delivery.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (list(state.observations), list(state.acceptances)) == expected
    assert (welcome.epoch, welcome.last_sequence) == (2, 5)
    await until(lambda: server.fleet.ledger.delivery.trouble is None, "commits again")
    assert (await worker.batch(6, rows(40, 6))).rows_accepted == 40
    await server.stop()

    server = await start(**flags)
    assert server.fleet.epoch == 3
    state = await state_of(connect(server.address))
    assert (list(state.observations), list(state.acceptances)) == counts([rows(40, i) for i in range(1, 7)])


async def test_on_a_read_only_disk_a_copy_is_read_log_and_all(start, spawn, connect, tmp_path, monkeypatch):
    flags = {"store": str(tmp_path / "store.sqlite"), "durability": "strict"}
    service = spawn(**flags)
    worker = RawWorker(connect(service.address))
    await worker.greet()
    assert (await worker.batch(1, rows(40, 1))).rows_accepted == 40
    service.kill()

    def refuse(*_, **__):
        raise sqlite3.OperationalError("attempt to write a readonly database")

    with monkeypatch.context() as patched:
        patched.setattr("estimator_service.storage.persistence.open_store", refuse)
        plain = store_recovery.Store
        # SQLite refuses the file where it lies, and takes it elsewhere.
        patched.setattr(store_recovery, "Store", lambda p, **f: refuse() if p.parent == tmp_path else plain(p, **f))
        server = await start(**flags)
        channel = connect(server.address)
        assert (await state_of(channel)).blocks == 40
        assert (await RawWorker(channel).greet()).last_sequence == 1
    await until(lambda: server.fleet.ledger.delivery.trouble is None, "it can be written again")
    await server.stop()


async def test_a_store_that_can_be_neither_written_nor_read_is_not_started_without(start, tmp_path, monkeypatch):
    """Empty, it would write over what is there as soon as it can."""
    path = tmp_path / "store.sqlite"
    await (await start(store=path)).stop()

    def refuse(*_, **__):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("estimator_service.storage.persistence.open_store", refuse)
    monkeypatch.setattr(store_recovery, "Store", refuse)
    with pytest.raises(ConfigError, match=r"can be neither written nor read \(disk I/O error\)"):
        await start(store=path)
    await (await start(store=tmp_path / "none-yet.sqlite")).stop()


async def test_a_store_that_cannot_be_written_at_start_is_served_from(start, connect, tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"
    server = await start(store=path, round_blocks=50, round_min_seconds=0)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await worker.batch(1, rows(60, 1))
    before = await state_of(connect(server.address))
    await server.stop()

    def refuse(*_, **__):
        raise sqlite3.OperationalError("attempt to write a readonly database")

    with monkeypatch.context() as patched:
        patched.setattr("estimator_service.storage.persistence.open_store", refuse)
        server = await start(store=path, metrics_listen="127.0.0.1:0")
        assert server.fleet.ledger.delivery.trouble == "attempt to write a readonly database"
        channel = connect(server.address)
        after = await state_of(channel)
        assert after.coefficients == before.coefficients
        assert after.observations == before.observations
        worker = RawWorker(channel)
        assert (await worker.greet()).last_sequence == 1
        assert (await worker.batch(2, rows(30, 2))).rows_accepted == 30
    await until(lambda: server.fleet.ledger.delivery.trouble is None, "it can be written again")
    await server.stop()
    server = await start(store=path)
    assert (await state_of(connect(server.address))).blocks == 90


async def test_strict_postpones_batches_while_the_store_is_broken(start, connect, tmp_path):
    directory = tmp_path / "disk"
    directory.mkdir()
    # No round fills: closing one would be what fails.
    server = await start(store=directory / "store.sqlite", durability="strict", round_blocks=100_000)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await worker.batch(1, rows(20, 1))
    directory.rename(tmp_path / "gone")
    directory.touch()
    await worker.send(batch=encode_batch(2, None, rows(20, 2)))
    await until(lambda: server.fleet.ledger.delivery.trouble is not None, "the failure is noticed")
    await worker.send(batch=encode_batch(3, None, rows(20, 3)))
    directory.unlink()
    (tmp_path / "gone").rename(directory)
    second, third = [await worker.read_kind("batch_result") for _ in range(2)]
    assert (second.sequence, second.rows_accepted) == (2, 20)
    assert third.reason == RejectReason.REJECT_REASON_OVER_QUOTA
    assert third.retry_after_seconds > 0
    assert third.last_sequence == 2
    assert "store cannot commit" in third.message
    await until(lambda: server.fleet.ledger.delivery.trouble is None, "commits again")
    assert (await worker.batch(3, rows(20, 3))).rows_accepted == 20


async def test_strict_does_not_welcome_with_what_is_not_committed(start, connect, tmp_path):
    """A worker that comes back while the store is broken must not be told to forget what a crash would lose."""
    directory = tmp_path / "disk"
    directory.mkdir()
    # No round fills: closing one would be what fails.
    server = await start(store=directory / "store.sqlite", durability="strict", round_blocks=100_000)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(20, 1))
    directory.rename(tmp_path / "gone")
    directory.touch()
    await worker.send(batch=encode_batch(2, None, rows(20, 2)))
    await until(lambda: server.fleet.ledger.delivery.trouble is not None, "the failure is noticed")
    again, fresh = RawWorker(channel), RawWorker(channel, "fresh")
    await again.send(hello=again.hello())
    code, details = await again.status()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "cannot be committed now" in details
    assert (await fresh.greet()).last_sequence == 0
    directory.unlink()
    (tmp_path / "gone").rename(directory)
    await until(lambda: server.fleet.ledger.delivery.trouble is None, "commits again")
    again = RawWorker(channel)
    assert (await again.greet()).last_sequence == 2
