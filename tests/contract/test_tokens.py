"""Who is let in, to what, and what the log says of it."""

from __future__ import annotations

import asyncio
import errno
import logging
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from raw_worker import DEADLINE, KEY, RawWorker, rows, until
from secured import counters, outcome, pairs

from acceptd.errors import ConfigError
from acceptd.types import PairKey
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.access import tokens as access
from estimator_service.access.files import stamp_of
from estimator_service.access.identity import Role, needed_role
from estimator_service.access.tokens import line_of, new_token

OTHER = PairKey("other/model", "org/draft-1b", 4)


async def greeting(channel, metadata, key=KEY, worker="w0"):
    """(a worker, its Welcome or None)."""
    raw = RawWorker(channel, worker, key=key, metadata=metadata)
    try:
        return raw, await raw.greet()
    except (EOFError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return raw, None


async def test_each_role_may_do_what_is_its_own_and_nothing_else(start, connect, tokens):
    server = await start(tokens=tokens.path)
    channel = connect(server.address)
    worker, welcome = await greeting(channel, tokens.header("rack1"))
    assert welcome.last_sequence == 0
    assert (await worker.batch(1, rows(30, 1))).rows_accepted == 30
    stub = inspect_pb2_grpc.InspectStub(channel)
    reads = {
        stub.ListPairs: inspect_pb2.ListPairsRequest(),
        stub.GetPair: inspect_pb2.GetPairRequest(pair=KEY.id),
        stub.GetHistory: inspect_pb2.GetHistoryRequest(pair=KEY.id),
        stub.ListWorkers: inspect_pb2.ListWorkersRequest(),
        stub.GetCosts: inspect_pb2.GetCostsRequest(),
        stub.ExportPair: inspect_pb2.ExportPairRequest(pair=KEY.id),
        stub.ListAudit: inspect_pb2.ListAuditRequest(),
    }
    changes = {
        stub.SetMode: inspect_pb2.SetModeRequest(pair=KEY.id, exploration_rate=0.5),
        stub.ResetPair: inspect_pb2.ResetPairRequest(pair=KEY.id),
        stub.PinPair: inspect_pb2.PinPairRequest(pair=KEY.id, version={"epoch": 1, "counter": 1}),
        stub.UnpinPair: inspect_pb2.UnpinPairRequest(pair=KEY.id),
        stub.RollbackPair: inspect_pb2.RollbackPairRequest(pair=KEY.id),
        stub.ImportPair: inspect_pb2.ImportPairRequest(),
    }
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    for name, may_read, may_change in (("rack1", False, False), ("ana", True, False), ("olga", True, True)):
        for calls, may in ((reads, may_read), (changes, may_change)):
            for method, request in calls.items():
                status, details = await outcome(method(request, metadata=tokens.header(name)))
                assert (status not in refused) == may, (name, method._method, status, details)
                if not may:
                    assert status == grpc.StatusCode.PERMISSION_DENIED
                    assert name in details
    for method, request in {**reads, **changes}.items():
        assert (await outcome(method(request)))[0] == grpc.StatusCode.UNAUTHENTICATED
        wrong = (("authorization", f"Bearer {new_token()}"),)
        assert (await outcome(method(request, metadata=wrong)))[0] == grpc.StatusCode.UNAUTHENTICATED
    assert server.fleet.pairs[KEY.id].exploration_rate == 0.5
    count = counters(server, "acceptd_refused_calls_total")
    assert count["role",] == len(reads) + 2 * len(changes)
    assert count["no_token",] == count["unknown_token",] == len(reads) + len(changes)


async def test_a_workers_token_is_good_for_its_pairs_alone(start, connect, tokens):
    server = await start(tokens=tokens.path)
    channel = connect(server.address)
    for name, key in (("rack1", OTHER), ("rack2", KEY), ("ana", KEY), ("olga", KEY)):
        worker, welcome = await greeting(channel, tokens.header(name), key)
        assert welcome is None
        assert await worker.stream.code() == grpc.StatusCode.PERMISSION_DENIED
        assert name in await worker.stream.details()
    assert server.fleet.pairs == {}, "nothing was made of a Hello that is not allowed"
    _, welcome = await greeting(channel, tokens.header("rack2"), OTHER)
    assert welcome is not None
    worker, _ = await greeting(channel, None)
    assert await worker.stream.code() == grpc.StatusCode.UNAUTHENTICATED
    assert list(server.fleet.pairs) == [OTHER.id]
    assert counters(server, "acceptd_refused_calls_total") == {("pair",): 2, ("role",): 2, ("no_token",): 1}


async def test_a_token_of_another_pair_does_not_take_over_a_workers_name(start, connect, tokens):
    """Whoever knows a worker's name and incarnation could end its stream, and have its rows taken for duplicates."""
    server = await start(tokens=tokens.path)
    channel = connect(server.address)
    worker, _ = await greeting(channel, tokens.header("rack1"))
    await worker.batch(1, rows(30, 1))
    for _ in range(2):
        thief, welcome = await greeting(channel, tokens.header("rack2"), OTHER)
        assert welcome is None
        assert await thief.stream.code() == grpc.StatusCode.PERMISSION_DENIED
        assert (await worker.batch(2, rows(30, 2))).last_sequence == 2
        # Also while it is away.
        worker.stream.cancel()
        await until(lambda: not server.fleet.sessions, "it is away")
        thief, welcome = await greeting(channel, tokens.header("rack2"), OTHER)
        assert welcome is None
        worker, welcome = await greeting(channel, tokens.header("rack1"))
        assert welcome.last_sequence == 2


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic {}", "bearer{}", "Bearer {} {}", "Bearer x{}", "Bearer " + "x" * 4000]
)
async def test_what_is_no_token_of_ours_is_refused(start, connect, tokens, header):
    server = await start(tokens=tokens.path)
    text = header.replace("{}", tokens.of["olga"])
    assert await pairs(connect(server.address), (("authorization", text),)) == grpc.StatusCode.UNAUTHENTICATED


async def test_two_tokens_are_none(start, connect, tokens):
    server = await start(tokens=tokens.path)
    both = (*tokens.header("ana"), *tokens.header("olga"))
    assert await pairs(connect(server.address), both) == grpc.StatusCode.UNAUTHENTICATED


async def test_health_is_open_and_reflection_is_for_readers(start, connect, tokens):
    channel = connect((await start(tokens=tokens.path)).address)
    health = health_pb2_grpc.HealthStub(channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert (await outcome(watch.read()))[0] == grpc.StatusCode.UNAUTHENTICATED, "a stranger holds no stream open"
    watch = health.Watch(health_pb2.HealthCheckRequest(), metadata=tokens.header("ana"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    for metadata, expected in (
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (tokens.header("rack1"), grpc.StatusCode.PERMISSION_DENIED),
    ):
        assert (await outcome(reflection.ServerReflectionInfo(iter([request]), metadata=metadata).read()))[
            0
        ] == expected
    call = reflection.ServerReflectionInfo(iter([request]), metadata=tokens.header("ana"))
    assert (await call.read()).list_services_response.service


async def test_a_method_that_is_not_known_is_refused_before_it_is_unimplemented(start, connect, tokens):
    channel = connect((await start(tokens=tokens.path)).address)
    call = channel.unary_unary("/acceptd.v1.Inspect/DropEverything")
    assert (await outcome(call(b"")))[0] == grpc.StatusCode.UNAUTHENTICATED
    assert (await outcome(call(b"", metadata=tokens.header("ana"))))[0] == grpc.StatusCode.PERMISSION_DENIED
    assert (await outcome(call(b"", metadata=tokens.header("olga"))))[0] == grpc.StatusCode.UNIMPLEMENTED


async def test_tokens_change_without_a_restart_and_a_revoked_ones_streams_end(start, connect, tokens, caplog):
    server = await start(tokens=tokens.path)
    channel = connect(server.address)
    worker, _ = await greeting(channel, tokens.header("rack1"))
    watch = inspect_pb2_grpc.InspectStub(channel).WatchPair(
        inspect_pb2.WatchPairRequest(pair=KEY.id, interval_seconds=0.1), metadata=tokens.header("ana")
    )
    await watch.read()
    tokens.revoke("rack1")
    status, details = await worker.status()
    assert status == grpc.StatusCode.UNAUTHENTICATED
    assert "rack1 was revoked" in details
    assert counters(server, "acceptd_refused_calls_total")["revoked",] == 1
    assert await pairs(channel, tokens.header("ana")) == grpc.StatusCode.OK

    fresh = new_token()
    with tokens.path.open("a") as file:
        file.write(line_of("bob", Role.READER, ("*",), fresh) + "\n")

    async def let_in():
        return await pairs(channel, (("authorization", f"Bearer {fresh}"),)) == grpc.StatusCode.OK

    await until(let_in, "the new token is accepted")
    # A file that cannot be used changes nothing, and says so.
    assert counters(server, "acceptd_identity_unusable") == {("tokens",): 0}
    tokens.path.write_text("bob reader\n")
    await until(lambda: counters(server, "acceptd_identity_reloads_total")["tokens", "failed"], "it is noticed")
    assert counters(server, "acceptd_identity_unusable") == {("tokens",): 1}
    assert await let_in()
    tokens.path.write_text("")

    async def all_of_it():
        while await watch.read() is not grpc.aio.EOF:
            pass

    assert (await outcome(all_of_it()))[0] == grpc.StatusCode.UNAUTHENTICATED
    assert await pairs(channel, tokens.header("olga")) == grpc.StatusCode.UNAUTHENTICATED
    assert counters(server, "acceptd_identity_unusable") == {("tokens",): 0}
    assert "nobody can get in" in caplog.text


@pytest.mark.parametrize("what", ["words", "bytes", "folder", "nothing"])
def test_what_cannot_be_used_is_said_once_and_tried_until_it_can(tokens, what):
    """The stamp stays where a disk failed for a moment: what was to be revoked would stay good."""
    read, good = access.Tokens(tokens.path), tokens.path.read_bytes()
    tokens.path.unlink()
    if what == "words":
        tokens.path.write_text("bob reader\n")
    elif what == "bytes":
        tokens.path.write_bytes(b"\xff\xfe bad\n")
    elif what == "folder":
        tokens.path.mkdir()
    with pytest.raises(ConfigError):
        read.refresh()
    assert [read.refresh() for _ in range(3)] == [False] * 3
    assert len(read) == 4
    if tokens.path.is_dir():
        tokens.path.rmdir()
    tokens.path.write_bytes(good.splitlines(keepends=True)[0])
    assert read.refresh()
    assert len(read) == 1
    assert not read.refresh()


def test_who_may_read_it_is_part_of_what_changed(tokens):
    before = stamp_of(tokens.path)
    tokens.path.chmod(0o640)
    assert stamp_of(tokens.path) != before


def test_a_disk_that_fails_for_a_moment(tokens, monkeypatch):
    """The file is the same before and after: it is read all the same."""
    read, fails = access.Tokens(tokens.path), True
    path_read = Path.read_bytes

    def read_bytes(path):
        if fails:
            raise OSError(errno.EIO, "Input/output error")
        return path_read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    tokens.revoke("ana")
    with pytest.raises(ConfigError, match="Input/output error"):
        read.refresh()
    assert [read.refresh() for _ in range(3)] == [False] * 3
    fails = False
    assert read.refresh()
    assert len(read) == 3


async def test_no_token_is_ever_logged_answered_or_shown(start, connect, tokens, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    server = await start(tokens=tokens.path, store=tmp_path / "store.sqlite", metrics_listen="127.0.0.1:0")
    channel = connect(server.address)
    secret = new_token()
    stub = inspect_pb2_grpc.InspectStub(channel)
    answers = []
    await greeting(channel, tokens.header("rack1"))
    await greeting(channel, tokens.header("rack2"), KEY, "w1")
    for header in (f"Bearer {secret}", secret, f"Basic {secret}", f"Bearer {tokens.of['rack1']}"):
        request = inspect_pb2.ResetPairRequest(pair=KEY.id)
        answers.append(await outcome(stub.ResetPair(request, metadata=(("authorization", header),))))
    await stub.ResetPair(inspect_pb2.ResetPairRequest(pair=KEY.id), metadata=tokens.header("olga"))
    audit = await stub.ListAudit(inspect_pb2.ListAuditRequest(), metadata=tokens.header("ana"))
    assert audit.entries[0].who == "olga"
    # A token pasted in place of its hash.
    tokens.path.write_text(f"eve reader * {secret}\n")
    await until(lambda: "hash is not accepted" in caplog.text, "the mistake is logged")
    metrics = await asyncio.to_thread(
        lambda: urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=DEADLINE).read().decode()
    )
    await server.stop()
    written = b"".join(path.read_bytes() for path in tmp_path.glob("store*"))
    caller = server._gate._tokens._callers
    shown = [caplog.text, str(answers), str(audit), metrics, written.decode("latin-1"), repr(caller)]
    for token in (secret, *tokens.of.values()):
        for text in shown:
            assert token not in text
            assert token.removeprefix("acceptd_")[:16] not in text
    assert "refused" in caplog.text


async def test_refusals_do_not_flood_the_log(start, connect, tokens, caplog):
    server = await start(tokens=tokens.path)
    channel = connect(server.address)
    for _ in range(100):
        await pairs(channel)
    assert sum("refused" in record.getMessage() for record in caplog.records) == 1
    assert counters(server, "acceptd_refused_calls_total") == {("no_token",): 100}


async def test_headers_that_are_too_large_end_the_call_and_no_other(start, connect, tokens):
    server = await start(tokens=tokens.path)
    channel = connect(server.address)
    worker, _ = await greeting(connect(server.address), tokens.header("rack1"))
    for size in (20_000, 1_000_000):
        status = await pairs(channel, (("x-large", "x" * size), *tokens.header("olga")))
        assert status in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}
    assert await pairs(channel, tokens.header("olga")) == grpc.StatusCode.OK
    assert (await worker.batch(1, rows(30, 1))).rows_accepted == 30


def test_every_method_of_inspect_is_a_readers_or_an_operators():
    """A method that is added later fails here until somebody decides whose it is."""
    changes = {"PinPair", "UnpinPair", "RollbackPair", "ResetPair", "SetMode", "ImportPair"}
    methods = {method.name for method in inspect_pb2.DESCRIPTOR.services_by_name["Inspect"].methods}
    needed = {name: needed_role(f"/acceptd.v1.Inspect/{name}") for name in methods}
    assert needed == {name: Role.OPERATOR if name in changes else Role.READER for name in methods}
