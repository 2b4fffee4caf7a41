"""Pages between the device and the uplink: complete, in order, and never waited for."""

import numpy as np
import pytest
import torch
from fakes import DelayedStreams
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_client_hook import reference, rows
from vllm_client_hook.estimator import AcceptanceEstimator
from vllm_client_hook.ranks import SingleRank
from vllm_client_hook.slots import Slots
from vllm_client_hook.streams import HostStreams
from vllm_client_hook.tap import INTERVAL, PAGES, Tap

R, K = 4, 2


class Packed:
    """A tap whose pages are filled by hand: row n says accepted = n % 2, version = n."""

    def __init__(self, streams, versions=None):
        self.rows = []
        self.tap = Tap(Slots(R, K, "cpu", full=False), streams, self.rows.append)
        self.tap.versions = dict.fromkeys(range(100000)) if versions is None else versions
        self.count = 0

    def step(self, new):
        page = self.tap.page
        for _ in range(new):
            head = int(page.head)
            self.tap.totals[rows.PACKED] += 1
            if head == page.capacity:
                self.tap.totals[rows.QUEUE_FULL] += 1
            else:
                page.records[head, :3] = torch.tensor([self.count % 2 | 2 << 8, 0, self.count])
                page.head += 1
            self.count += 1
        self.tap.advance(new)

    @property
    def seen(self):
        return [int(i) for r in self.rows for i in r.records[:, 2]]


@pytest.mark.parametrize("queries", [1, 2, 3, 7])
def test_rows_arrive_in_order_and_complete_however_late_their_copies_are(queries):
    # Delayed copies read the page when they complete: one that was written again too early would show.
    packed = Packed(DelayedStreams(queries))
    rng = np.random.default_rng(queries)
    for _ in range(10 * INTERVAL):
        packed.step(int(rng.integers(0, R + 1)))
    packed.tap.flush()
    assert packed.seen == list(range(packed.count))
    assert packed.rows[-1].counters[rows.PACKED] == packed.count
    assert packed.rows[-1].counters[rows.QUEUE_FULL] == 0


def test_copies_that_never_complete_drop_new_rows_and_count_them():
    packed = Packed(DelayedStreams())
    steps = (PAGES + 2) * INTERVAL
    for _ in range(steps):
        packed.step(R)
    assert packed.rows == []
    packed.tap.flush()
    kept = PAGES * INTERVAL * R
    assert packed.seen == list(range(kept))
    assert packed.rows[-1].counters[rows.QUEUE_FULL] == steps * R - kept


def test_what_was_handed_over_is_never_written_again():
    packed = Packed(HostStreams())
    for _ in range(INTERVAL + 1):
        packed.step(R)
    before = packed.rows[0].records.copy()
    for _ in range(PAGES * INTERVAL):
        packed.step(R)
    assert np.array_equal(packed.rows[0].records, before)


def test_rows_of_forgotten_coefficients_are_dropped_and_counted():
    packed = Packed(HostStreams(), versions={3: None})
    packed.step(4)
    packed.tap.flush()
    assert packed.seen == [3]
    assert packed.rows[-1].counters[rows.STALE_PREDICTION] == 3


class Synchronized(Exception):
    pass


class NoSync(TorchDispatchMode):
    """Raises on what would make a GPU's host thread wait."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in func.__name__ for name in self.WAITING):
            raise Synchronized(func.__name__)
        return func(*args, **(kwargs or {}))


class Sink:
    def __init__(self):
        self.rows = []

    def offer(self, rows):
        self.rows.append(rows)

    def latest(self):
        return None

    def answer(self, *_):
        pass


def test_a_step_makes_nobody_wait_for_the_device():
    estimator = AcceptanceEstimator(R, K, torch.device("cpu"))
    estimator._numerics = reference
    sink = Sink()
    drafts = torch.ones(R, K, dtype=torch.int64)
    estimator.bind(ranks=SingleRank(), uplink=sink, live=lambda: True, draft_tokens=drafts)
    idx, confidence = torch.tensor([0, -1, 2], dtype=torch.int32), torch.zeros(R, K)
    logits, temperature = torch.randn(3, 20), torch.ones(R)
    sampled, rejected = torch.tensor([2, 0, 1], dtype=torch.int32), torch.tensor([1, 0, 2], dtype=torch.int32)
    with NoSync():
        for n in range(3 * INTERVAL):
            estimator.admit(n % R, None)
            estimator.step(idx, sampled, rejected)
            for k in range(K):
                estimator.predict(logits, idx, torch.tensor(k), confidence, temperature)
    assert estimator.frozen == ""
    assert sum(map(len, sink.rows)) > 0
    with pytest.raises(Synchronized), NoSync():
        sampled.sum().item()


def test_a_step_never_raises_into_decoding_and_takes_arguments_of_later_releases():
    estimator = AcceptanceEstimator(R, K, torch.device("cpu"))
    estimator.bind(ranks=SingleRank(), uplink=Sink(), live=lambda: True)
    column = torch.zeros(1, dtype=torch.int32)
    estimator.step(column, column, column, torch.ones(1), mask=None)
    assert estimator.frozen == ""
    estimator.step("idx", None, None)
    assert estimator.frozen.startswith("grading: ")
    estimator.step(column, column, column)
    estimator.flush()


def test_kernels_that_cannot_be_launched_are_replaced_by_the_reference():
    class Broken:
        def predict(self, *_):
            raise RuntimeError("no such instruction")

    estimator = AcceptanceEstimator(R, K, torch.device("cpu"))
    estimator._numerics = Broken()
    confidence = torch.zeros(R, K)
    arguments = torch.tensor([1]), torch.tensor(0), confidence, torch.ones(R)
    estimator.predict(torch.tensor([[3.0, 0.0]]), *arguments)
    assert estimator.features[1, 0].item() == pytest.approx(3.0)
    assert confidence[0, 0].item() == pytest.approx(1 / (1 + np.exp(-(0.5 * 3 - 0.2))))
    assert estimator._numerics is reference
    with pytest.raises(AttributeError):
        estimator.predict("not logits", *arguments)


@pytest.mark.parametrize(("live", "standard", "reason"), [(False, True, rows.WARMUP), (True, False, 6)])
def test_warm_up_and_other_rejection_methods_give_no_labels(live, standard, reason):
    estimator = AcceptanceEstimator(R, K, torch.device("cpu"))
    estimator._numerics = reference
    sink = Sink()
    estimator.bind(ranks=SingleRank(), uplink=sink, live=lambda: live, standard_rejection=standard)
    idx, confidence = torch.tensor([1], dtype=torch.int32), torch.zeros(R, K)
    for _ in range(3):
        for k in range(K):
            estimator.predict(torch.randn(1, 20), idx, torch.tensor(k), confidence, torch.ones(R))
        estimator.step(idx, torch.tensor([2], dtype=torch.int32), torch.tensor([1], dtype=torch.int32))
    estimator.flush()
    assert sum(map(len, sink.rows)) == 0
    assert sink.rows[-1].counters[reason] == 3
