"""Workers that replay a recording in step: what they send in each phase is the same whatever happens to the service."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chaos_service import DEADLINE

from acceptd.limits import MAX_KNOTS
from acceptd.segments import NUM_SEGMENTS
from acceptd.types import Version
from acceptd.v1 import estimator_pb2
from estimator_service.fit.ramp import ramped
from vllm_client_hook.backoff import BackoffSettings
from vllm_client_hook.replay import ReplayWorker, read_shard
from vllm_client_hook.uplink import Capabilities, Uplink, UplinkSettings

TRACE = Path(__file__).resolve().parents[2] / "examples" / "smollm2-skip3.parquet"


class Mischief(Uplink):
    """An uplink whose network repeats and reorders: `repeat`, `stale` and `early` are messages still to be disturbed.

    repeat: a batch arrives twice. stale: one that was answered long ago arrives again. early: the same rows arrive
    under the next number, before their turn.
    """

    repeat = stale = early = 0

    def _requests(self, stream: Any) -> Iterator[estimator_pb2.StreamRequest]:
        sent: list[estimator_pb2.StreamRequest] = []
        for request in super()._requests(stream):
            if request.WhichOneof("message") != "batch":
                yield request
                continue
            # The first batch of a stream may follow a gap (its worker may have forgotten): there, early is no mistake.
            if self.early and sent:
                self.early -= 1
                copy = estimator_pb2.StreamRequest.FromString(request.SerializeToString())
                copy.batch.sequence += 1
                yield copy
            if self.stale and sent:
                self.stale -= 1
                yield sent[0]
            yield request
            if self.repeat:
                self.repeat -= 1
                yield request
            sent = [*sent[-3:], estimator_pb2.StreamRequest.FromString(request.SerializeToString())]


class Errors(logging.Handler):
    """Keeps what an uplink reports as an error: its thread survives those, but should not have to."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.exc_info}")


class Crew(threading.Thread):
    """`size` workers. In phase p they send, together, exactly the blocks of the pair's round p, in equal parts.

    A phase begins when every block of the one before has been acknowledged and its round is closed (`rounds` asks the
    service). So rounds have the same blocks in every run, and the coefficients can be compared to the last digits.
    """

    def __init__(self, address: str, size: int, round_blocks: int, rounds: Callable[[str], int | None]) -> None:
        super().__init__(name="crew", daemon=True)
        self.errors = Errors()
        log = logging.getLogger("chaos.uplink")
        log.propagate = False
        log.addHandler(self.errors)
        settings = UplinkSettings(
            backoff=BackoffSettings(first=0.02, cap=0.3), report_interval=2.0, welcome_timeout=5.0
        )
        self.uplinks, self.workers = [], []
        for i in range(size):
            shard = read_shard(TRACE, i, size)
            uplink = Mischief(
                address,
                shard.pair,
                worker=f"w{i}",
                capabilities=Capabilities(MAX_KNOTS, NUM_SEGMENTS),
                settings=settings,
                random=random.Random(i),
                log=log,
            )
            self.uplinks.append(uplink)
            self.workers.append(ReplayWorker(shard, uplink))
        self.pair = self.workers[0].shard.pair
        self.versions: list[list[Version]] = [[] for _ in range(size)]
        self.phases = 0
        self.pace = 0.0
        self.last_phase: int | None = None
        self.failure: BaseException | None = None
        k = self.pair.num_speculative_tokens
        self.observations, self.acceptances = np.zeros(k, int), np.zeros(k, int)
        self.blocks = 0
        self._round_blocks = round_blocks
        self._rounds = rounds

    def run(self) -> None:
        try:
            while self.last_phase is None or self.phases < self.last_phase:
                began = time.monotonic()
                self._send(self.phases)
                self.phases += 1
                self._settle()
                time.sleep(max(0.0, began + self.pace - time.monotonic()))
        except BaseException as error:
            self.failure = error
            raise
        finally:
            logging.getLogger("chaos.uplink").removeHandler(self.errors)

    def finish(self) -> None:
        """Ends with the phase that runs."""
        self.last_phase = 0
        self.join(2 * DEADLINE)
        assert not self.is_alive(), self.where()

    def close(self) -> None:
        for uplink in self.uplinks:
            uplink.close(5.0)

    def where(self) -> str:
        """What is outstanding, for a failure's message."""
        late = [
            f"{i}: {stats['offered'] - stats['acknowledged']} blocks, {stats['last_error']}"
            for i, stats in enumerate(uplink.stats() for uplink in self.uplinks)
            if stats["offered"] != stats["acknowledged"]
        ]
        return (
            f"phase {self.phases}, rounds {self._rounds(self.pair.id)}, waiting for {late[:4]}; {self.errors.lines[:2]}"
        )

    def watch(self) -> None:
        """Notes the versions that workers were given since the last look."""
        for uplink, versions in zip(self.uplinks, self.versions, strict=True):
            received = uplink.latest()
            if received is not None and (not versions or versions[-1] != received.coefficients.version):
                versions.append(received.coefficients.version)

    def _send(self, phase: int) -> None:
        total, size = ramped(self._round_blocks, phase), len(self.workers)
        for i, worker in enumerate(self.workers):
            count = total // size + (i < total % size)
            # From another place in each phase, so that later ones do not repeat the first.
            start = (phase * 29) % (len(worker.shard) - count)
            rows = slice(start, start + count)
            if not count:
                continue
            shard = worker.shard
            observed = np.minimum(shard.accepted[rows].astype(int) + 1, shard.admitted[rows])
            for k in range(len(self.observations)):
                self.observations[k] += (observed > k).sum()
                self.acceptances[k] += (shard.accepted[rows] > k).sum()
            self.blocks += count
            worker.step(rows)

    def _settle(self) -> None:
        deadline = time.monotonic() + 2 * DEADLINE
        while True:
            self.watch()
            assert not any(uplink.stats()["refused"] for uplink in self.uplinks), self.where()
            if not any(worker.pending for worker in self.workers) and self._rounds(self.pair.id) == self.phases:
                return
            assert time.monotonic() < deadline, self.where()
            time.sleep(0.02)
