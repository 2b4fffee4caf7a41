"""The hook's own client with a service that asks who it is."""

from __future__ import annotations

import pytest
from authority import issue, issue_other
from raw_worker import KEY, until
from secured import counters

from acceptd.identity import Identity
from acceptd.modes import Mode
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from vllm_client_hook.backoff import BackoffSettings
from vllm_client_hook.uplink import Uplink, UplinkSettings


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
