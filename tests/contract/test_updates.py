"""What a worker is sent: coefficients that suit it, once, and heartbeats; and what it says of them."""

from __future__ import annotations

import dataclasses

import numpy as np
from raw_worker import KEY, RawWorker, rows, state_of, until

from acceptd.codec import encode_batch
from acceptd.types import Version
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc


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


async def test_why_an_update_was_refused_is_kept_in_printable_words(start, connect):
    channel = connect((await start()).address)
    worker = RawWorker(channel)
    welcome = await worker.greet()
    await worker.send(update_status={"nonce": welcome.update.nonce, "version": {}, "rejected": "no\x1b[31m\nroot:"})
    await worker.batch(1, rows(5))
    listed = (await inspect_pb2_grpc.InspectStub(channel).ListWorkers(inspect_pb2.ListWorkersRequest())).workers
    assert listed[0].last_rejected_update == "no\ufffd[31m\ufffdroot:"
