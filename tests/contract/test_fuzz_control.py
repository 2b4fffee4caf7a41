"""Whatever bytes come to the API for people: an answer or a refusal that says why, and a service that goes on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random

import grpc
import pytest
from raw_worker import KEY, rows

from acceptd.codec import encode_pair_key
from acceptd.v1 import estimator_pb2, inspect_pb2
from estimator_service.config import load_settings
from estimator_service.server import Server
from estimator_service.state import pair_state

SERVICE = inspect_pb2.DESCRIPTOR.services_by_name["Inspect"]
UNARY = [method for method in SERVICE.methods if not method.server_streaming]
CALLS = 60  # of each method; `make fuzz` has more of the stream, where strangers are
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, dropped, repeated or put in."""
    out = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + rng.randrange(8)]
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randrange(8))
        else:
            out[at:at] = out[at : at + rng.randrange(64)]
    return bytes(out)


def fill(fleet, session):
    """Rows that give the pair a few versions."""
    for seed in range(3):
        session.pair.apply(rows(200, seed), (), None, "", "w0")
        fleet._close_round(session.pair)


@pytest.mark.timeout(120)
async def test_no_request_fails_inside_or_stops_the_service():
    server = await Server.start(load_settings({"listen": "127.0.0.1:0", "metrics_listen": ""}, environ={}))
    rng = random.Random(7)
    try:
        hello = estimator_pb2.Hello(pair=encode_pair_key(KEY), worker="w", incarnation=1)
        fill(server.fleet, await server.fleet.connect(hello, "test"))
        pair = server.fleet.pairs[KEY.id]
        async with grpc.aio.insecure_channel(server.address) as channel:
            export = await channel.unary_unary(
                "/acceptd.v1.Inspect/ExportPair", response_deserializer=inspect_pb2.ExportPairResponse.FromString
            )(inspect_pb2.ExportPairRequest(pair=KEY.id).SerializeToString())
            fields = {
                "pair": KEY.id,
                "version": {"epoch": 1, "counter": 1},
                "mode": 2,
                "exploration_rate": 0.5,
                "limit": 5,
                "export": export.export,
                "replace": True,
            }
            seen = set()
            highest = pair.publication.version
            for method in UNARY:
                request_type = getattr(inspect_pb2, method.input_type.name)
                known = {
                    name: value for name, value in fields.items() if name in request_type.DESCRIPTOR.fields_by_name
                }
                valid = request_type(**known).SerializeToString()
                call = channel.unary_unary(f"/{SERVICE.full_name}/{method.name}")
                for i in range(CALLS):
                    details = ""
                    try:
                        await asyncio.wait_for(call(mutate(valid, rng) if i else valid), 20)
                        status = grpc.StatusCode.OK
                    except grpc.aio.AioRpcError as error:
                        status = error.code()
                        # What is no message at all gRPC refuses before it comes to us, as UNKNOWN.
                        if status == grpc.StatusCode.UNKNOWN and "DecodeError" in (error.details() or ""):
                            continue
                        details = error.details()
                    assert status in ANSWERS, (method.name, status)
                    assert (status == grpc.StatusCode.OK) == (details == "")
                    seen.add((method.name, status))
                    now = server.fleet.pairs[KEY.id].publication.version
                    assert now >= highest, method.name
                    highest = now
            done = {name for name, status in seen if status == grpc.StatusCode.OK}
            assert {method.name for method in UNARY} - done <= {"RollbackPair"}, "the valid ones work"
            assert pair_state(server.fleet, server.fleet.pairs[KEY.id]).SerializeToString()
    finally:
        await server.stop()


@pytest.mark.timeout(120)
async def test_a_forged_export_is_refused_or_harmless():
    """With a checksum that holds: whatever is taken up goes on learning, and shows."""
    server = await Server.start(load_settings({"listen": "127.0.0.1:0", "metrics_listen": ""}, environ={}))
    rng = random.Random(9)
    try:
        hello = estimator_pb2.Hello(pair=encode_pair_key(KEY), worker="w", incarnation=1)
        session = await server.fleet.connect(hello, "test")
        fill(server.fleet, session)
        pair = session.pair
        async with grpc.aio.insecure_channel(server.address) as channel:
            export_call = channel.unary_unary(
                "/acceptd.v1.Inspect/ExportPair", response_deserializer=inspect_pb2.ExportPairResponse.FromString
            )
            good = (await export_call(inspect_pb2.ExportPairRequest(pair=KEY.id).SerializeToString())).export
            call = channel.unary_unary("/acceptd.v1.Inspect/ImportPair")
            outcomes = []
            for i in range(150):
                export = inspect_pb2.PairExport(
                    key=good.key, coefficients=good.coefficients, header=good.header, window=good.window
                )
                if i % 3 == 0:
                    export.window = mutate(good.window, rng)
                elif i % 3 == 1:
                    export.header = forge(json.loads(good.header), rng)
                else:
                    export.coefficients.line.intercepts[rng.randrange(4)] = rng.choice([1e30, float("nan"), -5.0, 13.0])
                export.checksum = hashlib.sha256(export.SerializeToString(deterministic=True)).digest()
                request = inspect_pb2.ImportPairRequest(export=export, replace=True)
                try:
                    await asyncio.wait_for(call(request.SerializeToString()), 20)
                    outcomes.append(grpc.StatusCode.OK)
                except grpc.aio.AioRpcError as error:
                    outcomes.append(error.code())
                assert pair_state(server.fleet, pair).SerializeToString()
                pair.publication.pooled.validate(4)
            assert set(outcomes) == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
            fill(server.fleet, session)
            assert pair.last_held != "error"
    finally:
        await server.stop()


def forge(header, rng: random.Random) -> str:
    """The header with one value, somewhere in it, that is something else."""
    at = header
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and rng.random() < 0.8 and at[key]:
            at = at[key]
            continue
        at[key] = rng.choice([None, -1, 2**70, 1.5, "x", [], {}, [[]], float("nan")])
        break
    return json.dumps(header)
