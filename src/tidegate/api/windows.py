"""Windows as a user writes them: durations, not yet in any column's unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.options import strict_options
from tidegate.errors import InvalidUseError
from tidegate.plan.physical import Window
from tidegate.plan.units import in_unit

WINDOWS_PER_ROW_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """What ``tumbling``, ``sliding`` and ``session`` give. For a session ``size_ms`` is the gap."""

    kind: Literal["tumbling", "sliding", "session"]
    size_ms: int
    slide_ms: int
    allowed_lateness_ms: int = 0

    def over(self, where: str, event_time: pa.DataType) -> Window:
        """The same window in the unit of an event-time column."""
        size, slide, late = (
            in_unit(where, each, event_time)
            for each in (self.size_ms, self.slide_ms, self.allowed_lateness_ms)
        )
        return Window(self.kind, size, slide, late)


@strict_options
def tumbling(size: Duration, *, allowed_lateness: Duration = 0) -> TimeWindow:
    """Windows of this length, one after the other, aligned to time 0."""
    size_ms = parse_duration_ms(size, name="size", minimum_ms=1)
    return TimeWindow("tumbling", size_ms, size_ms, _lateness(allowed_lateness))


@strict_options
def sliding(size: Duration, slide: Duration, *, allowed_lateness: Duration = 0) -> TimeWindow:
    """Windows of length ``size`` that start every ``slide``, aligned to time 0; they overlap."""
    size_ms = parse_duration_ms(size, name="size", minimum_ms=1)
    slide_ms = parse_duration_ms(slide, name="slide", minimum_ms=1)
    if slide_ms > size_ms:
        raise InvalidUseError(
            f"a slide longer than the window would leave rows out size={size!r} slide={slide!r}"
        )
    if size_ms > slide_ms * WINDOWS_PER_ROW_MAX:
        raise InvalidUseError(
            f"a row would be in more than {WINDOWS_PER_ROW_MAX} windows, take a longer slide "
            f"size={size!r} slide={slide!r}"
        )
    return TimeWindow("sliding", size_ms, slide_ms, _lateness(allowed_lateness))


@strict_options
def session(gap: Duration, *, allowed_lateness: Duration = 0) -> TimeWindow:
    """Windows per key that end when no row has come for ``gap``: two rows less than ``gap`` apart share one.

    It starts at its first row's time and ends ``gap`` after its last row's.
    """
    gap_ms = parse_duration_ms(gap, name="gap", minimum_ms=1)
    return TimeWindow("session", gap_ms, gap_ms, _lateness(allowed_lateness))


def _lateness(value: Duration) -> int:
    return parse_duration_ms(value, name="allowed_lateness")
