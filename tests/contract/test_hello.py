"""Who may begin a stream: the first message, its names and bounds, and room for one more."""

from __future__ import annotations

import dataclasses

import grpc
import pytest
from raw_worker import KEY, RawWorker, rows, state_of, until

from acceptd.codec import encode_batch, encode_pair_key
from acceptd.retry_info import retry_after
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2


async def test_the_first_message_must_be_hello(start, connect):
    worker = RawWorker(connect((await start()).address))
    await worker.send(batch=encode_batch(1, None, rows(3)))
    code, details = await worker.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "first message is batch; accepted: hello" in details


async def test_a_silent_stream_is_ended(start, connect):
    worker = RawWorker(connect((await start(hello_seconds=0.2)).address))
    code, details = await worker.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "no Hello within 0.2 s" in details


async def test_a_second_hello_ends_the_stream(start, connect):
    worker = RawWorker(connect((await start()).address))
    await worker.greet()
    await worker.send(hello=worker.hello())
    code, details = await worker.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "second Hello" in details


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"num_speculative_tokens": 0}, "FAILED_PRECONDITION", "num_speculative_tokens"),
        ({"num_speculative_tokens": 65}, "FAILED_PRECONDITION", "num_speculative_tokens"),
        ({"feature_schema": 2}, "FAILED_PRECONDITION", "feature_schema"),
        ({"target": ""}, "INVALID_ARGUMENT", "pair.target"),
        ({"draft": "d" * 257}, "RESOURCE_EXHAUSTED", "pair.draft"),
    ],
)
async def test_a_pair_key_that_cannot_be_served_is_named(start, connect, changes, code, named):
    worker = RawWorker(connect((await start()).address), key=dataclasses.replace(KEY, **changes))
    await worker.send(hello=worker.hello())
    status, details = await worker.status()
    assert status.name == code
    assert named in details
    assert "accepted" in details or "empty" in details


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"worker": ""}, "worker has 0 bytes; accepted: 1 to 128"),
        ({"worker": "w" * 129}, "worker has 129 bytes"),
        ({"workload": "w" * 65}, "workload has 65 bytes"),
        ({"hook_version": "1" * 300}, "hook_version has 300 bytes"),
        ({"capabilities": {"max_knots": 9}}, "capabilities.max_knots is 9"),
        ({"version": {"epoch": 2**63}}, "version.epoch is"),
    ],
)
async def test_a_hello_over_a_bound_is_named(start, connect, fields, named):
    server = await start()
    worker = RawWorker(connect(server.address))
    hello = estimator_pb2.Hello(**{"pair": encode_pair_key(KEY), "worker": "w", "incarnation": 1, **fields})
    await worker.send(hello=hello)
    status, details = await worker.status()
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert named in details
    assert not server.fleet.sessions


@pytest.mark.parametrize(
    ("limit", "second"),
    [
        ({"max_workers": 1}, {"worker": "w1"}),
        ({"max_workers_a_pair": 1}, {"worker": "w1"}),
        ({"max_pairs": 1}, {"key": PairKey("another", "draft", 4)}),
    ],
)
async def test_over_a_limit_a_stream_is_told_when_to_come_again(start, connect, limit, second):
    """cases.md 18, the service's side."""
    server = await start(**limit)
    channel = connect(server.address)
    first = RawWorker(channel)
    await first.greet()
    extra = RawWorker(channel, **second)
    await extra.send(hello=extra.hello())
    code, details = await extra.status()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert next(iter(limit)) in details
    assert retry_after(await extra.stream.trailing_metadata()) > 0
    assert (await first.batch(1, rows(5))).rows_accepted == 5
    again = RawWorker(channel)
    await again.greet()


async def test_pairs_without_workers_make_room(start, connect, tmp_path):
    """Every update of the weights begins a pair; the service must not run full of those that are gone."""
    server = await start(max_pairs=3, store=tmp_path / "s.sqlite", round_blocks=50, round_min_seconds=0)
    channel = connect(server.address)
    first = RawWorker(channel)
    await first.greet()
    await first.batch(1, rows(60))
    for generation in range(1, 6):
        worker = RawWorker(channel, "w1", key=dataclasses.replace(KEY, weights_generation=generation))
        await worker.greet()
        await worker.batch(generation, rows(20))
        worker.stream.cancel()
        await until(lambda: len(server.fleet.sessions) == 1, "the stream is gone")
    generations = {pair.key.weights_generation for pair in server.fleet.pairs.values()}
    assert generations == {0, 4, 5}
    assert server.fleet.metrics.registry.get_sample_value("acceptd_pairs_forgotten_total") == 3
    await server.stop()
    server = await start(max_pairs=3, store=tmp_path / "s.sqlite")
    assert {pair.key.weights_generation for pair in server.fleet.pairs.values()} == generations


async def test_pairs_that_were_never_more_than_a_hello_do_not_displace_what_was_learned(start, connect):
    """Whoever reaches the port can say Hello for any number of pairs; a pair whose workers restart must survive it."""
    server = await start(max_pairs=4)
    channel = connect(server.address)
    worker = RawWorker(channel)
    await worker.greet()
    await worker.batch(1, rows(50))
    worker.stream.cancel()
    await until(lambda: not server.fleet.sessions, "the worker is gone")
    for i in range(12):
        other = RawWorker(channel, key=PairKey(f"flood-{i}", "draft", 4))
        await other.greet()
        other.stream.cancel()
        await until(lambda: not server.fleet.sessions, "the flooder is gone")
    assert (await state_of(channel)).blocks == 50
    assert len(server.fleet.pairs) == 4
    assert len(server.fleet.roster) == 1


@pytest.mark.parametrize("name", ["worker", "workload", "hook_version", "vllm_version"])
@pytest.mark.parametrize("text", ["a\x1b[2J", "a\nb", "a\u202eb", "a\x00"])
async def test_text_that_a_terminal_would_act_on_is_refused(start, connect, name, text):
    worker = RawWorker(connect((await start()).address))
    hello = worker.hello()
    setattr(hello, name, text)
    await worker.send(hello=hello)
    code, details = await worker.status()
    assert (code, details.startswith(f"{name}[1] is ")) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert details.isprintable()


async def test_a_pair_key_is_printable(start, connect):
    worker = RawWorker(connect((await start()).address), key=dataclasses.replace(KEY, target="org/\x1b]0;t\x07"))
    await worker.send(hello=worker.hello())
    code, details = await worker.status()
    assert (code, details.startswith("pair.target[4] is ")) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_names_of_any_script_are_taken(start, connect):
    worker = RawWorker(
        connect((await start()).address), worker="工作者 ü [/b] 😀", key=dataclasses.replace(KEY, draft="модель")
    )
    await worker.greet(workload="दस्तावेज़")
