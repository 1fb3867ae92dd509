"""The only queue in which other threads leave things for a loop thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Many threads post, one takes. What flows through it is bounded by credits and by what is in flight, not here."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._waiting = False

    def post(self, item: T) -> None:
        """Leave an item. Never blocks for long; any thread."""
        self._items.append(item)
        if self._waiting:
            with self._wake:
                self._wake.notify()

    def take(self, timeout_ms: int | None) -> list[T]:
        """Everything that is there, oldest first; waits for the first up to ``timeout_ms`` (``None``: for ever)."""
        if not self._items and timeout_ms != 0:
            self._wait(timeout_ms)
        taken = []
        for _ in range(len(self._items)):
            taken.append(self._items.popleft())
        return taken

    def _wait(self, timeout_ms: int | None) -> None:
        with self._wake:
            self._waiting = True
            # Posted between the caller's look and this lock: the poster may not have seen that we wait.
            if not self._items:
                self._wake.wait(None if timeout_ms is None else timeout_ms / 1000)
            self._waiting = False
