"""Windows as a user writes them: durations, not yet in any column's unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.options import strict_options
from tidegate.errors import InvalidUseError
from tidegate.operators.fixed import FixedWindow
from tidegate.operators.session import SessionWindow
from tidegate.plan.units import in_unit

WINDOWS_PER_ROW_MAX = 10_000


@dataclass(frozen=True, slots=True)
class FixedTimeWindow:
    """What ``tumbling`` and ``sliding`` return."""

    kind: Literal["tumbling", "sliding"]
    size_ms: int
    slide_ms: int
    allowed_lateness_ms: int = 0

    def over(self, where: str, event_time: pa.DataType) -> FixedWindow:
        """The same window in the unit of an event-time column."""
        times = (self.size_ms, self.slide_ms, self.allowed_lateness_ms)
        return FixedWindow(self.kind, *(in_unit(where, each, event_time) for each in times))


@dataclass(frozen=True, slots=True)
class SessionTimeWindow:
    """What ``session`` returns."""

    gap_ms: int
    allowed_lateness_ms: int = 0

    def over(self, where: str, event_time: pa.DataType) -> SessionWindow:
        """The same window in the unit of an event-time column."""
        return SessionWindow(*(in_unit(where, each, event_time) for each in (self.gap_ms, self.allowed_lateness_ms)))


@strict_options
def tumbling(size: Duration, *, allowed_lateness: Duration = 0) -> FixedTimeWindow:
    """Windows of this length, one after the other, aligned to time 0."""
    size_ms = parse_duration_ms(size, name="size", minimum_ms=1)
    return FixedTimeWindow("tumbling", size_ms, size_ms, _lateness(allowed_lateness))


@strict_options
def sliding(size: Duration, slide: Duration, *, allowed_lateness: Duration = 0) -> FixedTimeWindow:
    """Windows of length ``size`` that start every ``slide``, aligned to time 0; they overlap."""
    size_ms = parse_duration_ms(size, name="size", minimum_ms=1)
    slide_ms = parse_duration_ms(slide, name="slide", minimum_ms=1)
    if slide_ms > size_ms:
        raise InvalidUseError(f"a slide longer than the window would leave rows out size={size!r} slide={slide!r}")
    if size_ms > slide_ms * WINDOWS_PER_ROW_MAX:
        raise InvalidUseError(
            f"a row would be in more than {WINDOWS_PER_ROW_MAX} windows, take a longer slide size={size!r} slide={slide!r}"
        )
    return FixedTimeWindow("sliding", size_ms, slide_ms, _lateness(allowed_lateness))


@strict_options
def session(gap: Duration, *, allowed_lateness: Duration = 0) -> SessionTimeWindow:
    """Windows per key that end when no row has come for ``gap``: two rows less than ``gap`` apart share one.

    It starts at its first row's time and ends ``gap`` after its last row's.
    """
    gap_ms = parse_duration_ms(gap, name="gap", minimum_ms=1)
    return SessionTimeWindow(gap_ms, _lateness(allowed_lateness))


def _lateness(value: Duration) -> int:
    return parse_duration_ms(value, name="allowed_lateness")
