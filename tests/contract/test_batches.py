"""What becomes of a batch: refused whole, postponed, answered together, set aside."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from raw_worker import KEY, RawWorker, rows, state_of

from acceptd.codec import encode_batch
from acceptd.v1 import estimator_pb2, inspect_pb2, inspect_pb2_grpc
from acceptd.v1.estimator_pb2 import RejectReason


def _malformed():
    """(name, change of a valid batch, field, index, reason); each breaks one rule of the layout."""
    bad = RejectReason.REJECT_REASON_MALFORMED
    not_finite = RejectReason.REJECT_REASON_NON_FINITE
    too_large = RejectReason.REJECT_REASON_TOO_LARGE

    def column(name, index, value, dtype=np.uint8):
        def change(batch):
            values = np.frombuffer(getattr(batch, name), dtype).copy()
            values[index] = value
            setattr(batch, name, values.tobytes())

        return change

    def set_to(name, value):
        return lambda batch: setattr(batch, name, value)

    yield "admitted is 0", column("admitted", 4, 0), "admitted", 4, bad
    yield "admitted over K", column("admitted", 2, 5), "admitted", 2, bad
    yield "accepted over admitted", column("accepted", 7, 5), "accepted", 7, bad
    yield "admitted too short", set_to("admitted", b"\4" * 9), "admitted", 9, bad
    yield "features too short", lambda b: setattr(b, "features", b.features[:-4]), "features", None, bad
    yield "features cut in a value", lambda b: setattr(b, "features", b.features[:-1]), "features", None, bad
    yield "feature is NaN", column("features", 5, np.nan, np.float32), "features", 5, not_finite
    yield "feature is inf", column("features", 0, np.inf, np.float32), "features", 0, not_finite
    yield "feature is -inf", column("features", 1, -np.inf, np.float32), "features", 1, not_finite
    yield "feature beyond 40", column("features", 3, 40.5, np.float32), "features", 3, bad
    yield "segment that is none", set_to("segments", bytes([0] * 9 + [200])), "segments", 9, bad
    yield "segments too long", set_to("segments", bytes(11)), "segments", 10, bad
    yield "explored over admitted", set_to("explored", bytes([5] + [0] * 9)), "explored", 0, bad
    yield "propensity missing", lambda b: setattr(b, "propensities", b.propensities[:-4]), "propensities", None, bad
    yield "propensity is 0", column("propensities", 2, 0, np.float32), "propensities", 2, bad
    yield "propensity over 1", column("propensities", 2, 1.5, np.float32), "propensities", 2, bad
    yield "propensity is NaN", column("propensities", 6, np.nan, np.float32), "propensities", 6, not_finite
    yield "entropies too short", set_to("entropies", b"\0" * 8), "entropies", None, bad
    yield (
        "margin is NaN",
        lambda b: setattr(b, "margins", np.full(len(b.features) // 4, np.nan, "f4").tobytes()),
        "margins",
        0,
        not_finite,
    )
    yield "no rows", lambda b: (b.Clear(), setattr(b, "sequence", 2)), "accepted", 0, bad
    yield (
        "too many rows",
        lambda b: (setattr(b, "accepted", bytes(8193)), setattr(b, "admitted", b"\1" * 8193)),
        "accepted",
        None,
        too_large,
    )
    yield "exclusions beyond count", lambda b: b.exclusions.add(reason=7, blocks=2**64 - 1), "exclusions", 1, bad
    yield (
        "too many exclusions",
        lambda b: [b.exclusions.add(reason=7, blocks=1) for _ in range(65)],
        "exclusions",
        64,
        too_large,
    )


MALFORMED = list(_malformed())


@pytest.mark.parametrize(
    ("change", "field", "index", "reason"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED]
)
async def test_a_malformed_batch_is_refused_whole_and_named(start, connect, change, field, index, reason):
    """cases.md 13, and its kin: nothing moves, the stream lives on."""
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    await worker.greet()
    assert (await worker.batch(1, rows(10), exclusions={7: 1})).rows_accepted == 10
    before = await state_of(channel)

    batch = encode_batch(2, None, rows(10), {7: 5})
    change(batch)
    await worker.send(batch=batch)
    result = await worker.read_kind("batch_result")
    assert (result.sequence, result.last_sequence) == (2, 2)
    assert result.rows_accepted == 0
    assert result.rows_rejected == len(batch.accepted)
    assert RejectReason.Name(result.reason) == RejectReason.Name(reason)
    assert result.field == field
    if index is not None:
        assert result.index == index
    assert field in result.message

    after = await state_of(channel)
    assert after.rejects == {RejectReason.Name(reason).removeprefix("REJECT_REASON_").lower(): 1}
    for message in (before, after):
        message.ClearField("rejects")
    assert after == before
    assert (await worker.batch(3, rows(10))).rows_accepted == 10


async def test_out_of_order_is_refused_with_the_sequence_to_continue_from(start, connect):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(5))
    for sequence in (3, 4):
        result = await worker.batch(sequence, rows(5))
        assert (result.reason, result.last_sequence) == (RejectReason.REJECT_REASON_OUT_OF_ORDER, 1)
    assert [(await worker.batch(i, rows(5))).rows_accepted for i in (2, 3, 4)] == [5, 5, 5]
    assert (await state_of(channel)).blocks == 20


async def test_a_stream_may_begin_after_batches_that_were_answered_before(start, connect):
    """Relaxed durability: the service lost its last second, the worker has forgotten those batches."""
    server = await start()
    worker = RawWorker(connect(server.address))
    await worker.greet()
    assert (await worker.batch(41, rows(5))).last_sequence == 41
    assert (await worker.batch(43, rows(5))).reason == RejectReason.REJECT_REASON_OUT_OF_ORDER
    assert (await worker.batch(42, rows(5))).last_sequence == 42
    assert server.fleet.metrics.registry.get_sample_value("acceptd_sequence_gaps_total", {"pair": KEY.id}) == 40


@pytest.mark.parametrize("sequence", [0, 2**63, 2**64 - 1])
async def test_a_sequence_that_cannot_be_is_malformed(start, connect, sequence):
    worker = RawWorker(connect((await start()).address))
    await worker.greet()
    result = await worker.batch(sequence, rows(5))
    assert (result.reason, result.field) == (RejectReason.REJECT_REASON_MALFORMED, "sequence")
    assert result.last_sequence == 0
    assert (await worker.batch(1, rows(5))).rows_accepted == 5


async def test_over_the_rate_a_batch_is_postponed(start, connect):
    worker = RawWorker(connect((await start(max_rows_per_second=1000, max_rows=1000)).address))
    welcome = await worker.greet()
    assert welcome.limits.max_rows == 1000
    assert (await worker.batch(1, rows(900))).rows_accepted == 900
    result = await worker.batch(2, rows(900))
    assert result.reason == RejectReason.REJECT_REASON_OVER_QUOTA
    assert 0 < result.retry_after_seconds <= 0.9
    assert result.last_sequence == 1
    await asyncio.sleep(result.retry_after_seconds)
    assert (await worker.batch(2, rows(900))).rows_accepted == 900


async def test_a_postponed_first_batch_is_not_overtaken_by_the_second(start, connect):
    """A stream may begin after a gap; what was postponed is none: its rows would be lost."""
    server = await start(max_rows_per_second=1000, max_rows=1000)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    assert (await worker.batch(1, rows(900))).rows_accepted == 900
    again = RawWorker(channel)
    assert (await again.greet()).last_sequence == 1
    # A new stream does not bring a new allowance.
    postponed = await again.batch(2, rows(900))
    assert postponed.reason == RejectReason.REJECT_REASON_OVER_QUOTA
    early = await again.batch(3, rows(50))
    assert (early.reason, early.last_sequence) == (RejectReason.REJECT_REASON_OUT_OF_ORDER, 1)
    await asyncio.sleep(postponed.retry_after_seconds)
    assert (await again.batch(2, rows(900))).rows_accepted == 900


async def test_a_postponed_first_batch_may_come_again_after_its_gap(start, connect):
    worker = RawWorker(connect((await start(max_rows_per_second=1000, max_rows=1000)).address))
    await worker.greet()
    assert (await worker.batch(5, rows(900))).rows_accepted == 900
    again = RawWorker(worker.channel)
    await again.greet()
    postponed = await again.batch(9, rows(900))
    assert postponed.reason == RejectReason.REJECT_REASON_OVER_QUOTA
    await asyncio.sleep(postponed.retry_after_seconds)
    assert (await again.batch(9, rows(900))).rows_accepted == 900


async def test_a_pairs_workers_share_its_rate_and_another_pair_is_unaffected(start, connect):
    server = await start(max_rows_per_second_a_pair=1000, max_rows=1000)
    channel = connect(server.address)
    first, second = RawWorker(channel, "a"), RawWorker(channel, "b")
    other = RawWorker(channel, "c", key=dataclasses.replace(KEY, target="org/other"))
    for worker in (first, second, other):
        await worker.greet()
    assert (await first.batch(1, rows(900))).rows_accepted == 900
    result = await second.batch(1, rows(900))
    assert result.reason == RejectReason.REJECT_REASON_OVER_QUOTA
    assert "max_rows_per_second_a_pair = 1000" in result.message
    assert 0 < result.retry_after_seconds <= 0.9
    assert (await other.batch(1, rows(900))).rows_accepted == 900
    pair = server.fleet.pairs[KEY.id]
    assert pair.counters.rejects == {RejectReason.REJECT_REASON_OVER_QUOTA: 1}
    await asyncio.sleep(result.retry_after_seconds)
    assert (await second.batch(1, rows(900))).rows_accepted == 900


async def test_a_worker_that_flushes_often_has_several_batches_answered_at_once(start, connect):
    """None waits for a batch that may never come, and all rows are in the answers."""
    server = await start(answer_seconds=0.25, max_in_flight=8)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    for i in range(1, 41):
        await worker.send(batch=encode_batch(i, None, rows(10, i)))
    answers = [await worker.read_kind("batch_result")]
    while answers[-1].last_sequence < 40:
        answers.append(await worker.read_kind("batch_result"))
    assert sum(answer.rows_accepted for answer in answers) == 400 == server.fleet.pairs[KEY.id].counters.blocks
    assert len(answers) <= 20
    bad = encode_batch(41, None, rows(10))
    bad.accepted = b"x"
    await worker.send(batch=bad)
    refused = await worker.read_kind("batch_result")
    assert (refused.sequence, refused.last_sequence, refused.rows_accepted) == (41, 41, 0)
    assert refused.reason == estimator_pb2.REJECT_REASON_MALFORMED


async def test_a_quarantined_workers_rows_are_answered_and_not_counted(start, connect, tmp_path):
    """One of four workers has its labels inverted: named, served, not learned from; also after a restart."""
    flags = {"round_blocks": 2000, "round_min_seconds": 0, "store": tmp_path / "s.sqlite"}
    server = await start(**flags)
    channel = connect(server.address)
    workers = [RawWorker(channel, f"w{i}") for i in range(4)]
    for worker in workers:
        await worker.greet()
    for sequence in range(1, 60):
        for i, worker in enumerate(workers[:3]):
            assert (await worker.batch(sequence, rows(500, 10 * sequence + i))).rows_accepted == 500
        data = rows(500, 10 * sequence + 3)
        result = await workers[3].batch(sequence, dataclasses.replace(data, features=-data.features), exclusions={7: 1})
        if not result.rows_accepted:
            break
    assert result.reason == RejectReason.REJECT_REASON_QUARANTINED
    assert (result.rows_rejected, result.last_sequence) == (500, sequence)
    assert "quarantine" in result.message
    state = await state_of(channel)
    assert state.rejects == {"quarantined": 1}
    assert state.blocks == 500 * (4 * sequence - 1)
    assert [(item.reason, item.blocks) for item in state.exclusions] == [(7, sequence - 1)]
    listed = (await inspect_pb2_grpc.InspectStub(channel).ListWorkers(inspect_pb2.ListWorkersRequest())).workers
    assert [bool(worker.quarantined) for worker in listed] == [False, False, False, True]
    assert server.fleet.metrics.registry.get_sample_value("acceptd_workers_quarantined", {"pair": KEY.id}) == 1
    await server.stop()
    server = await start(**flags)
    again = RawWorker(connect(server.address), "w3")
    assert (await again.greet()).HasField("update"), "still served"
    result = await again.batch(sequence + 1, dataclasses.replace(data, features=-data.features))
    assert result.reason == RejectReason.REJECT_REASON_QUARANTINED
