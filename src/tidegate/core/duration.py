"""Reads a length of time that a person wrote. The answer is always an integer of milliseconds.

Nothing is rounded: a length that is not a whole number of milliseconds is refused. Knows no clock.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from tidegate.errors import InvalidUseError

Duration: TypeAlias = str | int | timedelta
"""``"10s"``, a number of milliseconds, or a timedelta."""

DURATION_LIMIT_MS = (1 << 63) // 1_000_000
"""About 292 years: a longer time has no 64-bit number of nanoseconds, which timestamp columns need."""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = r"(?P<number>[0-9]{1,16}(?:\.[0-9]{1,9})?)"
_TEXT = re.compile(rf"\s*{_NUMBER}\s*(?P<unit>[a-z]{{1,3}})\s*", re.IGNORECASE | re.ASCII)
_MILLISECOND = timedelta(milliseconds=1)


def parse_duration_ms(value: Duration, *, name: str = "duration", minimum_ms: int = 0) -> int:
    """The length in milliseconds. ``name`` is what the error calls it; below ``minimum_ms`` it is refused."""
    millis = _millis_of(value, name)
    if millis < minimum_ms:
        raise InvalidUseError(f"{name} must be at least {minimum_ms} ms {name}={value!r}")
    if millis >= DURATION_LIMIT_MS:
        raise InvalidUseError(f"{name} must be shorter than 292 years {name}={value!r}")
    return millis


def _millis_of(value: Duration, name: str) -> int:
    match value:
        case bool():
            raise _unreadable(value, name)
        case int():
            return int(value)
        case timedelta():
            return _whole_millis(value, name)
        case str():
            return _parsed(value, name)
        case _:
            raise _unreadable(value, name)


def _whole_millis(value: timedelta, name: str) -> int:
    millis, rest = divmod(value, _MILLISECOND)
    if rest:
        raise InvalidUseError(f"{name} must be a whole number of milliseconds {name}={value!r}")
    return millis


def _parsed(text: str, name: str) -> int:
    found = _TEXT.fullmatch(text)
    unit_ms = _UNIT_MS.get(found["unit"].lower()) if found else None
    if found is None or unit_ms is None:
        raise _unreadable(text, name)
    millis = Decimal(found["number"]) * unit_ms
    if millis != int(millis):
        raise InvalidUseError(f"{name} must be a whole number of milliseconds {name}={text!r}")
    return int(millis)


def _unreadable(value: object, name: str) -> InvalidUseError:
    return InvalidUseError(
        f'{name} is no length of time: write it like "200ms", "10s", "5m" or "1h", '
        f"or give a timedelta or an int of milliseconds {name}={value!r}"
    )
