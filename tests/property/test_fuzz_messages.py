"""Whatever bytes a peer sends: the service goes on, memory stays flat, and every refusal says why."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import random
import tracemalloc

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from acceptd.codec import Observations, encode_batch, encode_pair_key
from acceptd.errors import AcceptdError
from acceptd.types import PairKey, Version
from acceptd.v1 import estimator_pb2, inspect_pb2, types_pb2
from acceptd.v1.estimator_pb2 import RejectReason
from estimator_service.clock import SystemClock
from estimator_service.config import load_settings
from estimator_service.fleet import Fleet
from estimator_service.metrics import Metrics
from estimator_service.rpc import decode_request
from estimator_service.server import Server
from estimator_service.state import pair_state, worker_states
from estimator_service.storage.ledger import Ledger

K = 4
KEY = PairKey("target", "draft", K)
#: `make fuzz` has a million.
MUTATIONS = int(os.environ.get("FUZZ_INPUTS", "10000"))
SETTINGS = load_settings({"round_blocks": 200, "round_min_seconds": 0, "max_pairs": 4}, environ={})

COSTS = {
    "draft": {"sizes": [0, 8], "milliseconds": [1.0, 2.0]},
    "verify": {"sizes": [0, 8, 64], "milliseconds": [1.0, 1.0, 4.0]},
    "notices": ["verify curve: smoothed"],
    "can_trim": True,
}


def make_fleet() -> Fleet:
    """A fleet that writes nothing and refits often."""
    clock = SystemClock()
    ledger = Ledger(SETTINGS, clock, epoch=1, ticket=0, trouble=None)
    return Fleet(SETTINGS, clock, ledger, Metrics(CollectorRegistry()))


def take_events(fleet: Fleet) -> None:
    """As the store's thread would: without one, what is to be written waits."""
    for account in fleet.ledger._accounts.values():
        account.events, account.others, account.workers = [], [], {}


def hello(worker: str = "w", incarnation: int = 1) -> estimator_pb2.Hello:
    return estimator_pb2.Hello(pair=encode_pair_key(KEY), worker=worker, incarnation=incarnation, workload="code")


def batch(sequence: int, rng: np.random.Generator, count: int = 8) -> estimator_pb2.ObservationBatch:
    # Labels that follow the features: a worker whose labels do not is quarantined.
    x = rng.normal(0, 3, (count, K)).astype(np.float32)
    accept = rng.random((count, K)) < 1 / (1 + np.exp(-x))
    admitted = rng.integers(1, K + 1, count).astype(np.uint8)
    accepted = np.minimum(np.where(accept.all(axis=1), K, np.argmin(accept, axis=1)), admitted).astype(np.uint8)
    observed = np.minimum(accepted.astype(int) + 1, admitted)
    total = int(observed.sum())
    explored = rng.integers(0, admitted + 1).astype(np.uint8)
    rows = Observations(
        accepted,
        admitted,
        x[np.arange(K)[None, :] < observed[:, None]],
        rng.integers(0, 5, count).astype(np.uint8),
        explored,
        np.where(explored > 0, 0.5, 0).astype(np.float32),
        rng.random(total).astype(np.float32),
        rng.random(total).astype(np.float32),
    )
    return encode_batch(sequence, Version(1, 0), rows, {7: 2, 15: 1})


def check_answers(session, before: int) -> None:
    """Every answer that is a refusal names its reason, and only accepted rows were counted."""
    accepted = 0
    session.outbox.look(math.inf)
    while (data := session.outbox.take()) is not None:
        message = estimator_pb2.StreamResponse.FromString(data)
        if message.WhichOneof("message") == "batch_result":
            result = message.batch_result
            accepted += result.rows_accepted
            if not result.rows_accepted:
                assert result.reason != RejectReason.REJECT_REASON_UNSPECIFIED
                assert result.message
            assert not (result.rows_accepted and result.rows_rejected)
    assert session.pair.counters.blocks == before + accepted


def check_refusal(error: AcceptdError) -> None:
    """It has words, and a status that gRPC knows."""
    assert str(error)
    assert error.code in grpc.StatusCode.__members__


def check_sane(fleet: Fleet) -> None:
    """What is shown is still finite, bounded and serializable."""
    for pair in fleet.pairs.values():
        pair.publication.pooled.validate(pair.num_positions)
        assert all(a <= n for a, n in zip(pair.counters.acceptances, pair.counters.observations, strict=True))
        assert len(pair_state(fleet, pair).SerializeToString()) < 100_000
    assert len(worker_states(fleet, None)) == len(fleet.sessions)


def mutate(data: bytes, random_: random.Random, others: list[bytes]) -> bytes:
    """One to four random edits."""
    value = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(value) + 1)
        kind = random_.randrange(7)
        if kind == 0 and value:
            value[at % len(value)] ^= 1 << random_.randrange(8)
        elif kind == 1 and value:
            value[at % len(value)] = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del value[at : at + random_.randint(1, 16)]
        elif kind == 3:
            value[at:at] = random_.randbytes(random_.randint(1, 16))
        elif kind == 4:
            # A varint or length of up to 2^63.
            value[at:at] = b"\xff" * random_.randint(1, 8) + b"\x7f"
        elif kind == 5:
            other = random_.choice(others)
            value[at:] = other[random_.randrange(len(other)) :]
        else:
            value[at:at] = value[at : at + random_.randint(1, 64)]
    return bytes(value)


def mutate_field(message: estimator_pb2.ObservationBatch, random_: random.Random) -> None:
    """Edits one of a batch's columns, or its length."""
    descriptor, column = random_.choice([item for item in message.ListFields() if isinstance(item[1], bytes)])
    setattr(message, descriptor.name, mutate(column, random_, [column]))


def samples() -> list[bytes]:
    """Valid messages of every kind."""
    rng = np.random.default_rng(1)
    requests = [estimator_pb2.StreamRequest(batch=batch(i, rng)) for i in range(1, 9)]
    requests += [
        estimator_pb2.StreamRequest(hello=hello()),
        estimator_pb2.StreamRequest(update_status={"nonce": 1, "version": {"epoch": 1}, "rejected": "no"}),
        estimator_pb2.StreamRequest(
            report={
                "totals": {"steps": 4, "verified": 3, "exclusions": [{"reason": 7, "blocks": 1}]},
                "mode": 1,
                "costs": COSTS,
            }
        ),
    ]
    return [request.SerializeToString() for request in requests]


@pytest.fixture(autouse=True)
def quiet():
    """Kept log records would be memory that grows."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def test_ten_thousand_mutations_kill_nothing_and_cost_no_memory():
    fleet = make_fleet()
    random_, rng = random.Random(20), np.random.default_rng(2)
    valid = samples()
    session = await fleet.connect(hello(), "test")
    refused: dict[str, int] = {}
    ended = 0
    tracemalloc.start()
    base = known = 0
    try:
        for i in range(MUTATIONS):
            if i == MUTATIONS // 5:
                gc.collect()
                base, known = tracemalloc.get_traced_memory()[0], len(fleet.roster)
            if i % 2:
                request = estimator_pb2.StreamRequest.FromString(random_.choice(valid[:8]))
                mutate_field(request.batch, random_)
            else:
                request = decode_request(mutate(random_.choice(valid), random_, valid))
            before = session.pair.counters.blocks
            try:
                if request is None:
                    raise AcceptdError("undecodable")
                if request.WhichOneof("message") == "hello":
                    # As the first message of another stream.
                    other = await fleet.connect(request.hello, "test")
                    fleet.disconnect(other)
                elif request.WhichOneof("message") == "batch" and random_.random() < 0.9:
                    # Most of them in turn, so that the columns are looked at.
                    request.batch.sequence = session.worker.last_sequence + 1
                session.handle(request)
                check_answers(session, before)
            except AcceptdError as error:
                check_refusal(error)
                refused[type(error).__name__] = refused.get(type(error).__name__, 0) + 1
                ended += 1
                fleet.disconnect(session)
                session = await fleet.connect(hello(incarnation=1 + i % 50), "test")
            # Valid traffic goes on.
            if i % 20 == 0:
                before = session.pair.counters.blocks
                good = batch(session.worker.last_sequence + 1, rng)
                good.version.epoch = fleet.epoch
                good.ClearField("version")
                session.handle(estimator_pb2.StreamRequest(batch=good))
                assert session.pair.counters.blocks == before + 8
                check_answers(session, before)
                fleet.tick()
                take_events(fleet)
        check_sane(fleet)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    # Recent publications are bounded and nearly full by then. The roster is bounded, too, at a kilobyte each.
    assert grown < 3_000_000 + 1_500 * (len(fleet.roster) - known), f"{grown} bytes more"
    assert ended > MUTATIONS // 20
    assert len(refused) >= 3, refused
    assert sum(session.pair.counters.rejects.values()) > MUTATIONS // 10


_any_bytes = st.binary(max_size=40)
_counts = st.integers(0, 2**64 - 1)
_versions = st.builds(types_pb2.Version, epoch=_counts, counter=_counts)
_exclusions = st.lists(
    st.builds(types_pb2.ExclusionCount, reason=st.integers(0, 2**31 - 1), blocks=_counts), max_size=70
)
_batches = st.builds(
    estimator_pb2.ObservationBatch,
    sequence=st.one_of(st.integers(0, 5), _counts),
    version=st.none() | _versions | st.builds(types_pb2.Version, epoch=st.just(1), counter=st.integers(0, 2)),
    accepted=st.lists(st.integers(0, K), max_size=10).map(bytes) | _any_bytes,
    admitted=st.lists(st.integers(1, K), max_size=10).map(bytes) | _any_bytes,
    features=st.lists(st.floats(width=32), max_size=20).map(lambda v: np.array(v, "<f4").tobytes()) | _any_bytes,
    segments=_any_bytes,
    explored=_any_bytes,
    propensities=_any_bytes,
    entropies=_any_bytes,
    margins=_any_bytes,
    exclusions=_exclusions,
)
_doubles = st.floats()
_curves = st.builds(
    types_pb2.CostCurve,
    sizes=st.lists(st.integers(0, 2**32 - 1), max_size=4) | st.just(range(600)),
    milliseconds=st.lists(st.floats(), max_size=4),
)
_costs = st.builds(
    types_pb2.CostTable,
    draft=_curves,
    verify=_curves,
    notices=st.lists(st.text(max_size=300), max_size=20),
    can_trim=st.booleans(),
)
_reports = st.builds(
    estimator_pb2.WorkerReport,
    totals=st.builds(
        types_pb2.WorkerTotals,
        steps=_counts,
        scheduled=_counts,
        verification_saved_seconds=_doubles,
        lost_accepted=_doubles,
        explored_extra=_counts,
        explored_seconds=_doubles,
        judged_lost=_doubles,
        judged_blocks=_doubles,
        exclusions=_exclusions,
    ),
    mode=st.integers(0, 2**31 - 1),
    costs=st.none() | _costs,
)
_statuses = st.builds(estimator_pb2.UpdateStatus, nonce=_counts, version=_versions, rejected=st.text(max_size=400))
_requests = st.one_of(
    st.builds(estimator_pb2.StreamRequest, batch=_batches),
    st.builds(estimator_pb2.StreamRequest, report=_reports),
    st.builds(estimator_pb2.StreamRequest, update_status=_statuses),
    st.just(estimator_pb2.StreamRequest()),
)
_hellos = st.builds(
    estimator_pb2.Hello,
    pair=st.builds(
        types_pb2.PairKey,
        target=st.text(max_size=80),
        draft=st.text(min_size=1, max_size=10),
        method=st.just("eagle"),
        draft_sampling=st.just("greedy"),
        num_speculative_tokens=st.integers(0, 2**32 - 1) | st.integers(1, 8),
        feature_schema=st.just(1) | st.integers(0, 2**32 - 1),
        weights_generation=_counts,
    ),
    worker=st.text(max_size=140),
    incarnation=_counts,
    workload=st.text(max_size=70),
    capabilities=st.builds(types_pb2.Capabilities, max_knots=st.integers(0, 2**32 - 1), max_segments=st.integers(0, 9)),
    version=st.none() | _versions,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_requests, max_size=8))
def test_any_sequence_of_messages_is_answered_or_refused_with_a_reason(requests):
    async def run() -> None:
        fleet = make_fleet()
        session = await fleet.connect(hello(), "test")
        session.welcome()
        for request in requests:
            before = session.pair.counters.blocks
            try:
                session.handle(estimator_pb2.StreamRequest.FromString(request.SerializeToString()))
            except AcceptdError as error:
                check_refusal(error)
                break
            check_answers(session, before)
        fleet.tick()
        check_sane(fleet)

    asyncio.run(run())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_hellos, max_size=6))
def test_any_hello_is_welcomed_or_refused_with_a_reason(hellos):
    async def run() -> None:
        fleet = make_fleet()
        for message in hellos:
            try:
                session = await fleet.connect(message, "test")
            except AcceptdError as error:
                check_refusal(error)
                continue
            welcome = session.welcome()
            if message.HasField("version") and welcome.HasField("update"):
                held = Version(message.version.epoch, message.version.counter)
                handed = welcome.update.coefficients.version
                assert Version(handed.epoch, handed.counter) >= held
        assert len(fleet.pairs) <= 4
        check_sane(fleet)

    asyncio.run(run())


@pytest.mark.timeout(120)
async def test_mutations_through_real_streams_leave_the_service_serving():
    """A tenth of a thousand streams of garbage, and one worker beside them that notices nothing."""
    server = await Server.start(
        load_settings({"listen": "127.0.0.1:0", "metrics_listen": "", "hello_seconds": 2.0}, environ={})
    )
    try:
        random_, rng = random.Random(21), np.random.default_rng(3)
        valid = samples()
        async with grpc.aio.insecure_channel(server.address) as channel:
            method = channel.stream_stream("/acceptd.v1.Estimator/Stream")

            async def read(stream):
                data = await asyncio.wait_for(stream.read(), 20)
                return None if data is grpc.aio.EOF else estimator_pb2.StreamResponse.FromString(data)

            good = method()
            await good.write(estimator_pb2.StreamRequest(hello=hello("good")).SerializeToString())
            await read(good)
            for i in range(100):
                bad = method()
                if i % 3:
                    await bad.write(estimator_pb2.StreamRequest(hello=hello("bad", i)).SerializeToString())
                try:
                    for _ in range(5):
                        await bad.write(mutate(random_.choice(valid), random_, valid))
                    await bad.done_writing()
                    while await read(bad) is not None:
                        pass
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    assert await bad.details()
                assert await bad.code() is not None
                await good.write(estimator_pb2.StreamRequest(batch=batch(i + 1, rng)).SerializeToString())
                while (answer := await read(good)).WhichOneof("message") != "batch_result":
                    pass
                assert answer.batch_result.rows_accepted == 8
            inspect = channel.unary_unary("/acceptd.v1.Inspect/ListPairs")
            listed = inspect_pb2.ListPairsResponse.FromString(await inspect(b""))
            assert listed.pairs
            good.cancel()
    finally:
        await server.stop()
    # By the service's own account: a client that still writes makes up a status of its own.
    ended = {
        sample.labels["reason"]
        for family in server.fleet.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "acceptd_streams_ended_total"
    }
    assert {"INVALID_ARGUMENT", "FAILED_PRECONDITION"} <= ended <= {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "fenced"}
