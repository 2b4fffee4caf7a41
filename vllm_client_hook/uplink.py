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
from typing import TYPE_CHECKING, Any, Final

import grpc

from acceptd.errors import ConfigError
from acceptd.identity import Identity
from acceptd.v1.estimator_pb2_grpc import EstimatorStub
from vllm_client_hook.channel import open_channel
from vllm_client_hook.endings import ending_of
from vllm_client_hook.introduction import Introduction
from vllm_client_hook.session import Session, Stream
from vllm_client_hook.uplink_settings import Capabilities, UplinkSettings
from vllm_client_hook.worker_report import exclusions_of, totals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from acceptd.types import PairKey, Version
    from acceptd.v1 import estimator_pb2, types_pb2
    from vllm_client_hook.outbound import Graded
    from vllm_client_hook.seams import Received


__all__ = ["Capabilities", "Uplink", "UplinkSettings"]


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
        self._introduction = Introduction(pair, worker, workload, capabilities or Capabilities(), vllm_version)
        self._settings = settings or UplinkSettings()
        self._identity = identity or Identity()
        self._clock = clock
        self._random = random
        self._log = log or logging.getLogger("acceptd.uplink")
        self._costs: types_pb2.CostTable | None = None
        self._reset()

    def _reset(self) -> None:
        """Everything that belongs to one process."""
        self._pid = os.getpid()
        # Seeded from the operating system, anew in each process: their incarnations must differ.
        random = self._random or random_module.Random()  # noqa: S311 (not a secret)
        self._session = Session(
            self._introduction,
            self._settings,
            address=self._address,
            costs=self._costs,
            clock=self._clock,
            random=random,
            log=self._log,
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._final = ""

    # -- the worker's main thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread unless this process has it. Every other method does so by itself."""
        if self._pid != os.getpid():
            # A fork: the parent's thread, locks, connection and incarnation are not ours.
            self._reset()
        if self._thread is None:
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
        if len(graded) and self._session.outbound.offer(graded, self._clock()):
            self._session.wake.set()

    def exclude(self, totals: Mapping[int, int]) -> None:
        """Running totals of blocks without a label, by ExclusionReason."""
        self._session.outbound.exclude(totals)

    def report(self, **totals: float) -> None:
        """Running totals for WorkerReport, by the field names of `WorkerTotals`; sent every few seconds."""
        self._session.reports.add(totals)

    def report_costs(self, costs: types_pb2.CostTable) -> None:
        """The worker's cost table, sent once on each stream; the message is not to be changed afterwards."""
        self._costs = self._session.reports.costs = costs
        self._session.reports.due = 0.0
        self._session.wake.set()

    def latest(self) -> Received | None:
        """The newest push, None if there was none yet."""
        self.start()
        return self._session.pushes.latest

    def answer(self, nonce: int, version: Version | None, rejected: str = "") -> None:
        """ACK (`rejected` empty) or NACK of the push that `latest()` named `nonce`; `version`: in force now."""
        self._session.pushes.answer(nonce, version, rejected)
        self._session.wake.set()

    def applied(self, version: Version) -> None:
        """ACK by version, for callers that hold no nonce."""
        self._session.pushes.applied(version)
        self._session.wake.set()

    def rejected(self, version: Version, reason: str) -> None:
        """NACK by version; what was in force stays."""
        self._session.pushes.rejected(version, reason)
        self._session.wake.set()

    def weights_changed(self, generation: int) -> None:
        """The weights were replaced: from now on it is another pair, which starts from its own coefficients."""
        self.start()
        self._introduction = self._introduction.with_weights(generation)
        self._session.replace_pair(self._introduction)

    def flush(self, timeout: float) -> bool:
        """Sends what was offered without waiting for a full batch; True once all of it was answered.

        For callers outside the decode loop (`collective_rpc`, the end of a replay). timeout: seconds.
        """
        self.start()
        deadline = time.monotonic() + timeout
        session = self._session
        with session.progress:
            session.flushing = True
            session.reports.due = 0.0
            session.wake.set()
            try:
                while not session.outbound.idle:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._final or not session.progress.wait(left):
                        return session.outbound.idle
                return True
            finally:
                session.flushing = False

    def stats(self) -> dict[str, Any]:
        """Counters of this process since its start, for logs, tests and `acceptd doctor`."""
        session = self._session
        stream, pushes, outbound = session.stream, session.pushes, session.outbound
        latest = pushes.latest
        return {
            **session.counts,
            "updates": pushes.taken,
            "stale_updates": pushes.stale,
            "bad_updates": pushes.malformed,
            "connected": bool(stream and stream.welcomed and not stream.ended),
            "final": self._final,
            "last_error": session.last_error,
            "offered": outbound.offered,
            "acknowledged": outbound.acknowledged,
            "refused": outbound.refused,
            "dropped": outbound.dropped,
            "stale_generation": outbound.stale_generation,
            "refusals": dict(session.refusals),
            "version": latest.coefficients.version if latest else None,
        }

    def close(self, timeout: float = 1.0) -> None:
        """Ends the stream and the thread; returns within about `timeout` seconds. Unsent rows are dropped."""
        if self._pid != os.getpid() or self._thread is None:
            return
        self._stop.set()
        self._session.end_stream()
        self._thread.join(timeout)

    # -- the uplink's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._identity.exposed(self._address):
            self._log.warning("acceptd: the token goes to %s in the clear; ACCEPTD_CA_FILE turns TLS on", self._address)
        while not self._stop.is_set():
            try:
                wait = self._one_stream()
            except ConfigError as error:
                # Of files that are replaced while it runs: the next attempt reads them anew.
                self._lost(str(error))
                wait = self._session.backoff.failed()
            except Exception as error:  # the thread must outlive anything: a worker without uplink learns nothing
                self._session.last_error = f"{type(error).__name__}: {error}"
                self._log.exception("acceptd: the uplink failed; it tries again")
                wait = self._session.backoff.failed()
            if wait is None:
                return
            self._stop.wait(wait)

    def _one_stream(self) -> float | None:
        """Holds one stream until it ends. Seconds to wait before the next; None: never again."""
        session = self._session
        stream = Stream(self._clock())
        # What is no file any more may be a pipe, which would keep this thread waiting.
        identity = self._identity.check_files()
        channel = open_channel(self._address, identity, self._settings.keepalive)
        try:
            session.begin(stream)
            stub = EstimatorStub(channel)  # type: ignore[no-untyped-call]
            stream.call = stub.Stream(self._requests(stream), metadata=identity.metadata())
            for response in stream.call:
                session.received(stream, response)
            return self._ended(stream, None)
        except grpc.RpcError as error:
            return self._ended(stream, error)
        finally:
            with session.lock:
                session.end_stream()
                session.progress.notify_all()
            channel.close()

    def _ended(self, stream: Stream, error: Any) -> float | None:
        """Seconds to wait before the next stream; None: never again."""
        if self._stop.is_set():
            return None
        if stream.renew:
            return 0.0
        session = self._session
        ending = ending_of(error, session.backoff, welcomed=stream.welcomed, drain_after=stream.drain_after)
        if ending.wait is None:
            session.last_error = self._final = ending.line
            self._log.error("acceptd: %s refused this worker for good (%s)", self._address, ending.line)
        else:
            self._lost(ending.line)
        return ending.wait

    def _lost(self, line: str) -> None:
        """Notes why there is no stream."""
        self._session.last_error = line
        self._session.losses.lost(line)

    # -- gRPC's sending thread ------------------------------------------------------------------------------------

    def _requests(self, stream: Stream) -> Iterator[estimator_pb2.StreamRequest]:
        session = self._session
        yield session.hello()
        while not (stream.ended or self._stop.is_set()):
            session.wake.clear()
            while session.prepare(stream):
                time.sleep(_BREATH)
            request, wait = session.next_request(stream)
            if request is not None:
                yield request
            else:
                session.wake.wait(wait)


#: Pause between stretches of work on one batch, seconds: long enough that a thread that waits for the GIL wakes up and
#: takes it. Raising it delays a batch of many small offers by as much for every few of them.
_BREATH: Final = 5e-5
