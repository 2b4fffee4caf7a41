"""One worker stream: fencing, drain, ends, and messages that are none."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from raw_worker import DEADLINE, KEY, RawWorker, rows, state_of, until

from acceptd.codec import encode_batch
from acceptd.limits import MAX_COUNT
from acceptd.v1 import estimator_pb2


def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


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
