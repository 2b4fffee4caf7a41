"""Workers by the hundred on one thread: connected, flapping, sending small batches, acknowledging what is pushed."""

from __future__ import annotations

import heapq
import random
import select
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from acceptd.codec import encode_pair_key, encode_version
from acceptd.types import PairKey, Version
from acceptd.v1 import estimator_pb2
from benchmarks.http2_stream import Http2Stream
from benchmarks.refit import K

KEY: Final = PairKey("load/target", "load/draft", K)
_STREAM: Final = "/acceptd.v1.Estimator/Stream"
#: Every so-many-th worker drops its connection, about this often.
_FLAPPING: Final = 10
_FLAP_SECONDS: Final = 2.0
#: Between two looks at what has come. All workers share two cores with the service, and each wake-up takes from it what
#: workers on machines of their own would not; their answers are that much later for it.
TURN_SECONDS: Final = 0.003


@dataclass
class Tally:
    """Of all workers. results: seconds from write to answer. written: when, by incarnation and sequence."""

    due: int = 0
    sent: int = 0
    held_back: int = 0
    acknowledged: int = 0
    refused: int = 0
    reconnects: int = 0
    updates: int = 0
    backwards: int = 0
    results: list[float] = field(default_factory=list)
    written: dict[tuple[int, int], float] = field(default_factory=dict)


class Worker:
    """One stream at a time over a connection of its own."""

    def __init__(self, index: int, address: str, bodies: list[bytes], tally: Tally) -> None:
        self.index = index
        self.incarnation = index + 1
        self.stream: Http2Stream | None = None
        self._address = address
        self._bodies = bodies
        self._tally = tally
        self._sequence = 0
        self._limit = 0
        self._flight: deque[tuple[int, float]] = deque()
        self._version = Version()

    @property
    def idle(self) -> bool:
        """Whether everything was answered."""
        return not self._flight

    def connect(self) -> Http2Stream:
        """A new stream; what was not answered on the old one is sent again once it is welcome."""
        self._limit = 0
        self.stream = Http2Stream(self._address, _STREAM, self._received)
        hello = estimator_pb2.Hello(pair=encode_pair_key(KEY), worker=f"w{self.index}", incarnation=self.incarnation)
        if self._version > Version():
            hello.version.CopyFrom(encode_version(self._version))
        self.stream.send(estimator_pb2.StreamRequest(hello=hello).SerializeToString())
        return self.stream

    def drop(self) -> None:
        """Cuts the connection."""
        if self.stream is not None:
            self.stream.abort()

    def flush(self) -> None:
        """One batch, unless as many as allowed are unanswered."""
        self._tally.due += 1
        if len(self._flight) >= self._limit or self.stream is None or self.stream.closed:
            self._tally.held_back += 1
            return
        self._sequence += 1
        self._tally.sent += 1
        now = time.perf_counter()
        self._flight.append((self._sequence, now))
        self._tally.written[self.incarnation, self._sequence] = now
        self.stream.send(self._message(self._sequence))

    def _message(self, sequence: int) -> bytes:
        # Fields may come in any order and piecewise: the sequence goes behind the rows that all batches share.
        # Each flush has other rows, and the same ones when it is sent again.
        return self._bodies[(self.index + sequence) % len(self._bodies)] + _tail(sequence)

    def _received(self, _: Http2Stream, message: bytes) -> None:
        response = estimator_pb2.StreamResponse.FromString(message)
        kind = response.WhichOneof("message")
        if kind == "batch_result":
            self._answered(response.batch_result)
        elif kind == "update":
            self._take(response.update)
        elif kind == "welcome":
            self._limit = response.welcome.limits.max_in_flight
            self._done_with(response.welcome.last_sequence, None)
            for sequence, _ in self._flight:
                assert self.stream is not None
                self.stream.send(self._message(sequence))
            if response.welcome.HasField("update"):
                self._take(response.welcome.update)

    def _answered(self, result: estimator_pb2.BatchResult) -> None:
        if result.reason not in {estimator_pb2.REJECT_REASON_UNSPECIFIED, estimator_pb2.REJECT_REASON_DUPLICATE}:
            self._tally.refused += 1
        self._done_with(result.last_sequence, time.perf_counter())

    def _done_with(self, last: int, now: float | None) -> None:
        while self._flight and self._flight[0][0] <= last:
            _, sent = self._flight.popleft()
            self._tally.acknowledged += 1
            if now is not None:
                self._tally.results.append(now - sent)

    def _take(self, update: estimator_pb2.CoefficientUpdate) -> None:
        raw = update.coefficients.version
        version = Version(raw.epoch, raw.counter)
        self._tally.updates += 1
        self._tally.backwards += version < self._version
        self._version = version
        if self.stream is not None and not self.stream.closed:
            self.stream.send(acknowledgement(update.nonce, raw.epoch, raw.counter))


@lru_cache
def _tail(sequence: int) -> bytes:
    """What a batch's message ends with."""
    batch = estimator_pb2.ObservationBatch(sequence=sequence)
    return estimator_pb2.StreamRequest(batch=batch).SerializeToString()


@lru_cache
def acknowledgement(nonce: int, epoch: int, counter: int) -> bytes:
    """The message that acknowledges an update."""
    status = estimator_pb2.UpdateStatus(nonce=nonce, version=encode_version(Version(epoch, counter)))
    return estimator_pb2.StreamRequest(update_status=status).SerializeToString()


class Crew:
    """All workers on one thread: each flushes once a period, and every tenth drops its connection now and then."""

    def __init__(self, workers: list[Worker], tally: Tally, period: float, random_: random.Random) -> None:
        now = time.perf_counter()
        self._workers = workers
        self._tally = tally
        self._period = period
        self._random = random_
        self._poll = select.epoll()
        self._open: dict[int, Worker] = {}
        self._flushes = [(now + random_.random() * period, each.index) for each in workers]
        self._drops = [(now + self._until_drop(), each.index) for each in workers[::_FLAPPING]]
        heapq.heapify(self._flushes)
        heapq.heapify(self._drops)
        for each in workers:
            self._connect(each)
            self._serve(0)

    def run(self, seconds: float) -> None:
        """Flushes, drops and answers for so long."""
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            while self._flushes[0][0] <= now:
                due, index = self._flushes[0]
                self._workers[index].flush()
                heapq.heapreplace(self._flushes, (max(due, now - self._period) + self._period, index))
            while self._drops[0][0] <= now:
                worker = self._workers[self._drops[0][1]]
                heapq.heapreplace(self._drops, (now + self._until_drop(), worker.index))
                worker.drop()
                self._reconnect(worker)
            time.sleep(TURN_SECONDS)
            self._serve(0)

    def finish(self) -> None:
        """Waits until everything is answered, then drops all connections."""
        while not all(each.idle for each in self._workers):
            self._serve(0.01)
        for each in self._workers:
            each.drop()
        self._poll.close()

    def _until_drop(self) -> float:
        return self._random.uniform(0.5, 1.5) * _FLAP_SECONDS

    def _connect(self, worker: Worker) -> None:
        # A connection that was closed has left the poll, and its number may be this one's.
        number = worker.connect().fileno()
        self._open[number] = worker
        self._poll.register(number, select.EPOLLIN)

    def _reconnect(self, worker: Worker) -> None:
        self._tally.reconnects += 1
        self._connect(worker)

    def _serve(self, wait: float) -> None:
        """Reads what has come for the workers, at most `wait` seconds from now."""
        for number, _ in self._poll.poll(wait):
            worker = self._open[number]
            assert worker.stream is not None
            worker.stream.readable()
            if worker.stream.closed:
                self._reconnect(worker)
