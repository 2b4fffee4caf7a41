"""The store on its own: all or nothing, migrations, recovery."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import pytest

from acceptd.errors import ConfigError
from estimator_service.storage import schema as store_schema
from estimator_service.storage import store as store_module
from estimator_service.storage.lock import StoreLock
from estimator_service.storage.records import (
    AuditRecord,
    EpochRecord,
    HistoryRecord,
    JournalRecord,
    MarkRecord,
    PairRecord,
    SnapshotRecord,
)
from estimator_service.storage.recovery import last_good_path, open_store
from estimator_service.storage.store import Store


def make(path, **options):
    return Store(path, **{"history_versions": 10, "fsync": "normal", "now": 1.0, **options})


def event(ticket, pair="p", size=10):
    return JournalRecord(ticket, pair, "batch", b"x" * size, "w", 2**64 - 1, ticket, "code")


def test_records_come_back_as_they_were(tmp_path):
    store = make(tmp_path / "s")
    records = [
        PairRecord("p", b"key", 5.0),
        HistoryRecord("p", 2, 1, 7.0, "refit", "{}"),
        HistoryRecord("p", 1, 9, 6.0, "refit", "{}"),
        event(1),
        event(2),
        event(3, "q"),
        MarkRecord("w", 2**64 - 1, "p", 2, 2),
        SnapshotRecord("p", 1, 8.0, "{}", b"window"),
        EpochRecord(4),
    ]
    store.commit(records)
    assert store.pairs() == records[:1]
    assert store.history("p", 5) == records[1:3]
    assert list(store.journal("p", 1)) == [records[4]]
    assert store.marks() == [records[6]]
    assert store.snapshot("p") == records[7]
    assert store.snapshot("q") is None
    assert (store.epoch(), store.last_ticket()) == (4, 3)
    store.commit([EpochRecord(2), MarkRecord("w", 2**64 - 1, "p", 1, 3)])
    assert store.epoch() == 4, "never goes down"
    assert store.marks()[0].sequence == 2, "never goes down"


def test_a_course_covers_all_versions_with_the_newest_among_them(tmp_path):
    store = make(tmp_path / "s", history_versions=1000)
    store.commit([HistoryRecord("p", 1 + i // 400, i % 400, float(i), "refit", "{}") for i in range(1000)])
    store.commit([HistoryRecord("q", 1, 1, 0.0, "refit", "{}")])
    whole = store.history("p", 2000)
    assert store.course("p", 1000) == whole
    for points in (1, 7, 240, 999):
        course = store.course("p", points)
        assert len(course) <= points
        assert course[0] == whole[0]
        steps = {whole.index(b) - whole.index(a) for a, b in itertools.pairwise(course)}
        assert len(steps) <= 1, "evenly"
        assert points == 1 or whole.index(course[-1]) >= 1000 - max(steps)
    assert store.course("nobody", 5) == []


def test_a_commit_is_all_or_nothing(tmp_path):
    store = make(tmp_path / "s")
    store.commit([event(1)])
    with pytest.raises(sqlite3.IntegrityError):
        store.commit([EpochRecord(9), event(2), event(1)])
    assert store.epoch() == 0
    assert [item.ticket for item in store.journal("p", 0)] == [1]
    store.commit([event(2)])


def test_the_journal_reaches_back_to_the_older_of_two_snapshots(tmp_path):
    store = make(tmp_path / "s")
    for ticket in range(1, 10):
        store.commit([event(ticket)])
        if ticket % 3 == 0:
            store.commit([SnapshotRecord("p", ticket, 1.0, "{}", str(ticket).encode())])
    assert store.snapshot("p").ticket == 9
    assert [item.ticket for item in store.journal("p", 0)] == [7, 8, 9]
    with sqlite3.connect(tmp_path / "s") as connection:
        connection.execute("UPDATE snapshots SET header = 'x' WHERE ticket = 9")
    assert store.snapshot("p").ticket == 6
    assert [item.ticket for item in store.journal("p", 6)] == [7, 8, 9]


def test_history_and_marks_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("estimator_service.storage.store.MAX_INCARNATIONS", 5)
    store = make(tmp_path / "s")
    store.commit([HistoryRecord("p", 1, i, 1.0, "refit", "{}") for i in range(30)])
    store.commit([MarkRecord("w", i, "p", 1, i) for i in range(30)])
    store.commit([SnapshotRecord("p", 1, 1.0, "{}", b"")])
    assert [item.counter for item in store.history("p", 100)] == list(range(29, 19, -1))
    assert [mark.incarnation for mark in store.marks()] == list(range(25, 30))


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("deed", ["removed", "replaced", "truncated"])
def test_a_file_that_was_meddled_with_is_noticed(tmp_path, deed, suffix):
    store = make(tmp_path / "s")
    store.commit([event(1)])
    store.commit([event(2)])
    path = tmp_path / f"s{suffix}"
    if deed == "removed":
        path.unlink()
    elif deed == "replaced":
        other = tmp_path / "other"
        other.write_bytes(path.read_bytes())
        other.rename(path)
    else:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    with pytest.raises(sqlite3.OperationalError, match=f"s{suffix} was {deed}"):
        store.commit([event(3)])


def test_growing_and_checkpoints_are_no_meddling(tmp_path):
    store = make(tmp_path / "s")
    for ticket in range(1, 400):
        store.commit([event(ticket, size=30_000)])
        if ticket % 100 == 0:
            store.commit([SnapshotRecord("p", ticket, 1.0, "{}", b"")])
            store.backup(tmp_path / "copy")


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "theirs"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE invoices (x)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program's database"):
        open_store(path, history_versions=10, fsync="normal", now=1.0)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["theirs"]


def test_a_directory_is_no_store(tmp_path):
    with pytest.raises(ConfigError, match="is a directory; accepted: a file in one"):
        StoreLock(tmp_path)


def test_a_store_of_a_later_schema_is_left_alone(tmp_path):
    store = make(tmp_path / "s")
    store.close()
    with sqlite3.connect(tmp_path / "s") as connection:
        connection.execute("INSERT INTO migrations VALUES (99, 'later', 0)")
    connection.close()
    before = (tmp_path / "s").read_bytes()
    with pytest.raises(ConfigError, match="schema version 99"):
        open_store(tmp_path / "s", history_versions=10, fsync="normal", now=1.0)
    assert (tmp_path / "s").read_bytes() == before


def test_a_change_of_schema_keeps_what_is_there(tmp_path, monkeypatch):
    store = make(tmp_path / "s")
    store.commit([PairRecord("p", b"key", 5.0), EpochRecord(3)])
    store.close()
    later = (*store_schema.MIGRATIONS, ("a table", ("CREATE TABLE added (x)",)))
    monkeypatch.setattr(store_schema, "MIGRATIONS", later)
    monkeypatch.setattr(store_schema, "SCHEMA_VERSION", len(later))
    store = make(tmp_path / "s", now=2.0)
    assert store.epoch() == 3
    assert len(store.pairs()) == 1
    store.close()
    with sqlite3.connect(tmp_path / "s") as connection:
        applied = connection.execute("SELECT version, applied_at FROM migrations").fetchall()
        assert applied == [*((version, 1.0) for version in range(1, len(later))), (len(later), 2.0)]
        assert connection.execute("SELECT count(*) FROM added").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("version", range(1, store_schema.SCHEMA_VERSION))
def test_a_store_of_each_earlier_schema_is_taken_up(tmp_path, monkeypatch, version):
    with monkeypatch.context() as patch:
        patch.setattr(store_schema, "MIGRATIONS", store_schema.MIGRATIONS[:version])
        patch.setattr(store_schema, "SCHEMA_VERSION", version)
        old = make(tmp_path / "s")
        old.commit([PairRecord("p", b"key", 5.0), EpochRecord(3), event(1)])
        old.close()
    reader = make(tmp_path / "s", now=None)
    assert reader.last_ticket() == 1, "a disk that has become read-only: as it is"
    reader.close()
    store = make(tmp_path / "s", now=2.0)
    assert (store.epoch(), store.last_ticket(), len(store.pairs())) == (3, 1, 1)
    entry = AuditRecord(2, 1.5, "me", "peer", "pin", "p", "{}", "{}")
    store.commit([entry])
    assert (store.audit("", 5), store.audit("p", 5), store.audit("q", 5)) == ([entry], [entry], [])
    assert store.last_ticket() == 2


def test_the_audit_is_bounded_and_an_entry_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_AUDIT_ENTRIES", 3)
    store = make(tmp_path / "s")
    for ticket in (1, 2, 2, 3, 4, 5):
        store.commit([AuditRecord(ticket, 1.0, "who", "peer", "pin", "p", "{}", "{}")])
    assert [entry.ticket for entry in store.audit("", 10)] == [5, 4, 3]
    assert [entry.ticket for entry in store.audit("p", 2)] == [5, 4]


def test_a_change_of_schema_that_fails_changes_nothing(tmp_path, monkeypatch):
    make(tmp_path / "s").close()
    later = (*store_schema.MIGRATIONS, ("broken", ("CREATE TABLE added (x)", "CREATE NONSENSE")))
    monkeypatch.setattr(store_schema, "MIGRATIONS", later)
    with pytest.raises(sqlite3.OperationalError):
        make(tmp_path / "s")
    with sqlite3.connect(tmp_path / "s") as connection:
        assert connection.execute("SELECT max(version) FROM migrations").fetchone() == (len(later) - 1,)
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'added'").fetchall()
    connection.close()


def test_recovery_prefers_the_copy_and_falls_back_to_empty(tmp_path, caplog):
    path = tmp_path / "s"
    options = {"history_versions": 10, "fsync": "normal", "now": 1.0}
    store = open_store(path, **options)
    store.commit([EpochRecord(5)])
    store.backup(last_good_path(path))
    store.commit([EpochRecord(6)])
    store.close()
    path.write_bytes(b"garbage" * 1000)
    store = open_store(path, **options)
    assert store.epoch() == 5
    store.close()
    path.write_bytes(b"garbage" * 1000)
    last_good_path(path).write_bytes(b"more garbage" * 1000)
    store = open_store(path, **options)
    assert store.epoch() == 0
    assert "starting with an empty store" in caplog.text
    assert len([item for item in tmp_path.iterdir() if ".damaged-" in item.name]) == 3
