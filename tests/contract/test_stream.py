"""The worker stream: order of messages, refusals, fencing, drain."""

from __future__ import annotations

import asyncio
import dataclasses

import grpc
import numpy as np
import pytest
from raw_worker import DEADLINE, KEY, RawWorker, rows, until

from acceptd.codec import encode_batch, encode_pair_key
from acceptd.limits import MAX_COUNT
from acceptd.retry_info import retry_after
from acceptd.types import PairKey, Version
from acceptd.v1 import estimator_pb2, inspect_pb2, inspect_pb2_grpc
from acceptd.v1.estimator_pb2 import RejectReason


async def state_of(channel):
    return (await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))).state


async def test_the_first_message_must_be_hello(start, connect):
    worker = RawWorker(connect((await start()).address))
    await worker.send(batch=encode_batch(1, None, rows(3)))
    code, details = await worker.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "first message is batch; accepted: hello" in details


async def test_a_silent_stream_is_ended(start, connect):
    worker = RawWorker(connect((await start(hello_seconds=0.2)).address))
    code, details = await worker.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "no Hello within 0.2 s" in details


async def test_a_second_hello_ends_the_stream(start, connect):
    worker = RawWorker(connect((await start()).address))
    await worker.greet()
    await worker.send(hello=worker.hello())
    code, details = await worker.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "second Hello" in details


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"num_speculative_tokens": 0}, "FAILED_PRECONDITION", "num_speculative_tokens"),
        ({"num_speculative_tokens": 65}, "FAILED_PRECONDITION", "num_speculative_tokens"),
        ({"feature_schema": 2}, "FAILED_PRECONDITION", "feature_schema"),
        ({"target": ""}, "INVALID_ARGUMENT", "pair.target"),
        ({"draft": "d" * 257}, "RESOURCE_EXHAUSTED", "pair.draft"),
    ],
)
async def test_a_pair_key_that_cannot_be_served_is_named(start, connect, changes, code, named):
    worker = RawWorker(connect((await start()).address), key=dataclasses.replace(KEY, **changes))
    await worker.send(hello=worker.hello())
    status, details = await worker.status()
    assert status.name == code
    assert named in details
    assert "accepted" in details or "empty" in details


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"worker": ""}, "worker has 0 bytes; accepted: 1 to 128"),
        ({"worker": "w" * 129}, "worker has 129 bytes"),
        ({"workload": "w" * 65}, "workload has 65 bytes"),
        ({"hook_version": "1" * 300}, "hook_version has 300 bytes"),
        ({"capabilities": {"max_knots": 9}}, "capabilities.max_knots is 9"),
        ({"version": {"epoch": 2**63}}, "version.epoch is"),
    ],
)
async def test_a_hello_over_a_bound_is_named(start, connect, fields, named):
    server = await start()
    worker = RawWorker(connect(server.address))
    hello = estimator_pb2.Hello(**{"pair": encode_pair_key(KEY), "worker": "w", "incarnation": 1, **fields})
    await worker.send(hello=hello)
    status, details = await worker.status()
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert named in details
    assert not server.fleet.sessions


async def test_bytes_that_are_no_message_end_the_stream_with_a_reason(start, connect):
    channel = connect((await start()).address)
    stream = channel.stream_stream("/acceptd.v1.Estimator/Stream")()
    worker = RawWorker(channel)
    await stream.write(estimator_pb2.StreamRequest(hello=worker.hello()).SerializeToString())
    await asyncio.wait_for(stream.read(), DEADLINE)
    await stream.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.read()
    assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "not a StreamRequest" in await stream.details()


async def test_a_message_over_the_size_limit_is_refused_and_others_live_on(start, connect):
    channel = connect((await start()).address)
    worker, other = RawWorker(channel, "big"), RawWorker(connect((await start()).address), "other")
    await worker.greet()
    await other.greet()
    batch = encode_batch(1, None, rows(3))
    batch.features = b"\0" * (9 * 1024 * 1024)
    await worker.send(batch=batch)
    code, _ = await worker.status()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await other.batch(1, rows(3))).rows_accepted == 3


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


async def test_a_nacked_version_is_not_pushed_again(start, connect):
    """cases.md 16: neither on this stream nor on the next; the one after it is."""
    server = await start(method="round", round_blocks=100, round_min_seconds=0)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(100, 1))
    update = await worker.read_kind("update")
    await worker.send(update_status={"nonce": update.nonce, "version": {}, "rejected": "slope out of range"})
    await worker.batch(2, rows(10, 2))
    workers = (await inspect_pb2_grpc.InspectStub(channel).ListWorkers(inspect_pb2.ListWorkersRequest())).workers
    assert workers[0].last_rejected_update == "slope out of range"
    assert "update" not in {m.WhichOneof("message") for m in worker._passed_over}

    worker.stream.cancel()
    again = RawWorker(channel)
    assert not (await again.greet()).HasField("update")
    await again.batch(3, rows(90, 3))
    update = await again.read_kind("update")
    assert update.coefficients.version.counter == 2
    assert update.nonce == 1


async def test_statuses_move_what_is_shown_and_measured(start, connect):
    server = await start()
    channel = connect(server.address)
    worker = RawWorker(channel)
    welcome = await worker.greet(hook_version="1.2", vllm_version="0.32")
    version = welcome.update.coefficients.version
    await worker.send(update_status={"nonce": welcome.update.nonce, "version": version})
    await worker.send(update_status={"nonce": 99, "version": version})
    await worker.send(report={"totals": {"steps": 5, "scheduled": 40, "verified": 30, "accepted": 20}, "mode": 2})
    await worker.send(report={"totals": {"steps": 7, "scheduled": 44, "verified": 33, "accepted": 22}, "mode": 2})
    await worker.batch(1, rows(5))
    listed = (
        await inspect_pb2_grpc.InspectStub(channel).ListWorkers(inspect_pb2.ListWorkersRequest(pair="targ"))
    ).workers
    assert len(listed) == 1
    shown = listed[0]
    assert (shown.worker, shown.incarnation, shown.pair, shown.connected) == ("w0", 1, KEY.id, True)
    assert (shown.blocks, shown.last_sequence, shown.mode) == (5, 1, 2)
    assert (shown.hook_version, shown.vllm_version, shown.version_applied) == ("1.2", "0.32", version)
    totals = (await state_of(channel)).totals
    assert (totals.steps, totals.scheduled, totals.verified, totals.accepted) == (7, 44, 33, 22)
    value = server.fleet.metrics.registry.get_sample_value
    assert value("acceptd_worker_verified_total", {"pair": KEY.id}) == 33
    assert value("acceptd_updates_total", {"pair": KEY.id, "answer": "applied"}) == 1
    assert value("acceptd_updates_total", {"pair": KEY.id, "answer": "unknown"}) == 1
    assert value("acceptd_update_seconds_count", {"pair": KEY.id}) == 1


async def test_a_newer_stream_fences_the_older(start, connect):
    server = await start()
    channel = connect(server.address)
    older, newer = RawWorker(channel), RawWorker(channel)
    await older.greet()
    await older.batch(1, rows(5))
    assert (await newer.greet()).last_sequence == 1
    code, details = await older.status()
    assert code == grpc.StatusCode.ABORTED
    assert "newer stream" in details
    assert (await newer.batch(2, rows(5))).rows_accepted == 5
    assert len(server.fleet.sessions) == 1
    restarted = RawWorker(channel, incarnation=2)
    assert (await restarted.greet()).last_sequence == 0
    assert len(server.fleet.sessions) == 2


async def test_a_worker_that_reads_nothing_holds_nobody_up(start, connect):
    """It stops being read once its answers pile up; others go on; it then gets the latest coefficients alone."""
    server = await start(method="round", round_blocks=100, round_min_seconds=0, max_in_flight=4)
    slow, quick = RawWorker(connect(server.address), "slow"), RawWorker(connect(server.address), "quick")
    await slow.greet()
    await quick.greet()
    session = next(s for s in server.fleet.sessions.values() if s.worker.name == "slow")
    # Hold the sender of the slow one up, as a full transport would.
    taken, session.outbox.take = session.outbox.take, session.outbox._wake.clear
    published = 0
    for i in range(1, 31):
        published += server.fleet.pairs[KEY.id].publication.version.counter > published
        assert (await quick.batch(i, rows(100, i))).rows_accepted == 100
    for i in range(1, 21):
        await slow.send(batch=encode_batch(i, None, rows(5, i)))
    await until(lambda: not session.outbox.room, "the reader stops")
    assert session.worker.last_sequence <= 6
    session.outbox.take = taken
    session.outbox.wake()
    latest = server.fleet.pairs[KEY.id].publication.version.counter
    assert latest > 20
    answers = [await slow.read_kind("batch_result")]
    while answers[-1].last_sequence < 20:
        answers.append(await slow.read_kind("batch_result"))
    assert sum(answer.rows_accepted for answer in answers) == 20 * 5
    update = await slow.read_kind("update")
    assert update.coefficients.version.counter >= latest
    assert update.nonce == 2


async def test_coefficients_suit_the_worker(start, connect):
    """Workers without knots or segments get the straight line of the same version."""
    server = await start(round_blocks=2000, round_min_seconds=0)
    channel = connect(server.address)
    able, plain = RawWorker(channel, "able"), RawWorker(channel, "plain")
    await able.greet(capabilities={"max_knots": 8, "max_segments": 8})
    await plain.greet()
    rng = np.random.default_rng(0)
    sequence = 0
    while not server.fleet.pairs[KEY.id].publication.pooled.knots:
        sequence += 1
        assert sequence < 60, "no link was ever published"
        data = rows(2000, sequence)
        # Flat beyond 1: no straight line follows that.
        x = rng.normal(0, 3, (2000, 4)).astype(np.float32)
        accept = rng.random((2000, 4)) < 1 / (1 + np.exp(-1.5 * np.minimum(x, 1)))
        accepted = np.where(accept.all(axis=1), 4, np.argmin(accept, axis=1)).astype(np.uint8)
        observed = np.minimum(accepted.astype(int) + 1, 4)
        data = dataclasses.replace(data, accepted=accepted, features=x[np.arange(4)[None, :] < observed[:, None]])
        await able.batch(sequence, data)
    version = server.fleet.pairs[KEY.id].publication.version
    got = {}
    for worker in (able, plain):
        while True:
            coefficients = (await worker.read_kind("update")).coefficients
            if (coefficients.version.epoch, coefficients.version.counter) == (version.epoch, version.counter):
                got[worker.name] = coefficients
                break
    assert got["able"].knots
    assert not got["plain"].knots
    assert not got["plain"].segments
    assert got["plain"].line == got["able"].line


async def test_a_drain_answers_then_tells_then_ends(start, connect):
    server = await start(reconnect_seconds=2.5)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await worker.send(batch=encode_batch(1, None, rows(5)))
    await until(lambda: next(iter(server.fleet.sessions.values())).worker.last_sequence == 1, "the batch is applied")
    stopping = asyncio.ensure_future(server.stop())
    assert (await worker.read_kind("batch_result")).rows_accepted == 5
    drain = await worker.read_kind("drain")
    assert drain.reconnect_after_seconds == 2.5
    assert (await worker.status())[0] == grpc.StatusCode.OK
    await stopping


async def test_half_closing_gets_every_answer_and_ok(start, connect):
    worker = RawWorker(connect((await start()).address))
    await worker.greet()
    for i in range(1, 4):
        await worker.send(batch=encode_batch(i, None, rows(5)))
    await worker.stream.done_writing()
    assert [(await worker.read_kind("batch_result")).sequence for _ in range(3)] == [1, 2, 3]
    assert (await worker.status())[0] == grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("limit", "second"),
    [
        ({"max_workers": 1}, {"worker": "w1"}),
        ({"max_workers_a_pair": 1}, {"worker": "w1"}),
        ({"max_pairs": 1}, {"key": PairKey("another", "draft", 4)}),
    ],
)
async def test_over_a_limit_a_stream_is_told_when_to_come_again(start, connect, limit, second):
    """cases.md 18, the service's side."""
    server = await start(**limit)
    channel = connect(server.address)
    first = RawWorker(channel)
    await first.greet()
    extra = RawWorker(channel, **second)
    await extra.send(hello=extra.hello())
    code, details = await extra.status()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert next(iter(limit)) in details
    assert retry_after(await extra.stream.trailing_metadata()) > 0
    assert (await first.batch(1, rows(5))).rows_accepted == 5
    again = RawWorker(channel)
    await again.greet()


async def test_pairs_without_workers_make_room(start, connect, tmp_path):
    """Every update of the weights begins a pair; the service must not run full of those that are gone."""
    server = await start(max_pairs=3, store=tmp_path / "s.sqlite", round_blocks=50, round_min_seconds=0)
    channel = connect(server.address)
    first = RawWorker(channel)
    await first.greet()
    await first.batch(1, rows(60))
    for generation in range(1, 6):
        worker = RawWorker(channel, "w1", key=dataclasses.replace(KEY, weights_generation=generation))
        await worker.greet()
        await worker.batch(generation, rows(20))
        worker.stream.cancel()
        await until(lambda: len(server.fleet.sessions) == 1, "the stream is gone")
    generations = {pair.key.weights_generation for pair in server.fleet.pairs.values()}
    assert generations == {0, 4, 5}
    assert server.fleet.metrics.registry.get_sample_value("acceptd_pairs_forgotten_total") == 3
    await server.stop()
    server = await start(max_pairs=3, store=tmp_path / "s.sqlite")
    assert {pair.key.weights_generation for pair in server.fleet.pairs.values()} == generations


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


async def test_an_old_connection_is_replaced(start, connect):
    """Told to go away, then cut: the next one continues where it was."""
    server = await start(max_connection_seconds=0.2)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    assert (await worker.batch(1, rows(10))).rows_accepted == 10
    code, _ = await worker.status()
    assert code == grpc.StatusCode.UNAVAILABLE
    again = RawWorker(channel)
    assert (await again.greet()).last_sequence == 1


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


async def test_heartbeats_name_the_version_in_force(start, connect):
    worker = RawWorker(connect((await start(heartbeat_seconds=0.1)).address))
    welcome = await worker.greet()
    assert (await worker.read_kind("heartbeat")).version == welcome.update.coefficients.version
    await worker.read_kind("heartbeat")


async def test_a_workload_label_gets_its_own_intercepts_of_the_same_version(start, connect):
    server = await start(method="line", round_blocks=4000, round_min_seconds=0)
    channel = connect(server.address)
    code, chat = RawWorker(channel, "w0"), RawWorker(channel, "w1")
    await code.greet(workload="code")
    await chat.greet(workload="chat")
    latest = {}
    for i in range(1, 7):
        await code.batch(i, rows(4000, i))
        easy = rows(4000, 100 + i)
        rejected = dataclasses.replace(easy, accepted=np.zeros(4000, np.uint8), features=easy.features[:4000])
        await chat.batch(i, rejected)
    version = server.fleet.pairs[KEY.id].publication.version
    for worker in (code, chat):
        while True:
            coefficients = (await worker.read_kind("update")).coefficients
            if coefficients.version.counter == version.counter:
                latest[worker.name] = coefficients
                break
    assert latest["w0"].line.slopes == latest["w1"].line.slopes
    assert latest["w0"].line.intercepts[0] > latest["w1"].line.intercepts[0] + 1


async def test_versions_in_use_are_known_after_many_publications(start, connect):
    server = await start(method="line", round_blocks=10, round_min_seconds=0, publish_min_change=0, hold_tolerance=100)
    worker = RawWorker(connect(server.address))
    epoch = (await worker.greet()).epoch
    for i in range(1, 301):
        await worker.send(batch=encode_batch(i, None, rows(10, i)))
        await worker.read_kind("batch_result")
    published = server.fleet.pairs[KEY.id].publication.version.counter
    assert published > 256
    assert (await worker.batch(301, rows(5), Version(epoch, 1))).rows_accepted == 5


async def test_a_refit_that_fails_holds_the_round_and_nothing_else(start, connect, monkeypatch, caplog):
    server = await start(method="round", round_blocks=50, round_min_seconds=0)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(50, 1))
    pair = server.fleet.pairs[KEY.id]
    with monkeypatch.context() as patched:
        patched.setattr(type(pair._model), "close_round", lambda *_, **__: 1 / 0)
        assert (await worker.batch(2, rows(50, 2))).rows_accepted == 50
    assert "ZeroDivisionError" in caplog.text
    state = await state_of(channel)
    assert state.refit.held == {"error": 1}
    assert state.coefficients.version.counter == 1
    assert (await worker.batch(3, rows(50, 3))).rows_accepted == 50
    assert (await state_of(channel)).coefficients.version.counter == 2


async def test_a_message_that_fails_inside_ends_its_stream_alone_and_does_not_come_back(
    start, connect, monkeypatch, caplog
):
    server = await start()
    channel = connect(server.address)
    worker, other = RawWorker(channel), RawWorker(channel, "other")
    await worker.greet()
    await other.greet()
    pair = server.fleet.pairs[KEY.id]
    with monkeypatch.context() as patched:
        patched.setattr(type(pair._model), "observe", lambda *_, **__: 1 / 0)
        await worker.send(batch=encode_batch(1, None, rows(5)))
        code, details = await worker.status()
    assert code == grpc.StatusCode.INTERNAL
    assert "its log says how" in details
    assert "ZeroDivisionError" in caplog.text
    assert (await other.batch(1, rows(5))).rows_accepted == 5
    again = RawWorker(channel)
    assert (await again.greet()).last_sequence == 1
    assert (await again.batch(2, rows(5))).rows_accepted == 5


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


@pytest.mark.parametrize(
    ("totals", "field"),
    [
        ({"steps": 2**64 - 1}, "totals.steps"),
        ({"lost_accepted": 1e308}, "totals.lost_accepted"),
        ({"verification_saved_seconds": float("nan")}, "totals.verification_saved_seconds"),
        ({"verification_saved_seconds": -1.0}, "totals.verification_saved_seconds"),
        ({"exclusions": [{"reason": 7, "blocks": 2**53 + 1}]}, "totals.exclusions[0].blocks"),
    ],
)
async def test_totals_that_no_worker_can_have_end_the_stream_and_count_nothing(start, connect, totals, field):
    server = await start()
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.send(report={"totals": totals})
    code, details = await worker.status()
    assert (code, details.startswith(f"{field} is ")) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    value = server.fleet.metrics.registry.get_sample_value
    assert value("acceptd_worker_steps_total", {"pair": KEY.id}) == 0
    assert value("acceptd_worker_lost_accepted_total", {"pair": KEY.id}) == 0


async def test_what_a_worker_says_beyond_the_protocol_is_not_kept(start, connect):
    """Field 999, a megabyte of it, in messages that the service keeps for as long as it knows the worker."""
    server = await start()
    channel = connect(server.address)
    unknown = b"\xba\x3e\x80\x80\x40" + bytes(1 << 20)
    raw = channel.stream_stream("/acceptd.v1.Estimator/Stream")()
    hello = RawWorker(channel).hello().SerializeToString() + unknown
    report = b"\x0a\x02\x08\x05" + unknown

    def wrapped(tag, body):
        head = estimator_pb2.StreamRequest()
        head.ParseFromString(tag + _varint(len(body)) + body)
        return head.SerializeToString()

    await raw.write(wrapped(b"\x0a", hello))
    await raw.read()
    await raw.write(wrapped(b"\x22", report))
    (session,) = server.fleet.sessions.values()
    await until(lambda: session.worker.report.totals.steps == 5, "the report is taken")
    assert session.hello.ByteSize() + session.worker.report.ByteSize() < 1000
    raw.cancel()


def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


async def test_pairs_that_were_never_more_than_a_hello_do_not_displace_what_was_learned(start, connect):
    """Whoever reaches the port can say Hello for any number of pairs; a pair whose workers restart must survive it."""
    server = await start(max_pairs=4)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(50))
    worker.stream.cancel()
    await until(lambda: not server.fleet.sessions, "the worker is gone")
    for i in range(12):
        other = RawWorker(channel, key=PairKey(f"flood-{i}", "draft", 4))
        await other.greet()
        other.stream.cancel()
        await until(lambda: not server.fleet.sessions, "the flooder is gone")
    assert (await state_of(channel)).blocks == 50
    assert len(server.fleet.pairs) == 4
    assert len(server.fleet.roster) == 1


@pytest.mark.parametrize("name", ["worker", "workload", "hook_version", "vllm_version"])
@pytest.mark.parametrize("text", ["a\x1b[2J", "a\nb", "a\u202eb", "a\x00"])
async def test_text_that_a_terminal_would_act_on_is_refused(start, connect, name, text):
    worker = RawWorker(connect((await start()).address))
    hello = worker.hello()
    setattr(hello, name, text)
    await worker.send(hello=hello)
    code, details = await worker.status()
    assert (code, details.startswith(f"{name}[1] is ")) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert details.isprintable()


async def test_a_pair_key_is_printable(start, connect):
    worker = RawWorker(connect((await start()).address), key=dataclasses.replace(KEY, target="org/\x1b]0;t\x07"))
    await worker.send(hello=worker.hello())
    code, details = await worker.status()
    assert (code, details.startswith("pair.target[4] is ")) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_names_of_any_script_are_taken(start, connect):
    worker = RawWorker(
        connect((await start()).address), worker="工作者 ü [/b] 😀", key=dataclasses.replace(KEY, draft="модель")
    )
    await worker.greet(workload="दस्तावेज़")


async def test_why_an_update_was_refused_is_kept_in_printable_words(start, connect):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    welcome = await worker.greet()
    await worker.send(update_status={"nonce": welcome.update.nonce, "version": {}, "rejected": "no\x1b[31m\nroot:"})
    await worker.batch(1, rows(5))
    listed = (await inspect_pb2_grpc.InspectStub(channel).ListWorkers(inspect_pb2.ListWorkersRequest())).workers
    assert listed[0].last_rejected_update == "no\ufffd[31m\ufffdroot:"


async def test_a_pair_stays_readable_whatever_counts_its_workers_claim(start, connect):
    server = await start()
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    batch = encode_batch(1, None, rows(5))
    for _ in range(64):
        batch.exclusions.add(reason=7, blocks=MAX_COUNT)
    await worker.send(batch=batch)
    assert (await worker.read_kind("batch_result")).rows_accepted == 5
    assert (await state_of(channel)).exclusions[0].blocks == 64 * MAX_COUNT
