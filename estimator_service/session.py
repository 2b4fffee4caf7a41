"""One worker's stream as a state machine: messages in, answers into its outbox. Knows no gRPC."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from acceptd.codec import decode_version, encode_version
from acceptd.cost_table import check_cost_table
from acceptd.errors import IncompatiblePeer, TooLarge, WireError
from acceptd.limits import MAX_COUNT, MAX_MESSAGE_BYTES
from acceptd.names import printable
from acceptd.types import Version
from acceptd.v1 import estimator_pb2, types_pb2
from estimator_service.answers import Answers
from estimator_service.intake import MAX_EXCLUSIONS, Intake
from estimator_service.outbox import Ending, Outbox
from estimator_service.zero_budget import ZeroBudget

if TYPE_CHECKING:
    from acceptd.v1.types_pb2 import Mode
    from estimator_service.board import Watch
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair
    from estimator_service.publication import Publication
    from estimator_service.worker import Worker

#: Pushes whose answer is still awaited. A worker answers each in turn; older ones only cost their latency sample.
_MAX_NONCES = 16
#: Bytes of a worker's own words that are kept (why it refused an update).
_MAX_REASON = 256


class Session:
    """From a Hello that was accepted until the stream ends. `hello` has been checked by `Fleet.connect`."""

    def __init__(self, fleet: Fleet, pair: Pair, worker: Worker, hello: estimator_pb2.Hello, peer: str) -> None:
        self.pair = pair
        self.worker = worker
        self.hello = hello
        self.peer = peer
        self.connected_at = fleet.clock.wall()
        #: What its steps take, as it last said; None: nothing yet.
        self.costs: types_pb2.CostTable | None = None
        self.zero_budget = ZeroBudget(worker.report.totals)
        self.closed = False
        #: Highest version the worker is known to hold; nothing that sorts before it is ever pushed.
        self.held = decode_version(hello.version) if hello.HasField("version") else Version()
        self.applied: Version | None = self.held if hello.HasField("version") else None
        #: When the age of the worker's coefficients was last renewed, by a push that it took or a heartbeat.
        self._renewed = fleet.clock.monotonic()
        able = hello.capabilities
        #: Of what it can be sent; -1: nothing but the straight line, which has no segments.
        self._max_knots = able.max_knots if able.max_segments > 1 else -1
        self._fleet = fleet
        self._nonce = 0
        self._told: tuple[Mode, float] | None = None
        self._pushed: dict[int, tuple[Version, float]] = {}
        delivery = fleet.ledger.delivery
        self.outbox = Outbox(
            Answers(fleet.settings.max_in_flight, fleet.settings.answer_seconds),
            lambda: delivery.committed,
            self._next_update,
            fleet.clock.monotonic,
        )
        self._intake = Intake(fleet, pair, worker, hello.workload)
        self._watch: Watch[Publication] = fleet.board.watch(pair.id, self.outbox.wake)

    def welcome(self) -> estimator_pb2.Welcome:
        """The answer to Hello, with the coefficients in force unless the worker must not get them."""
        settings = self._fleet.settings
        message = estimator_pb2.Welcome(
            epoch=self._fleet.epoch,
            limits=estimator_pb2.Limits(
                max_rows=settings.max_rows,
                max_batch_bytes=MAX_MESSAGE_BYTES,
                max_in_flight=settings.max_in_flight,
            ),
            flush=estimator_pb2.FlushPolicy(
                rows=settings.flush_rows,
                max_age_seconds=settings.flush_seconds,
                coefficients_max_age_seconds=settings.coefficients_max_age_seconds,
            ),
            last_sequence=self.worker.last_sequence,
        )
        publication = self._watch.take()
        if (
            publication is not None
            and publication.version >= self.held
            and not self.worker.refused(publication.version)
        ):
            message.update.CopyFrom(estimator_pb2.StreamResponse.FromString(self._push(publication)).update)
        return message

    def handle(self, request: estimator_pb2.StreamRequest) -> None:
        """Takes one message after Hello. Raises WireError or IncompatiblePeer where the stream must end."""
        kind = request.WhichOneof("message")
        if kind == "batch":
            self.outbox.result(*self._intake.take(request.batch, self.held))
        elif kind == "update_status":
            self._update_status(request.update_status)
        elif kind == "report":
            self._report(request.report)
        elif kind == "hello":
            raise IncompatiblePeer("second Hello on a stream; accepted: one, as the first message")
        else:
            raise WireError("empty StreamRequest; accepted: batch, update_status or report", field="message")

    @property
    def cannot_trim(self) -> bool:
        """Whether the worker said that verifying less is hardly cheaper."""
        return self.costs is not None and not self.costs.can_trim

    def look(self, now: float) -> None:
        """Sends what is due by time. Called several times a second, at `now`: monotonic seconds."""
        self.outbox.look(now)
        if now - self._renewed >= self._fleet.settings.heartbeat_seconds:
            self._renewed = now
            self.outbox.heartbeat(estimator_pb2.Heartbeat(version=encode_version(self.pair.publication.version)))

    def end(self, ending: Ending) -> None:
        """Stops applying what arrives and ends the stream."""
        self.closed = True
        self.outbox.end(ending)

    def drain(self, reason: str, reconnect_after: float) -> None:
        """Stops applying what arrives; answers what was applied, then tells the worker and ends the stream."""
        self.closed = True
        self.outbox.drain(estimator_pb2.Drain(reason=reason, reconnect_after_seconds=reconnect_after))

    def leave(self) -> None:
        """Lets go of the board."""
        self.closed = True
        self._watch.close()

    def _next_update(self) -> bytes | None:
        """The latest publication as an encoded StreamResponse, if it or the mode is new to this worker, it is not
        older than what the worker holds and was not refused by it."""
        publication = self._watch.take()
        if publication is None:
            return None
        version = publication.version
        if version < self.held or self.worker.refused(version):
            return None
        if version == self.held and self._told == self._orders():
            return None
        return self._push(publication)

    def _orders(self) -> tuple[Mode, float]:
        """What goes with every push: it may change while the version stays."""
        return self.pair.mode, self.pair.exploration_rate

    def _push(self, publication: Publication) -> bytes:
        self._nonce += 1
        self._pushed[self._nonce] = publication.version, self._fleet.clock.monotonic()
        if len(self._pushed) > _MAX_NONCES:
            del self._pushed[next(iter(self._pushed))]
        self._told = mode, rate = self._orders()
        straight = self._max_knots < len(publication.pooled.knots)
        return publication.update(self.hello.workload, straight=straight, mode=mode, rate=rate) + _nonce(self._nonce)

    def _report(self, report: estimator_pb2.WorkerReport) -> None:
        _check_report(report)
        # A worker that waits for its last answers, before it sleeps or stops, has sent its report after its batches.
        self.outbox.hurry()
        if report.HasField("costs"):
            # Of the stream, not of what is remembered of all workers there ever were.
            self.costs = types_pb2.CostTable.FromString(report.costs.SerializeToString())
            report.ClearField("costs")
        # Of a worker that was counted by an earlier process, only what comes from now on.
        if self.worker.reported or not self.worker.restored:
            self._fleet.metrics.report(self.pair.id, self.worker.report.totals, report.totals)
        self.worker.reported = True
        self.zero_budget.add(report.totals)
        self.worker.report.CopyFrom(report)

    def _update_status(self, status: estimator_pb2.UpdateStatus) -> None:
        version, pushed_at = self._pushed.pop(status.nonce, (None, 0.0))
        if version is None:
            self._fleet.metrics.streams.unknown(self.pair.id)
            return
        if status.rejected:
            self.worker.refuse(version, printable(status.rejected[:_MAX_REASON]))
            self._fleet.metrics.streams.refused(self.pair.id)
        else:
            self.held = max(self.held, version)
            # The worker counts from when it had the push, at the earliest then.
            self._renewed = max(self._renewed, pushed_at)
            self._fleet.metrics.streams.applied(self.pair.id, self._fleet.clock.monotonic() - pushed_at)
        if status.HasField("version"):
            self.applied = decode_version(status.version)


@lru_cache(4096)
def _nonce(nonce: int) -> bytes:
    """What makes an update's bytes this stream's own: protobuf joins parts of a message that come one after another."""
    return estimator_pb2.StreamResponse(update=estimator_pb2.CoefficientUpdate(nonce=nonce)).SerializeToString()


def _check_report(report: estimator_pb2.WorkerReport) -> None:
    """Raises WireError for totals that no worker can have."""
    totals = report.totals
    claims = {field.name: getattr(totals, field.name) for field in totals.DESCRIPTOR.fields if not field.message_type}
    claims |= {f"exclusions[{i}].blocks": item.blocks for i, item in enumerate(totals.exclusions[:MAX_EXCLUSIONS])}
    for name, value in claims.items():
        if not 0 <= value <= MAX_COUNT:
            raise WireError(f"totals.{name} is {value}; accepted: 0 to {MAX_COUNT}", field=f"totals.{name}")
    if len(totals.exclusions) > MAX_EXCLUSIONS:
        raise TooLarge(
            f"totals.exclusions has {len(totals.exclusions)} entries; accepted: at most {MAX_EXCLUSIONS}",
            field="totals.exclusions",
        )
    if report.HasField("costs"):
        check_cost_table(report.costs)
