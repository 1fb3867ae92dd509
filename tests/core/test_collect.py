"""The terminal points of a node: a signal has passed when all of them have seen it, or ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.control.collect import ResultCollectProcessor
from tidegate.core.control.signals import BarrierControlSignalKind
from tidegate.errors import DuplicateBarrier, InvalidUseError

SYNC = BarrierControlSignalKind.SyncTest


def test_a_signal_has_passed_when_all_sinks_have_seen_it() -> None:
    collect = ResultCollectProcessor([0, 1])
    collect.seen(0, SYNC.with_id(5))
    assert not collect.has_passed(5)
    collect.seen(1, SYNC.with_id(5))
    assert collect.has_passed(5)
    assert not collect.has_passed(6)


def test_what_comes_early_to_one_sink_waits_for_the_others() -> None:
    collect = ResultCollectProcessor([0, 1])
    for number in (1, 2, 3):
        collect.seen(0, SYNC.with_id(number))
    collect.seen(1, SYNC.with_id(1))
    assert (collect.has_passed(1), collect.has_passed(2)) == (True, False)
    collect.seen(1, SYNC.with_id(2))
    assert (collect.has_passed(2), collect.has_passed(3)) == (True, False)


def test_a_sink_that_ended_is_not_waited_for_once_what_it_saw_has_counted() -> None:
    collect = ResultCollectProcessor([0, 1])
    collect.seen(0, SYNC.with_id(1))
    collect.ended(0)
    collect.ended(0)
    assert not collect.has_passed(1)
    collect.seen(1, SYNC.with_id(1))
    collect.seen(1, SYNC.with_id(2))
    assert collect.has_passed(2)


def test_an_end_counts_as_the_arrival_of_what_is_pending() -> None:
    collect = ResultCollectProcessor([0, 1])
    collect.seen(0, SYNC.with_id(1))
    collect.ended(1)
    assert (collect.has_passed(1), collect.has_passed(2)) == (True, False)


def test_when_all_sinks_have_ended_everything_has_passed() -> None:
    collect = ResultCollectProcessor([0])
    collect.ended(0)
    assert collect.has_passed(9)


def test_signals_in_another_order_at_one_sink_are_an_error() -> None:
    collect = ResultCollectProcessor([0, 1])
    collect.seen(0, SYNC.with_id(1))
    collect.seen(1, SYNC.with_id(1))
    collect.seen(0, SYNC.with_id(2))
    collect.seen(0, SYNC.with_id(2))
    with pytest.raises(DuplicateBarrier):
        collect._aligner.arrive(0, SYNC.with_id(2).key)


def test_a_plan_without_sinks_is_none() -> None:
    with pytest.raises(InvalidUseError):
        ResultCollectProcessor([])


@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_whatever_order_sinks_see_them_in_each_passes_when_the_last_has_seen_it(order: list[int]) -> None:
    collect, count = ResultCollectProcessor(range(3)), [0, 0, 0]
    for sink in order:
        count[sink] += 1
        collect.seen(sink, SYNC.with_id(count[sink]))
        assert [collect.has_passed(number) for number in (1, 2, 3)] == [min(count) >= number for number in (1, 2, 3)]
