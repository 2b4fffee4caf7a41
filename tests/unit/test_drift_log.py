"""The log of named changes: bounded, newest first, kept over a restart."""

from __future__ import annotations

from test_service_pair import ManualClock, feed, make_pair

from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.drift_log import MAX_DRIFTS, DriftLog
from estimator_service.fit.drift import Drift, DriftKind
from estimator_service.state import drift_entry


def drift(number: int, kind: DriftKind = DriftKind.PAIR) -> Drift:
    return Drift(kind, number, number - 3, 0.2, 0.01, -0.1, 0.02, f"slope 0.50 → 0.{number:02d}")


def test_the_newest_events_stay() -> None:
    log = DriftLog()
    for number in range(10, 10 + MAX_DRIFTS + 5):
        log.add([drift(number)], at=float(number))
    events = log.newest_first()
    assert len(events) == MAX_DRIFTS
    assert [event.at for event in events[:2]] == [78.0, 77.0]
    assert (events[0].kind, events[0].delay, events[0].slope) == ("pair", 3, 0.2)


def test_a_snapshot_keeps_the_log_and_one_without_a_log_is_taken() -> None:
    pair = make_pair(ManualClock())
    feed(pair, 50)
    pair.drift_log.add([drift(12, DriftKind.WORKLOAD)], at=5.0)
    header, window = pair.state()
    restored = make_pair(ManualClock())
    restored.restore(header, window)
    assert restored.drift_log.newest_first() == pair.drift_log.newest_first()
    del header["drifts"]
    restored.restore(header, window)
    assert restored.drift_log.newest_first() == []


def test_events_reach_the_json() -> None:
    log = DriftLog()
    log.add([drift(20)], at=7.0)
    state = inspect_pb2.PairState(drifts=[drift_entry(event) for event in log.newest_first()])
    (shown,) = jsonable.pair_state(state)["drifts"]
    assert (shown["at_seconds"], shown["kind"], shown["cause"], shown["delay_rounds"]) == (
        7.0,
        "pair",
        "slope 0.50 → 0.20",
        3,
    )
