"""What operators do: versions that only go up, what survives, and what the audit says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import urllib.request

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from raw_worker import DEADLINE, KEY, RawWorker, rows, state_of, until

from acceptd.modes import Mode
from acceptd.types import PRIOR_INTERCEPT, PRIOR_SLOPE, Version
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.storage.copy import back_up, restore_copy

FAST = {"round_blocks": 50, "round_min_seconds": 0, "publish_min_change": 0.0}


def stub(channel):
    return inspect_pb2_grpc.InspectStub(channel)


async def status_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details()


def version(message):
    return Version(message.epoch, message.counter)


async def history_of(channel):
    answer = await stub(channel).GetHistory(inspect_pb2.GetHistoryRequest(pair=KEY.id, limit=1000))
    return answer.entries


async def fitted(channel, batches=6, worker="w0", seed=0):
    """A pair with a few versions; (its worker, the versions, oldest first)."""
    raw = RawWorker(channel, worker)
    welcome = await raw.greet()
    for i in range(batches):
        await raw.batch(welcome.last_sequence + i + 1, rows(60, seed + i))
    entries = await history_of(channel)
    return raw, list(reversed(entries))


def values(coefficients):
    """Everything but the version."""
    bare = type(coefficients)()
    bare.CopyFrom(coefficients)
    bare.ClearField("version")
    return bare.SerializeToString(deterministic=True)


async def update_with(worker, wanted):
    """The push of the version."""
    while version((update := await worker.read_kind("update")).coefficients.version) != wanted:
        pass
    return update


async def test_a_pinned_version_goes_out_under_a_higher_one_and_stays(start, connect, tmp_path):
    flags = {**FAST, "store": tmp_path / "store.sqlite"}
    server = await start(**flags)
    channel = connect(server.address)
    worker, entries = await fitted(channel)
    assert len(entries) >= 4
    old, latest = entries[2].coefficients, entries[-1].coefficients
    assert values(old) != values(latest)
    request = inspect_pb2.PinPairRequest(pair=KEY.id, version=old.version)
    answer = await stub(channel).PinPair(request)
    pinned = answer.state
    assert answer.durability.trouble == ""
    assert values(pinned.coefficients) == values(old)
    assert version(pinned.coefficients.version) > version(latest.version)
    assert version(pinned.pinned) == version(old.version)
    update = await update_with(worker, version(pinned.coefficients.version))
    assert list(update.coefficients.line.intercepts) == list(old.line.intercepts)

    # It still learns, and does not publish.
    before = (pinned.refit.done, pinned.blocks)
    for i in range(7, 11):
        await worker.batch(i, rows(60, i))
    after = await state_of(channel)
    assert after.coefficients == pinned.coefficients
    assert (after.refit.done, after.blocks) == (before[0] + 4, before[1] + 240)
    assert after.refit.held["pinned"] == 4
    await server.stop()

    server = await start(**flags)
    channel = connect(server.address)
    restarted = await state_of(channel)
    assert version(restarted.pinned) == version(old.version)
    assert restarted.coefficients == pinned.coefficients
    worker = RawWorker(channel)
    welcome = await worker.greet(version(pinned.coefficients.version))
    again = welcome.update.coefficients
    assert list(again.line.intercepts) == list(old.line.intercepts)
    unpinned = (await stub(channel).UnpinPair(inspect_pb2.UnpinPairRequest(pair=KEY.id))).state
    assert not unpinned.HasField("pinned")
    await worker.batch(11, rows(60, 11))
    free = await state_of(channel)
    assert version(free.coefficients.version) > version(pinned.coefficients.version)
    assert values(free.coefficients) != values(old)
    versions = [version(entry.coefficients.version) for entry in await history_of(channel)]
    assert versions == sorted(set(versions), reverse=True)


async def test_rolling_back_goes_one_version_further_each_time(start, connect):
    channel = connect((await start(**FAST)).address)
    _, entries = await fitted(channel)
    highest = version(entries[-1].coefficients.version)
    for steps in range(1, len(entries)):
        state = (await stub(channel).RollbackPair(inspect_pb2.RollbackPairRequest(pair=KEY.id))).state
        assert values(state.coefficients) == values(entries[-1 - steps].coefficients)
        assert version(state.pinned) == version(entries[-1 - steps].coefficients.version)
        assert version(state.coefficients.version) > highest
        highest = version(state.coefficients.version)
    code, details = await status_of(stub(channel).RollbackPair(inspect_pb2.RollbackPairRequest(pair=KEY.id)))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "no version before" in details
    newest = (await history_of(channel))[0]
    assert newest.cause == "rollback"
    assert version(newest.origin) == version(entries[0].coefficients.version)


async def test_a_reset_pair_starts_from_the_prior(start, connect):
    channel = connect((await start(**FAST)).address)
    worker, entries = await fitted(channel)
    await stub(channel).PinPair(inspect_pb2.PinPairRequest(pair=KEY.id, version=entries[1].coefficients.version))
    before = await state_of(channel)
    state = (await stub(channel).ResetPair(inspect_pb2.ResetPairRequest(pair=KEY.id))).state
    assert list(state.coefficients.line.slopes) == [PRIOR_SLOPE]
    assert list(state.coefficients.line.intercepts) == pytest.approx([PRIOR_INTERCEPT] * 4, abs=1e-7)
    assert list(state.coefficients.evidence) == [0] * 4
    assert version(state.coefficients.version) > version(before.coefficients.version)
    assert not state.HasField("pinned")
    assert (state.blocks, state.observations) == (before.blocks, before.observations), "exact counts are history"
    assert state.refit.pending_blocks == 0
    await update_with(worker, version(state.coefficients.version))
    await worker.batch(7, rows(60, 7))
    fresh = await state_of(channel)
    assert version(fresh.coefficients.version) > version(state.coefficients.version)
    assert sum(fresh.coefficients.evidence) <= sum(fresh.observations) - sum(before.observations) + 1e-9


async def test_a_mode_reaches_connected_workers_with_the_version_they_have(start, connect, tmp_path):
    flags = {"store": tmp_path / "store.sqlite", "exploration_rate": 0.25}
    server = await start(**flags)
    channel = connect(server.address)
    worker = RawWorker(channel)
    first = (await worker.greet()).update
    assert (first.mode, first.exploration_rate) == (Mode.TRIM, 0.25)
    request = inspect_pb2.SetModeRequest(pair=KEY.id, mode=Mode.SHADOW)
    state = (await stub(channel).SetMode(request)).state
    assert (state.mode, state.exploration_rate) == (Mode.SHADOW, 0.25)
    update = await worker.read_kind("update")
    assert (update.mode, update.exploration_rate) == (Mode.SHADOW, 0.25)
    assert update.coefficients == first.coefficients
    assert update.nonce > first.nonce
    await stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, exploration_rate=0.0))
    update = await worker.read_kind("update")
    assert (update.mode, update.exploration_rate) == (Mode.SHADOW, 0.0)
    await server.stop()
    server = await start(**flags)
    welcome = await RawWorker(connect(server.address)).greet()
    assert (welcome.update.mode, welcome.update.exploration_rate) == (Mode.SHADOW, 0.0)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), float("inf")])
async def test_no_such_share(start, connect, rate):
    channel = connect((await start()).address)
    await RawWorker(channel).greet()
    code, _ = await status_of(stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, exploration_rate=rate)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT


async def test_what_cannot_be_done_says_why(start, connect):
    channel = connect((await start()).address)
    await RawWorker(channel).greet()
    for call, expected, part in (
        (stub(channel).UnpinPair(inspect_pb2.UnpinPairRequest(pair=KEY.id)), "FAILED_PRECONDITION", "not pinned"),
        (
            stub(channel).PinPair(inspect_pb2.PinPairRequest(pair=KEY.id, version={"epoch": 2**63, "counter": 9})),
            "NOT_FOUND",
            "not in its history",
        ),
        (stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, mode=9)), "INVALID_ARGUMENT", "SHADOW"),
        (stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id)), "INVALID_ARGUMENT", "neither"),
        (stub(channel).ResetPair(inspect_pb2.ResetPairRequest(pair="nothing")), "NOT_FOUND", KEY.id),
    ):
        code, details = await status_of(call)
        assert code.name == expected
        assert part in details
    assert not (await stub(channel).ListAudit(inspect_pb2.ListAuditRequest())).entries


@pytest.mark.parametrize("durability", ["relaxed", "strict"])
async def test_the_audit_says_who_what_before_and_after_and_survives_kill_9(spawn, connect, tmp_path, durability):
    flags = {**FAST, "store": str(tmp_path / "store.sqlite"), "commit_seconds": 1.0, "durability": durability}
    service = spawn(**flags)
    channel = connect(service.address)
    _, entries = await fitted(channel)
    old = entries[1].coefficients.version
    in_force = entries[-1].coefficients.version
    await stub(channel).PinPair(inspect_pb2.PinPairRequest(pair=KEY.id, version=old))
    await stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, mode=Mode.OFF))
    state = await state_of(channel)
    # At once: an action is answered when it is on disk, whatever the durability of batches.
    service.kill()
    service = spawn(**flags)
    channel = connect(service.address)
    after = await state_of(channel)
    assert (after.mode, version(after.pinned)) == (Mode.OFF, version(old))
    assert after.coefficients == state.coefficients
    listed = (await stub(channel).ListAudit(inspect_pb2.ListAuditRequest())).entries
    assert [(entry.action, entry.pair, entry.who) for entry in listed] == [
        ("mode", KEY.id, "anonymous"),
        ("pin", KEY.id, "anonymous"),
    ]
    before, then = json.loads(listed[1].before), json.loads(listed[1].after)
    assert before == {
        "version": str(version(in_force)),
        "coefficients_of": str(version(in_force)),
        "pinned": None,
        "mode": "trim",
        "exploration_rate": 0.01,
    }
    assert then["pinned"] == then["coefficients_of"] == str(version(old))
    assert then["version"] == str(version(state.coefficients.version))
    assert json.loads(listed[0].after)["mode"] == "off"
    by_prefix = await stub(channel).ListAudit(inspect_pb2.ListAuditRequest(pair="target", limit=1))
    assert list(by_prefix.entries) == [listed[0]]


async def test_an_action_is_in_force_also_while_the_store_cannot_commit(start, connect, tmp_path):
    """And is written, with its entry in the audit, as soon as it can."""
    path = tmp_path / "store.sqlite"
    server = await start(**FAST, store=path)
    channel = connect(server.address)
    worker, _ = await fitted(channel)
    path.rename(tmp_path / "away")
    await until(lambda: server.fleet.ledger.delivery.trouble is not None or not path.exists(), "the store is gone")
    answer = await stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, mode=Mode.OFF))
    assert "removed" in answer.durability.trouble
    assert (await worker.read_kind("update")).mode in {Mode.TRIM, Mode.OFF}
    listed = (await stub(channel).ListAudit(inspect_pb2.ListAuditRequest())).entries
    assert [entry.action for entry in listed] == ["mode"]
    await until(lambda: server.fleet.ledger.delivery.trouble is None, "the store commits again")

    def on_disk():
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as reader:
            return reader.execute("SELECT action FROM audit").fetchall() == [("mode",)]

    await until(on_disk, "the audit is on disk")
    listed = (await stub(channel).ListAudit(inspect_pb2.ListAuditRequest())).entries
    assert [entry.action for entry in listed] == ["mode"]


async def test_a_restored_older_store_goes_on_above_what_workers_hold(start, connect, tmp_path):
    """Pinned, copied, unpinned, restored: the pin is back, and no version goes down."""
    flags = {**FAST, "store": tmp_path / "store.sqlite"}
    server = await start(**flags)
    channel = connect(server.address)
    worker, entries = await fitted(channel)
    old = entries[1].coefficients
    await stub(channel).PinPair(inspect_pb2.PinPairRequest(pair=KEY.id, version=old.version))
    back_up(flags["store"], tmp_path / "copy")
    await stub(channel).UnpinPair(inspect_pb2.UnpinPairRequest(pair=KEY.id))
    await worker.batch(7, rows(60, 7))
    held = version((await state_of(channel)).coefficients.version)
    await server.stop()
    restore_copy(tmp_path / "copy", flags["store"], now=0.0)
    server = await start(**flags)
    channel = connect(server.address)
    welcome = await RawWorker(channel).greet(held)
    state = await state_of(channel)
    assert version(welcome.update.coefficients.version) > held
    assert list(welcome.update.coefficients.line.intercepts) == list(old.line.intercepts)
    assert version(state.pinned) == version(old.version)


async def test_metrics_tell_what_operators_did(start, connect):
    server = await start(**FAST, metrics_listen="127.0.0.1:0")
    channel = connect(server.address)
    await fitted(channel)
    await stub(channel).RollbackPair(inspect_pb2.RollbackPairRequest(pair=KEY.id))
    await stub(channel).SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, mode=Mode.SHADOW, exploration_rate=0.5))
    url = f"http://{server.metrics_address}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=DEADLINE).read().decode())
    samples = {
        (sample.name, sample.labels.get("action") or sample.labels.get("mode") or ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["acceptd_pinned", ""] == 1
    assert samples["acceptd_exploration_rate", ""] == 0.5
    assert samples["acceptd_mode", "shadow"] == 1
    assert samples["acceptd_operator_actions_total", "rollback"] == 1
    assert samples["acceptd_operator_actions_total", "mode"] == 1


# Export and import


async def exported(channel):
    return (await stub(channel).ExportPair(inspect_pb2.ExportPairRequest(pair=KEY.id))).export


async def test_an_export_continues_elsewhere_as_if_nothing_had_happened(start, connect):
    """The same rows from there on give the same coefficients as where it came from."""
    one = connect((await start(**FAST)).address)
    worker, _ = await fitted(one)
    export = await exported(one)
    source = await state_of(one)
    other = connect((await start(**FAST)).address)
    state = (await stub(other).ImportPair(inspect_pb2.ImportPairRequest(export=export))).state
    assert values(state.coefficients) == values(source.coefficients)
    assert version(state.coefficients.version) == Version(1, 1)
    assert (state.blocks, state.observations, state.acceptances) == (
        source.blocks,
        source.observations,
        source.acceptances,
    )
    elsewhere = RawWorker(other)
    await elsewhere.greet()
    for i in range(4):
        await worker.batch(7 + i, rows(60, 100 + i))
        await elsewhere.batch(1 + i, rows(60, 100 + i))
    here, there = (await state_of(one)).coefficients, (await state_of(other)).coefficients
    assert list(there.line.slopes) == pytest.approx(list(here.line.slopes), abs=1e-5)
    assert list(there.line.intercepts) == pytest.approx(list(here.line.intercepts), abs=1e-5)


async def test_an_import_replaces_only_what_it_is_told_to(start, connect):
    one = connect((await start(**FAST)).address)
    await fitted(one)
    export = await exported(one)
    channel = connect((await start(**FAST)).address)
    worker, entries = await fitted(channel, seed=50)
    await stub(channel).PinPair(inspect_pb2.PinPairRequest(pair=KEY.id, version=entries[1].coefficients.version))
    before = await state_of(channel)
    code, details = await status_of(stub(channel).ImportPair(inspect_pb2.ImportPairRequest(export=export)))
    assert (code, "known already" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    assert await state_of(channel) == before
    state = (await stub(channel).ImportPair(inspect_pb2.ImportPairRequest(export=export, replace=True))).state
    assert values(state.coefficients) == values(export.coefficients)
    assert version(state.coefficients.version) > version(before.coefficients.version)
    assert not state.HasField("pinned")
    await update_with(worker, version(state.coefficients.version))


async def test_what_is_no_export_is_refused_and_changes_nothing(start, connect):
    channel = connect((await start(**FAST)).address)
    await fitted(channel)
    before = await state_of(channel)
    good = await exported(channel)

    def changed(positions=4, **fields):
        export = inspect_pb2.PairExport()
        export.CopyFrom(good)
        export.key.num_speculative_tokens = positions
        for name, value in fields.items():
            setattr(export, name, value)
        # As one who knows the format would forge it.
        export.ClearField("exported_at_seconds")
        export.ClearField("acceptd_version")
        export.ClearField("checksum")
        export.checksum = hashlib.sha256(export.SerializeToString(deterministic=True)).digest()
        return export

    torn = inspect_pb2.PairExport()
    torn.CopyFrom(good)
    torn.window = torn.window[:-1]
    header = json.loads(good.header)
    short = {**header, "counters": {**header["counters"], "observations": [1]}}
    for export in (
        torn,
        inspect_pb2.PairExport(),
        changed(positions=5),
        changed(window=b""),
        changed(window=good.window[:200]),
        changed(header="{}"),
        changed(header="["),
        changed(header=json.dumps(short)),
    ):
        request = inspect_pb2.ImportPairRequest(export=export, replace=True)
        code, _ = await status_of(stub(channel).ImportPair(request))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert await state_of(channel) == before
