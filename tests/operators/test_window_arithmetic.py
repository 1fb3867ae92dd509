"""Windows and panes against the definition of a window, and what is closed for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from windowed import starts_of

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.operators.fixed import FixedWindow
from tidegate.operators.session import SessionWindow
from tidegate.state.closed import NEVER, Closed
from tidegate.state.windows import Windows

times = st.integers(-(10**15), 10**15)
sizes = st.integers(1, 50)


@given(times, sizes, sizes)
def test_a_time_is_in_the_windows_of_its_pane_and_in_no_other(time: int, size: int, slide: int) -> None:
    window = FixedWindow("sliding", size, slide)
    windows = window.windows
    pane = windows.panes(pa.array([time]))[0].as_py()
    assert pane <= time < pane + windows.pane
    assert pane % windows.pane == 0
    assert list(windows.starts(pane)) == starts_of(time, window)


@given(st.lists(times, min_size=1), st.integers(1, 10**6))
def test_tumbling_starts_are_floored_below_zero_too(values: list[int], size: int) -> None:
    windows = Windows.of(size, size)
    assert windows.panes(pa.array(values)).to_pylist() == [value // size * size for value in values]
    panes = {value // size * size for value in values}
    assert windows.one_pane(pa.array(values)) == (panes.pop() if len(panes) == 1 else None)


@given(sizes, sizes, st.integers(0, 20), st.integers(-200, 200), st.integers(0, 200))
def test_closing_lists_every_window_between_two_watermarks(
    size: int, slide: int, lateness: int, after: int, further: int
) -> None:
    windows = Windows.of(size, slide, lateness)
    every = range(-1000 * slide, 1001 * slide, slide)
    expected = [start for start in every if after < start + size + lateness <= after + further]
    assert list(windows.closing(after, after + further)) == expected


def test_a_pane_between_windows_is_taken_by_none() -> None:
    windows = Windows.of(2, 10)
    assert windows.retires_at(0) == 2
    assert windows.retires_at(4) is None


def test_a_pane_retires_with_its_last_window_and_the_allowed_lateness() -> None:
    assert Windows.of(30, 10, 5).retires_at(20) == 20 + 30 + 5


def test_rows_without_a_usable_time_have_no_pane() -> None:
    windows = Windows.of(10, 10)
    extremes = pa.array([None, -(2**63), 2**63 - 1, 25, -25])
    assert windows.panes(extremes).to_pylist() == [None, None, None, 20, -30]
    assert windows.one_pane(pa.array([2**63 - 1])) is None
    assert windows.one_pane(pa.array([1, None])) is None
    assert windows.one_pane(pa.array([], pa.int64())) is None


def test_timestamps_count_in_their_own_unit() -> None:
    windows = Windows.of(1000, 1000)
    assert windows.panes(pa.array([-1, 1999], pa.timestamp("us", "UTC"))).to_pylist() == [-1000, 1000]


@pytest.mark.parametrize(
    "arguments",
    [("tumbling", 0, 0), ("sliding", 10, 0), ("sliding", -1, 5), ("tumbling", 10, 5), ("tumbling", 10, 10, -1)],
    ids=str,
)
def test_windows_that_cannot_be_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidUseError):
        FixedWindow(*arguments)


def test_a_session_has_no_fixed_bounds() -> None:
    with pytest.raises(InvalidUseError, match="other bounds on each side"):
        SessionWindow(10).fixed("join")


def test_groups_that_had_closed_more_stay_closed_until_the_watermark_has_caught_up() -> None:
    closed = Closed(range(4), 8)
    closed.restore([[[0, 2, 100]], [[2, 8, 50]]])
    groups = np.array([0, 1, 2, 3], np.uint16)
    assert closed.through == 50 and not closed.uniform
    assert closed.open_at(80, groups).tolist() == [False, False, True, True]
    assert closed.to_json() == [[0, 2, 100], [2, 4, 50]]
    closed.advance(70)
    assert closed.to_json() == [[0, 2, 100], [2, 4, 70]]
    assert closed.open_at(70, groups).tolist() == [False] * 4
    closed.advance(100)
    assert closed.uniform and closed.to_json() == [[0, 4, 100]]


def test_nothing_closed_is_stored_as_nothing() -> None:
    closed = Closed(range(3, 6), 8)
    assert closed.to_json() == []
    closed.restore([[], []])
    assert closed.through == NEVER and closed.uniform


@pytest.mark.parametrize(
    "stored",
    [None, {}, "x", [[1, 2]], [[0, 9, 5]], [[-1, 2, 5]], [[2, 2, 5]], [[0, 1, 2**63]], [["0", 1, 5]]],
)
def test_a_broken_record_of_what_is_closed_is_corrupt(stored: object) -> None:
    closed = Closed(range(8), 8)
    with pytest.raises(CorruptDataError):
        closed.restore([stored])  # type: ignore[list-item]
    assert closed.through == NEVER
