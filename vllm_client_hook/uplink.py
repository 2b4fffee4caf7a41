"""The worker's connection to the service: one daemon thread, one stream, nothing that the worker ever waits for.

Observations go up as numbered batches that are kept until answered; coefficients come down and lie ready in
`latest()`. The thread starts with the first call that needs it, in whichever process makes that call, and calls no
CUDA API. What gRPC itself runs: one thread of its own that pulls from `_requests`.
"""

from __future__ import annotations

import logging
import os
import random as random_module
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import grpc

from acceptd import __version__, codec
from acceptd.v1 import estimator_pb2, types_pb2
from acceptd.v1.estimator_pb2_grpc import EstimatorStub
from vllm_client_hook.backoff import Backoff
from vllm_client_hook.channel import Identity, open_channel
from vllm_client_hook.endings import ending_of
from vllm_client_hook.outbound import Outbound, limits_of
from vllm_client_hook.pushes import Pushes
from vllm_client_hook.uplink_settings import Capabilities, UplinkSettings
from vllm_client_hook.worker_report import WorkerReports, exclusions_of, totals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from acceptd.types import PairKey, Version
    from vllm_client_hook.outbound import Graded
    from vllm_client_hook.seams import Received


__all__ = ["Capabilities", "Uplink", "UplinkSettings"]


@dataclass
class _Stream:
    """State of one stream, from Hello to its end."""

    opened_at: float
    call: Any = None
    welcomed: bool = False
    ended: bool = False
    renew: bool = False  # ended by us, to come back at once as another pair
    drain_after: float | None = None


class Uplink:
    """See the module. `clock` is monotonic seconds; `random` draws incarnations and jitter.

    pair: whose coefficients. worker: id, stable over restarts. workload: operator's label, "" for none.
    """

    def __init__(
        self,
        address: str,
        pair: PairKey,
        *,
        worker: str,
        workload: str = "",
        capabilities: Capabilities | None = None,
        settings: UplinkSettings | None = None,
        identity: Identity | None = None,
        vllm_version: str = "",
        clock: Callable[[], float] = time.monotonic,
        random: random_module.Random | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        pair.validate()
        self._address = address
        self._pair = pair
        self._worker = worker
        self._workload = workload
        self._capabilities = capabilities or Capabilities()
        self._settings = settings or UplinkSettings()
        self._identity = identity or Identity()
        self._vllm_version = vllm_version
        self._clock = clock
        # Seeded from the operating system: incarnations of two processes must differ.
        self._random = random or random_module.Random()  # noqa: S311 (not a secret)
        self._log = log or logging.getLogger("acceptd.uplink")
        self._pid = 0
        self._reports = WorkerReports(self._settings.report_interval)
        self._reset()

    def _reset(self) -> None:
        """Everything that belongs to one process."""
        self._outbound = Outbound(self._pair.num_speculative_tokens, self._settings.queue_rows)
        self._backoff = Backoff(self._settings.backoff, self._random)
        self._incarnation = self._random.getrandbits(64)
        # Guards `_outbound`'s sending side and `_stream`; the worker's main thread takes it in `flush` alone.
        self._session = threading.RLock()
        self._progress = threading.Condition(self._session)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._stream: _Stream | None = None
        self._thread: threading.Thread | None = None
        self._pushes = Pushes(self._pair.num_speculative_tokens, self._clock)
        self._reports = WorkerReports(self._settings.report_interval, self._reports.costs)
        self._flushing = False
        self._final = ""
        self._last_error = ""
        self._loss_logged = False
        self._paused_until = 0.0
        self._counts = {"connects": 0, "batches": 0}
        self._refusals: dict[str, int] = {}

    # -- the worker's main thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread unless this process has it. Every other method does so by itself."""
        if self._pid != os.getpid():
            if self._pid:
                # A fork: the parent's thread, locks and connection are not ours.
                self._reset()
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name="acceptd-uplink", daemon=True)
            self._thread.start()

    def offer(self, graded: Graded) -> None:
        """Queues rows to send; never waits. Beyond `queue_rows` the oldest go, counted as QUEUE_FULL.

        Running totals that the rows bring (`counters`, see `vllm_client_hook.rows`) are sent on as they grow.
        """
        self.start()
        counters = getattr(graded, "counters", None)
        if counters is not None:
            told = counters.tolist()
            self.exclude(exclusions_of(told))
            self.report(**totals_of(told))
        if len(graded) and self._outbound.offer(graded, self._clock()):
            self._wake.set()

    def exclude(self, totals: Mapping[int, int]) -> None:
        """Running totals of blocks without a label, by ExclusionReason."""
        self._outbound.exclude(totals)

    def report(self, **totals: float) -> None:
        """Running totals for WorkerReport, by the field names of `WorkerTotals`; sent every few seconds."""
        self._reports.add(totals)

    def report_costs(self, costs: types_pb2.CostTable) -> None:
        """The worker's cost table, sent once on each stream; the message is not to be changed afterwards."""
        self._reports.costs = costs
        self._reports.due = 0.0
        self._wake.set()

    def latest(self) -> Received | None:
        """The newest push, None if there was none yet."""
        self.start()
        return self._pushes.latest

    def answer(self, nonce: int, version: Version | None, rejected: str = "") -> None:
        """ACK (`rejected` empty) or NACK of the push that `latest()` named `nonce`; `version`: in force now."""
        self._pushes.answer(nonce, version, rejected)
        self._wake.set()

    def applied(self, version: Version) -> None:
        """ACK by version, for callers that hold no nonce."""
        self._pushes.applied(version)
        self._wake.set()

    def rejected(self, version: Version, reason: str) -> None:
        """NACK by version; what was in force stays."""
        self._pushes.rejected(version, reason)
        self._wake.set()

    def weights_changed(self, generation: int) -> None:
        """The weights were replaced: from now on it is another pair, which starts from its own coefficients."""
        self.start()
        with self._session:
            self._pair = replace(self._pair, weights_generation=generation)
            self._pushes = Pushes(self._pair.num_speculative_tokens, self._clock)
            self._outbound.replace_pair(generation)
            self._incarnation = self._random.getrandbits(64)
            if self._stream is not None:
                self._stream.renew = True
            self._end_stream()

    def flush(self, timeout: float) -> bool:
        """Sends what was offered without waiting for a full batch; True once all of it was answered.

        For callers outside the decode loop (`collective_rpc`, the end of a replay). timeout: seconds.
        """
        self.start()
        deadline = time.monotonic() + timeout
        with self._progress:
            self._flushing = True
            self._reports.due = 0.0
            self._wake.set()
            try:
                while not self._outbound.idle:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._final or not self._progress.wait(left):
                        return self._outbound.idle
                return True
            finally:
                self._flushing = False

    def stats(self) -> dict[str, Any]:
        """Counters of this process since its start, for logs, tests and `acceptd doctor`."""
        stream, latest = self._stream, self._pushes.latest
        return {
            **self._counts,
            "updates": self._pushes.taken,
            "stale_updates": self._pushes.stale,
            "bad_updates": self._pushes.malformed,
            "connected": bool(stream and stream.welcomed and not stream.ended),
            "final": self._final,
            "last_error": self._last_error,
            "offered": self._outbound.offered,
            "acknowledged": self._outbound.acknowledged,
            "refused": self._outbound.refused,
            "dropped": self._outbound.dropped,
            "stale_generation": self._outbound.stale_generation,
            "refusals": dict(self._refusals),
            "version": latest.coefficients.version if latest else None,
        }

    def close(self, timeout: float = 1.0) -> None:
        """Ends the stream and the thread; returns within about `timeout` seconds. Unsent rows are dropped."""
        if self._pid != os.getpid() or self._thread is None:
            return
        self._stop.set()
        with self._session:
            self._end_stream()
        self._thread.join(timeout)

    # -- the uplink's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                wait = self._one_stream()
            except Exception as error:  # the thread must outlive anything: a worker without uplink learns nothing
                self._last_error = f"{type(error).__name__}: {error}"
                self._log.exception("acceptd: the uplink failed; it tries again")
                wait = self._backoff.failed()
            if wait is None:
                return
            self._stop.wait(wait)

    def _one_stream(self) -> float | None:
        """Holds one stream until it ends. Seconds to wait before the next; None: never again."""
        stream = _Stream(self._clock())
        channel = open_channel(self._address, self._identity, self._settings.keepalive)
        try:
            with self._session:
                self._stream = stream
                self._pushes.new_stream()
                self._reports.new_stream()
            stub = EstimatorStub(channel)  # type: ignore[no-untyped-call]
            stream.call = stub.Stream(self._requests(stream), metadata=self._identity.metadata())
            for response in stream.call:
                self._received(stream, response)
            return self._ended(stream, None)
        except grpc.RpcError as error:
            return self._ended(stream, error)
        finally:
            with self._session:
                self._end_stream()
                self._progress.notify_all()
            channel.close()

    def _ended(self, stream: _Stream, error: Any) -> float | None:
        """Seconds to wait before the next stream; None: never again."""
        if self._stop.is_set():
            return None
        if stream.renew:
            return 0.0
        ending = ending_of(error, self._backoff, welcomed=stream.welcomed, drain_after=stream.drain_after)
        self._last_error = ending.line
        if ending.wait is None:
            self._final = ending.line
            self._log.error("acceptd: %s refused this worker for good (%s)", self._address, ending.line)
        elif not self._loss_logged:
            self._loss_logged = True
            self._log.warning("acceptd: no stream to %s (%s); trying again", self._address, ending.line)
        return ending.wait

    def _received(self, stream: _Stream, response: estimator_pb2.StreamResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "welcome":
            self._welcomed(stream, response.welcome)
        elif kind == "update":
            self._pushed_update(stream, response.update)
        elif kind == "heartbeat":
            self._pushes.renew()
        elif kind == "batch_result":
            self._answered(response.batch_result)
        elif kind == "drain":
            stream.drain_after = response.drain.reconnect_after_seconds

    def _welcomed(self, stream: _Stream, welcome: estimator_pb2.Welcome) -> None:
        with self._session:
            if not self._outbound.resume(welcome.last_sequence):
                # The service lost batches it had answered (an older store). Numbers can no longer meet: what is
                # unanswered goes out under a new incarnation, so that it is counted once wherever it lands.
                self._outbound.renumber()
                self._incarnation = self._random.getrandbits(64)
                self._end_stream()
                return
            self._outbound.limits = limits_of(welcome)
            if welcome.flush.coefficients_max_age_seconds > 0:
                self._pushes.max_age = welcome.flush.coefficients_max_age_seconds
            stream.welcomed = True
            self._counts["connects"] += 1
            self._loss_logged = False
            self._progress.notify_all()
        self._backoff.succeeded()
        self._log.info("acceptd: connected to %s, epoch %d", self._address, welcome.epoch)
        if welcome.HasField("update"):
            self._pushed_update(stream, welcome.update)
        self._wake.set()

    def _pushed_update(self, stream: _Stream, update: estimator_pb2.CoefficientUpdate) -> None:
        with self._session:
            if stream is self._stream and not stream.ended:
                self._pushes.take(update, self._pair.weights_generation)
        if self._pushes.answers:
            self._wake.set()

    def _answered(self, result: estimator_pb2.BatchResult) -> None:
        reason = result.reason
        with self._session:
            # The sender waits for an answer only where no more may be in flight; otherwise it knows when to go on.
            wake = self._outbound.full or reason == estimator_pb2.REJECT_REASON_OVER_QUOTA
            if reason == estimator_pb2.REJECT_REASON_OUT_OF_ORDER:
                if self._outbound.follows_postponed():
                    return
                # Numbers no longer match; the next Welcome says from where to go on.
                self._count_refusal(reason)
                self._end_stream()
                return
            refused = reason not in _APPLIED
            if reason != estimator_pb2.REJECT_REASON_UNSPECIFIED:
                self._count_refusal(reason)
            if refused:
                self._last_error = f"batch {result.sequence} refused: {result.message or result.field}"
            self._outbound.answered(result.sequence, result.last_sequence, refused=refused)
            if reason == estimator_pb2.REJECT_REASON_OVER_QUOTA:
                self._outbound.postponed(result.sequence)
            if result.retry_after_seconds > 0:
                self._paused_until = self._clock() + self._backoff.asked(result.retry_after_seconds)
                wake = True
            self._progress.notify_all()
        if wake:
            self._wake.set()

    def _count_refusal(self, reason: int) -> None:
        name = estimator_pb2.RejectReason.Name(reason).removeprefix("REJECT_REASON_").lower()
        self._refusals[name] = self._refusals.get(name, 0) + 1

    def _end_stream(self) -> None:
        """Has the stream end soon. The session lock is held."""
        if self._stream is not None and not self._stream.ended:
            self._stream.ended = True
            if self._stream.call is not None:
                self._stream.call.cancel()
        self._wake.set()

    # -- gRPC's sending thread ------------------------------------------------------------------------------------

    def _requests(self, stream: _Stream) -> Iterator[estimator_pb2.StreamRequest]:
        yield estimator_pb2.StreamRequest(hello=self._hello())
        while not (stream.ended or self._stop.is_set()):
            self._wake.clear()
            while self._prepare(stream):
                time.sleep(_BREATH)
            request, wait = self._next(stream)
            if request is not None:
                yield request
            else:
                self._wake.wait(wait)

    def _prepare(self, stream: _Stream) -> bool:
        """A short stretch of work on the next batch; whether there is more. No lock is held in between."""
        now = self._clock()
        with self._session:
            if stream.ended or not stream.welcomed or now < self._paused_until:
                return False
            return self._outbound.prepare(now, flush=self._flushing)

    def _next(self, stream: _Stream) -> tuple[estimator_pb2.StreamRequest | None, float]:
        """The next thing to send, or None and the seconds until there may be one."""
        now = self._clock()
        with self._session:
            if stream.ended:
                return None, 0.0
            if not stream.welcomed:
                left = stream.opened_at + self._settings.welcome_timeout - now
                if left <= 0 and stream.call is not None:
                    stream.call.cancel()
                return None, max(left, _TICK)
            status = self._pushes.next_status()
            if status is not None:
                return estimator_pb2.StreamRequest(update_status=status), 0.0
            batch = None if now < self._paused_until else self._outbound.next_message(now, flush=self._flushing)
            if batch is not None:
                self._counts["batches"] += 1
                return estimator_pb2.StreamRequest(batch=batch), 0.0
            if now >= self._reports.due:
                latest = self._pushes.latest
                report = self._reports.next_message(now, self._outbound.exclusions, int(latest.mode) if latest else 0)
                return estimator_pb2.StreamRequest(report=report), 0.0
            due = [self._reports.due, self._paused_until if now < self._paused_until else None]
            if not self._outbound.full:
                due.append(self._outbound.deadline())
            return None, max(min(at for at in due if at is not None) - now, _TICK)

    def _hello(self) -> estimator_pb2.Hello:
        hello = estimator_pb2.Hello(
            pair=codec.encode_pair_key(self._pair),
            worker=self._worker,
            incarnation=self._incarnation,
            workload=self._workload,
            capabilities=types_pb2.Capabilities(
                max_knots=self._capabilities.max_knots, max_segments=self._capabilities.max_segments
            ),
            hook_version=__version__,
            vllm_version=self._vllm_version,
        )
        if (held := self._pushes.held) is not None:
            hello.version.CopyFrom(codec.encode_version(held))
        return hello


#: Shortest wait of the sending thread, seconds: a deadline that just passed must not turn into a busy loop.
_TICK: Final = 0.002

#: Pause between stretches of work on one batch, seconds: long enough that a thread that waits for the GIL wakes up and
#: takes it. Raising it delays a batch of many small offers by as much for every few of them.
_BREATH: Final = 5e-5

#: Answers after which the rows count as delivered.
_APPLIED: Final = (
    estimator_pb2.REJECT_REASON_UNSPECIFIED,
    estimator_pb2.REJECT_REASON_DUPLICATE,
    estimator_pb2.REJECT_REASON_QUARANTINED,
)
