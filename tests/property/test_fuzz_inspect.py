"""The API for people, asked anything: an answer, or a status with words; never a crash.

`FUZZ_INPUTS` sets how many requests (`make fuzz`: a million).
"""

from __future__ import annotations

import asyncio
import os
import random
import tracemalloc
import zlib

import grpc
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from prometheus_client import CollectorRegistry
from test_fuzz_messages import batch, check_sane, hello, make_fleet, mutate, quiet, take_events

from acceptd.v1 import estimator_pb2, inspect_pb2
from estimator_service.access.gate import Gate
from estimator_service.clock import SystemClock
from estimator_service.fit.snapshot import _MAGIC
from estimator_service.inspect_rpc import InspectServicer
from estimator_service.metrics import Metrics
from estimator_service.pair_export import _checksum

__all__ = ["quiet"]

INPUTS = int(os.environ.get("FUZZ_INPUTS", "10000"))

SERVICE = inspect_pb2.DESCRIPTOR.services_by_name["Inspect"]
#: What these answer with is never a fault of the service.
EXPECTED = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Aborted(Exception):
    pass


class Context:
    """Of a call that nobody identified; `code` and `details` are what it was ended with."""

    code = None
    details = ""

    async def abort(self, code, details="", trailing_metadata=()):
        self.code, self.details = code, details
        raise Aborted

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self):
        return ()

    def auth_context(self):
        return {}


def fill(message, random_, known):
    """Random fields, of which some name what there is."""
    for field in message.DESCRIPTOR.fields:
        if random_.random() < 0.4 or field.is_repeated:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            fill(getattr(message, field.name), random_, known)
        elif field.type == FieldDescriptor.TYPE_STRING:
            name = random_.choice((*known, "", "x" * random_.randint(0, 5000), "\x00%s../", "ä\u2028"))
            setattr(message, field.name, name[: random_.choice((None, 3))])
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, random_.randbytes(random_.randint(0, 64)))
        elif field.type == FieldDescriptor.TYPE_DOUBLE:
            values = (0.0, 0.5, -1.0, 1e308, float("nan"), float("inf"), -float("inf"), 5e-324)
            setattr(message, field.name, random_.choice(values))
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, random_.random() < 0.5)
        else:
            top = 2**31 - 1 if field.type in (FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_INT32) else 2**32 - 1
            setattr(message, field.name, random_.choice((0, 1, 2, 3, random_.randint(0, top), top)))


def mutate_window(window, random_):
    """Of what is packed, not of the packing alone."""
    at = len(_MAGIC) + 1
    body = bytearray(zlib.decompress(window[at:]))
    for _ in range(random_.randint(1, 3)):
        # Half of the time in its description, which comes first.
        body[random_.randrange(random_.choice((4000, len(body))))] = random_.randrange(256)
    return window[:at] + zlib.compress(bytes(body), 1)


async def test_any_request_is_answered_or_refused_in_words():
    fleet = make_fleet()
    gate = Gate(None, Metrics(CollectorRegistry()), SystemClock())
    servicer = InspectServicer(fleet, gate)
    random_, rng = random.Random(31), np.random.default_rng(3)
    session = await fleet.connect(hello(), "test")
    for i in range(1, 60):
        data = batch(i, rng)
        data.ClearField("version")
        session.handle(estimator_pb2.StreamRequest(batch=data))
        while session.outbox.take() is not None:
            pass
    pair = session.pair
    exported = (await servicer.ExportPair(inspect_pb2.ExportPairRequest(pair=pair.id), Context())).export
    raw = [inspect_pb2.ImportPairRequest(export=exported, replace=True).SerializeToString()]
    outcomes: dict[str, int] = {}
    blocks, base = pair.counters.blocks, 0
    tracemalloc.start()
    try:
        for i in range(INPUTS):
            if i % 1000 == 0:
                # The loop drops the timers that each timeout left behind when it gets a turn.
                await asyncio.sleep(0)
            if i == INPUTS // 4:
                base = tracemalloc.get_traced_memory()[0]
            method = random_.choice(SERVICE.methods)
            request = getattr(inspect_pb2, method.input_type.name)()
            fill(request, random_, (pair.id, pair.key.target, "w"))
            if method.name == "ImportPair":
                # Mostly what is nearly right: a real export with some bytes changed.
                try:
                    request = inspect_pb2.ImportPairRequest.FromString(mutate(raw[0], random_, raw))
                except Exception:
                    continue
                if random_.random() < 0.3:
                    request.export.window = mutate_window(exported.window, random_)
                if random_.random() < 0.8:
                    request.export.checksum = _checksum(request.export)
            context = Context()
            try:
                answer = getattr(servicer, method.name)(request, context)
                if method.server_streaming:
                    async with asyncio.timeout(5):
                        message = await anext(answer)
                    await answer.aclose()
                else:
                    message = await answer
                assert message.SerializeToString() is not None
                outcome = "answered"
            except Aborted:
                assert context.code in EXPECTED, (method.name, request, context.code, context.details)
                assert context.details
                assert len(context.details) < 10_000
                outcome = context.code.name
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            take_events(fleet)
        grown = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    check_sane(fleet)
    assert len(fleet.pairs) <= 4
    assert {"answered", "NOT_FOUND", "INVALID_ARGUMENT"} <= set(outcomes), outcomes
    assert grown < 8_000_000, f"{grown} bytes more"
    assert blocks
