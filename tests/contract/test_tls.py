"""TLS and mutual TLS, certificates that change, and settings that would leave a port open."""

from __future__ import annotations

import asyncio
import datetime
import math
import ssl
import urllib.request

import grpc
import pytest
import trustme
from authority import PAST, issue, issue_other, write
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client import CollectorRegistry
from raw_worker import DEADLINE, KEY, RawWorker, rows, until
from secured import counters, pairs

from acceptd.errors import ConfigError
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.config import load_settings
from estimator_service.metrics import Metrics


async def test_tls_is_trusted_through_the_right_authority_alone(start, connect, secure, ca, tmp_path):
    files = issue(tmp_path, ca, "service")
    server = await start(tls_cert=files.cert, tls_key=files.key)
    assert await pairs(secure(server.address, files.trusting())) == grpc.StatusCode.OK
    stranger = issue_other(tmp_path)
    assert await pairs(secure(server.address, stranger.trusting())) == grpc.StatusCode.UNAVAILABLE
    assert await pairs(connect(server.address)) == grpc.StatusCode.UNAVAILABLE, "not in the clear"


async def test_an_expired_certificate_is_not_trusted(start, secure, ca, tmp_path, caplog):
    expired = issue(tmp_path, ca, "expired", expired=True)
    server = await start(tls_cert=expired.cert, tls_key=expired.key)
    assert "expired.crt has expired (2001-01-01 00:00 UTC); no client takes it" in caplog.text
    assert counters(server, "acceptd_certificate_not_after_seconds") == {(): PAST.timestamp()}
    assert await pairs(secure(server.address, expired.trusting())) == grpc.StatusCode.UNAVAILABLE


def test_a_certificate_that_no_client_can_use_is_below_any_date():
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    assert registry.get_sample_value("acceptd_certificate_not_after_seconds") == 0
    metrics.certificate(math.nan)
    assert registry.get_sample_value("acceptd_certificate_not_after_seconds") == -1


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
    await until(lambda: counters(server, "acceptd_identity_reloads_total")["certificate", "failed"], "it is noticed")
    assert await pairs(secure(server.address, old)) == grpc.StatusCode.OK
    assert counters(server, "acceptd_identity_unusable") == {("certificate",): 1}
    write(files, made, other)

    async def replaced():
        return await pairs(secure(server.address, files.trusting())) == grpc.StatusCode.OK

    await until(replaced, "the new certificate is shown")
    assert counters(server, "acceptd_identity_unusable") == {("certificate",): 0}
    assert await pairs(secure(server.address, old)) == grpc.StatusCode.UNAVAILABLE
    # Streams that were there before go on.
    assert (await worker.batch(1, rows(30, 1))).rows_accepted == 30


async def test_a_key_that_the_metrics_port_would_not_take_stops_neither(start, secure, ca, tmp_path):
    """Both ports have the same certificate: what one of them refuses, the other does not get."""
    files = issue(tmp_path, ca, "service")
    server = await start(
        tls_cert=files.cert, tls_key=files.key, metrics_listen="127.0.0.1:0", metrics_tls=True, drain_seconds=0
    )
    private = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "short")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, private.public_key(), 1, now, now + datetime.timedelta(1))
    encoding = serialization.Encoding.PEM
    before, trusted = server._certificates._loaded, files.trusting()
    files.key.write_bytes(
        private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    files.cert.write_bytes(made.sign(private, hashes.SHA256()).public_bytes(encoding))

    def failed():
        return counters(server, "acceptd_identity_reloads_total")["certificate", "failed"]

    await until(failed, "it is noticed")
    assert server._certificates._loaded is before
    assert await pairs(secure(server.address, trusted)) == grpc.StatusCode.OK
    context = ssl.create_default_context(cafile=files.ca)
    url = f"https://localhost:{server.metrics_address.rpartition(':')[2]}/healthz"
    await asyncio.to_thread(urllib.request.urlopen, url, timeout=DEADLINE, context=context)


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
