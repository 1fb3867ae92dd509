"""How long a store or a sink that cannot be used is waited for, and in which steps. It knows no clock: what counts is the time
that it told others to wait.

A gang that was lost because a node could not write is not the user's error, and none of the restarts that are counted: it would
be over long before somebody has made room.
"""

from __future__ import annotations

from tidegate.core.failure.restart import RestartAfter, RestartVerdict, StopRestarting

FIRST_WAIT_MS = 500
LONGEST_WAIT_MS = 10_000


class Patience:
    """Waits grow by doubling, and end when they add up to ``limit_ms`` without progress."""

    __slots__ = ("_failures", "_limit_ms", "_waited_ms", "total")

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._failures = 0
        self._waited_ms = 0
        self.total = 0

    def failed(self) -> RestartVerdict:
        """It did not work: when to try again, if at all."""
        self._failures += 1
        if self._waited_ms >= self._limit_ms:
            return StopRestarting(self._failures)
        wait_ms = min(FIRST_WAIT_MS << min(self._failures - 1, 10), LONGEST_WAIT_MS, self._limit_ms - self._waited_ms)
        self._waited_ms += wait_ms
        self.total += 1
        return RestartAfter(wait_ms)

    def passed(self) -> None:
        """It worked."""
        self._failures = self._waited_ms = 0
