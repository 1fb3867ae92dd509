"""The arithmetic of time windows, and how far they are closed. Integers in the event-time column's unit
throughout.

Time is cut into panes, the largest stretches that every window takes whole or not at all: a tumbling window
is one pane, a sliding window several, and a window's rows are those of its panes. A window [s, s + size)
closes when the watermark reaches its end plus the allowed lateness; it is given once, then, and the watermark
is passed on as much later, so that windows on top of it find its rows in time. Rows are late when the last
window that would take them is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Json
from tidegate.plan.physical import Window

NEVER = -(1 << 63)
_I64_MAX = (1 << 63) - 1

Stretch: TypeAlias = tuple[int, int, int]
"""Key groups from, key groups to, and a watermark."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of ``size`` at every multiple of ``slide``, kept open for ``lateness`` more."""

    size: int
    slide: int
    lateness: int
    pane: int

    @classmethod
    def of(cls, window: Window) -> Windows:
        """The windows of the plan; sessions have operators of their own."""
        if window.kind == "session":
            raise InvalidUseError(f"sessions have no fixed bounds: use tumbling or sliding windows here window={window}")
        if window.size <= 0 or window.slide <= 0 or window.allowed_lateness < 0:
            raise InvalidUseError(f"a window's size and slide are positive window={window}")
        if window.kind == "tumbling" and window.size != window.slide:
            raise InvalidUseError(f"a tumbling window slides by its size window={window}")
        return cls(window.size, window.slide, window.allowed_lateness, gcd(window.size, window.slide))

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
        return NEVER + self.size + self.slide

    @property
    def _high(self) -> int:
        return _I64_MAX - self.size - self.slide - self.lateness

    def _fits(self, low: int, high: int) -> bool:
        return self._low <= low and high <= self._high


class Closed:
    """How far windows are closed, per key group of one subtask.

    As long as it runs, a subtask closes all its groups together. After a restore at another parallelism some
    groups may be ahead, because the subtask that had them saw a later watermark: their closed windows must
    neither take rows nor be given again, until the watermark has caught up.
    """

    def __init__(self, own: range, groups: int) -> None:
        self.own = own
        self.through = NEVER
        self.promised = NEVER
        """By this time rows of the batch at hand are late, whatever is still open."""
        self._groups = groups
        self._ahead: npt.NDArray[np.int64] | None = None

    @property
    def uniform(self) -> bool:
        """True when all groups are closed through ``through``."""
        return self._ahead is None

    def advance(self, watermark: int) -> None:
        """The watermark has closed everything up to here."""
        self.through = watermark
        if self._ahead is not None and watermark >= int(self._ahead.max()):
            self._ahead = None

    def open_at(
        self, closing: int | npt.NDArray[np.int64], groups: npt.NDArray[np.uint16]
    ) -> npt.NDArray[np.bool_]:
        """For rows of these key groups: is a window that closes at ``closing`` still open?"""
        if self._ahead is None:
            return np.full(len(groups), closing > self.through)
        return (self._ahead[groups] < closing) & (closing > self.through)

    @property
    def judged_by(self) -> int:
        """Rows of windows that close up to here are late in every key group."""
        return max(self.through, self.promised)

    def all_in_time(self, closing: npt.NDArray[np.int64]) -> bool:
        """Are rows of windows that close at these watermarks in time in every key group?"""
        highest = self.judged_by if self._ahead is None else max(self.judged_by, int(self._ahead.max()))
        return not len(closing) or int(closing.min()) > highest

    def in_time(self, closing: npt.NDArray[np.int64], groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """For rows of these key groups, whose last windows close at these watermarks: are they in time?"""
        return self.open_at(closing, groups) & (closing > self.promised)

    def to_json(self) -> Json:
        """The closed stretches of key groups: [first group, end of groups, closed through]."""
        values = [
            self.through if self._ahead is None else max(self.through, int(self._ahead[g])) for g in self.own
        ]
        stretches: list[Json] = []
        group = self.own.start
        for value, members in groupby(values):
            length = len(list(members))
            if value != NEVER:
                stretches.append([group, group + length, value])
            group += length
        return stretches

    def restore(self, stored: Sequence[Json]) -> None:
        """Take over what the subtasks of a checkpoint had closed; the largest counts where they overlap."""
        ahead = np.full(self._groups, NEVER, np.int64)
        for stretches in stored:
            for first, end, through in checked_stretches(stretches, self._groups):
                np.maximum(ahead[first:end], through, out=ahead[first:end])
        mine = ahead[self.own.start : self.own.stop]
        if len(mine):
            self.through = int(mine.min())
            self._ahead = None if int(mine.max()) == self.through else ahead


def checked_stretches(stretches: Json, groups: int) -> list[Stretch]:
    """Stored stretches of key groups, each with a watermark."""
    if not isinstance(stretches, list):
        raise CorruptDataError(
            f"stored state has no list of closed windows closed_through={stretches!r:.100}"
        )
    checked: list[Stretch] = []
    for stretch in stretches:
        match stretch:
            case [int(first), int(end), int(through)] if (
                0 <= first < end <= groups and NEVER <= through <= _I64_MAX
            ):
                checked.append((first, end, through))
            case _:
                raise CorruptDataError(
                    f"stored state has an impossible closed window stretch={stretch!r:.100}"
                )
    return checked
