"""Start-up agreement: active on all ranks or on none, and nobody waits longer than the timeout."""

import threading
import time

import pytest

from vllm_client_hook.ranks import GroupRanks, SingleRank, agree


class MemoryStore:
    """The semantics of torch.distributed.TCPStore, within one process."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            return self._values[key]

    def wait(self, keys, timeout):
        with self._changed:
            if not self._changed.wait_for(lambda: all(k in self._values for k in keys), timeout.total_seconds()):
                raise TimeoutError(keys)

    def compare_set(self, key, expected, desired):
        with self._changed:
            current = self._values.get(key)
            if (current is None and expected == "") or (current is not None and current.decode() == expected):
                self._values[key] = desired.encode()
                self._changed.notify_all()
            return self._values.get(key, expected.encode())


def agreed(options, *, missing=(), delays=(0, 0, 0), timeout=5.0, store=None):
    store = store or MemoryStore()
    size = len(options)
    results = {}

    def run(rank):
        time.sleep(delays[rank])
        ranks = GroupRanks(rank, size, lambda tensor: None)
        results[rank] = agree(ranks, store, "acceptd/tp/1", options[rank], timeout_seconds=timeout)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size) if rank not in missing]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results, time.monotonic() - start


SAME = {"active": True, "hook": "0.1.0", "positions": 5, "features": "basic"}


def test_equal_options_are_active_on_all():
    results, _ = agreed([SAME, dict(SAME), dict(SAME)])
    assert results == {0: "", 1: "", 2: ""}


@pytest.mark.parametrize("difference", [{"positions": 4}, {"hook": "0.2.0"}, {"active": False}, {"more": 1}])
def test_one_difference_makes_all_stock_and_names_the_rank(difference):
    results, _ = agreed([SAME, SAME, {**SAME, **difference}])
    assert len(set(results.values())) == 1
    assert "rank 2 differs" in results[0]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_without_the_hook_makes_the_others_stock_within_the_timeout(missing):
    results, took = agreed([SAME, SAME, SAME], missing=(missing,), timeout=0.3)
    assert len(results) == 2
    assert all("is the hook installed on every rank?" in why for why in results.values())
    assert len(set(results.values())) == 1
    assert took < 5


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_after_another_gave_up_is_stock_too(late):
    delays = [0.0, 0.0]
    delays[late] = 0.5
    results, _ = agreed([SAME, SAME], delays=delays, timeout=0.1)
    assert results[0] == results[1] != ""


def test_one_rank_alone_needs_no_store():
    assert agree(SingleRank(), None, "x", SAME, timeout_seconds=1) == ""


def test_a_group_without_a_store_is_stock():
    assert "store" in agree(GroupRanks(0, 2, lambda tensor: None), None, "x", SAME, timeout_seconds=1)
