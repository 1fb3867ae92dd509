"""What a loop has to do later."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timers:
    """Callbacks by time. Used by one thread; the time is passed in."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        """Run ``action`` at the first chance at or after ``time_ms``."""
        heapq.heappush(self._heap, (time_ms, next(self._order), action))

    def run_due(self, now_ms: int) -> bool:
        """Run what is due, in order. True when anything was."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action()
        return bool(due)

    def wait_ms(self, now_ms: int) -> int | None:
        """How long until the next one; ``None`` when there is none."""
        return max(0, self._heap[0][0] - now_ms) if self._heap else None
