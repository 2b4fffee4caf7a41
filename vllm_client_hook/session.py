"""What one process of a worker and the service tell each other, over one stream after another.

No gRPC, and no threads of its own: the uplink's thread hands in what arrived, gRPC's sending thread asks what to send
next, and the worker's main thread puts in rows and verdicts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from acceptd.v1 import estimator_pb2
from vllm_client_hook.backoff import Backoff
from vllm_client_hook.loss_log import LossLog
from vllm_client_hook.outbound import Outbound, limits_of
from vllm_client_hook.pushes import Pushes
from vllm_client_hook.worker_report import WorkerReports

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from random import Random

    from acceptd.v1 import types_pb2
    from vllm_client_hook.introduction import Introduction
    from vllm_client_hook.uplink_settings import UplinkSettings


@dataclass
class Stream:
    """State of one stream, from Hello to its end."""

    opened_at: float
    call: Any = None
    welcomed: bool = False
    ended: bool = False
    renew: bool = False  # ended by us, to come back at once as another pair
    drain_after: float | None = None


class Session:
    """Of one process: one that was forked needs another. address: for the log. costs: the table to tell, if any.

    lock: guards `outbound`'s sending side and `stream`; the worker's main thread takes it outside the decode loop only.
    progress: notified when batches were answered or a stream began or ended. wake: set when there may be something to
    send. flushing: whether batches go out before they are full or old.
    """

    def __init__(
        self,
        introduction: Introduction,
        settings: UplinkSettings,
        *,
        address: str,
        costs: types_pb2.CostTable | None,
        clock: Callable[[], float],
        random: Random,
        log: logging.Logger,
    ) -> None:
        self._introduction = introduction
        self._settings = settings
        self._address = address
        self._clock = clock
        self._random = random
        self._log = log
        pair = introduction.pair
        self.outbound = Outbound(pair.num_speculative_tokens, settings.queue_rows, pair.weights_generation)
        self.pushes = Pushes(pair.num_speculative_tokens, clock)
        self.reports = WorkerReports(settings.report_interval, costs)
        self.backoff = Backoff(settings.backoff, random)
        self.lock = threading.RLock()
        self.progress = threading.Condition(self.lock)
        self.wake = threading.Event()
        self.stream: Stream | None = None
        self.flushing = False
        self.last_error = ""
        self.losses = LossLog(address, log, clock)
        self.counts = {"connects": 0, "batches": 0}
        self.refusals: dict[str, int] = {}
        self._incarnation = random.getrandbits(64)
        self._paused_until = 0.0

    # -- its streams ----------------------------------------------------------------------------------------------

    def begin(self, stream: Stream) -> None:
        """From now on this is the stream."""
        with self.lock:
            self.stream = stream
            self.pushes.new_stream()
            self.reports.new_stream()

    def end_stream(self) -> None:
        """Has the stream end soon."""
        with self.lock:
            if self.stream is not None and not self.stream.ended:
                self.stream.ended = True
                if self.stream.call is not None:
                    self.stream.call.cancel()
            self.wake.set()

    def replace_pair(self, introduction: Introduction) -> None:
        """Nothing that was graded or pushed for the weights so far counts; the next stream is of this pair."""
        with self.lock:
            pair = introduction.pair
            self._introduction = introduction
            self.pushes = Pushes(pair.num_speculative_tokens, self._clock)
            self.outbound.replace_pair(pair.weights_generation)
            self._incarnation = self._random.getrandbits(64)
            if self.stream is not None:
                self.stream.renew = True
            self.end_stream()

    # -- what arrives: the uplink's thread ------------------------------------------------------------------------

    def received(self, stream: Stream, response: estimator_pb2.StreamResponse) -> None:
        """One message of the service."""
        kind = response.WhichOneof("message")
        if kind == "welcome":
            self._welcomed(stream, response.welcome)
        elif kind == "update":
            self._pushed_update(stream, response.update)
        elif kind == "heartbeat":
            self.pushes.renew()
        elif kind == "batch_result":
            self._answered(response.batch_result)
        elif kind == "drain":
            stream.drain_after = response.drain.reconnect_after_seconds

    def _welcomed(self, stream: Stream, welcome: estimator_pb2.Welcome) -> None:
        with self.lock:
            if not self.outbound.resume(welcome.last_sequence):
                # The service lost batches it had answered (an older store). Numbers can no longer meet: what is
                # unanswered goes out under a new incarnation, so that it is counted once wherever it lands.
                self.outbound.renumber()
                self._incarnation = self._random.getrandbits(64)
                self.end_stream()
                return
            self.outbound.limits = limits_of(welcome)
            if welcome.flush.coefficients_max_age_seconds > 0:
                self.pushes.max_age = welcome.flush.coefficients_max_age_seconds
            stream.welcomed = True
            self.counts["connects"] += 1
            self.losses.found()
            self.progress.notify_all()
        self.backoff.succeeded()
        self._log.info("acceptd: connected to %s, epoch %d", self._address, welcome.epoch)
        if welcome.HasField("update"):
            self._pushed_update(stream, welcome.update)
        self.wake.set()

    def _pushed_update(self, stream: Stream, update: estimator_pb2.CoefficientUpdate) -> None:
        with self.lock:
            if stream is self.stream and not stream.ended:
                self.pushes.take(update, self._introduction.pair.weights_generation)
        if self.pushes.answers:
            self.wake.set()

    def _answered(self, result: estimator_pb2.BatchResult) -> None:
        reason = result.reason
        with self.lock:
            # The sender waits for an answer only where no more may be in flight; otherwise it knows when to go on.
            wake = self.outbound.full or reason == estimator_pb2.REJECT_REASON_OVER_QUOTA
            if reason == estimator_pb2.REJECT_REASON_OUT_OF_ORDER:
                if self.outbound.follows_postponed():
                    return
                # Numbers no longer match; the next Welcome says from where to go on.
                self._count_refusal(reason)
                self.end_stream()
                return
            refused = reason not in _APPLIED
            if reason != estimator_pb2.REJECT_REASON_UNSPECIFIED:
                self._count_refusal(reason)
            if refused:
                self.last_error = f"batch {result.sequence} refused: {result.message or result.field}"
            self.outbound.answered(result.sequence, result.last_sequence, refused=refused)
            if reason == estimator_pb2.REJECT_REASON_OVER_QUOTA:
                self.outbound.postponed(result.sequence)
            if result.retry_after_seconds > 0:
                self._paused_until = self._clock() + self.backoff.asked(result.retry_after_seconds)
                wake = True
            self.progress.notify_all()
        if wake:
            self.wake.set()

    def _count_refusal(self, reason: int) -> None:
        name = estimator_pb2.RejectReason.Name(reason).removeprefix("REJECT_REASON_").lower()
        self.refusals[name] = self.refusals.get(name, 0) + 1

    # -- what goes out: gRPC's sending thread ---------------------------------------------------------------------

    def hello(self) -> estimator_pb2.StreamRequest:
        """The first message of a stream."""
        return estimator_pb2.StreamRequest(hello=self._introduction.hello(self._incarnation, self.pushes.held))

    def prepare(self, stream: Stream) -> bool:
        """A short stretch of work on the next batch; whether there is more. No lock is held in between."""
        now = self._clock()
        with self.lock:
            if stream.ended or not stream.welcomed or now < self._paused_until:
                return False
            return self.outbound.prepare(now, flush=self.flushing)

    def next_request(self, stream: Stream) -> tuple[estimator_pb2.StreamRequest | None, float]:
        """The next thing to send, or None and the seconds until there may be one."""
        now = self._clock()
        with self.lock:
            if stream.ended:
                return None, 0.0
            if not stream.welcomed:
                left = stream.opened_at + self._settings.welcome_timeout - now
                if left <= 0 and stream.call is not None:
                    stream.call.cancel()
                return None, max(left, _TICK)
            status = self.pushes.next_status()
            if status is not None:
                return estimator_pb2.StreamRequest(update_status=status), 0.0
            batch = None if now < self._paused_until else self.outbound.next_message(now, flush=self.flushing)
            if batch is not None:
                self.counts["batches"] += 1
                return estimator_pb2.StreamRequest(batch=batch), 0.0
            if now >= self.reports.due:
                latest = self.pushes.latest
                report = self.reports.next_message(now, self.outbound.exclusions, int(latest.mode) if latest else 0)
                return estimator_pb2.StreamRequest(report=report), 0.0
            due = [self.reports.due, self._paused_until if now < self._paused_until else None]
            if not self.outbound.full:
                due.append(self.outbound.deadline())
            return None, max(min(at for at in due if at is not None) - now, _TICK)


#: Shortest wait of the sending thread, seconds: a deadline that just passed must not turn into a busy loop.
_TICK: Final = 0.002

#: Answers after which the rows count as delivered.
_APPLIED: Final = (
    estimator_pb2.REJECT_REASON_UNSPECIFIED,
    estimator_pb2.REJECT_REASON_DUPLICATE,
    estimator_pb2.REJECT_REASON_QUARANTINED,
)
