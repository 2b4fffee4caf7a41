"""The metrics port, where it asks who reads and is encrypted."""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.error
import urllib.request

import pytest
from authority import issue, issue_other
from prometheus_client.parser import text_string_to_metric_families
from raw_worker import DEADLINE

from estimator_service.access.tokens import new_token


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
    files = issue(tmp_path, ca, "service")
    server = await start(
        tls_cert=files.cert, tls_key=files.key, metrics_listen="127.0.0.1:0", metrics_tls=True, drain_seconds=0
    )
    context = ssl.create_default_context(cafile=files.ca)
    url = f"https://{server.metrics_address}/metrics"
    assert (await asyncio.to_thread(fetch, url, None, context))[0] == 200
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(fetch, url, None, ssl.create_default_context(cafile=issue_other(tmp_path).ca))
