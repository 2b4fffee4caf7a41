"""What the service tells workers about their budget, and what it says when theirs stays at 0."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from raw_worker import KEY, RawWorker, rows, until

from acceptd.modes import Mode
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc, types_pb2
from estimator_service.config import load_settings
from estimator_service.server import Server
from vllm_client_hook.uplink import Uplink


async def test_mode_and_exploration_rate_come_with_the_coefficients(start, connect):
    worker = RawWorker(connect((await start()).address))
    update = (await worker.greet()).update
    assert (update.mode, update.exploration_rate) == (types_pb2.MODE_TRIM, pytest.approx(0.01))
    other = RawWorker(connect((await start(mode="shadow", exploration_rate=0.0)).address))
    update = (await other.greet()).update
    assert (update.mode, update.exploration_rate) == (types_pb2.MODE_SHADOW, 0.0)


async def test_an_operators_mode_lies_ready_in_the_worker_at_once_and_without_a_fit(start, connect):
    """The rest of the way, from there to all ranks on one step, is `tests/vllm/test_apply.py`'s."""
    address = (await start()).address
    stub = inspect_pb2_grpc.InspectStub(connect(address))
    uplink = Uplink(address, KEY, worker="w0")
    try:
        await until(lambda: uplink.latest() is not None, "the first push")
        first = uplink.latest()
        await stub.SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, mode=types_pb2.MODE_SHADOW, exploration_rate=0.5))
        await until(lambda: uplink.latest().mode == Mode.SHADOW, "the mode")
        second = uplink.latest()
        assert (first.mode, second.exploration_rate) == (Mode.TRIM, 0.5)
        assert second.coefficients == first.coefficients
        assert second.nonce > first.nonce
    finally:
        await asyncio.to_thread(uplink.close)


@pytest.mark.parametrize(("steps", "zero", "said"), [(5000, 4900, True), (5000, 2000, False), (900, 900, False)])
async def test_a_budget_that_stays_at_0_is_said(start, connect, steps, zero, said):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    await worker.greet()
    assert bool(await notices_after(channel, worker, 1, steps, zero)) == said


async def test_it_is_said_until_the_latest_steps_draft_again_however_long_they_did_not(start, connect):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    await worker.greet()
    reports = [(10**6, 10**6, True), (10**6 + 500, 10**6, True), (10**6 + 1200, 10**6, False)]
    reports += [(10**6 + 1700, 10**6 + 500, False), (10**6 + 2200, 10**6 + 1000, True)]
    for sequence, (steps, zero, said) in enumerate(reports, 1):
        assert bool(await notices_after(channel, worker, sequence, steps, zero)) == said, (steps, zero)
    # With its last worker gone there is nobody to say it of.
    worker.stream.cancel()

    async def silent():
        return not await notices_of(channel)

    await until(silent, "no notice")


async def test_a_new_stream_of_a_worker_goes_on_from_what_it_said(start, connect):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    await worker.greet()
    assert await notices_after(channel, worker, 1, 5000, 5000)
    again = RawWorker(channel)
    await again.greet()
    assert not await notices_after(channel, again, 2, 6500, 5000)


async def test_clamped_steps_are_counted(start, connect):
    registry = CollectorRegistry()
    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}, environ={})
    async with await Server.start(settings, registry=registry) as server:
        channel = connect(server.address)
        for name, clamped in (("w0", 3), ("w1", 4)):
            worker = RawWorker(channel, name)
            await worker.greet()
            await worker.send(report={"totals": {"steps": 10, "clamped_steps": clamped}, "mode": 2})
            await worker.batch(1, rows(5))
        assert registry.get_sample_value("acceptd_worker_clamped_steps_total", {"pair": KEY.id}) == 7
        state = (await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))).state
        assert state.totals.clamped_steps == 7


async def notices_after(channel, worker, sequence, steps, zero):
    """What is said of drafting once the worker has reported these totals."""
    await worker.send(report={"totals": {"steps": steps, "zero_budget_steps": zero}, "mode": 1})
    await worker.batch(sequence, rows(5))
    return await notices_of(channel)


async def notices_of(channel):
    shown = await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))
    return [notice for notice in shown.state.notices if "drafting does not pay here: in " in notice]
