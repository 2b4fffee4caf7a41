"""The board: the latest value, and nothing but the latest."""

from __future__ import annotations

from estimator_service.board import WAKES, Board


def test_a_watcher_gets_the_latest_once():
    board: Board[int] = Board()
    woken = []
    watch = board.watch("a", lambda: woken.append(1))
    assert watch.take() is None
    for value in range(1000):
        board.publish("a", value)
    assert watch.take() == 999
    assert watch.take() is None
    assert len(woken) == 1000


def test_a_late_watcher_sees_what_is_there():
    board: Board[int] = Board()
    board.publish("a", 1)
    assert board.watch("a", lambda: None).take() == 1
    assert board.latest("a") == 1
    assert board.latest("b") is None


def test_topics_and_watchers_are_apart():
    board: Board[int] = Board()
    first, second, other = (board.watch(topic, lambda: None) for topic in ("a", "a", "b"))
    board.publish("a", 1)
    assert first.take() == 1
    board.publish("a", 2)
    assert (first.take(), second.take(), other.take()) == (2, 2, None)


def test_leaving_ends_waking_and_frees():
    board: Board[int] = Board()
    woken = []
    watch = board.watch("a", lambda: woken.append(1))
    watch.close()
    watch.close()
    board.publish("a", 1)
    assert not woken
    assert not board._watches


def test_a_dropped_topic_begins_anew_for_those_who_watch():
    board: Board[int] = Board()
    watch = board.watch("a", lambda: None)
    board.publish("a", 1)
    assert watch.take() == 1
    board.drop("a")
    assert board.latest("a") is None
    board.publish("a", 2)
    assert watch.take() == 2


def test_many_watchers_are_woken_in_turns_each_once():
    turns = []
    board: Board[int] = Board(turns.append)
    woken = []
    for i in range(3 * WAKES):
        board.watch("a", lambda i=i: woken.append(i))
    board.publish("a", 1)
    assert len(woken) == WAKES
    while turns:
        before = len(woken)
        turns.pop()()
        assert len(woken) - before <= WAKES
    assert sorted(woken) == list(range(3 * WAKES))


def test_a_watcher_that_left_before_its_turn_is_not_woken():
    turns = []
    board: Board[int] = Board(turns.append)
    woken = []
    watches = [board.watch("a", lambda i=i: woken.append(i)) for i in range(2 * WAKES)]
    board.publish("a", 1)
    for watch in watches:
        watch.close()
    while turns:
        turns.pop()()
    assert len(woken) == WAKES
