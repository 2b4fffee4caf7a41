"""What the metrics port serves for people: the page, its policy, and the JSON behind it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request

from raw_worker import KEY, RawWorker, rows, until

from acceptd.types import PairKey
from acceptd.v1 import inspect_pb2, inspect_pb2_grpc, types_pb2
from estimator_service import jsonable
from estimator_service.web.status_page import MAX_PAIRS, MAX_POINTS, MAX_WORKERS

HTTP = {"metrics_listen": "127.0.0.1:0", "round_blocks": 50, "round_min_seconds": 0}


async def get(server, path, method="GET", **query):
    """(status, headers, body)."""
    url = f"http://{server.metrics_address}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")

    def call():
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    return await asyncio.to_thread(call)


def strict(body):
    """JSON as the standard has it: no NaN."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body, parse_constant=refuse)


async def test_the_page_is_one_document_that_lets_nothing_else_in(start):
    server = await start(**HTTP)
    status, headers, body = await get(server, "/")
    page = body.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
        assert len(inside) > 1000
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|innerHTML|document\.write|eval\(", page)
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+[^\s\"'`)]*", page))
    assert {a for a in addresses if ":" in a} == {"http://www.w3.org/2000/svg"}, "a name, never fetched"
    assert headers["X-Content-Type-Options"] == "nosniff"


async def test_only_get_and_head(start):
    server = await start(**HTTP)
    assert (await get(server, "/api/state", "POST"))[0] == 405
    assert (await get(server, "/api/state", "DELETE"))[0] == 405
    assert (await get(server, "/api/elsewhere"))[0] == 404
    status, headers, body = await get(server, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


async def test_the_state_is_what_inspect_says(start, connect):
    server = await start(**HTTP)
    assert strict((await get(server, "/api/state"))[2])["pair"] is None
    channel = connect(server.address)
    worker = RawWorker(channel, "w0")
    await worker.greet(workload="<b>chat</b>")
    for i in range(1, 5):
        await worker.batch(i, rows(60, i))
    totals = types_pb2.WorkerTotals(steps=9, scheduled=100, verified=60, accepted=50)
    await worker.send(report={"totals": totals, "mode": types_pb2.MODE_TRIM})
    await until(lambda: server.fleet.sessions_of(server.fleet.pairs[KEY.id])[0].worker.reported, "a report")
    stub = inspect_pb2_grpc.InspectStub(channel)
    inspected = jsonable.pair_state((await stub.GetPair(inspect_pb2.GetPairRequest(pair=KEY.id))).state)
    state = strict((await get(server, "/api/state", pair=KEY.id))[2])
    shown = {name: state["pair"][name] for name in inspected}
    assert shown == strict(json.dumps(jsonable.finite(inspected)))
    assert shown["refit"]["done"] >= 4
    assert shown["totals"]["verified"] == 60
    bins = shown["calibration"]["reliability"]
    assert len(bins) == 15
    assert sum(item["observations"] for item in bins) == shown["calibration"]["observations"]
    (listed,) = state["pair"]["workers_connected"]
    assert (listed["worker"], listed["workload"]) == ("w0", "<b>chat</b>")
    assert "peer" not in listed, "addresses of machines are for those who may ask over gRPC"
    assert state["pairs"][0]["observations"] == sum(shown["observations_by_position"])


async def test_answers_are_bounded_and_a_pair_that_is_unknown_is_said_to_be(start, connect):
    server = await start(**HTTP)
    channel = connect(server.address)
    for i in range(MAX_PAIRS + 3):
        await RawWorker(channel, f"w{i}", key=PairKey(f"target-{i:03d}", "draft", 4)).greet()
    for i in range(MAX_WORKERS + 5):
        await RawWorker(channel, f"many-{i}", incarnation=i + 1).greet()
    _, _, body = await get(server, "/api/state")
    state = strict(body)
    assert (len(state["pairs"]), state["pairs_left_off"]) == (MAX_PAIRS, 4)
    assert state["pair"]["id"] == KEY.id, "the one with most workers"
    assert (len(state["pair"]["workers_connected"]), state["pair"]["workers_left_off"]) == (MAX_WORKERS, 5)
    assert len(body) < 200_000
    state = strict((await get(server, "/api/state", pair="nobody"))[2])
    assert (state["pair"], len(state["pairs"])) == (None, MAX_PAIRS)
    assert (await get(server, "/api/history", pair="nobody"))[0] == 404


async def test_the_history_covers_what_the_store_has_over_restarts(start, connect, tmp_path):
    flags = {**HTTP, "method": "round", "store": str(tmp_path / "s.sqlite")}
    server = await start(**flags)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    for i in range(1, 4):
        await worker.batch(i, rows(60, i))
    before = [item.version for item in await server.fleet.archive.course(server.fleet.pairs[KEY.id], MAX_POINTS)]
    await server.stop()
    server = await start(**flags)
    worker = RawWorker(connect(server.address))
    await worker.greet()
    await worker.batch(4, rows(60, 4))
    newest = server.fleet.pairs[KEY.id].publication.version
    history = strict((await get(server, "/api/history", pair=KEY.id))[2])
    versions = [(point["version"]["epoch"], point["version"]["counter"]) for point in history["points"]]
    assert versions == sorted(versions)
    assert versions[-1] == (newest.epoch, newest.counter)
    assert {(v.epoch, v.counter) for v in before if v.counter} <= set(versions)
    assert all(len(point["intercepts"]) == 4 for point in history["points"])
