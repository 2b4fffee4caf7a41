"""The latest value of each topic, for any number of watchers. Knows no streams and never waits for anyone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Watchers that are woken in one turn. Each then has something to send: raising it has batches that arrive meanwhile
#: wait longer for their answers.
WAKES: Final = 8


class Watch(Generic[T]):
    """One watcher's place on the board. `take` returns a value once; values in between are skipped, never queued.

    `wake` is called (from `Board.publish`) when there is something to take; it must not block.
    """

    def __init__(self, board: Board[T], topic: str, wake: Callable[[], None]) -> None:
        self._board = board
        self._topic = topic
        self._seen = 0
        self.closed = False
        self.wake = wake

    def take(self) -> T | None:
        """The latest value if it was not taken yet, else None."""
        serial, value = self._board.entry(self._topic)
        if serial == self._seen:
            return None
        self._seen = serial
        return value

    def close(self) -> None:
        """Leaves the board."""
        self.closed = True
        self._board.leave(self._topic, self)


class Board(Generic[T]):
    """topic → latest value.

    soon: calls what it is given a little later (an event loop's `call_soon`), so that many watchers are woken in turns
    with whatever else there is to do; None: all at once.

    A slow watcher costs one slot whatever is published meanwhile, so memory is bounded by topics × 1 + watchers.

    >>> board: Board[int] = Board()
    >>> watch = board.watch("a", lambda: None)
    >>> board.publish("a", 1); board.publish("a", 2)
    >>> watch.take(), watch.take()
    (2, None)
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._soon = soon
        self._published = 0
        self._entries: dict[str, tuple[int, T]] = {}
        self._watches: dict[str, set[Watch[T]]] = {}

    def publish(self, topic: str, value: T) -> None:
        """Replaces the topic's value and wakes its watchers, the first `WAKES` of them at once."""
        self._published += 1
        self._entries[topic] = (self._published, value)
        self._wake(deque(self._watches.get(topic, ())))

    def _wake(self, watches: deque[Watch[T]]) -> None:
        for _ in range(min(WAKES, len(watches)) if self._soon else len(watches)):
            watch = watches.popleft()
            if not watch.closed:
                watch.wake()
        if watches and self._soon:
            self._soon(partial(self._wake, watches))

    def latest(self, topic: str) -> T | None:
        """The topic's value, None before the first."""
        return self.entry(topic)[1]

    def entry(self, topic: str) -> tuple[int, T | None]:
        """(its place among all that was published, the latest value); (0, None) before the first."""
        return self._entries.get(topic, (0, None))

    def watch(self, topic: str, wake: Callable[[], None]) -> Watch[T]:
        """A new watcher; a value that is already there counts as not taken."""
        watch = Watch(self, topic, wake)
        self._watches.setdefault(topic, set()).add(watch)
        return watch

    def leave(self, topic: str, watch: Watch[T]) -> None:
        """Forgets a watcher. Leaving twice is no error."""
        watches = self._watches.get(topic, set())
        watches.discard(watch)
        if not watches:
            self._watches.pop(topic, None)

    def drop(self, topic: str) -> None:
        """Forgets the topic's value. Its watchers stay, and wait for the next."""
        self._entries.pop(topic, None)
