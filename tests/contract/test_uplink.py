"""The uplink against a real gRPC server in this process (`vllm_client_hook.testing.FakeService`)."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from itertools import pairwise

import grpc
import numpy as np
import pytest

from acceptd import codec
from acceptd.codec import Observations
from acceptd.cost_table import encode_cost_table
from acceptd.identity import Identity
from acceptd.types import PairKey, Version, prior
from acceptd.v1 import estimator_pb2, types_pb2
from vllm_client_hook.backoff import BackoffSettings
from vllm_client_hook.outbound import GradedColumns
from vllm_client_hook.testing import FakeService, Refusal
from vllm_client_hook.uplink import Capabilities, Uplink, UplinkSettings

PAIR = PairKey("org/target", "org/draft", 4)
FAST = UplinkSettings(backoff=BackoffSettings(first=0.01, cap=0.05), report_interval=0.2)


def rows(count: int, version: Version | None = None, *, first: float = 0.0, generation: int = 0) -> GradedColumns:
    """`count` blocks, each admitted 4 and accepted 1: two observations a block, features numbered from `first`."""
    columns = Observations(
        accepted=np.full(count, 1, np.uint8),
        admitted=np.full(count, 4, np.uint8),
        features=(first + np.arange(2 * count) / 1000).astype(np.float32),
        segments=np.full(count, 3, np.uint8),
        explored=np.zeros(count, np.uint8),
        propensities=np.zeros(count, np.float32),
    )
    return GradedColumns(version, columns, generation)


def eventually(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        threading.Event().wait(0.005)


@pytest.fixture
def service():
    with FakeService() as fake:
        yield fake


@pytest.fixture
def connect(service):
    opened = []

    def make(settings: UplinkSettings = FAST, **arguments) -> Uplink:
        uplink = Uplink(service.address, PAIR, worker="w0", settings=settings, random=random.Random(7), **arguments)
        opened.append(uplink)
        return uplink

    yield make
    for uplink in opened:
        uplink.close()


def applied_features(service: FakeService) -> list[float]:
    """Features of every batch that counted, sorted."""
    decoded = [codec.decode_batch(batch, 4) for batch in service.applied.values()]
    return sorted(float(x) for one in decoded for x in one.features)


def test_hello_says_who_it_is(service, connect):
    connect(workload="chat", capabilities=Capabilities(3, 8), vllm_version="0.32.0").start()
    eventually(lambda: service.connections)
    hello = service.connections[0].hello
    assert codec.decode_pair_key(hello.pair) == PAIR
    assert (hello.worker, hello.workload, hello.vllm_version) == ("w0", "chat", "0.32.0")
    assert (hello.capabilities.max_knots, hello.capabilities.max_segments) == (3, 8)
    assert hello.incarnation
    assert not hello.HasField("version")


def test_rows_arrive_once_and_in_order(service, connect):
    uplink = connect()
    for start in range(5):
        uplink.offer(rows(100, first=float(start)))
    assert uplink.flush(10)
    assert [batch.sequence for batch in service.batches] == list(range(1, len(service.batches) + 1))
    expected = np.concatenate([start + np.arange(200, dtype=np.float64) / 1000 for start in range(5)])
    np.testing.assert_allclose(applied_features(service), np.sort(expected), atol=1e-6)
    assert uplink.stats()["acknowledged"] == 500


def test_a_batch_is_cut_where_the_version_changes_and_at_the_row_limit(service, connect):
    service.welcome = lambda connection: estimator_pb2.Welcome(
        epoch=1, limits=estimator_pb2.Limits(max_rows=64), flush=estimator_pb2.FlushPolicy(rows=64, max_age_seconds=60)
    )
    uplink = connect()
    uplink.offer(rows(100))
    uplink.offer(rows(30, Version(1, 1)))
    assert uplink.flush(10)
    cut = [
        (len(batch.accepted), batch.version.counter if batch.HasField("version") else None) for batch in service.batches
    ]
    assert cut == [(64, None), (36, None), (30, 1)]


def test_rows_go_out_at_the_age_limit_without_a_flush(service, connect):
    uplink = connect()
    uplink.offer(rows(1))
    eventually(lambda: uplink.stats()["acknowledged"] == 1)


def test_the_queue_drops_the_oldest_and_counts_them(service, connect):
    service.answer = lambda connection, batch: None
    service.welcome = lambda connection: estimator_pb2.Welcome(
        epoch=1,
        limits=estimator_pb2.Limits(max_in_flight=1, max_rows=10),
        flush=estimator_pb2.FlushPolicy(rows=10, max_age_seconds=60),
    )
    uplink = connect(UplinkSettings(queue_rows=50, backoff=FAST.backoff))
    uplink.offer(rows(10))
    eventually(lambda: len(service.batches) == 1)
    for start in range(1, 11):
        uplink.offer(rows(10, first=float(start)))
    assert uplink.stats()["dropped"] == 50
    # Answer everything from now on: the five newest offers are still there, and the drop is told with them.
    service.answer = service.apply
    service.applied[service.connections[0].hello.incarnation, 1] = service.batches[0]
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE))
    assert uplink.flush(10)
    assert sorted({int(x) for x in applied_features(service)}) == [0, 6, 7, 8, 9, 10]
    told = [count for batch in service.applied.values() for count in batch.exclusions]
    assert [(count.reason, count.blocks) for count in told] == [(types_pb2.EXCLUSION_REASON_QUEUE_FULL, 50)]


def test_an_unanswered_batch_is_sent_again_with_its_number_and_counted_once(service, connect):
    swallowed = []

    def lose_the_answer(connection, batch):
        service.apply(connection, batch)
        swallowed.append(batch.sequence)
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "connection lost")

    service.answer = lose_the_answer
    uplink = connect()
    uplink.offer(rows(5))
    eventually(lambda: swallowed)
    service.answer = service.apply
    assert uplink.flush(10)
    assert len(applied_features(service)) == 10
    # The second Welcome said that sequence 1 is there, so it was not even sent again.
    assert [batch.sequence for batch in service.batches] == [1]

    def lose_the_batch(connection, batch):
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "connection lost")

    service.answer = lose_the_batch
    uplink.offer(rows(5, first=1.0))
    eventually(lambda: len(service.batches) > 1)
    service.answer = service.apply
    assert uplink.flush(10)
    assert {batch.sequence for batch in service.batches[1:]} == {2}
    assert len({batch.SerializeToString() for batch in service.batches[1:]}) == 1
    assert len(applied_features(service)) == 20
    assert uplink.stats()["acknowledged"] == 10


def test_a_service_that_lost_answered_batches_gets_the_rest_under_a_new_incarnation(service, connect):
    uplink = connect()
    uplink.offer(rows(5))
    assert uplink.flush(10)
    service.stop()
    service.applied.clear()  # an empty store
    uplink.offer(rows(7, first=2.0))
    service.start()
    assert uplink.flush(20)
    first, *_, last = [connection.hello.incarnation for connection in service.connections]
    assert first != last
    assert list(service.applied) == [(last, 1)]
    assert len(applied_features(service)) == 14


def test_pushes_are_taken_answered_and_never_go_back(service, connect):
    uplink = connect()
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    nonce = service.push(prior(4, Version(2, 5)), mode=types_pb2.MODE_SHADOW, exploration_rate=0.25)
    eventually(lambda: uplink.latest() is not None)
    received = uplink.latest()
    assert received.coefficients == prior(4, Version(2, 5))
    assert (int(received.mode), received.exploration_rate) == (types_pb2.MODE_SHADOW, 0.25)
    uplink.answer(received.nonce, Version(2, 5))
    eventually(lambda: service.statuses)
    assert (service.statuses[0].nonce, service.statuses[0].rejected) == (nonce, "")
    assert codec.decode_version(service.statuses[0].version) == Version(2, 5)

    service.push(prior(4, Version(1, 900)))  # an older epoch, however high its counter
    eventually(lambda: len(service.statuses) == 2)
    assert "1.900 sorts before 2.5" in service.statuses[1].rejected
    assert codec.decode_version(service.statuses[1].version) == Version(2, 5)
    assert uplink.latest().coefficients.version == Version(2, 5)
    assert uplink.stats()["stale_updates"] == 1


def test_a_malformed_push_is_refused_with_its_field_and_the_old_one_stays(service, connect):
    uplink = connect()
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.push(prior(3, Version(1, 1)))  # K = 3 for a pair of K = 4
    eventually(lambda: service.statuses)
    assert "line.intercepts has 3 values" in service.statuses[0].rejected
    assert uplink.latest() is None


def test_a_nack_is_answered_at_once_when_the_version_comes_again_on_a_new_stream(service, connect):
    uplink = connect()
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.push(prior(4, Version(1, 1)))
    eventually(lambda: uplink.latest() is not None)
    uplink.answer(uplink.latest().nonce, None, "slope out of bounds")
    eventually(lambda: service.statuses)
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE))
    eventually(lambda: len(service.connections) == 2 and service.connections[1].statuses)
    status = service.connections[1].statuses[0]
    assert (status.nonce, status.rejected) == (service.pushed.nonce, "slope out of bounds")


def test_hello_names_the_version_in_force_after_a_reconnect(service, connect):
    uplink = connect()
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.push(prior(4, Version(3, 2)))
    eventually(lambda: uplink.latest() is not None)
    uplink.answer(uplink.latest().nonce, Version(3, 2))
    eventually(lambda: service.statuses)
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE))
    eventually(lambda: len(service.connections) == 2)
    assert codec.decode_version(service.connections[1].hello.version) == Version(3, 2)


def test_hello_names_a_version_that_waits_for_its_verdict_and_none_that_was_refused(service, connect):
    """A service that lost its last moments would otherwise offer a version that sorts before it."""
    uplink = connect()
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.push(prior(4, Version(3, 2)))
    eventually(lambda: uplink.latest() is not None)
    uplink.answer(uplink.latest().nonce, Version(3, 2))
    service.push(prior(4, Version(3, 5)))
    eventually(lambda: uplink.latest().coefficients.version == Version(3, 5))
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE))
    eventually(lambda: len(service.connections) == 2)
    assert codec.decode_version(service.connections[1].hello.version) == Version(3, 5)
    eventually(lambda: uplink.stats()["connected"])
    uplink.answer(uplink.latest().nonce, Version(3, 2), rejected="no")
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE))
    eventually(lambda: len(service.connections) == 3)
    assert codec.decode_version(service.connections[2].hello.version) == Version(3, 2)


def test_heartbeats_renew_the_age(service):
    now = [100.0]
    uplink = Uplink(service.address, PAIR, worker="w0", settings=FAST, clock=lambda: now[0])
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.push(prior(4, Version(1, 1)))
    eventually(lambda: uplink.latest() is not None)
    assert (uplink.latest().renewed_at, uplink.latest().max_age_seconds) == (100.0, 60.0)
    now[0] = 130.0
    service.send(estimator_pb2.StreamResponse(heartbeat=estimator_pb2.Heartbeat()))
    eventually(lambda: uplink.latest().renewed_at == 130.0)
    uplink.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT])
def test_a_refused_hello_is_final(service, connect, code, caplog):
    def refuse(connection):
        raise Refusal(code, "K differs")

    service.welcome = refuse
    uplink = connect()
    uplink.offer(rows(1))
    eventually(lambda: uplink.stats()["final"])
    assert "K differs" in uplink.stats()["final"]
    assert not uplink.flush(5)
    assert len(service.connections) == 1
    assert sum("for good" in record.message for record in caplog.records) == 1


def test_exhausted_without_retry_info_waits_for_the_cap(service, connect):
    refused_at = []

    def refuse(connection):
        refused_at.append(time.monotonic())
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "over quota")

    service.welcome = refuse
    connect(UplinkSettings(backoff=BackoffSettings(first=0.001, cap=0.4))).start()
    eventually(lambda: len(refused_at) >= 3)
    # The upper half of the cap, never the first step of the back-off.
    assert all(later - earlier >= 0.2 for earlier, later in pairwise(refused_at))


def test_exhausted_with_retry_info_waits_as_long_as_asked(service, connect):
    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.protobuf.duration_pb2 import Duration

    def field(number: int, payload: bytes) -> bytes:
        return bytes([number << 3 | 2, len(payload)]) + payload

    info = field(1, Duration(nanos=300_000_000).SerializeToString())
    detail = AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info).SerializeToString()
    status = bytes([1 << 3, 8]) + field(2, b"slow down") + field(3, detail)
    refused_at = []

    def refuse(connection):
        refused_at.append(time.monotonic())
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", (("grpc-status-details-bin", status),))

    service.welcome = refuse
    connect(UplinkSettings(backoff=BackoffSettings(first=0.001, cap=30.0))).start()
    eventually(lambda: len(refused_at) >= 3)
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(refused_at))


def test_drain_says_when_to_come_back(service, connect):
    uplink = connect(UplinkSettings(backoff=BackoffSettings(first=30.0, cap=30.0)))
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.send(estimator_pb2.StreamResponse(drain=estimator_pb2.Drain(reason="stop", reconnect_after_seconds=0.05)))
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE, "draining"))
    eventually(lambda: len(service.connections) == 2)


def test_a_refused_batch_is_not_sent_again_but_its_exclusions_are_told_again(service, connect):
    def refuse(connection, batch):
        service.answer = service.apply
        service.applied[connection.hello.incarnation, batch.sequence] = estimator_pb2.ObservationBatch()
        return estimator_pb2.BatchResult(
            sequence=batch.sequence,
            last_sequence=batch.sequence,
            rows_rejected=len(batch.accepted),
            reason=estimator_pb2.REJECT_REASON_UNKNOWN_VERSION,
        )

    service.answer = refuse
    uplink = connect()
    uplink.exclude({types_pb2.EXCLUSION_REASON_PENALTIES: 3})
    uplink.offer(rows(5))
    assert uplink.flush(10)
    uplink.exclude({types_pb2.EXCLUSION_REASON_PENALTIES: 5})
    uplink.offer(rows(2))
    assert uplink.flush(10)
    assert [[(e.reason, e.blocks) for e in batch.exclusions] for batch in service.batches] == [
        [(types_pb2.EXCLUSION_REASON_PENALTIES, 3)],
        [(types_pb2.EXCLUSION_REASON_PENALTIES, 5)],
    ]
    assert uplink.stats()["refused"] == 5
    assert uplink.stats()["refusals"] == {"unknown_version": 1}


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_postponed_batch_is_sent_again_on_the_same_stream(service, connect, in_flight):
    """cases.md 18's kind within a stream: the service said when; what was sent after it waits for its turn."""
    postponed_at = []

    def postpone(connection, batch):
        last = max((sequence for _, sequence in service.applied), default=0)
        if batch.sequence == last + 1 and len(postponed_at) < 3:
            postponed_at.append((time.monotonic(), batch.sequence))
            return estimator_pb2.BatchResult(
                sequence=batch.sequence,
                last_sequence=last,
                rows_rejected=len(batch.accepted),
                reason=estimator_pb2.REJECT_REASON_OVER_QUOTA,
                retry_after_seconds=0.2,
            )
        return service.apply(connection, batch)

    def welcome(connection):
        message = service.default_welcome(connection)
        message.flush.rows = 5
        message.limits.max_in_flight = in_flight
        return message

    service.answer, service.welcome = postpone, welcome
    uplink = connect()
    uplink.offer(rows(20))
    assert uplink.flush(10)
    stats = uplink.stats()
    assert (stats["acknowledged"], stats["refused"], stats["dropped"]) == (20, 0, 0)
    assert stats["refusals"] == {"over_quota": 3}
    assert len(service.connections) == 1
    assert sorted(sequence for _, sequence in service.applied) == [1, 2, 3, 4]
    assert all(later - earlier >= 0.2 for (earlier, _), (later, _) in pairwise(postponed_at))


def test_new_weights_are_another_pair_and_old_rows_stay_out_of_it(service, connect):
    uplink = connect()
    uplink.start()
    eventually(lambda: uplink.stats()["connected"])
    service.push(prior(4, Version(1, 9)))
    eventually(lambda: uplink.latest() is not None)
    service.pushed = None
    uplink.weights_changed(1)
    assert uplink.latest() is None
    uplink.offer(rows(3, generation=0))
    uplink.offer(rows(4, generation=1))
    assert uplink.flush(10)
    hello = service.connections[-1].hello
    assert hello.pair.weights_generation == 1
    assert not hello.HasField("version")
    assert [len(batch.accepted) for batch in service.connections[-1].batches] == [4]
    assert uplink.stats()["stale_generation"] == 3


def test_a_cost_table_is_sent_once_a_stream_and_when_it_is_another(service, connect):
    table = encode_cost_table(np.arange(3.0), 1 + np.arange(4.0), (), can_trim=True)
    other = encode_cost_table(np.arange(3.0), 2 + np.arange(4.0), (), can_trim=True)
    uplink = connect()
    uplink.report_costs(table)
    uplink.start()

    def sent(stream):
        return [report.costs for report in service.connections[stream].reports if report.HasField("costs")]

    eventually(lambda: service.connections and len(service.connections[0].reports) >= 3)
    assert sent(0) == [table]
    uplink.report_costs(other)
    eventually(lambda: len(sent(0)) == 2)
    assert sent(0) == [table, other]
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE, "another stream"))
    eventually(lambda: len(service.connections) == 2 and len(service.connections[1].reports) >= 2)
    assert sent(1) == [other]


def test_reports_carry_running_totals(service, connect):
    uplink = connect()
    uplink.exclude({types_pb2.EXCLUSION_REASON_BAD_WORDS: 2})
    uplink.report(steps=10, verified=40)
    uplink.flush(5)
    eventually(lambda: service.connections and service.connections[-1].reports)
    totals = service.connections[-1].reports[-1].totals
    assert (totals.steps, totals.verified) == (10, 40)
    assert [(e.reason, e.blocks) for e in totals.exclusions] == [(types_pb2.EXCLUSION_REASON_BAD_WORDS, 2)]


def test_a_token_is_read_from_its_file_at_each_connection(service, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    uplink = Uplink(service.address, PAIR, worker="w0", settings=FAST, identity=Identity(token_file=str(token)))
    uplink.start()
    eventually(lambda: service.connections)
    token.write_text("second\n")
    service.send(Refusal(grpc.StatusCode.UNAVAILABLE))
    eventually(lambda: len(service.connections) == 2)
    assert [connection.metadata["authorization"] for connection in service.connections] == [
        "Bearer first",
        "Bearer second",
    ]
    uplink.close()


@pytest.mark.parametrize("text", [None, b"", b"one\ntwo\n", b"\xff\xfe\x00secret", "sécret".encode()])
def test_a_file_without_a_token_is_one_line_and_taken_up_when_it_is_mended(service, tmp_path, caplog, text):
    token = tmp_path / "token"
    if text is None:
        os.mkfifo(token)
    else:
        token.write_bytes(text)
    uplink = Uplink(service.address, PAIR, worker="w0", settings=FAST, identity=Identity(token_file=str(token)))
    uplink.start()
    eventually(lambda: "ACCEPTD_TOKEN_FILE" in uplink.stats()["last_error"])
    assert str(token) in uplink.stats()["last_error"]
    token.unlink()
    token.write_text("mended\n")
    eventually(lambda: service.connections)
    uplink.close()
    assert service.connections[0].metadata["authorization"] == "Bearer mended"
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.exc_info is None, "no traceback for what an operator does"
    assert "ACCEPTD_TOKEN_FILE" in line.getMessage()
    assert "two" not in caplog.text
    assert "cret" not in caplog.text


@pytest.mark.parametrize(
    ("address", "with_token", "with_ca", "exposed"),
    [
        ("10.255.255.1:9", True, False, True),
        ("acceptd.invalid:9", True, False, True),
        ("[2001:db8::1]:9", True, False, True),
        ("127.0.0.1:9", True, False, False),
        ("[::1]:9", True, False, False),
        ("localhost:9", True, False, False),
        ("unix:/run/acceptd.sock", True, False, False),
        ("acceptd.invalid:9", True, True, False),
        ("acceptd.invalid:9", False, False, False),
    ],
)
def test_whether_a_token_would_go_out_in_the_clear(address, with_token, with_ca, exposed):
    identity = Identity(token_file="token" if with_token else "", ca_file="ca.pem" if with_ca else "")
    assert identity.exposed(address) == exposed


def test_a_token_that_goes_out_in_the_clear_is_named_once(tmp_path, caplog):
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    address = "acceptd.invalid:9"
    uplink = Uplink(address, PAIR, worker="w0", settings=FAST, identity=Identity(token_file=str(token)))
    uplink.start()
    eventually(lambda: "in the clear" in caplog.text)
    uplink.offer(rows(1))
    uplink.close()
    (line,) = [record.getMessage() for record in caplog.records if "in the clear" in record.getMessage()]
    assert address in line
    assert "ACCEPTD_CA_FILE" in line
    assert "secret-token" not in caplog.text


def test_nobody_there_costs_the_caller_nothing(unused_address):
    uplink = Uplink(unused_address, PAIR, worker="w0", settings=FAST)
    for _ in range(100):
        uplink.offer(rows(10))
    assert uplink.latest() is None
    assert not uplink.flush(0.05)
    uplink.close()
    assert not any(thread.name == "acceptd-uplink" for thread in threading.enumerate())


@pytest.fixture
def unused_address():
    service = FakeService()
    service.stop()
    return service.address


def test_a_forked_process_starts_anew(service, monkeypatch):
    from vllm_client_hook import uplink as module

    uplink = Uplink(service.address, PAIR, worker="w0", settings=FAST)
    uplink.offer(rows(2))
    assert uplink.flush(10)
    # What a fork leaves a child with: another process id, and a thread object whose thread is not there.
    uplink.close()
    pid = module.os.getpid()
    monkeypatch.setattr(module.os, "getpid", lambda: pid + 1)
    uplink.offer(rows(3))
    assert uplink.flush(10)
    hellos = {connection.hello.incarnation: connection for connection in service.connections}
    assert len(hellos) == 2
    assert [[batch.sequence for batch in connection.batches] for connection in hellos.values()] == [[1], [1]]
    uplink.close()


def test_a_forked_process_goes_on_with_the_weights_there_are(service, monkeypatch):
    from vllm_client_hook import uplink as module

    uplink = Uplink(service.address, PAIR, worker="w0", settings=FAST)
    uplink.weights_changed(3)
    uplink.close()
    pid = module.os.getpid()
    monkeypatch.setattr(module.os, "getpid", lambda: pid + 1)
    uplink.offer(rows(3, generation=3))
    assert uplink.flush(10)
    uplink.close()
    (batch,) = service.applied.values()
    assert len(batch.accepted) == 3
    assert service.connections[-1].hello.pair.weights_generation == 3


#: Forks twice and prints who parent and children are. gRPC, which does not like to be forked, is left out.
_FAMILY = """
import os, sys
from acceptd.types import PairKey
from vllm_client_hook.uplink import Uplink

Uplink._run = lambda self: None

def incarnation():
    uplink.start()
    return uplink._session.hello().hello.incarnation

uplink = Uplink("127.0.0.1:9", PairKey("t", "d", 4), worker="w0")
if sys.argv[1] == "started":
    incarnation()
for _ in range(2):
    if not (child := os.fork()):
        print(incarnation(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
uplink.weights_changed(1)
print(incarnation(), flush=True)
"""


@pytest.mark.parametrize("parent", ["started", "not started"])
def test_forked_processes_and_their_parent_are_three_workers(parent):
    command = [sys.executable, "-c", _FAMILY, parent]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert len(set(ran.stdout.split())) == 3
