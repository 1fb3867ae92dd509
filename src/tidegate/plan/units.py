"""Event times and durations in the unit of a column: int64 counts milliseconds, a timestamp its own unit."""

from __future__ import annotations

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
LONGEST = 1 << 60
"""In any unit: three of these still leave most of 64-bit time on either side of the epoch. 36 years in nanoseconds."""
_STEPS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def delayed(timestamp: int, delay: int) -> int:
    """An earlier time. The end of time stays what it is, so that everything closes at last."""
    return timestamp if timestamp == END_OF_TIME else max(BEGINNING_OF_TIME, timestamp - delay)


def is_event_time(kind: pa.DataType) -> bool:
    """True for the types that an event-time column may have."""
    return bool(pa.types.is_timestamp(kind) or kind == pa.int64())


def per_second(kind: pa.DataType) -> int:
    """How many units of this event-time type make a second."""
    return _PER_SECOND[kind.unit] if pa.types.is_timestamp(kind) else 1_000


def in_unit(where: str, duration_ms: int, kind: pa.DataType) -> int:
    """A duration in the unit of an event-time column. Raises when the unit is too coarse for it."""
    value, rest = divmod(duration_ms * per_second(kind), 1_000)
    if rest:
        raise InvalidUseError(f"{where}: {duration_ms}ms is no whole number of the column's units type={kind}")
    if value > LONGEST:
        raise InvalidUseError(
            f"{where}: {duration_ms}ms is too long for the column's unit, cast the event time to a coarser one type={kind}"
        )
    return value


def duration_text(value: int, kind: pa.DataType) -> str:
    """A duration for people, in the largest unit that is whole: ``10s``, ``200ms``, ``1h``."""
    if value == 0:
        return "0s"
    scale = per_second(kind)
    coarse = [(name, seconds * scale) for name, seconds in _STEPS]
    fine = [(name, scale // parts) for name, parts in _PER_SECOND.items() if scale >= parts]
    # The column's own unit is among them, so there is always one that divides the value.
    return next(f"{value // step}{name}" for name, step in coarse + fine if value % step == 0)
