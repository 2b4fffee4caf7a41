"""A day of traffic under a clock that the test moves: what is kept stays bounded; the wall clock decides nothing."""

from __future__ import annotations

import asyncio
import gc
import os

import numpy as np
import pytest

from acceptd.codec import encode_batch, encode_pair_key
from acceptd.types import Version
from acceptd.v1 import estimator_pb2
from estimator_service.config import load_settings
from estimator_service.server import Server
from vllm_client_hook.replay import read_shard

HOUR = 3600.0
#: Seconds between two batches: `make chaos` has six times as many.
STEP = 10.0 if "CHAOS_FAULTS" in os.environ else 60.0
WORKERS = 4
BLOCKS = 96


class HandClock:
    """now: monotonic seconds. date: wall-clock seconds, moved apart."""

    def __init__(self) -> None:
        self.now, self.date = 1_000.0, 1.7e9

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.date


class Day:
    """Four workers' recordings, over and over, into a service without a network. A worker restarts every half hour."""

    def __init__(self, server: Server, clock: HandClock) -> None:
        from crew import TRACE

        self.server, self.clock = server, clock
        self.shards = [read_shard(TRACE, i, WORKERS) for i in range(WORKERS)]
        self.k = self.shards[0].pair.num_speculative_tokens
        self.sessions = {}
        self.sequences = [0] * WORKERS
        self.published: list[Version] = []
        self.heartbeats = self.steps = 0

    @property
    def pair(self):
        return self.server.fleet.pairs[self.shards[0].pair.id]

    async def step(self, wall_seconds: float = STEP) -> None:
        """One worker's batch, and everything that is due."""
        i, self.steps = self.steps % WORKERS, self.steps + 1
        self.clock.now += STEP
        self.clock.date += wall_seconds
        life = (self.steps + i * 45) // 180
        if self.sessions.get(i, (None, None))[0] != life:
            await self._connect(i, life)
        session = self.sessions[i][1]
        self.sequences[i] += 1
        session.handle(estimator_pb2.StreamRequest(batch=self._batch(i)))
        self.server.fleet.tick()
        for _, other in self.sessions.values():
            self._read(other)

    async def _connect(self, i: int, life: int) -> None:
        if i in self.sessions:
            self.server.fleet.disconnect(self.sessions[i][1])
        hello = estimator_pb2.Hello(pair=encode_pair_key(self.shards[i].pair), worker=f"w{i}", incarnation=1 + life)
        if self.published:
            hello.version.epoch, hello.version.counter = self.published[-1].epoch, self.published[-1].counter
        session = await self.server.fleet.connect(hello, "test")
        self.sequences[i] = session.welcome().last_sequence
        self.sessions[i] = life, session

    def _batch(self, i: int) -> estimator_pb2.ObservationBatch:
        shard = self.shards[i]
        start = self.steps * 37 % (len(shard) - BLOCKS)
        rows = slice(start, start + BLOCKS)
        accepted, admitted = shard.accepted[rows], shard.admitted[rows]
        observed = np.arange(self.k) < np.minimum(accepted.astype(int) + 1, admitted)[:, None]
        from acceptd.codec import Observations

        columns = Observations(
            accepted,
            admitted,
            shard.features[rows][observed],
            shard.segments[rows],
            admitted,
            np.ones(BLOCKS, np.float32),
        )
        return encode_batch(self.sequences[i], self.published[-1] if self.published else None, columns)

    def _read(self, session) -> None:
        while (data := session.outbox.take()) is not None:
            message = estimator_pb2.StreamResponse.FromString(data)
            kind = message.WhichOneof("message")
            if kind == "update":
                version = message.update.coefficients.version
                session.held = Version(version.epoch, version.counter)
                if not self.published or self.published[-1] != session.held:
                    self.published.append(session.held)
                    del self.published[:-50]
            elif kind == "batch_result":
                assert message.batch_result.rows_accepted == BLOCKS, message
            elif kind == "heartbeat":
                self.heartbeats += 1


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def on_disk(directory) -> int:
    """Bytes of the store and all that lies beside it."""
    return sum(path.stat().st_size for path in directory.iterdir())


async def start(clock, **flags) -> Server:
    flags = {"listen": "127.0.0.1:0", "metrics_listen": "", **flags}
    return await Server.start(load_settings(flags, environ={}), clock=clock)


@pytest.mark.timeout(300)
async def test_after_a_day_file_and_memory_are_what_they_were_after_an_hour(tmp_path):
    clock = HandClock()
    # Bounds that a day of this traffic fills many times over.
    server = await start(
        clock, store=str(tmp_path / "store.sqlite"), history_versions=100, snapshot_seconds=60, round_seconds=60
    )
    day, sizes, memory = Day(server, clock), [], []
    blocks = 0
    try:
        for hour in range(24):
            for _ in range(int(HOUR / STEP)):
                await day.step()
                blocks += BLOCKS
                if day.steps % 12 == 0:
                    await committed(server, clock)
            if hour >= 2:
                sizes.append(on_disk(tmp_path))
                memory.append(resident())
        state = day.pair
        assert state.counters.blocks == blocks
        assert state.refits_done >= 24 * 25
        assert len(await server.fleet.archive.history(state, 10_000)) <= 356
        # A heartbeat to each of four workers at every step: the clock makes each of them due.
        assert day.heartbeats >= 3 * day.steps
    finally:
        await server.stop()
    assert max(sizes) <= 1.25 * sizes[0], sizes
    assert max(memory) <= memory[0] + 8_000_000, [size - memory[0] for size in memory]


async def committed(server: Server, clock: HandClock) -> None:
    """Lets the store's thread catch up, as that many real seconds would."""
    ledger = server.fleet.ledger
    while ledger.delivery.writer.pending or ledger.delivery.committed < ledger.ticket:
        await asyncio.sleep(0.001)
        clock.now += 1e-3
        server.fleet.tick()


async def test_a_wall_clock_that_jumps_moves_no_round_no_version_and_no_lease(tmp_path):
    """An hour twice: the date runs on in one, and is thrown about by years in the other."""
    results = []
    for jumps in (False, True):
        clock = HandClock()
        directory = tmp_path / str(jumps)
        directory.mkdir()
        server = await start(clock, store=str(directory / "store.sqlite"), half_life_seconds=600)
        day, rng = Day(server, clock), np.random.default_rng(1)
        for _ in range(int(HOUR / STEP)):
            await day.step(rng.uniform(-3e8, 3e8) if jumps else STEP)
        pair = day.pair
        results.append((pair.publication.pooled, pair.refits_done, day.heartbeats, day.published, pair.state()[1]))
        await server.stop()
    steady, jumpy = results
    assert steady[:4] == jumpy[:4]
    assert steady[4] == jumpy[4]
    assert steady[1] >= 30
