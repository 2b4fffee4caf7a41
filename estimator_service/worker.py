"""What the service remembers of one worker process, over all of its streams."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from acceptd.v1 import estimator_pb2
from estimator_service.storage.records import MarkRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acceptd.types import Version

#: Incarnations remembered. One that is forgotten and comes back would have a batch that it sends again counted twice,
#: so this is far above the number of workers at once; each costs under a kilobyte.
MAX_INCARNATIONS = 16_384
#: Refused versions remembered a worker. Versions only grow, so an old one is not pushed again anyway.
_MAX_REFUSED = 16

WorkerKey = tuple[str, int]


@dataclass
class Worker:
    """One incarnation. `last_sequence` is its high-water mark: batches up to it are done with, applied or refused.

    connected: whether it has a stream. ticket: the ledger's, of its latest event. restored: known from an earlier
    process of the service. reported: `report` came from the worker.
    """

    name: str
    incarnation: int
    pair: str
    last_sequence: int = 0
    connected: bool = False
    ticket: int = 0
    blocks: int = 0
    restored: bool = False
    reported: bool = False
    report: estimator_pb2.WorkerReport = field(default_factory=estimator_pb2.WorkerReport)
    last_rejected_update: str = ""
    _refused: OrderedDict[Version, None] = field(default_factory=OrderedDict)

    @property
    def key(self) -> WorkerKey:
        """(name, incarnation)."""
        return self.name, self.incarnation

    @property
    def blank(self) -> bool:
        """Whether there is nothing to remember of it."""
        return not (self.last_sequence or self.reported or self._refused)

    def mark(self) -> MarkRecord:
        """Its high-water mark as a row."""
        return MarkRecord(self.name, self.incarnation, self.pair, self.last_sequence, self.ticket)

    def refuse(self, version: Version, why: str) -> None:
        """Notes that the worker did not take `version`."""
        self._refused[version] = None
        self._refused.move_to_end(version)
        while len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)
        self.last_rejected_update = why

    def refused(self, version: Version) -> bool:
        """Whether the worker said no to `version`."""
        return version in self._refused


class Roster:
    """(name, incarnation) → Worker, at most `MAX_INCARNATIONS`; the one seen longest ago goes first.

    One that is connected never goes, so that there are as many as are connected where those are more.
    """

    def __init__(self) -> None:
        self._workers: OrderedDict[WorkerKey, Worker] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def find(self, name: str, incarnation: int) -> Worker | None:
        """The worker if it is remembered; that does not count as seeing it."""
        return self._workers.get((name, incarnation))

    def get(self, name: str, incarnation: int, pair: str) -> Worker:
        """The worker, remembered or new."""
        worker = self._workers.get((name, incarnation))
        if worker is None:
            worker = Worker(name, incarnation, pair)
            self._workers[worker.key] = worker
            self._make_room()
        self._workers.move_to_end(worker.key)
        worker.pair = pair
        return worker

    def left(self, worker: Worker) -> None:
        """Its stream is gone. A worker that said Hello and no more is forgotten: floods of those must cost nobody."""
        worker.connected = False
        if worker.blank:
            self._workers.pop(worker.key, None)

    def _make_room(self) -> None:
        """Forgets the oldest that is not connected."""
        for _ in range(len(self._workers) - 1):
            if len(self._workers) <= MAX_INCARNATIONS:
                return
            key, worker = next(iter(self._workers.items()))
            if worker.connected:
                self._workers.move_to_end(key)
            else:
                del self._workers[key]
