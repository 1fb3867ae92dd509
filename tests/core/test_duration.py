"""Lengths of time as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.duration import DURATION_LIMIT_MS, Duration, parse_duration_ms
from tidegate.errors import InvalidUseError


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        ("10s", 10_000), ("200ms", 200), ("5m", 300_000), ("5min", 300_000), ("1h", 3_600_000),
        ("2 s", 2_000), (" 2s ", 2_000), ("1d", 86_400_000), ("1.5s", 1_500), ("0.001s", 1), ("0s", 0),
        ("10S", 10_000), (250, 250), (0, 0),
        (timedelta(seconds=3), 3_000), (timedelta(milliseconds=7), 7), (timedelta(days=1), 86_400_000),
    ],
)  # fmt: skip
def test_a_length_of_time_is_read(value: Duration, millis: int) -> None:
    assert parse_duration_ms(value) == millis


@pytest.mark.parametrize(
    "value",
    ["", "s", "10", "ten s", "10 ly", "10us", "-1s", "1e3s", "1,5s", "١s", "1s 5ms", "1.s", "9" * 40 + "s"],
)
def test_other_text_is_refused_with_a_hint(value: str) -> None:
    with pytest.raises(InvalidUseError, match='write it like "200ms"'):
        parse_duration_ms(value)


@pytest.mark.parametrize("value", [1.5, True, False, None, b"10s", ["10s"]])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(InvalidUseError, match="interval="):
        parse_duration_ms(value, name="interval")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1.5ms", "0.0005s", timedelta(microseconds=1), timedelta(microseconds=1_500)])
def test_parts_of_a_millisecond_are_refused_and_not_rounded(value: Duration) -> None:
    with pytest.raises(InvalidUseError, match="whole number of milliseconds"):
        parse_duration_ms(value)


@pytest.mark.parametrize("value", [-1, timedelta(seconds=-1)])
def test_a_negative_time_is_refused(value: Duration) -> None:
    with pytest.raises(InvalidUseError, match="at least 0 ms"):
        parse_duration_ms(value)


def test_a_minimum_can_be_asked_for() -> None:
    assert parse_duration_ms("1ms", minimum_ms=1) == 1
    with pytest.raises(InvalidUseError, match="interval must be at least 1 ms interval='0s'"):
        parse_duration_ms("0s", name="interval", minimum_ms=1)


@pytest.mark.parametrize("value", ["1000000d", DURATION_LIMIT_MS, timedelta(days=200_000)])
def test_a_time_that_has_no_nanoseconds_is_refused(value: Duration) -> None:
    with pytest.raises(InvalidUseError, match="292 years"):
        parse_duration_ms(value)
    assert parse_duration_ms(DURATION_LIMIT_MS - 1) * 1_000_000 < 1 << 63


@given(st.text(max_size=20) | st.integers() | st.timedeltas())
def test_anything_is_a_length_or_our_error(value: Duration) -> None:
    try:
        assert parse_duration_ms(value) >= 0
    except InvalidUseError as error:
        assert "duration=" in str(error)
