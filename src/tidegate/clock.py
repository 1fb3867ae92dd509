"""Time, as something that is passed in."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the shells get the time from."""

    def now_ms(self) -> int:
        """Milliseconds that only grow; comparable within one process."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
