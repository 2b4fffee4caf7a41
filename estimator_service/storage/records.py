"""The rows that the store keeps, as the event loop hands them to the writer thread: immutable, plain values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_service.fit.snapshot import Packing


@dataclass(frozen=True)
class EpochRecord:
    """The store's epoch; it never goes down."""

    epoch: int


@dataclass(frozen=True)
class PairRecord:
    """A pair that is known. key: serialized PairKey message. first_seen: wall-clock seconds."""

    id: str
    key: bytes
    first_seen: float


@dataclass(frozen=True)
class ForgetRecord:
    """A pair is forgotten, with all that was kept of it but its workers' marks."""

    pair: str


@dataclass(frozen=True)
class HistoryRecord:
    """One published version. body: JSON of all of it (`Publication.to_json`)."""

    pair: str
    epoch: int
    counter: int
    published: float
    cause: str
    body: str


@dataclass(frozen=True)
class JournalRecord:
    """One event of a pair since its latest snapshot; replaying them in order of `ticket` gives the state again.

    kind: "batch" (payload: serialized ObservationBatch), "reject" (payload: JSON) or "round" (payload: JSON).
    """

    ticket: int
    pair: str
    kind: str
    payload: bytes
    worker: str = ""
    incarnation: int = 0
    sequence: int = 0
    workload: str = ""


@dataclass(frozen=True)
class MarkRecord:
    """High-water mark of one worker process. touched: ticket of its last change."""

    worker: str
    incarnation: int
    pair: str
    sequence: int
    touched: int


@dataclass(frozen=True)
class SnapshotRecord:
    """A pair's state after the event `ticket`. header: JSON, exact counters. window: the model's bytes, or what makes
    them when the store asks.
    """

    pair: str
    ticket: int
    taken: float
    header: str
    window: bytes | Packing

    @property
    def checksum(self) -> bytes:
        """SHA-256 over everything else."""
        digest = hashlib.sha256(f"{self.pair}\n{self.ticket}\n{self.taken!r}\n{self.header}\n".encode())
        digest.update(bytes(self.window))
        return digest.digest()


@dataclass(frozen=True)
class AuditRecord:
    """What an operator did. ticket: the ledger's, names the entry. at: wall-clock seconds. before, after: JSON."""

    ticket: int
    at: float
    who: str
    peer: str
    action: str
    pair: str
    before: str
    after: str


Record = (
    EpochRecord | PairRecord | ForgetRecord | HistoryRecord | JournalRecord | MarkRecord | SnapshotRecord | AuditRecord
)
