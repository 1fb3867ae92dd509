"""Durations in the unit of an event-time column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import InvalidUseError
from tidegate.plan.units import duration_text, in_unit, is_event_time

KINDS = [pa.int64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns")]


@pytest.mark.parametrize(("kind", "value"), list(zip(KINDS, [10_000, 10, 10_000, 10**7, 10**10], strict=True)))
def test_ten_seconds_in_every_unit_and_back(kind: pa.DataType, value: int) -> None:
    assert is_event_time(kind)
    assert in_unit("window", 10_000, kind) == value
    assert duration_text(value, kind) == "10s"


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.date32(), pa.string(), pa.uint64()])
def test_other_types_are_no_event_time(kind: pa.DataType) -> None:
    assert not is_event_time(kind)


def test_a_duration_finer_than_the_unit_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="window: 1500ms is no whole number"):
        in_unit("window", 1_500, pa.timestamp("s"))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0, pa.int64(), "0s"),
        (200, pa.int64(), "200ms"),
        (90_000, pa.int64(), "90s"),
        (3_600_000, pa.int64(), "1h"),
        (172_800, pa.timestamp("s"), "2d"),
        (1, pa.timestamp("ns"), "1ns"),
        (1_500, pa.timestamp("ns"), "1500ns"),
        (2_000, pa.timestamp("ns"), "2us"),
        (7, pa.timestamp("us"), "7us"),
    ],
)
def test_durations_are_shown_in_the_largest_whole_unit(value: int, kind: pa.DataType, text: str) -> None:
    assert duration_text(value, kind) == text
