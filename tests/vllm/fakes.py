"""A service, ranks and streams for tests of the device side in one process."""

import threading
from dataclasses import dataclass, field

import torch

from acceptd.modes import Mode
from acceptd.types import Coefficients, SegmentCoefficients, Version
from vllm_client_hook.rows import Rows
from vllm_client_hook.seams import Received


def line(version, slope, intercepts):
    """Straight-line coefficients; version: (epoch, counter)."""
    return Coefficients(Version(*version), SegmentCoefficients((slope,), tuple(intercepts)))


@dataclass
class FakeUplink:
    """What rank 0 sees of the service; a test sets `received`."""

    received: Received | None = None
    rows: list[Rows] = field(default_factory=list)
    answers: list[tuple[int, Version | None, str]] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)

    def push(self, coefficients, nonce, **fields):
        self.received = Received(coefficients, nonce, **{"mode": Mode.TRIM, "max_age_seconds": 60.0, **fields})

    def offer(self, rows):
        self.rows.append(rows)

    def latest(self):
        return self.received

    def answer(self, nonce, version, rejected=""):
        self.answers.append((nonce, version, rejected))

    def weights_changed(self, generation):
        self.generations.append(generation)


class DelayedStreams:
    """Copies happen only when their event completes: after `queries` queries, or when somebody waits for it."""

    def __init__(self, queries=10**9):
        self._queries = queries
        self._waiting = []

    def copy(self, pairs):
        event = _DelayedEvent(self, list(pairs), self._queries)
        self._waiting.append(event)
        return event

    def empty(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype)

    def complete_through(self, last):
        while self._waiting:
            event = self._waiting.pop(0)
            for target, source in event.pairs:
                target.copy_(source)
            event.done = True
            if event is last:
                return


class _DelayedEvent:
    def __init__(self, streams, pairs, queries):
        self.streams, self.pairs, self.queries, self.done = streams, pairs, queries, False

    def query(self):
        self.queries -= 1
        if self.queries <= 0 and not self.done:
            self.streams.complete_through(self)
        return self.done

    def synchronize(self):
        if not self.done:
            self.streams.complete_through(self)


class ThreadRanks:
    """One rank of a group whose ranks are threads. A rank that is missing fails the others instead of hanging them."""

    def __init__(self, rank, shared, corrupt=None):
        self.rank, self.size, self._shared, self._corrupt = rank, shared.size, shared, corrupt

    def broadcast(self, tensor):
        if self.rank == 0:
            self._shared.value = tensor.clone()
            if self._corrupt is not None:
                self._corrupt(self._shared.value)
        self._shared.barrier.wait()
        tensor.copy_(self._shared.value)
        self._shared.barrier.wait()


class Shared:
    def __init__(self, size):
        self.size, self.barrier, self.value = size, threading.Barrier(size, timeout=20), None


def on_each_rank(size, body, corrupt=None):
    """Runs body(rank, ranks) in one thread a rank; returns their results, raises the first error."""
    shared, results, errors = Shared(size), [None] * size, []

    def run(rank):
        try:
            results[rank] = body(rank, ThreadRanks(rank, shared, corrupt))
        except BaseException as error:
            errors.append(error)
            shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results


class MemoryStore:
    """The semantics of torch.distributed.TCPStore, within one process."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            return self._values[key]

    def wait(self, keys, timeout):
        with self._changed:
            if not self._changed.wait_for(lambda: all(k in self._values for k in keys), timeout.total_seconds()):
                raise TimeoutError(keys)

    def compare_set(self, key, expected, desired):
        with self._changed:
            current = self._values.get(key)
            if (current is None and expected == "") or (current is not None and current.decode() == expected):
                self._values[key] = desired.encode()
                self._changed.notify_all()
            return self._values.get(key, expected.encode())
