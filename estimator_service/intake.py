"""One stream's batches: each is learned from, postponed or refused, and none twice. Knows no gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acceptd.codec import decode_batch, decode_version
from acceptd.errors import MalformedBatch, NonFiniteValue, TooLarge, WireError
from acceptd.limits import MAX_COUNT
from acceptd.v1 import estimator_pb2
from acceptd.v1.estimator_pb2 import RejectReason
from estimator_service.answers import Acceptance
from estimator_service.storage.delivery import RETRY_SECONDS

if TYPE_CHECKING:
    from acceptd.types import Version
    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair
    from estimator_service.worker import Worker

#: Largest sequence: what SQLite's signed integers hold.
_MAX_SEQUENCE = 2**63 - 1
#: Entries of a list of exclusions: one a reason, and room for a hook that is newer than this service.
MAX_EXCLUSIONS = 64


class Intake:
    """Of one worker's stream, whose rows have the label `workload`."""

    def __init__(self, fleet: Fleet, pair: Pair, worker: Worker, workload: str) -> None:
        self._fleet = fleet
        self._pair = pair
        self.worker = worker
        self._workload = workload
        #: Sequence that this stream's first batch had: it alone may follow a gap, also when it was postponed.
        self._begins_at = 0

    def take(
        self, batch: estimator_pb2.ObservationBatch, held: Version
    ) -> tuple[Acceptance | estimator_pb2.BatchResult, int]:
        """The result of one batch, and the ticket that has to be committed before it is sent (0: none).

        held: highest version the worker is known to hold.
        """
        if (untimely := self._untimely(batch)) is not None:
            return untimely
        worker, sequence, rows = self.worker, batch.sequence, len(batch.accepted)
        if sequence > worker.last_sequence + 1:
            self._fleet.metrics.gap(self._pair.id, sequence - worker.last_sequence - 1)
        try:
            self._check(batch, rows)
            observations = decode_batch(batch, self._pair.num_positions)
        except WireError as error:
            return self._set_aside(batch, _reason(error), str(error), error.field, error.index)
        version = decode_version(batch.version) if batch.HasField("version") else None
        if not self._pair.publications.knows(version, held):
            message = f"version {version} was never published to {self._pair.id}"
            return self._set_aside(batch, RejectReason.REJECT_REASON_UNKNOWN_VERSION, message, "version", 0)
        # Before it is applied: a batch that fails inside must not come back and fail for ever.
        worker.last_sequence = sequence
        set_aside = self._pair.apply(observations, batch.exclusions, version, self._workload, worker.name)
        ticket = self._fleet.ledger.batch(self._pair, worker, self._workload, batch)
        result: Acceptance | estimator_pb2.BatchResult
        if set_aside:
            result = self._result(batch, RejectReason.REJECT_REASON_QUARANTINED, f"in quarantine: {set_aside}")
        else:
            worker.blocks += rows
            self._fleet.taps.offer(self._pair.id, worker.name, self._workload, batch)
            result = Acceptance(sequence, rows)
        self._fleet.applied(self._pair)
        return result, ticket

    def _untimely(self, batch: estimator_pb2.ObservationBatch) -> tuple[estimator_pb2.BatchResult, int] | None:
        """The refusal of a batch that is not the next one, or comes too fast; None if its turn is now."""
        sequence, expected = batch.sequence, self.worker.last_sequence + 1
        if not 1 <= sequence <= _MAX_SEQUENCE:
            message = f"sequence is {sequence}; accepted: 1 to {_MAX_SEQUENCE}"
            return self._refuse(batch, RejectReason.REJECT_REASON_MALFORMED, message, field="sequence"), 0
        if sequence < expected:
            message = f"batch {sequence} is done with; last_sequence is {expected - 1}"
            # What the answer to the first arrival waits for, this one waits for too.
            return self._refuse(batch, RejectReason.REJECT_REASON_DUPLICATE, message), self._fleet.ledger.awaited
        # On a new stream: a worker that comes back may have forgotten batches that were answered on an earlier one.
        self._begins_at = self._begins_at or sequence
        if sequence not in {expected, self._begins_at}:
            message = f"sequence is {sequence}; accepted: {expected}"
            return self._refuse(batch, RejectReason.REJECT_REASON_OUT_OF_ORDER, message, field="sequence"), 0
        if (trouble := self._fleet.ledger.postpone) is not None:
            return self._postpone(batch, f"the store cannot commit: {trouble}", RETRY_SECONDS), 0
        if over := self._fleet.rates.take(self._pair.id, self.worker.key, len(batch.accepted)):
            message, wait = over
            return self._postpone(batch, message, wait), 0
        return None

    def _check(self, batch: estimator_pb2.ObservationBatch, rows: int) -> None:
        """Limits that are this service's, beside those of the protocol."""
        if rows > (limit := self._fleet.settings.max_rows):
            raise TooLarge(f"accepted has {rows} rows; accepted: 1 to {limit}", field="accepted", index=limit)
        exclusions = batch.exclusions
        if (entries := len(exclusions)) > MAX_EXCLUSIONS:
            raise TooLarge(
                f"exclusions has {entries} entries; accepted: at most {MAX_EXCLUSIONS}",
                field="exclusions",
                index=MAX_EXCLUSIONS,
            )
        for i, item in enumerate(exclusions if entries else ()):
            if item.blocks > MAX_COUNT:
                raise MalformedBatch(
                    f"exclusions[{i}].blocks is {item.blocks}; accepted: at most {MAX_COUNT}",
                    field="exclusions",
                    index=i,
                )

    def _set_aside(
        self, batch: estimator_pb2.ObservationBatch, reason: RejectReason, message: str, field: str, index: int
    ) -> tuple[estimator_pb2.BatchResult, int]:
        """Refuses a batch for good: nothing of it is applied, its sequence is done with."""
        self.worker.last_sequence = batch.sequence
        result = self._refuse(batch, reason, message, field=field, index=index)
        return result, self._fleet.ledger.reject(self._pair, self.worker, batch.sequence, reason, len(batch.accepted))

    def _postpone(self, batch: estimator_pb2.ObservationBatch, message: str, wait: float) -> estimator_pb2.BatchResult:
        """Refuses a batch for now: it may be sent again after `wait` seconds."""
        result = self._refuse(batch, RejectReason.REJECT_REASON_OVER_QUOTA, message)
        result.retry_after_seconds = wait
        return result

    def _refuse(
        self,
        batch: estimator_pb2.ObservationBatch,
        reason: RejectReason,
        message: str,
        *,
        field: str = "",
        index: int = 0,
    ) -> estimator_pb2.BatchResult:
        self._pair.reject(reason, len(batch.accepted))
        result = self._result(batch, reason, message)
        result.field, result.index = field, index
        return result

    def _result(
        self, batch: estimator_pb2.ObservationBatch, reason: RejectReason, message: str
    ) -> estimator_pb2.BatchResult:
        return estimator_pb2.BatchResult(
            sequence=batch.sequence,
            last_sequence=self.worker.last_sequence,
            rows_rejected=len(batch.accepted),
            reason=reason,
            message=message,
        )


def _reason(error: WireError) -> RejectReason:
    if isinstance(error, NonFiniteValue):
        return RejectReason.REJECT_REASON_NON_FINITE
    if isinstance(error, TooLarge):
        return RejectReason.REJECT_REASON_TOO_LARGE
    return RejectReason.REJECT_REASON_MALFORMED
