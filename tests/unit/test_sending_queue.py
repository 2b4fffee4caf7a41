"""The sending side's queue: what wakes the sender, and work on a batch in short stretches."""

from __future__ import annotations

import numpy as np

from acceptd import codec
from acceptd.codec import Observations
from acceptd.types import Version
from vllm_client_hook.outbound import GradedColumns, Outbound

K = 3


def rows(count: int, first: int = 0, version: Version | None = None) -> GradedColumns:
    columns = Observations(
        accepted=np.zeros(count, np.uint8),
        admitted=np.full(count, K, np.uint8),
        features=np.arange(first, first + count, dtype=np.float32) / 100,
        segments=np.full(count, 3, np.uint8),
        explored=np.zeros(count, np.uint8),
        propensities=np.zeros(count, np.float32),
    )
    return GradedColumns(version, columns)


class Counted:
    """Rows that note when they are turned into columns."""

    generation = 0
    turned = 0

    def __init__(self, first: int) -> None:
        self._rows = rows(1, first)

    def __len__(self) -> int:
        return 1

    def by_version(self):
        Counted.turned += 1
        return self._rows.by_version()


def outbound_of(batch_rows: int) -> Outbound:
    outbound = Outbound(K, 1000, 0)
    outbound.limits.rows = batch_rows
    return outbound


def test_the_sender_is_woken_by_the_first_rows_and_by_those_that_fill_a_batch():
    outbound = outbound_of(10)
    assert [outbound.offer(rows(4), 0.0) for _ in range(5)] == [True, False, True, False, False]


def test_many_small_offers_are_turned_into_columns_a_few_at_a_time():
    outbound = outbound_of(30)
    Counted.turned = 0
    for first in range(40):
        outbound.offer(Counted(first), 0.0)
    stretches = [0]
    while outbound.prepare(0.0):
        stretches.append(Counted.turned)
    stretches.append(Counted.turned)
    assert max(np.diff(stretches)) <= 4
    assert Counted.turned == 30
    message = outbound.next_message(0.0)
    assert Counted.turned == 30
    assert codec.decode_batch(message, K).features.tolist() == rows(30).columns.features.tolist()


def test_nothing_is_prepared_before_a_batch_is_due_or_while_no_more_may_be_in_flight():
    outbound = outbound_of(10)
    outbound.limits.max_in_flight = 1
    outbound.limits.age_seconds = 1.0
    Counted.turned = 0
    outbound.offer(Counted(0), 0.0)
    assert not outbound.prepare(0.5)
    assert Counted.turned == 0
    assert outbound.next_message(0.5) is None
    assert not outbound.prepare(1.0)
    assert Counted.turned == 1
    assert outbound.next_message(1.0) is not None
    outbound.offer(Counted(1), 2.0)
    assert outbound.full
    assert not outbound.prepare(2.0, flush=True)
    assert Counted.turned == 1
    outbound.answered(1, 1, refused=False)
    outbound.prepare(2.0, flush=True)
    assert Counted.turned == 2


def test_rows_before_a_change_of_version_go_out_before_they_are_due():
    outbound = outbound_of(10)
    outbound.offer(rows(6), 0.0)
    outbound.offer(rows(6, 6, Version(1, 1)), 0.0)
    outbound.offer(rows(6, 12), 0.0)
    # Full, and so cut where the version changes; what follows is of another version again and waits no longer.
    sizes = [len(outbound.next_message(0.0).accepted), len(outbound.next_message(0.0).accepted)]
    assert sizes == [6, 6]
    assert outbound.next_message(0.0) is None
    assert outbound.deadline() == 1.0
