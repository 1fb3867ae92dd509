"""When a peer that says nothing counts as standing still. Time comes in; nothing here waits.

Two things must not look like a stall. A machine that is starved: there heartbeats have come late before, so the limit follows
the longest gap that was seen. A watcher that itself stood still: it has missed what was said meanwhile, so time that it did not
see does not count.
"""

from __future__ import annotations

from collections import deque

REMEMBERED_MS = 60_000
GAP_TIMES = 4
LIMIT_TIMES = 6
"""However late heartbeats have come, a peer counts as lost after this many times the limit."""


class Silence:
    """One peer, as one watcher hears it. Times are milliseconds of any clock that does not jump."""

    def __init__(self, limit_ms: float, look_ms: float, now_ms: float) -> None:
        self._limit_ms = limit_ms
        self._look_ms = look_ms
        self._looked = self._heard = now_ms
        self._silent_ms = 0.0
        self._gaps: deque[tuple[float, float]] = deque()

    def heard(self, now_ms: float) -> None:
        """The peer said something."""
        if now_ms - self._heard > self._look_ms:
            self._gaps.append((now_ms, now_ms - self._heard))
        while self._gaps and self._gaps[0][0] < now_ms - REMEMBERED_MS:
            self._gaps.popleft()
        self._heard = self._looked = now_ms
        self._silent_ms = 0.0

    def look(self, now_ms: float) -> bool:
        """The watcher looks, as it does every ``look_ms``. True: the peer stands still, or the next look would be too late."""
        self._silent_ms += min(now_ms - self._looked, 2 * self._look_ms)
        self._looked = now_ms
        return self._silent_ms + self._look_ms > self.limit_ms

    def lasted_ms(self, now_ms: float) -> float:
        """How long nothing has been heard."""
        return now_ms - self._heard

    @property
    def limit_ms(self) -> float:
        """How much silence is too much, after what was observed."""
        longest = max((gap for _, gap in self._gaps), default=0.0)
        return min(max(self._limit_ms, GAP_TIMES * longest), LIMIT_TIMES * self._limit_ms)
