"""What survives restarts and kill −9, with a store that is older or empty, too."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from raw_worker import KEY, RawWorker, counts, rows, state_of, until

from acceptd.codec import encode_batch
from acceptd.types import Version
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from acceptd.v1.estimator_pb2 import RejectReason


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
