"""The loop: observations in, coefficients out."""

from __future__ import annotations

import asyncio

from raw_worker import KEY, RawWorker, rows

from acceptd.types import Version
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from vllm_client_hook.outbound import GradedColumns
from vllm_client_hook.uplink import Uplink


async def test_batches_are_pooled_refitted_and_pushed(start, connect):
    server = await start(round_blocks=300, round_min_seconds=0)
    channel = connect(server.address)
    first, second = RawWorker(channel, "w0"), RawWorker(channel, "w1")
    welcome = await first.greet()
    assert welcome.epoch >= 1
    assert welcome.update.coefficients.version.counter == 0
    await second.greet()

    result = await first.batch(1, rows(200, 1))
    assert (result.sequence, result.last_sequence, result.rows_accepted, result.reason) == (1, 1, 200, 0)
    await second.batch(1, rows(200, 2))

    stub = inspect_pb2_grpc.InspectStub(channel)
    state = (await stub.GetPair(inspect_pb2.GetPairRequest(pair=KEY.id[:5]))).state
    assert state.coefficients.version.epoch == welcome.epoch
    assert state.coefficients.version.counter >= 1
    for worker in (first, second):
        # Versions in between may be skipped.
        while (await worker.read_kind("update")).coefficients != state.coefficients:
            pass
    counted = [0] * 4
    accepted = [0] * 4
    for data in (rows(200, 1), rows(200, 2)):
        for a, n in zip(data.accepted.tolist(), data.admitted.tolist(), strict=True):
            for k in range(min(a + 1, n)):
                counted[k] += 1
                accepted[k] += k < a
    assert list(state.observations) == counted
    assert list(state.acceptances) == accepted
    assert state.blocks == 400
    assert state.refit.done >= 1


async def test_a_version_in_use_is_known_and_one_never_published_is_not(start, connect):
    server = await start(round_blocks=100, round_min_seconds=0)
    worker = RawWorker(connect(server.address))
    epoch = (await worker.greet()).epoch
    await worker.batch(1, rows(100, 1))
    await worker.read_kind("update")
    assert (await worker.batch(2, rows(10, 2), Version(epoch, 1))).rows_accepted == 10
    refused = await worker.batch(3, rows(10, 3), Version(epoch, 99))
    assert (refused.reason, refused.rows_accepted, refused.rows_rejected, refused.field) == (6, 0, 10, "version")
    assert (await worker.batch(4, rows(10, 4))).rows_accepted == 10


async def test_a_worker_that_waits_for_its_answers_does_not_wait_for_other_batches(start):
    """Before vLLM sleeps or stops: the report after its last batch says so."""
    server = await start(answer_seconds=2.0)
    uplink = Uplink(server.address, KEY, worker="w0")
    try:
        for i in range(1, 5):
            uplink.offer(GradedColumns(None, rows(5, i)))
            assert await asyncio.to_thread(uplink.flush, 3.0)
            assert uplink.stats()["acknowledged"] == server.fleet.pairs[KEY.id].counters.blocks == 5 * i
    finally:
        await asyncio.to_thread(uplink.close)
