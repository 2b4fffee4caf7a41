"""Which workers are told, when, that their coefficients are still in force."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from acceptd.codec import encode_pair_key
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2
from estimator_service.config import load_settings
from estimator_service.fleet import Fleet
from estimator_service.metrics import Metrics
from estimator_service.storage.ledger import Ledger

KEY = PairKey("target", "draft", 4)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1e9 + self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fleet(clock):
    settings = load_settings({"heartbeat_seconds": 5.0}, environ={})
    return Fleet(
        settings, clock, Ledger(settings, clock, epoch=1, ticket=0, trouble=None), Metrics(CollectorRegistry())
    )


async def greeted(fleet, name):
    hello = estimator_pb2.Hello(pair=encode_pair_key(KEY), worker=name, incarnation=hash(name) % 2**63)
    session = await fleet.connect(hello, "test")
    return session, session.welcome().update.nonce


def sent(session):
    found = []
    while (data := session.outbox.take()) is not None:
        found.append(estimator_pb2.StreamResponse.FromString(data).WhichOneof("message"))
    return found


def taken(session, nonce, rejected=""):
    status = estimator_pb2.UpdateStatus(nonce=nonce, rejected=rejected)
    session.handle(estimator_pb2.StreamRequest(update_status=status))


async def test_who_took_a_push_lately_needs_no_heartbeat(fleet, clock):
    """It counts from when it had the push, whenever it says so."""
    session, nonce = await greeted(fleet, "w0")
    taken(session, nonce)
    clock.now += 3
    fleet.board.publish(session.pair.id, session.pair.reset())
    assert sent(session) == ["update"]
    clock.now += 1.5
    taken(session, nonce + 1)
    clock.now += 3
    fleet.tick()
    assert sent(session) == []
    clock.now += 0.5
    fleet.tick()
    assert sent(session) == ["heartbeat"]


async def test_who_took_none_gets_one_every_time(fleet, clock):
    session, nonce = await greeted(fleet, "w0")
    for _ in range(3):
        clock.now += 4
        taken(session, nonce, "not finite")
        clock.now += 1
        fleet.tick()
        assert sent(session) == ["heartbeat"]


async def test_each_worker_has_its_own_time(fleet, clock):
    """Hundreds at once would hold up whatever else there is to send."""
    early, _ = await greeted(fleet, "w0")
    clock.now += 2
    late, _ = await greeted(fleet, "w1")
    clock.now += 3
    fleet.tick()
    assert (sent(early), sent(late)) == (["heartbeat"], [])
    clock.now += 2
    fleet.tick()
    assert (sent(early), sent(late)) == ([], ["heartbeat"])
