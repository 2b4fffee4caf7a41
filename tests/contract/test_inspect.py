"""The API for people: prefixes, watching, health, reflection, metrics."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from raw_worker import DEADLINE, KEY, RawWorker, rows, until

from acceptd.retry_info import retry_after
from acceptd.types import PairKey
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.cli.client import CommandFailed, InspectClient
from estimator_service.config import load_settings
from estimator_service.server import Server

OTHER = PairKey("org/target-8b", "org/draft-2b", 2)


async def failure(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details()


async def test_pairs_are_found_by_unique_prefix(start, connect):
    channel = connect((await start()).address)
    stub = inspect_pb2_grpc.InspectStub(channel)
    code, details = await failure(stub.GetPair(inspect_pb2.GetPairRequest(pair="x")))
    assert (code, "none yet" in details) == (grpc.StatusCode.NOT_FOUND, True)
    await RawWorker(channel).greet()
    await RawWorker(channel, "w1", key=OTHER).greet()
    pairs = (await stub.ListPairs(inspect_pb2.ListPairsRequest())).pairs
    assert [pair.id for pair in pairs] == sorted([KEY.id, OTHER.id])
    assert [pair.workers for pair in pairs] == [1, 1]
    found = await stub.GetPair(inspect_pb2.GetPairRequest(pair="target-8b~draft-2b"))
    assert found.state.summary.id == OTHER.id
    code, details = await failure(stub.GetPair(inspect_pb2.GetPairRequest(pair="target-8b")))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert KEY.id in details
    assert OTHER.id in details
    code, details = await failure(stub.GetHistory(inspect_pb2.GetHistoryRequest(pair="nothing")))
    assert code == grpc.StatusCode.NOT_FOUND
    assert KEY.id in details
    workers = (await stub.ListWorkers(inspect_pb2.ListWorkersRequest(pair=OTHER.id))).workers
    assert [worker.worker for worker in workers] == ["w1"]


async def test_watching_shows_changes_and_history_keeps_them(start, connect):
    channel = connect((await start(method="round", round_blocks=50, round_min_seconds=0)).address)
    stub = inspect_pb2_grpc.InspectStub(channel)
    worker = RawWorker(channel)
    await worker.greet()
    call = stub.WatchPair(inspect_pb2.WatchPairRequest(pair=KEY.id))
    first = (await asyncio.wait_for(call.read(), DEADLINE)).state
    assert first.coefficients.version.counter == 0
    await worker.batch(1, rows(50, 1))
    second = (await asyncio.wait_for(call.read(), DEADLINE)).state
    assert second.coefficients.version.counter == 1
    call.cancel()
    entries = (await stub.GetHistory(inspect_pb2.GetHistoryRequest(pair=KEY.id))).entries
    assert [entry.cause for entry in entries] == ["refit", "prior"]
    assert entries[0].coefficients == second.coefficients
    assert entries[0].calibration.observations == sum(second.observations)
    every = stub.WatchPair(inspect_pb2.WatchPairRequest(pair=KEY.id, interval_seconds=0.1))
    for _ in range(3):
        await asyncio.wait_for(every.read(), DEADLINE)
    every.cancel()
    bad = stub.WatchPair(inspect_pb2.WatchPairRequest(pair=KEY.id, interval_seconds=0.01))
    assert (await failure(bad.read()))[0] == grpc.StatusCode.INVALID_ARGUMENT
    code, _ = await failure(stub.GetHistory(inspect_pb2.GetHistoryRequest(pair=KEY.id, limit=10_001)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT


async def test_health_and_reflection(start, connect):
    server = await start()
    channel = connect(server.address)
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "acceptd.v1.Estimator", "acceptd.v1.Inspect"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert {"acceptd.v1.Estimator", "acceptd.v1.Inspect", "grpc.health.v1.Health"} <= names
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="acceptd.v1.Estimator"))
    assert (await call.read()).file_descriptor_response.file_descriptor_proto
    call.cancel()
    watch = health.Watch(health_pb2.HealthCheckRequest(service="acceptd.v1.Estimator"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    stopping = asyncio.ensure_future(server.stop())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await stopping


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE) as response:
        return response.read().decode()


async def test_metrics_tell_what_inspect_tells(start, connect):
    server = await start(metrics_listen="127.0.0.1:0", round_blocks=50, round_min_seconds=0)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(60, 1), exclusions={7: 3})
    await worker.batch(9, rows(10, 2))
    state = (await inspect_pb2_grpc.InspectStub(channel).GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))).state
    text = await asyncio.to_thread(get, server.metrics_address, "/metrics")
    samples = {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "pair")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    line = state.coefficients.line
    assert samples["acceptd_slope",] == line.slopes[0]
    for k in range(4):
        assert samples["acceptd_intercept", str(k)] == line.intercepts[k]
        assert samples["acceptd_observations_total", str(k)] == state.observations[k]
        assert samples["acceptd_acceptances_total", str(k)] == state.acceptances[k]
        assert samples["acceptd_intercept_standard_error", str(k)] == state.standard_errors[1 + k]
    assert samples["acceptd_slope_standard_error",] == state.standard_errors[0]
    assert samples["acceptd_blocks_total",] == 60
    assert samples["acceptd_excluded_blocks_total", "penalties"] == 3
    assert samples["acceptd_rejected_batches_total", "out_of_order"] == 1
    assert samples["acceptd_rejected_batches_total", "malformed"] == 0, "an increase needs a value before the first"
    assert samples["acceptd_refits_total",] == state.refit.done
    assert samples["acceptd_refit_seconds_count",] == state.refit.done
    assert samples["acceptd_workers",] == 1
    assert samples["acceptd_version_counter",] == state.coefficients.version.counter
    assert samples["acceptd_store_up",] == 1
    assert samples["acceptd_log_loss",] == state.calibration.log_loss
    assert json.loads(await asyncio.to_thread(get, server.metrics_address, "/healthz"))["status"] == "ok"


async def test_http_refuses_what_it_does_not_know(start):
    server = await start(metrics_listen="127.0.0.1:0")
    host, port = server.metrics_address.split(":")

    async def talk(request):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
        return answer.split(b"\r\n")[0]

    assert await talk(b"GET /nothing HTTP/1.1\r\n\r\n") == b"HTTP/1.1 404 Not Found"
    assert await talk(b"POST /metrics HTTP/1.1\r\n\r\n") == b"HTTP/1.1 405 Method Not Allowed"
    assert await talk(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 40_000) == b"HTTP/1.1 400 Bad Request"
    assert await talk(b"GET /healthz HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"


async def test_an_address_in_use_is_one_clear_line(start):
    server = await start(metrics_listen="127.0.0.1:0")
    with pytest.raises(Exception, match=r"listen = '127.0.0.1:\d+': cannot be bound"):
        await start(listen=server.address)
    with pytest.raises(Exception, match=r"metrics_listen = '127.0.0.1:\d+': cannot be bound"):
        await start(metrics_listen=server.metrics_address)


async def test_sigterm_drains_and_exits_with_0(spawn, connect):
    service = spawn()
    worker = RawWorker(connect(service.address))
    await worker.greet()
    stopped = asyncio.ensure_future(asyncio.to_thread(service.terminate))
    await worker.read_kind("drain")
    assert await stopped == 0


async def test_a_failed_start_leaves_nothing_open(tmp_path):
    """The store can be used at once by the next try."""
    flags = {"listen": "203.0.113.1:1", "insecure": True, "metrics_listen": "", "store": tmp_path / "s.sqlite"}
    with pytest.raises(Exception, match="cannot be bound"):
        await Server.start(load_settings(flags, environ={}))
    server = await Server.start(load_settings({**flags, "listen": "127.0.0.1:0"}, environ={}))
    await server.stop()


async def test_no_pair_is_not_the_only_pair(start, connect):
    """`acceptd reset "$PAIR"` with PAIR unset."""
    channel = connect((await start()).address)
    stub = inspect_pb2_grpc.InspectStub(channel)
    await RawWorker(channel).greet()
    for call in (
        stub.GetPair(inspect_pb2.GetPairRequest()),
        stub.ResetPair(inspect_pb2.ResetPairRequest()),
        stub.GetHistory(inspect_pb2.GetHistoryRequest(pair="")),
    ):
        code, details = await failure(call)
        assert (code, KEY.id in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert details.startswith("pair is empty; accepted: ")


async def test_watchers_are_bounded_and_leave_room(start, connect):
    server = await start()
    channel = connect(server.address)
    await RawWorker(channel).greet()
    stub = inspect_pb2_grpc.InspectStub(channel)
    request = inspect_pb2.WatchPairRequest(pair=KEY.id)
    calls = [stub.WatchPair(request) for _ in range(128)]
    for call in calls:
        assert (await call.read()).state.summary.id == KEY.id
    refused = stub.WatchPair(request)
    code, details = await failure(refused.read())
    assert (code, "accepted: 128 at once" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert retry_after(await refused.trailing_metadata()) == 5.0
    labels = {"reason": "too_many_watchers"}
    assert server.fleet.metrics.registry.get_sample_value("acceptd_refused_calls_total", labels) == 1
    calls[0].cancel()

    async def another():
        try:
            return bool(await stub.WatchPair(request).read())
        except grpc.aio.AioRpcError:
            return False

    await until(another, "the place of a watcher that left is free")


async def test_a_history_of_any_length_fits_its_answers(start, connect, tmp_path):
    """With K = 64, the versions that a pair keeps by default take more bytes than one message may have."""
    key = PairKey("deep", "draft", 64)
    settings = {"round_blocks": 20, "round_min_seconds": 0, "publish_min_change": 0, "method": "line"}
    server = await start(store=tmp_path / "s.sqlite", history_versions=1000, commit_seconds=0.05, **settings)
    channel = connect(server.address)
    worker = RawWorker(channel, key=key)
    await worker.greet()
    sequence = 0
    while (pair := server.fleet.pairs[key.id]).publication.version.counter < 420:
        sequence += 1
        await worker.batch(sequence, rows(40, sequence, 64))
    counter = pair.publication.version.counter

    async def whole():
        return len(await asyncio.to_thread(history, server.address, key.id, 10_000)) == counter

    await until(whole, "all versions can be read: the first are in the store alone")
    stub = inspect_pb2_grpc.InspectStub(channel)
    first = await stub.GetHistory(inspect_pb2.GetHistoryRequest(pair=key.id, limit=10_000))
    assert len(first.entries) == 200
    found = await asyncio.to_thread(history, server.address, key.id, 10_000)
    assert [entry.coefficients.version.counter for entry in found] == list(range(counter, 0, -1))
    assert len(await asyncio.to_thread(history, server.address, key.id, 250)) == 250
    beyond = inspect_pb2.GetHistoryRequest(pair=key.id, before={"epoch": 2**64 - 1, "counter": 2**64 - 1}, limit=2)
    assert (await stub.GetHistory(beyond)).entries[0] == first.entries[0]


def history(address, pair, limit):
    with InspectClient(address) as client:
        return client.history(pair, limit).entries


def test_a_service_that_dies_under_a_command_is_not_taken_for_one_that_wants_tls(spawn):
    service = spawn()
    with InspectClient(service.address) as client:
        assert not client.pairs().pairs
        service.kill()
        with pytest.raises(CommandFailed, match=r"the service at .* went away"):
            client.pairs()
    with InspectClient(service.address) as client, pytest.raises(CommandFailed, match="no acceptd service answers"):
        client.pairs()
