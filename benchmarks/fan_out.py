"""What bare gRPC takes to write to all workers and to read an answer from each: the least that a publication can."""

from __future__ import annotations

import select
import time
from typing import Final

from benchmarks.bare import FAN_OUT
from benchmarks.crew import TURN_SECONDS, acknowledgement
from benchmarks.http2_stream import Http2Stream
from benchmarks.service_process import Service

_PUSHES: Final = 10
_DEADLINE: Final = 30.0


def fan_out(running: Service, workers: int) -> list[float]:
    """Seconds from each of ten pushes to each worker's answer, as the bare server saw it."""
    answer = acknowledgement(1, 1, 1)
    poll, streams = select.epoll(), {}
    for _ in range(workers):
        stream = Http2Stream(running.bare_address, FAN_OUT, lambda stream, _: stream.send(answer))
        streams[stream.fileno()] = stream
        poll.register(stream.fileno(), select.EPOLLIN)
    deadline = time.perf_counter() + _DEADLINE
    seconds: list[float] = []
    while len(seconds) < _PUSHES * workers:
        pushed = running.push_bare()
        taken: list[float] = []
        while len(taken) < pushed:
            _serve(poll, streams, 0.1)
            taken += running.bare_answers()
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{len(taken)} of {pushed} streams answered")
        if pushed == workers:
            seconds += taken
        _serve(poll, streams, 0.1)
    for stream in streams.values():
        stream.abort()
    poll.close()
    return seconds


def _serve(poll: select.epoll, streams: dict[int, Http2Stream], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(TURN_SECONDS)
        for number, _ in poll.poll(0):
            streams[number].readable()
