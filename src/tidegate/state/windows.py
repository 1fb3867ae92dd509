"""The arithmetic of windows with fixed bounds. Integers in the event-time column's unit throughout.

Time is cut into panes, the largest stretches that every window takes completely or not at all: a tumbling window
is one pane, a sliding window several, and a window's rows are those of its panes. A window [s, s + size)
closes when the watermark reaches its end plus the allowed lateness; it is emitted once, then, and the watermark
is passed on as much later, so that windows on top of it find its rows in time. Rows are late when the last
window that would take them is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import pyarrow as pa

from tidegate.errors import InvalidUseError

_I64_MIN = -(1 << 63)
_I64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of ``size`` at every multiple of ``slide``, kept open for ``lateness`` more."""

    size: int
    slide: int
    lateness: int
    pane: int

    @classmethod
    def of(cls, size: int, slide: int, lateness: int = 0) -> Windows:
        """Windows of this size and slide."""
        if size <= 0 or slide <= 0 or lateness < 0:
            raise InvalidUseError(f"a window's size and slide are positive size={size} slide={slide} lateness={lateness}")
        return cls(size, slide, lateness, gcd(size, slide))

    @property
    def tumbling(self) -> bool:
        """True when every window is one pane."""
        return self.size == self.pane

    def panes(self, times: pa.Array) -> pa.Array:
        """The start of every row's pane, floored. Null for a row without a time, or so near the end of time
        that its windows have no bounds in 64 bits."""
        times = times.cast(pa.int64())
        if times.null_count:
            values = times.fill_null(0).to_numpy()
            unusable = times.is_null().to_numpy(zero_copy_only=False)
        else:
            values, unusable = times.to_numpy(), None
        if len(values) and not self._fits(int(values.min()), int(values.max())):
            outside = (values < self._low) | (values > self._high)
            unusable = outside if unusable is None else unusable | outside
            values = np.where(outside, 0, values)
        return pa.array(values // self.pane * self.pane, mask=unusable)

    def one_pane(self, times: pa.Array) -> int | None:
        """The pane that holds every row, if one does."""
        times = times.cast(pa.int64())
        if times.null_count or not len(times):
            return None
        values = times.to_numpy()
        low, high = int(values.min()), int(values.max())
        pane = low // self.pane * self.pane
        return pane if high < pane + self.pane and self._fits(low, high) else None

    def starts(self, pane: int) -> range:
        """The starts of the windows that take this pane; none between windows that slide by more than their
        size."""
        last = pane // self.slide * self.slide
        first = -((self.size - self.pane - pane) // self.slide) * self.slide
        return range(first, last + 1, self.slide)

    def closes_at(self, start: int) -> int:
        """The watermark that closes the window which starts here."""
        return start + self.size + self.lateness

    def retires_at(self, pane: int) -> int | None:
        """The watermark that closes the last window of a pane; ``None`` for a pane that no window takes."""
        starts = self.starts(pane)
        return self.closes_at(starts[-1]) if starts else None

    def last_closing(self, times: pa.Array) -> pa.Array:
        """The watermark that closes the last window of every row; null where ``panes`` is."""
        panes = self.panes(times)
        starts = panes.fill_null(0).to_numpy() // self.slide * self.slide
        mask = panes.is_null().to_numpy(zero_copy_only=False) if panes.null_count else None
        return pa.array(starts + (self.size + self.lateness), mask=mask)

    def closing(self, after: int, through: int) -> range:
        """The starts of the windows closed by a watermark that moves from ``after`` to ``through``."""
        held = self.size + self.lateness
        first = ((after - held) // self.slide + 1) * self.slide
        last = (through - held) // self.slide * self.slide
        return range(first, last + 1, self.slide)

    @property
    def _low(self) -> int:
        return _I64_MIN + self.size + self.slide

    @property
    def _high(self) -> int:
        return _I64_MAX - self.size - self.slide - self.lateness

    def _fits(self, low: int, high: int) -> bool:
        return self._low <= low and high <= self._high
