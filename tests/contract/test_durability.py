"""What survives: restarts, kill −9, a store that is damaged, older, empty, full or read-only."""

from __future__ import annotations

import asyncio
import resource
import sqlite3

import grpc
import numpy as np
import pytest
from raw_worker import KEY, RawWorker, rows, state_of, until

from acceptd.codec import encode_batch
from acceptd.errors import ConfigError
from acceptd.types import Version
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from acceptd.v1.estimator_pb2 import RejectReason
from estimator_service.storage import recovery as store_recovery


def counts(batches):
    """Exact counts per position, by hand."""
    observed, accepted = np.zeros(4, int), np.zeros(4, int)
    for data in batches:
        for a, n in zip(data.accepted.tolist(), data.admitted.tolist(), strict=True):
            for k in range(min(a + 1, n)):
                observed[k] += 1
                accepted[k] += k < a
    return observed.tolist(), accepted.tolist()


async def test_a_restart_continues_where_it_was(start, connect, tmp_path):
    flags = {"store": tmp_path / "store.sqlite", "round_blocks": 100, "round_min_seconds": 0}
    server = await start(**flags)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    for i in range(1, 6):
        await worker.batch(i, rows(60, i), exclusions={7: 3})
    before = await state_of(channel)
    await server.stop()

    server = await start(**flags)
    channel = connect(server.address)
    after = await state_of(channel)
    assert after.coefficients == before.coefficients
    assert (after.observations, after.acceptances, after.blocks) == (before.observations, before.acceptances, 300)
    # Its first rounds are shorter: only the fifth batch does not fill one.
    assert after.refit.done == before.refit.done == 4
    assert after.refit.pending_blocks == before.refit.pending_blocks == 60
    assert [(item.reason, item.blocks) for item in after.exclusions] == [(7, 15)]
    worker = RawWorker(channel)
    welcome = await worker.greet(Version(1, before.coefficients.version.counter))
    assert welcome.epoch == 2
    assert welcome.last_sequence == 5
    await worker.batch(6, rows(60, 6))
    update = await worker.read_kind("update")
    assert (update.coefficients.version.epoch, update.coefficients.version.counter) == (2, 1)


@pytest.mark.parametrize("durability", ["strict", "relaxed"])
async def test_nothing_is_counted_twice_over_kill_9_and_strict_loses_nothing(spawn, connect, tmp_path, durability):
    """The worker sends again what was not answered, as the protocol asks; each life of the service is cut short."""
    flags = {
        "store": str(tmp_path / "store.sqlite"),
        "durability": durability,
        "round_blocks": 150,
        "round_min_seconds": 0,
        "snapshot_seconds": 0.2,
    }
    batches = {i: rows(40, i) for i in range(1, 61)}
    acknowledged: set[int] = set()
    next_sequence, versions = 1, []
    for life in range(4):
        service = spawn(**flags)
        channel = connect(service.address)
        worker = RawWorker(channel)
        welcome = await worker.greet(versions[-1] if versions else None)
        versions.append(Version(welcome.update.coefficients.version.epoch, welcome.update.coefficients.version.counter))
        if durability == "strict":
            assert welcome.last_sequence >= max(acknowledged, default=0)
        next_sequence = max(welcome.last_sequence, max(acknowledged, default=0)) + 1
        last = 60 if life == 3 else next_sequence + 14
        for i in range(next_sequence, last + 1):
            # Three in flight when the service is killed.
            await worker.send(batch=encode_batch(i, None, batches[i]))
            if i <= last - 3 or life == 3:
                acknowledged.add((await worker.read_kind("batch_result")).sequence)
        if life < 3:
            service.kill()
    final = await state_of(channel)
    versions.append(Version(final.coefficients.version.epoch, final.coefficients.version.counter))
    assert versions == sorted(versions)
    assert final.coefficients.version.epoch == 4
    assert acknowledged == set(range(1, 61)) - (set(range(1, 61)) - acknowledged)
    if durability == "strict":
        applied = [batches[i] for i in range(1, 61)]
        assert (list(final.observations), list(final.acceptances)) == counts(applied)
        assert final.blocks == 60 * 40
    else:
        assert final.blocks <= 60 * 40
        assert final.blocks % 40 == 0
    assert service.terminate() == 0


async def test_relaxed_keeps_what_is_older_than_a_second(spawn, connect, tmp_path):
    flags = {"store": str(tmp_path / "store.sqlite"), "commit_seconds": 0.1, "round_blocks": 10_000}
    service = spawn(**flags)
    worker = RawWorker(connect(service.address))
    await worker.greet()
    for i in range(1, 4):
        await worker.batch(i, rows(50, i))

    def journaled():
        with sqlite3.connect(f"file:{tmp_path}/store.sqlite?mode=ro", uri=True) as reader:
            return reader.execute("SELECT count(*) FROM journal").fetchone()[0] == 3

    await until(journaled, "three batches in the journal")
    service.kill()
    service = spawn(**flags)
    state = await state_of(connect(service.address))
    assert (list(state.observations), list(state.acceptances)) == counts([rows(50, i) for i in range(1, 4)])


async def test_an_unanswered_batch_is_sent_again_and_counted_once(start, connect, tmp_path):
    """cases.md 15, and nonces start anew with the stream."""
    server = await start(store=tmp_path / "store.sqlite")
    channel = connect(server.address)
    worker = RawWorker(channel)
    first = await worker.greet()
    assert first.update.nonce == 1
    await worker.batch(1, rows(30, 1))
    await worker.send(batch=encode_batch(2, None, rows(30, 2)))
    worker.stream.cancel()

    again = RawWorker(channel)
    welcome = await again.greet()
    assert welcome.update.nonce == 1
    assert welcome.last_sequence in {1, 2}
    result = await again.batch(2, rows(30, 2))
    expected = RejectReason.REJECT_REASON_DUPLICATE if welcome.last_sequence == 2 else 0
    assert (result.reason, result.last_sequence) == (expected, 2)
    state = await state_of(channel)
    assert state.blocks == 60
    duplicate = await again.batch(1, rows(30, 1))
    assert (duplicate.reason, duplicate.last_sequence) == (RejectReason.REJECT_REASON_DUPLICATE, 2)
    assert (await state_of(channel)).blocks == 60


async def test_an_empty_store_never_hands_out_what_sorts_before_what_workers_hold(start, connect, tmp_path):
    """cases.md 17."""
    server = await start(store=tmp_path / "new.sqlite", round_blocks=100, round_min_seconds=0)
    channel = connect(server.address)
    fresh, holder = RawWorker(channel, "fresh"), RawWorker(channel, "holder")
    await fresh.greet()
    held = Version(7, 41)
    welcome = await holder.greet(held)
    assert welcome.epoch == 8
    # The prior would replace something fitted.
    assert not welcome.HasField("update")
    with sqlite3.connect(f"file:{tmp_path}/new.sqlite?mode=ro", uri=True) as reader:
        assert reader.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone() == (8,)
    await holder.batch(1, rows(100, 1), held)
    for worker in (holder, fresh):
        version = (await worker.read_kind("update")).coefficients.version
        assert (version.epoch, version.counter) > (7, 41)
        assert (version.epoch, version.counter) == (8, 1)
    await server.stop()
    server = await start(store=tmp_path / "new.sqlite")
    assert server.fleet.epoch == 9


async def test_an_older_store_publishes_again_above_what_workers_hold(start, connect, tmp_path):
    flags = {"store": tmp_path / "store.sqlite", "round_blocks": 100, "round_min_seconds": 0}
    server = await start(**flags)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await worker.batch(1, rows(100, 1))
    fitted = (await worker.read_kind("update")).coefficients
    await server.stop()
    server = await start(**flags)
    worker = RawWorker(connect(server.address), "other")
    # Epoch 1 had published more than the store knows.
    welcome = await worker.greet(Version(1, 9))
    update = welcome.update.coefficients
    assert (update.version.epoch, update.version.counter) == (2, 1)
    assert update.line == fitted.line
    assert (await worker.batch(1, rows(10, 3), Version(1, 9))).rows_accepted == 10
    assert (await worker.batch(2, rows(10, 3), Version(1, 10))).reason == RejectReason.REJECT_REASON_UNKNOWN_VERSION


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


async def test_a_round_that_was_full_when_the_service_was_killed_is_closed_before_anything_joins_it(
    start, connect, tmp_path
):
    """The last batch was committed, the round that it filled was not."""
    flags = {"store": tmp_path / "store.sqlite", "round_blocks": 120, "round_min_seconds": 0, "round_seconds": 1000}
    server = await start(**flags)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    for i in range(1, 5):
        await worker.batch(i, rows(30, i))
    done = server.fleet.pairs[KEY.id].refits_done
    writer = server.fleet.ledger.delivery.writer
    await until(lambda: server.fleet.ledger.delivery.committed == server.fleet.ledger.ticket, "all is committed")
    await asyncio.wrap_future(writer.call(lambda store: store.backup(tmp_path / "killed.sqlite")))
    await server.stop()
    with sqlite3.connect(tmp_path / "killed.sqlite") as edit:
        (last,) = edit.execute("SELECT max(ticket) FROM journal WHERE kind = 'round'").fetchone()
        edit.execute("DELETE FROM journal WHERE ticket = ?", (last,))
    edit.close()
    server = await start(**{**flags, "store": tmp_path / "killed.sqlite"})
    # Nothing was awaited since: no tick, no batch.
    pair = server.fleet.pairs[KEY.id]
    assert (pair.refits_done, pair.pending_blocks) == (done, 0)


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


async def test_two_services_do_not_share_a_store(start, tmp_path):
    await start(store=tmp_path / "store.sqlite")
    with pytest.raises(Exception, match="in use by another process"):
        await start(store=tmp_path / "store.sqlite")


async def test_history_is_bounded(start, connect, tmp_path):
    server = await start(
        store=tmp_path / "s.sqlite",
        history_versions=10,
        round_blocks=20,
        round_min_seconds=0,
        publish_min_change=0,
        publish_max_age_seconds=0.001,
        hold_tolerance=10,
    )
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    for i in range(1, 31):
        await worker.batch(i, rows(20, i))
    published = (await state_of(channel)).coefficients.version.counter
    assert published > 20
    stub = inspect_pb2_grpc.InspectStub(channel)
    entries = (await stub.GetHistory(inspect_pb2.GetHistoryRequest(pair=KEY.id, limit=5))).entries
    assert [entry.coefficients.version.counter for entry in entries] == list(range(published, published - 5, -1))
    await server.stop()
    with sqlite3.connect(tmp_path / "s.sqlite") as reader:
        assert reader.execute("SELECT count(*), max(counter) FROM history").fetchone() == (10, published)
