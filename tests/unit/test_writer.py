"""The store's thread outlives whatever goes wrong in a commit, and says what it was."""

from __future__ import annotations

import threading

import pytest

from estimator_service.storage.records import SnapshotRecord
from estimator_service.storage.writer import StoreWriter

DEADLINE = 10.0


class Listener:
    def __init__(self) -> None:
        self.committed: list[int] = []
        self.troubles: list[str] = []
        self.told = threading.Semaphore(0)

    def on_committed(self, ticket: int) -> None:
        self.committed.append(ticket)
        self.told.release()

    def on_trouble(self, why: str) -> None:
        self.troubles.append(why)
        self.told.release()


class Disk:
    """In place of a store: keeps what is committed, unless a window cannot be made."""

    def __init__(self) -> None:
        self.windows: list[bytes] = []

    def commit(self, records) -> None:
        self.windows += [bytes(record.window) for record in records]

    def close(self) -> None:
        pass


class Unpackable:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __bytes__(self) -> bytes:
        raise self.error


def snapshot(window):
    return SnapshotRecord("p", 1, 0.0, "{}", window)


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("no room"), RuntimeError("compression failed")])
def test_a_window_that_cannot_be_compressed_is_trouble_and_not_the_end(error):
    listener, disks = Listener(), []

    def reopen():
        disks.append(Disk())
        return disks[-1]

    writer = StoreWriter(Disk(), reopen, listener)
    writer.start()
    try:
        writer.submit([snapshot(Unpackable(error))], 1)
        assert listener.told.acquire(timeout=DEADLINE)
        assert listener.troubles == [str(error) or "MemoryError"]
        writer.submit([snapshot(b"all of it")], 2, whole=True)
        assert listener.told.acquire(timeout=DEADLINE)
        assert (listener.committed, disks[-1].windows) == ([2], [b"all of it"])
    finally:
        writer.stop()
