"""Rows that come early in event time wait until the watermark is within the bound, and come out in order."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from tidegate.state import held as held_rows
from tidegate.state.held import RUNS_MAX, HeldRows
from tidegate.state.ownership import EVERYTHING
from tidegate.state.run import Restored, Size
from tidegate.values import END_OF_TIME


def batch(*times: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"ts": pa.array(times, pa.timestamp("ms"))})


def made(bound: int = 0) -> HeldRows:
    return HeldRows(EVERYTHING, batch().schema, "p", "ts", bound)


def times(batches: object) -> list[list[int | None]]:
    return [each.column("ts").cast(pa.int64()).to_pylist() for each in batches]  # type: ignore[attr-defined]


def test_a_row_goes_on_when_the_watermark_is_within_the_bound() -> None:
    held = made(5)
    assert times(held.take(batch(10, 3, 12))) == []
    assert times(held.release(6)) == [[3, 10]]
    assert times(held.take(batch(11, 7, 20))) == [[11, 7]], "within the bound they go on as they came"
    assert times(held.release(6)) == []
    assert times(held.release(15)) == [[12, 20]]
    assert held.size() == Size(0, 0)


def test_what_waits_comes_out_in_the_order_of_time_whatever_batch_it_came_in() -> None:
    held = made()
    for each in (batch(9, 1), batch(5, 7), batch(3)):
        assert times(held.take(each)) == []
    assert times(held.release(END_OF_TIME)) == [[1, 3, 5, 7, 9]]


def test_rows_that_waited_at_a_cut_wait_on() -> None:
    first, second = made(), made()
    list(first.take(batch(4, 8)))
    second.restore([Restored(0, {}, first.freeze().runs)])
    assert times(second.release(4)) == [[4]] and second.size().rows == 1


def test_many_small_batches_become_one_run() -> None:
    held = made()
    for number in range(RUNS_MAX + 1):
        list(held.take(batch(number)))
    assert (len(held.freeze().runs), held.size().rows) == (1, RUNS_MAX + 1)


def test_a_row_without_a_time_does_not_wait() -> None:
    assert times(made().take(batch(None, 5))) == [[None]]


def test_more_rows_than_may_wait_go_on_in_order_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_rows, "HELD_BYTES_MAX", 50)
    held = made()
    with caplog.at_level(logging.WARNING, "tidegate"):
        gone = times(held.take(batch(4, 8, 2, 6, 10, 12, 1)))
        gone += times(held.take(batch(20, 21, 22, 23, 24)))
    assert gone[0] == [1, 2, 4, 6] and held.size().rows < 7
    assert len(caplog.records) == 1 and "out of order" in caplog.text
