"""What the service tells workers about their budget, and what it says when theirs stays at 0."""

from __future__ import annotations

import pytest
from raw_worker import KEY, RawWorker, rows

from acceptd.v1 import inspect_pb2, inspect_pb2_grpc, types_pb2


async def test_mode_and_exploration_rate_come_with_the_coefficients(start, connect):
    worker = RawWorker(connect((await start()).address))
    update = (await worker.greet()).update
    assert (update.mode, update.exploration_rate) == (types_pb2.MODE_TRIM, pytest.approx(0.01))
    other = RawWorker(connect((await start(mode="shadow", exploration_rate=0.0)).address))
    update = (await other.greet()).update
    assert (update.mode, update.exploration_rate) == (types_pb2.MODE_SHADOW, 0.0)


@pytest.mark.parametrize(("steps", "zero", "said"), [(5000, 4900, True), (5000, 2000, False), (900, 900, False)])
async def test_a_budget_that_stays_at_0_is_said(start, connect, steps, zero, said):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.send(report={"totals": {"steps": steps, "zero_budget_steps": zero}, "mode": 1})
    await worker.batch(1, rows(5))
    shown = await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))
    notices = shown.state.notices
    assert any("drafting does not pay here: in 98% of the steps" in notice for notice in notices) == said
