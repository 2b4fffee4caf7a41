"""A service that lives in the test: real gRPC, scripted answers, everything it received kept for assertions.

For tests of the hook, and of whatever someone builds around it. It learns nothing: `push` sends what the test says.

    with FakeService() as service:
        uplink = Uplink(service.address, pair, worker="w0")
        uplink.start()
        service.push(prior(4, Version(1, 1)))
"""

from __future__ import annotations

import queue
import threading
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from acceptd import codec
from acceptd.limits import MAX_MESSAGE_BYTES
from acceptd.v1 import estimator_pb2, types_pb2
from acceptd.v1.estimator_pb2_grpc import EstimatorServicer, add_EstimatorServicer_to_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from acceptd.types import Coefficients


@dataclass
class Refusal(Exception):
    """Raised by a script: ends the stream with this status. trailing: metadata to go with it."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, bytes | str], ...] = ()


@dataclass
class Connection:
    """One stream: its Hello, and all that came after it."""

    hello: estimator_pb2.Hello
    metadata: dict[str, str] = field(default_factory=dict)
    batches: list[estimator_pb2.ObservationBatch] = field(default_factory=list)
    statuses: list[estimator_pb2.UpdateStatus] = field(default_factory=list)
    reports: list[estimator_pb2.WorkerReport] = field(default_factory=list)
    responses: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)


class FakeService:
    """Answers each Hello with `welcome(connection)` and each batch with `answer(connection, batch)`; replace either.

    An answer of None is never sent. `applied` holds the batches that counted, by (incarnation, sequence): once each.
    """

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.connections: list[Connection] = []
        self.applied: dict[tuple[int, int], estimator_pb2.ObservationBatch] = {}
        self.welcome: Callable[[Connection], estimator_pb2.Welcome] = self.default_welcome
        self.answer: Callable[[Connection, estimator_pb2.ObservationBatch], estimator_pb2.BatchResult | None] = (
            self.apply
        )
        self.pushed: estimator_pb2.CoefficientUpdate | None = None
        self.epoch = 1
        self._nonce = 0
        self._address = address
        self._server: grpc.Server | None = None
        self.start()

    def start(self) -> None:
        """Listens; after a `stop`, again at the same address."""
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        # Each stream holds a thread; a test rarely has more than a handful at once.
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
        add_EstimatorServicer_to_server(_Servicer(self), self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(self._address)
        self._address = f"{self._address.rsplit(':', 1)[0]}:{port}"
        self._server.start()

    def stop(self, grace: float | None = None) -> None:
        """Ends every stream and stops listening."""
        if self._server is not None:
            for connection in self.connections:
                connection.responses.put(None)
            self._server.stop(grace).wait()
            self._server = None

    def __enter__(self) -> FakeService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """host:port."""
        return self._address

    @property
    def batches(self) -> list[estimator_pb2.ObservationBatch]:
        """Of all connections, as they came, repetitions included."""
        return [batch for connection in list(self.connections) for batch in connection.batches]

    @property
    def statuses(self) -> list[estimator_pb2.UpdateStatus]:
        """Of all connections, in order."""
        return [status for connection in list(self.connections) for status in connection.statuses]

    def push(
        self, coefficients: Coefficients, *, mode: int = types_pb2.MODE_TRIM, exploration_rate: float = 0.0
    ) -> int:
        """Sends coefficients to every open stream and to those that come; the nonce."""
        self._nonce += 1
        self.pushed = estimator_pb2.CoefficientUpdate(
            coefficients=codec.encode_coefficients(coefficients),
            nonce=self._nonce,
            mode=mode,  # type: ignore[arg-type]
            exploration_rate=exploration_rate,
        )
        self.send(estimator_pb2.StreamResponse(update=self.pushed))
        return self._nonce

    def send(self, response: estimator_pb2.StreamResponse | Refusal) -> None:
        """Any message, or the end of the stream, on the latest stream."""
        if self.connections:
            self.connections[-1].responses.put(response)

    def default_welcome(self, connection: Connection) -> estimator_pb2.Welcome:
        """Epoch, no limits, short flush ages, what was pushed last, and the high-water mark of this incarnation."""
        incarnation = connection.hello.incarnation
        welcome = estimator_pb2.Welcome(
            epoch=self.epoch,
            flush=estimator_pb2.FlushPolicy(rows=1024, max_age_seconds=0.02, coefficients_max_age_seconds=60),
            last_sequence=max((sequence for who, sequence in self.applied if who == incarnation), default=0),
        )
        if self.pushed is not None:
            welcome.update.CopyFrom(self.pushed)
        return welcome

    def apply(self, connection: Connection, batch: estimator_pb2.ObservationBatch) -> estimator_pb2.BatchResult:
        """Counts the batch once; refuses what is not the next sequence."""
        incarnation = connection.hello.incarnation
        last = max((sequence for who, sequence in self.applied if who == incarnation), default=0)
        rows = len(batch.accepted)
        if batch.sequence <= last:
            return estimator_pb2.BatchResult(
                sequence=batch.sequence, last_sequence=last, reason=estimator_pb2.REJECT_REASON_DUPLICATE
            )
        if batch.sequence != last + 1:
            return estimator_pb2.BatchResult(
                sequence=batch.sequence,
                last_sequence=last,
                rows_rejected=rows,
                reason=estimator_pb2.REJECT_REASON_OUT_OF_ORDER,
            )
        self.applied[incarnation, batch.sequence] = batch
        return estimator_pb2.BatchResult(sequence=batch.sequence, last_sequence=batch.sequence, rows_accepted=rows)


class _Servicer(EstimatorServicer):
    def __init__(self, service: FakeService) -> None:
        self._service = service

    def Stream(self, requests: Iterator[estimator_pb2.StreamRequest], context: Any) -> Iterator[Any]:  # noqa: N802
        service = self._service
        connection = Connection(next(requests).hello, {key: str(value) for key, value in context.invocation_metadata()})
        service.connections.append(connection)
        try:
            welcome = service.welcome(connection)
        except Refusal as refusal:
            self._refuse(context, refusal)
        yield estimator_pb2.StreamResponse(welcome=welcome)
        threading.Thread(target=self._read, args=(connection, requests), daemon=True).start()
        while True:
            response = connection.responses.get()
            if response is None:
                return
            if isinstance(response, Refusal):
                self._refuse(context, response)
            yield response

    def _read(self, connection: Connection, requests: Iterator[estimator_pb2.StreamRequest]) -> None:
        try:
            for request in requests:
                kind = request.WhichOneof("message")
                if kind == "batch":
                    connection.batches.append(request.batch)
                    result = self._service.answer(connection, request.batch)
                    if result is not None:
                        connection.responses.put(estimator_pb2.StreamResponse(batch_result=result))
                elif kind == "update_status":
                    connection.statuses.append(request.update_status)
                elif kind == "report":
                    connection.reports.append(request.report)
        except Refusal as refusal:
            connection.responses.put(refusal)
        except Exception:  # the client went away
            connection.responses.put(None)
        else:
            connection.responses.put(None)

    @staticmethod
    def _refuse(context: Any, refusal: Refusal) -> None:
        context.set_trailing_metadata(refusal.trailing)
        context.abort(refusal.code, refusal.details)
