"""Cost tables from workers to people: Inspect, the notice, the metric, the command."""

from __future__ import annotations

import asyncio
import json

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from raw_worker import KEY, RawWorker, rows, until

from acceptd.cost_table import encode_cost_table
from acceptd.types import PairKey
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.cli.app import run
from estimator_service.config import load_settings
from estimator_service.server import Server
from vllm_client_hook.uplink import Uplink

STEEP = encode_cost_table(1.0 + np.arange(9), 2.0 + np.arange(41) / 8, ["verify curve: smoothed"], can_trim=True)
FLAT = encode_cost_table(1.0 + np.arange(9), np.full(41, 3.0), ["cannot trim: flat"], can_trim=False)


async def costs_of(channel, **request):
    return await inspect_pb2_grpc.InspectStub(channel).GetCosts(inspect_pb2.GetCostsRequest(**request))


async def notices_of(channel):
    answer = await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))
    return [notice for notice in answer.state.notices if "cannot trim" in notice]


async def reported(worker, sequence, **report):
    """Sends a report, and a batch whose answer says that the report was taken."""
    await worker.send(report=report)
    await worker.batch(sequence, rows(1))


async def test_a_table_is_shown_until_its_stream_ends(start, connect):
    channel = connect((await start()).address)
    worker, other = RawWorker(channel), RawWorker(channel, "w1", key=PairKey("org/t", "org/d", 2))
    await worker.greet()
    await other.greet()
    await reported(worker, 1, totals={"steps": 1}, mode=1, costs=STEEP)
    # A report without one leaves it as it is.
    await reported(worker, 2, totals={"steps": 2}, mode=1)
    answer = await costs_of(channel)
    assert {item.worker: item.HasField("costs") for item in answer.workers} == {"w0": True, "w1": False}
    mine = (await costs_of(channel, pair=KEY.id)).workers
    assert [item.costs for item in mine] == [STEEP]
    assert [item.worker for item in (await costs_of(channel, worker="w1")).workers] == ["w1"]
    again = RawWorker(channel)
    await again.greet()
    assert not (await costs_of(channel, pair=KEY.id)).workers[0].HasField("costs")


async def test_a_flat_table_is_a_notice_and_a_metric_until_another_comes(start, connect):
    registry = CollectorRegistry()
    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}, environ={})
    async with await Server.start(settings, registry=registry) as server:
        channel = connect(server.address)
        worker = RawWorker(channel)
        await worker.greet()
        await RawWorker(channel, "w1").greet()
        series = f'acceptd_workers_cannot_trim{{pair="{KEY.id}"}}'
        for sequence, (table, said) in enumerate([(STEEP, 0), (FLAT, 1), (STEEP, 0)], 1):
            await reported(worker, sequence, totals={"steps": sequence}, mode=1, costs=table)
            notices = await notices_of(channel)
            assert [notice.split(":")[1] for notice in notices] == said * [
                " on 1 of 2 workers verifying less is hardly cheaper (acceptd costs)"
            ]
            assert f"{series} {said}.0" in generate_latest(registry).decode()


async def test_a_table_that_no_worker_can_have_ends_the_stream(start, connect):
    worker = RawWorker(connect((await start()).address))
    await worker.greet()
    await worker.send(report={"costs": {"draft": {"sizes": [1], "milliseconds": [1.0]}}})
    code, details = await worker.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "costs.draft has 1 sizes and 1 milliseconds; accepted: as many of each, 2 to 512" in details


async def test_tables_beyond_one_answer_are_counted(start, connect):
    channel = connect((await start()).address)
    for i in range(66):
        await RawWorker(channel, f"w{i:02}").greet()
    answer = await costs_of(channel, pair=KEY.id)
    assert len(answer.workers) == 64
    assert answer.omitted == 2


async def test_the_uplink_sends_its_table_once_a_stream_and_the_command_shows_it(start, connect, capsys):
    address = (await start()).address
    channel = connect(address)
    uplink = Uplink(address, KEY, worker="w0")
    uplink.report_costs(FLAT)
    uplink.start()
    try:

        async def arrived():
            answer = await costs_of(channel)
            return [item.costs for item in answer.workers] == [FLAT]

        await until(arrived, "the table")
        assert await asyncio.to_thread(run, ["costs", "target", "--address", address]) == 0
        shown = capsys.readouterr().out
        assert "cannot trim: flat" in shown
        assert [line.split() for line in shown.splitlines() if line.strip().startswith("8 ")] == [
            ["8", "9.000", "3.000", "375.0"]
        ]
        assert await asyncio.to_thread(run, ["costs", "--json", "--address", address]) == 0
        (worker,) = json.loads(capsys.readouterr().out)["workers"]
        assert worker["costs"]["can_trim"] is False
        assert worker["costs"]["verify"] == {"sizes": [0, 40], "milliseconds": [3.0, 3.0]}
        assert await asyncio.to_thread(run, ["costs", "-w", "nobody", "--address", address]) == 0
        assert "No such worker is connected" in capsys.readouterr().out
    finally:
        await asyncio.to_thread(uplink.close)


async def test_an_unknown_pair_is_named(start, connect):
    channel = connect((await start()).address)
    await RawWorker(channel).greet()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await costs_of(channel, pair="nothing")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
