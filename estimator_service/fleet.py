"""All pairs, workers and streams of one process, and what moves them: rounds, publications, heartbeats."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from acceptd.codec import decode_pair_key, decode_version
from acceptd.errors import TooLarge, WireError
from acceptd.limits import MAX_KNOTS, MAX_WORKER_BYTES, MAX_WORKLOAD_BYTES
from acceptd.names import check_printable
from acceptd.segments import MAX_SEGMENTS
from estimator_service.board import Board
from estimator_service.log_limit import LogLimit
from estimator_service.outbox import Ending
from estimator_service.pair import Pair
from estimator_service.publication import Publication
from estimator_service.rate import Rates
from estimator_service.session import Session
from estimator_service.storage.archive import Archive
from estimator_service.tap import Taps
from estimator_service.worker import Roster, WorkerKey

if TYPE_CHECKING:
    from acceptd.types import PairKey
    from acceptd.v1 import estimator_pb2
    from estimator_service.clock import Clock
    from estimator_service.config import Settings
    from estimator_service.metrics import Metrics
    from estimator_service.storage.ledger import Ledger

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())

#: Epochs that a worker may bring from elsewhere. Above it, ours could not be raised over it and still fit the store.
MAX_FOREIGN_EPOCH = 2**62
#: Bytes of free text in Hello (versions of the hook and of vLLM).
_MAX_TEXT_BYTES = 128


class Busy(TooLarge):
    """A limit on pairs or streams is reached. `retry_after` is in seconds."""

    retry_after = 5.0


class Fleet:
    """Single-threaded: every method is called on the event loop. Knows no gRPC."""

    def __init__(self, settings: Settings, clock: Clock, ledger: Ledger, metrics: Metrics) -> None:
        self.settings = settings
        self.clock = clock
        self.ledger = ledger
        self.archive = Archive(ledger, clock)
        self.metrics = metrics
        self.epoch = ledger.epoch
        self.board: Board[Publication] = Board(lambda call: asyncio.get_running_loop().call_soon(call))
        self.pairs: dict[str, Pair] = {}
        self.roster = Roster()
        self.taps = Taps(metrics.tap_dropped)
        self.rates = Rates(settings, clock)
        self.sessions: dict[WorkerKey, Session] = {}
        #: Set while no stream is open.
        self.empty = asyncio.Event()
        self.empty.set()
        self.draining = False

    # Streams

    async def connect(self, hello: estimator_pb2.Hello, peer: str) -> Session:
        """A session for this Hello; an older stream of the same incarnation is fenced.

        Raises IncompatiblePeer or WireError (what Hello says), Busy (a limit of this service).
        """
        key = decode_pair_key(hello.pair)
        self._check_hello(hello)
        identity = hello.worker, hello.incarnation
        pair = self._admit(key, identity)
        if hello.HasField("version"):
            await self._rise_above(hello, pair)
        self._fence(identity)
        worker = self.roster.get(*identity, pair.id)
        if not await self.ledger.settled(worker.ticket):
            # Welcome would tell the worker to forget what a crash now would lose.
            raise Busy(f"what {worker.name} sent before cannot be committed now: {self.ledger.delivery.trouble}")
        self._fence(identity)
        if self.pairs.get(pair.id) is not pair:
            raise Busy(f"{pair.id} made room for another pair while this worker was let in")
        # Again: the stream that was just fenced may have been all there was to remember.
        worker = self.roster.get(*identity, pair.id)
        session = Session(self, pair, worker, hello, peer)
        self.sessions[identity] = session
        worker.connected = True
        self.empty.clear()
        logger.info("worker %r (%016x) of %s connected from %s", *identity, pair.id, peer)
        return session

    def pair_of(self, hello: estimator_pb2.Hello) -> Pair | None:
        """The pair that this worker and incarnation streamed for before, if both are still known."""
        worker = self.roster.find(hello.worker, hello.incarnation)
        return self.pairs.get(worker.pair) if worker is not None else None

    def disconnect(self, session: Session) -> None:
        """Forgets a stream that ended. Its worker stays on the roster."""
        session.leave()
        session.pair.last_active = self.clock.monotonic()
        if self.sessions.get(session.worker.key) is session:
            del self.sessions[session.worker.key]
            self.roster.left(session.worker)
        if not self.sessions:
            self.empty.set()

    def sessions_of(self, pair: Pair) -> list[Session]:
        """The connected workers of a pair."""
        return [session for session in self.sessions.values() if session.pair is pair]

    def _fence(self, identity: WorkerKey) -> None:
        """Ends the stream that this incarnation has, if any."""
        if older := self.sessions.get(identity):
            older.end(Ending("ABORTED", "fenced: a newer stream of this worker and incarnation said Hello"))
            self.metrics.stream_ended("fenced")
            self.disconnect(older)

    def _check_hello(self, hello: estimator_pb2.Hello) -> None:
        for name, value, least, limit in (
            ("worker", hello.worker, 1, MAX_WORKER_BYTES),
            ("workload", hello.workload, 0, MAX_WORKLOAD_BYTES),
            ("hook_version", hello.hook_version, 0, _MAX_TEXT_BYTES),
            ("vllm_version", hello.vllm_version, 0, _MAX_TEXT_BYTES),
        ):
            if not least <= (length := len(value.encode())) <= limit:
                raise WireError(f"{name} has {length} bytes; accepted: {least} to {limit}", field=name)
            check_printable(name, value)
        for name, number, most in (
            ("capabilities.max_knots", hello.capabilities.max_knots, MAX_KNOTS),
            ("capabilities.max_segments", hello.capabilities.max_segments, MAX_SEGMENTS),
        ):
            if number > most:
                raise WireError(f"{name} is {number}; accepted: 0 to {most}", field=name)
        if hello.version.epoch > max(MAX_FOREIGN_EPOCH, self.epoch):
            raise WireError(
                f"version.epoch is {hello.version.epoch}; accepted: up to {MAX_FOREIGN_EPOCH}", field="version.epoch"
            )

    def _admit(self, key: PairKey, identity: WorkerKey) -> Pair:
        settings = self.settings
        pair = self.pairs.get(key.id)
        if identity not in self.sessions:
            if len(self.sessions) >= settings.max_workers:
                raise Busy(
                    f"{len(self.sessions)} workers are connected; accepted: max_workers = {settings.max_workers}"
                )
            if pair is not None and len(self.sessions_of(pair)) >= settings.max_workers_a_pair:
                raise Busy(f"{key.id} has max_workers_a_pair = {settings.max_workers_a_pair} workers connected")
        return pair or self.begin(key)

    def begin(self, key: PairKey) -> Pair:
        """A pair that is not known yet. Raises Busy if no more fit."""
        if len(self.pairs) >= self.settings.max_pairs:
            self._forget_idle_pair()
        pair = Pair(key, self.settings, self.clock, self.epoch)
        self.ledger.pair(pair)
        self.add(pair)
        logger.info("new pair %s: %s", pair.id, key)
        return pair

    def _forget_idle_pair(self) -> None:
        """Makes room for a pair: each update of a model's weights begins one, and leaves one behind.

        Those that were never more than a Hello go first, so that many of them take no place of what was learned.
        Raises Busy if all pairs have workers.
        """
        busy = {session.pair.id for session in self.sessions.values()}
        idle = [pair for pair in self.pairs.values() if pair.id not in busy]
        if not idle:
            raise Busy(f"{len(self.pairs)} pairs have workers; accepted: max_pairs = {self.settings.max_pairs}")
        pair = min(idle, key=lambda pair: (not pair.blank, pair.last_active))
        logger.warning("pair %s has no workers and is forgotten: max_pairs = %d", pair.id, self.settings.max_pairs)
        del self.pairs[pair.id]
        self.board.drop(pair.id)
        self.rates.forget(pair.id)
        self.ledger.forget(pair)
        self.metrics.forget(pair.id)

    async def _rise_above(self, hello: estimator_pb2.Hello, pair: Pair) -> None:
        """Makes sure that what is handed out from here on does not sort before what this worker holds."""
        held = decode_version(hello.version)
        ours = pair.publication.version
        foreign = held.epoch > self.epoch or (held.epoch == self.epoch and held > ours)
        if foreign:
            epoch = held.epoch + 1
            await self.ledger.raise_epoch(epoch)
            if epoch > self.epoch:
                logger.warning("worker %r holds version %s: epoch %d → %d", hello.worker, held, self.epoch, epoch)
                self.epoch = epoch
                for each in self.pairs.values():
                    each.publications.epoch = epoch
        if publication := pair.publications.outrank(held):
            self.ledger.published(pair, publication)
            self.board.publish(pair.id, publication)

    def add(self, pair: Pair) -> None:
        """Takes up a pair, new or from the store."""
        self.pairs[pair.id] = pair
        self.metrics.open(pair.id)
        self.board.publish(pair.id, pair.publication)

    # Rounds and heartbeats

    def applied(self, pair: Pair) -> None:
        """Closes the pair's round if it is due."""
        if pair.due():
            self._close_round(pair)

    def tick(self) -> None:
        """What is due by time: rounds, answers, heartbeats, the ledger. Called several times a second."""
        for pair in self.pairs.values():
            self.applied(pair)
        now = self.clock.monotonic()
        for session in self.sessions.values():
            session.look(now)
        self.ledger.tick()

    def _close_round(self, pair: Pair) -> None:
        try:
            decision = pair.close_round()
        except Exception:
            # One pair's numbers must not end the streams of its workers, nor keep others from being served.
            logger.exception("refit of %s failed; version %s stays", pair.id, pair.publication.version)
            pair.postpone_round()
            return
        self.metrics.refit(pair.id, pair.last_refit_seconds)
        for drift in decision.drifts:
            self.metrics.drift(pair.id, drift.kind)
            logger.warning("%s: %s", pair.id, drift)
        self.ledger.round(pair, decision)
        if decision.publication is not None:
            self.board.publish(pair.id, decision.publication)

    def committed(self) -> None:
        """The store has committed more: answers that waited for it may leave."""
        for session in self.sessions.values():
            if session.outbox.waiting:
                session.outbox.wake()

    def drain(self, reason: str) -> None:
        """Takes no more streams and tells those there are."""
        self.draining = True
        self.taps.wake()
        for session in self.sessions.values():
            session.drain(reason, self.settings.reconnect_seconds)
