"""TapPair: what is applied is copied to who records it, and no one waits for a recorder."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from raw_worker import DEADLINE, KEY, RawWorker, rows, until

from acceptd.codec import encode_batch
from acceptd.errors import TooLarge
from acceptd.retry_info import retry_after
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.tap import MAX_TAP_BYTES, MAX_TAPS, Tap, Taps


async def tapped(channel, pair=KEY.id):
    """A tap that is open: its first message has come."""
    call = inspect_pb2_grpc.InspectStub(channel).TapPair(inspect_pb2.TapPairRequest(pair=pair))
    first = await asyncio.wait_for(call.read(), DEADLINE)
    return call, first


async def test_applied_batches_are_copied_as_they_were_sent(start, connect):
    server = await start()
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet(workload="code")
    await worker.batch(1, rows(10, 1))
    call, first = await tapped(channel, KEY.id[:5])
    assert first.pair.id == KEY.id
    assert not first.HasField("batch")

    await worker.batch(2, rows(20, 2))
    assert (await worker.batch(1, rows(20, 2))).rows_accepted == 0
    refused = encode_batch(3, None, rows(5, 3))
    refused.features = refused.features[:-4]
    await worker.send(batch=refused)
    assert (await worker.read_kind("batch_result")).rows_rejected == 5
    await worker.batch(4, rows(30, 4))

    for sequence, seed, count in ((2, 2, 20), (4, 4, 30)):
        message = await asyncio.wait_for(call.read(), DEADLINE)
        assert message.batch == encode_batch(sequence, None, rows(count, seed))
        assert (message.worker, message.workload, message.dropped_batches) == ("w0", "code", 0)


async def test_a_tap_that_is_not_read_delays_no_worker(start, connect):
    server = await start()
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await tapped(connect(server.address))
    for sequence in range(1, 200):
        assert (await worker.batch(sequence, rows(2000, sequence % 7))).rows_accepted == 2000


async def test_taps_of_a_pair_are_bounded_and_free_again_when_closed(start, connect):
    server = await start()
    channel = connect(server.address)
    await RawWorker(channel).greet()
    calls = [(await tapped(channel))[0] for _ in range(MAX_TAPS)]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await tapped(channel)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == f"{KEY.id} is tapped 4 times; accepted: 4"
    assert retry_after(refused.value.trailing_metadata()) == 5.0
    counted = server.fleet.metrics.registry.get_sample_value("acceptd_refused_calls_total", {"reason": "too_many_taps"})
    assert counted == 1
    calls[0].cancel()

    async def opens():
        try:
            await tapped(channel)
        except grpc.aio.AioRpcError:
            return False
        return True

    await until(opens, "a tap is free again")


async def test_an_unknown_pair_cannot_be_tapped(start, connect):
    server = await start()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await tapped(connect(server.address), "nobody")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_tap_ends_when_the_service_stops(start, connect):
    server = await start()
    channel = connect(server.address)
    await RawWorker(channel).greet()
    call, _ = await tapped(channel)
    await server.stop()
    assert await asyncio.wait_for(call.read(), DEADLINE) is grpc.aio.EOF


async def test_a_full_tap_drops_and_counts():
    batch = encode_batch(1, None, rows(8000, 1))
    tap = Tap()
    fit = MAX_TAP_BYTES // batch.ByteSize()
    for _ in range(fit + 3):
        tap.offer("w", "", batch)
    taken = [await tap.take() for _ in range(fit)]
    assert [(m.dropped_batches, m.dropped_rows) for m in taken] == [(3, 24_000)] * fit
    tap.wake()
    assert await tap.take() is None
    tap.offer("w", "", batch)
    assert (await tap.take()).batch == batch


def test_each_drop_of_each_tap_is_reported_once():
    drops = []
    taps = Taps(drops.append)
    batch = encode_batch(1, None, rows(8000, 1))
    fit = MAX_TAP_BYTES // batch.ByteSize()
    taps.open("a")
    for _ in range(fit):
        taps.offer("a", "w", "", batch)
    taps.open("a")
    assert drops == []
    taps.offer("a", "w", "", batch)
    taps.offer("b", "w", "", batch)
    assert drops == ["a"]


def test_pairs_do_not_share_taps():
    taps = Taps(lambda _: None)
    tap = taps.open("a")
    for _ in range(MAX_TAPS - 1):
        taps.open("a")
    with pytest.raises(TooLarge):
        taps.open("a")
    taps.open("b")
    taps.close("a", tap)
    taps.open("a")
