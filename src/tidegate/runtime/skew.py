"""Event-time skew: a source that is later in event time waits for the slowest, as long as that one moves.

A windowed operator holds every window between its slowest input and its fastest, and each checkpoint stores them. Windows close
by the slowest, so reading further than it brings no result earlier: it only makes state. Whoever waits leaves the machine to the
slower ones.

Skew is counted in time of reading, not in event time, of which one second may be a row or a million. It is
seen where the windows are, so there is nothing to agree on: every node looks at its own subtask of the stage that it feeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pyarrow as pa

from tidegate.core.barrier.subtask import Subtask
from tidegate.values import BEGINNING_OF_TIME

SKEW_MAX_MS = 100
"""The skew that a source may have: enough for what is on its way, and for peers that are scheduled in turns."""
STALLED_MS = 100
"""When the slowest has not moved for this long it may be waiting for us, or for its own input: then reading goes on."""
HISTORY_MAX = 64


class InputSkew:
    """How long ago one input of a fan-in was where the slowest of them is now."""

    def __init__(self, fan_in: Subtask[pa.RecordBatch], input_id: int) -> None:
        self._fan_in = fan_in
        self._input_id = input_id
        self._seen: deque[tuple[int, int]] = deque(maxlen=HISTORY_MAX)
        self._slowest = BEGINNING_OF_TIME
        self._moved_ms = 0

    def is_long(self, now_ms: int) -> bool:
        """True when the skew to a slowest input that moves is too long. To be asked again and again."""
        reached, slowest = self._fan_in.reached(self._input_id), self._fan_in.watermark
        if slowest != self._slowest:
            self._slowest, self._moved_ms = slowest, now_ms
        if not self._seen or reached > self._seen[-1][1]:
            self._seen.append((now_ms, reached))
        while self._seen and self._seen[0][1] <= slowest:
            self._seen.popleft()
        skew_ms = now_ms - self._seen[0][0] if self._seen else 0
        has_begun = slowest != BEGINNING_OF_TIME
        return has_begun and skew_ms > SKEW_MAX_MS and now_ms - self._moved_ms < STALLED_MS


class SkewLimit:
    """When one source is to wait. ``skews`` are those of all stages that it feeds."""

    def __init__(self, skews: Sequence[InputSkew] = ()) -> None:
        self._skews = skews
        self.waiting = False

    def must_wait(self, now_ms: int) -> bool:
        """True when the skew is too long for every stage that it feeds."""
        long = [skew.is_long(now_ms) for skew in self._skews]  # every one is to be asked every time
        self.waiting = bool(long) and all(long)
        return self.waiting
