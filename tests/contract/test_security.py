"""Who is let in, to what, and what the log says of it."""

from __future__ import annotations

import asyncio
import base64
import logging
import urllib.error
import urllib.request

import grpc
import pytest
import trustme
from authority import Files, issue, write
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from raw_worker import DEADLINE, KEY, RawWorker, rows, until

from acceptd.errors import ConfigError
from acceptd.identity import Identity
from acceptd.modes import Mode
from acceptd.types import PairKey
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.access.identity import Role, needed_role
from estimator_service.access.tokens import line_of, new_token
from estimator_service.config import load_settings
from vllm_client_hook.backoff import BackoffSettings
from vllm_client_hook.uplink import Uplink, UplinkSettings

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
OTHER = PairKey("other/model", "org/draft-1b", 4)


class Tokens:
    """A file of tokens, and the tokens."""

    def __init__(self, path):
        self.path = path
        self.of = {}
        for name, role, pairs in (
            ("rack1", Role.WORKER, "org/target-*"),
            ("rack2", Role.WORKER, "other*"),
            ("ana", Role.READER, "*"),
            ("olga", Role.OPERATOR, "*"),
        ):
            self.of[name] = new_token()
            with path.open("a") as file:
                file.write(line_of(name, role, (pairs,), self.of[name]) + "\n")

    def header(self, name):
        return (("authorization", f"Bearer {self.of[name]}"),)

    def revoke(self, name):
        kept = [line for line in self.path.read_text().splitlines() if not line.startswith(name + " ")]
        self.path.write_text("\n".join(kept) + "\n")


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path / "tokens")


@pytest.fixture
def ca():
    return trustme.CA()


@pytest.fixture
async def secure():
    """TLS channels, closed at the end."""
    channels = []

    def connect(address, credentials):
        channels.append(grpc.aio.secure_channel(address, credentials, OPTIONS))
        return channels[-1]

    yield connect
    for channel in channels:
        await channel.close()


async def outcome(call):
    """(status, details) of a call."""
    try:
        await asyncio.wait_for(call, DEADLINE)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


async def pairs(channel, metadata=None):
    stub = inspect_pb2_grpc.InspectStub(channel)
    return (await outcome(stub.ListPairs(inspect_pb2.ListPairsRequest(), metadata=metadata, timeout=DEADLINE)))[0]


def counters(server, name):
    """Label values → count, of one family of the service's registry."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in server.fleet.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


# Tokens


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


async def test_tokens_change_without_a_restart_and_a_revoked_ones_streams_end(start, connect, tokens):
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
    # A file that cannot be read changes nothing, and says so.
    tokens.path.write_text("bob reader\n")
    await until(lambda: counters(server, "acceptd_identity_reloads_total").get(("tokens", "failed")), "it is noticed")
    assert await let_in()
    tokens.path.write_text("")

    async def all_of_it():
        while await watch.read() is not grpc.aio.EOF:
            pass

    assert (await outcome(all_of_it()))[0] == grpc.StatusCode.UNAUTHENTICATED
    assert await pairs(channel, tokens.header("olga")) == grpc.StatusCode.UNAUTHENTICATED


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


# The metrics port


def fetch(url, token=None, context=None):
    """(status, body). token: for Bearer, or as "scheme credentials"."""
    header = token if token and " " in token else f"Bearer {token}"
    request = urllib.request.Request(url, headers={"Authorization": header} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_metrics_ask_for_a_readers_token_where_told_to(start, tokens):
    server = await start(tokens=tokens.path, metrics_listen="127.0.0.1:0", metrics_auth=True)
    url = f"http://{server.metrics_address}"
    assert (await asyncio.to_thread(fetch, f"{url}/metrics"))[0] == 401
    assert (await asyncio.to_thread(fetch, f"{url}/metrics", new_token()))[0] == 401
    assert (await asyncio.to_thread(fetch, f"{url}/metrics", tokens.of["rack1"]))[0] == 403
    for name in ("ana", "olga"):
        status, body = await asyncio.to_thread(fetch, f"{url}/metrics", tokens.of[name])
        assert status == 200
    for name, expected in (("ana", 200), ("rack1", 403)):
        # As a browser sends what was typed: the token as password.
        basic = "Basic " + base64.b64encode(f"me:{tokens.of[name]}".encode()).decode()
        for path in ("/", "/api/state", "/metrics"):
            assert (await asyncio.to_thread(fetch, url + path, basic))[0] == expected
    assert (await asyncio.to_thread(fetch, f"{url}/metrics", "Basic !"))[0] == 401
    refused = {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if sample.name == "acceptd_refused_calls_total"
    }
    assert refused == {"no_token": 1, "unknown_token": 1, "role": 1}
    assert (await asyncio.to_thread(fetch, f"{url}/healthz"))[0] == 200


async def test_the_metrics_port_can_have_tls(start, ca, tmp_path):
    import ssl

    files = issue(tmp_path, ca, "service")
    server = await start(
        tls_cert=files.cert, tls_key=files.key, metrics_listen="127.0.0.1:0", metrics_tls=True, drain_seconds=0
    )
    context = ssl.create_default_context(cafile=files.ca)
    url = f"https://{server.metrics_address}/metrics"
    assert (await asyncio.to_thread(fetch, url, None, context))[0] == 200
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(fetch, url, None, ssl.create_default_context(cafile=issue_other(tmp_path).ca))


# TLS


def issue_other(directory) -> Files:
    """By an authority that nobody trusts."""
    return issue(directory, trustme.CA(), "stranger")


async def test_tls_is_trusted_through_the_right_authority_alone(start, connect, secure, ca, tmp_path):
    files = issue(tmp_path, ca, "service")
    server = await start(tls_cert=files.cert, tls_key=files.key)
    assert await pairs(secure(server.address, files.trusting())) == grpc.StatusCode.OK
    stranger = issue_other(tmp_path)
    assert await pairs(secure(server.address, stranger.trusting())) == grpc.StatusCode.UNAVAILABLE
    assert await pairs(connect(server.address)) == grpc.StatusCode.UNAVAILABLE, "not in the clear"


async def test_an_expired_certificate_is_not_trusted(start, secure, ca, tmp_path):
    expired = issue(tmp_path, ca, "expired", expired=True)
    server = await start(tls_cert=expired.cert, tls_key=expired.key)
    assert await pairs(secure(server.address, expired.trusting())) == grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_asks_for_a_certificate_of_the_right_authority(start, secure, ca, tmp_path):
    files, client = issue(tmp_path, ca, "service"), issue(tmp_path, ca, "laptop")
    server = await start(tls_cert=files.cert, tls_key=files.key, tls_client_ca=files.ca)
    stranger = issue_other(tmp_path)
    expired = issue(tmp_path, ca, "expired", expired=True)
    assert await pairs(secure(server.address, files.trusting())) == grpc.StatusCode.UNAVAILABLE
    assert await pairs(secure(server.address, stranger.client(files))) == grpc.StatusCode.UNAVAILABLE
    assert await pairs(secure(server.address, expired.client(files))) == grpc.StatusCode.UNAVAILABLE
    channel = secure(server.address, client.client())
    assert await pairs(channel) == grpc.StatusCode.OK
    await RawWorker(channel).greet()
    stub = inspect_pb2_grpc.InspectStub(channel)
    await stub.ResetPair(inspect_pb2.ResetPairRequest(pair=KEY.id))
    (entry,) = (await stub.ListAudit(inspect_pb2.ListAuditRequest())).entries
    assert entry.who == "certificate 'laptop'", "without tokens the certificate says who it was"


async def test_mutual_tls_and_tokens_are_both_needed(start, secure, ca, tokens, tmp_path):
    files = issue(tmp_path, ca, "service")
    server = await start(tls_cert=files.cert, tls_key=files.key, tls_client_ca=files.ca, tokens=tokens.path)
    assert await pairs(secure(server.address, files.client())) == grpc.StatusCode.UNAUTHENTICATED
    assert await pairs(secure(server.address, files.client()), tokens.header("ana")) == grpc.StatusCode.OK
    without = secure(server.address, files.trusting())
    assert await pairs(without, tokens.header("ana")) == grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_is_replaced_without_a_restart(start, secure, ca, tmp_path):
    files = issue(tmp_path, ca, "service")
    server = await start(tls_cert=files.cert, tls_key=files.key)
    before = secure(server.address, files.trusting())
    worker = RawWorker(before)
    await worker.greet()
    old = files.trusting()

    other = trustme.CA()
    made = other.issue_cert("127.0.0.1", "localhost")
    # Half of it is there: the service waits for a pair that fits.
    files.cert.write_bytes(made.cert_chain_pems[0].bytes())
    await until(
        lambda: counters(server, "acceptd_identity_reloads_total").get(("certificate", "failed")), "it is noticed"
    )
    assert await pairs(secure(server.address, old)) == grpc.StatusCode.OK
    write(files, made, other)

    async def replaced():
        return await pairs(secure(server.address, files.trusting())) == grpc.StatusCode.OK

    await until(replaced, "the new certificate is shown")
    assert await pairs(secure(server.address, old)) == grpc.StatusCode.UNAVAILABLE
    # Streams that were there before go on.
    assert (await worker.batch(1, rows(30, 1))).rows_accepted == 30


# Settings


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"tls_cert": "c"}, ["tls_cert is set and tls_key is not"]),
        ({"tls_key": "k"}, ["tls_key is set and tls_cert is not"]),
        ({"tls_client_ca": "a"}, ["tls_client_ca is set and tls_cert is not"]),
        ({"metrics_tls": True}, ["metrics_tls is set and tls_cert is not"]),
        ({"metrics_auth": True}, ["metrics_auth is set and tokens is not"]),
        (
            {"listen": "0.0.0.0:1", "tokens": "t"},
            ["beyond this machine without TLS", "tls_cert and tls_key", "insecure"],
        ),
        (
            {"metrics_listen": "0.0.0.0:1", "tls_cert": "c", "tls_key": "k"},
            ["beyond this machine without TLS", "metrics_tls = true", "insecure"],
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(flags, parts):
    with pytest.raises(ConfigError) as error:
        load_settings(flags, environ={})
    for part in parts:
        assert part in str(error.value)


def test_tls_is_enough_to_listen_beyond_this_machine():
    flags = {"listen": "0.0.0.0:1", "metrics_listen": "0.0.0.0:2", "tls_cert": "c", "tls_key": "k", "metrics_tls": True}
    assert load_settings(flags, environ={}).listen_address.host == "0.0.0.0"


async def test_a_certificate_that_cannot_be_used_stops_the_start(start, ca, tmp_path):
    one, two = issue(tmp_path, ca, "one"), issue(tmp_path, ca, "two")
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    for flags, part in (
        ({"tls_cert": one.cert, "tls_key": two.key}, "tls_key"),
        ({"tls_cert": tmp_path / "none", "tls_key": one.key}, "No such file"),
        ({"tls_cert": one.cert, "tls_key": one.key, "tls_client_ca": empty}, "tls_client_ca"),
        ({"tokens": tmp_path / "none"}, "tokens"),
    ):
        with pytest.raises(ConfigError) as error:
            await start(**flags)
        assert part in str(error.value)
        assert "\n" not in str(error.value)


# The hook's own client


@pytest.fixture
def uplink():
    """Uplinks, closed at the end."""
    opened = []

    def make(address, **files):
        settings = UplinkSettings(backoff=BackoffSettings(first=0.01, cap=0.05))
        identity = Identity(**{name: str(path) for name, path in files.items()})
        opened.append(Uplink(address, KEY, worker="w0", settings=settings, identity=identity))
        opened[-1].start()
        return opened[-1]

    yield make
    for each in opened:
        each.close(5.0)


async def test_the_hooks_client_brings_certificate_and_token(start, ca, tokens, tmp_path, uplink, caplog):
    files, client = issue(tmp_path, ca, "service"), issue(tmp_path, ca, "rack1")
    server = await start(tls_cert=files.cert, tls_key=files.key, tls_client_ca=files.ca, tokens=tokens.path)
    token = tmp_path / "token"
    token.write_text(tokens.of["rack2"] + "\n")
    certificate = {"ca_file": client.ca, "cert_file": client.cert, "key_file": client.key}
    worker = uplink(server.address, **certificate, token_file=token)
    await until(lambda: "bound to other*" in worker.stats()["last_error"], "the wrong token is refused, and says why")
    # It is replaced on disk, and taken up by the next attempt.
    token.write_text(tokens.of["rack1"] + "\n")
    await until(lambda: worker.stats()["connected"], "the right one is taken up")
    without = uplink(server.address, ca_file=client.ca, token_file=token)
    await until(lambda: without.stats()["last_error"], "no certificate, no stream")
    stranger = issue_other(tmp_path)
    trusting = uplink(server.address, **{**certificate, "ca_file": stranger.ca}, token_file=token)
    await until(lambda: trusting.stats()["last_error"], "another service is not trusted")
    assert not without.stats()["connected"]
    assert not trusting.stats()["connected"]
    tokens.revoke("rack1")
    await until(lambda: "not one of this service's" in worker.stats()["last_error"], "revoked")
    for secret in tokens.of.values():
        assert secret not in caplog.text
        assert secret not in str(worker.stats())


async def test_the_hooks_client_takes_a_mode_without_a_new_version(start, uplink, connect):
    server = await start(exploration_rate=0.25)
    worker = uplink(server.address)
    await until(lambda: worker.latest() is not None, "a first push")
    first = worker.latest()
    assert (first.mode, first.exploration_rate) == (Mode.TRIM, 0.25)
    stub = inspect_pb2_grpc.InspectStub(connect(server.address))
    await stub.SetMode(inspect_pb2.SetModeRequest(pair=KEY.id, mode=Mode.SHADOW, exploration_rate=0.0))
    await until(lambda: worker.latest().mode is Mode.SHADOW, "the mode arrives")
    assert worker.latest().exploration_rate == 0.0
    assert worker.latest().coefficients.version == first.coefficients.version
    assert worker.latest().nonce > first.nonce
    worker.answer(worker.latest().nonce, first.coefficients.version)
    await until(lambda: counters(server, "acceptd_updates_total").get((KEY.id, "applied")), "it is acknowledged")
