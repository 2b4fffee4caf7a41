"""What tests of a service that asks for tokens need: a file of them, and how calls ended."""

from __future__ import annotations

import asyncio

import grpc
from raw_worker import DEADLINE

from acceptd.v1 import inspect_pb2, inspect_pb2_grpc
from estimator_service.access.identity import Role
from estimator_service.access.tokens import line_of, new_token


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
