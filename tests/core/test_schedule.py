"""When the next checkpoint is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint.schedule import Schedule, SchedulePolicy
from tidegate.errors import InvalidUseError

POLICY = SchedulePolicy(interval_ms=1_000, min_pause_ms=300, retry_ms=100, tolerable_failures=2)


def test_the_first_is_due_one_interval_after_the_gang_runs() -> None:
    assert Schedule.begin(POLICY, 50).due_ms == 1_050


def test_the_interval_counts_from_trigger_to_trigger() -> None:
    assert Schedule.begin(POLICY, 0).triggered(1_000).completed(1_200).due_ms == 2_000


def test_a_slow_checkpoint_is_followed_by_the_pause() -> None:
    assert Schedule.begin(POLICY, 0).triggered(1_000).completed(1_900).due_ms == 2_200


def test_without_an_interval_only_requests_start_one() -> None:
    policy = SchedulePolicy(interval_ms=None)
    assert Schedule.begin(policy, 0).completed(5).due_ms is None


def test_a_failed_one_is_tried_again_soon_and_ever_later() -> None:
    policy = SchedulePolicy(interval_ms=100_000, retry_ms=100)
    failing = Schedule.begin(policy, 0).triggered(10)
    waits = []
    for _ in range(4):
        failing = failing.failed(1_000)
        due = failing.due_ms
        assert due is not None
        waits.append(due - 1_000)
    assert waits == [100, 200, 400, 800]


def test_a_retry_keeps_the_pause() -> None:
    assert Schedule.begin(POLICY, 0).triggered(0).failed(10).retry_due_ms == 310


def test_a_retry_never_comes_later_than_the_interval() -> None:
    failing = Schedule.begin(POLICY, 0).triggered(0)
    for _ in range(60):
        failing = failing.failed(100)
    assert failing.due_ms == 1_000


def test_without_a_failure_a_retry_is_due_at_once() -> None:
    assert Schedule.begin(POLICY, 7).retry_due_ms == 7
    assert Schedule.begin(POLICY, 7).triggered(8).completed(9).retry_due_ms == 8


def test_more_failures_in_a_row_than_tolerable_exhaust_it_and_a_success_forgets_them() -> None:
    failing = Schedule.begin(POLICY, 0).failed(1).failed(2)
    assert not failing.exhausted
    assert failing.failed(3).exhausted
    assert not failing.completed(3).failed(4).exhausted


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_ms": 0},
        {"interval_ms": -5},
        {"min_pause_ms": -1},
        {"retry_ms": 0},
        {"tolerable_failures": -1},
    ],
)
def test_a_wrong_policy_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidUseError):
        SchedulePolicy(**wrong)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5_000)), max_size=30))
def test_the_next_one_never_starts_before_the_pause(history: list[tuple[bool, int]]) -> None:
    schedule, now = Schedule.begin(POLICY, 0), 0
    for good, step in history:
        due = schedule.due_ms
        assert due is not None
        now = max(now, due)
        if schedule.ended_ms is not None:
            assert now >= schedule.ended_ms + POLICY.min_pause_ms
        schedule = schedule.triggered(now)
        now += step
        schedule = schedule.completed(now) if good else schedule.failed(now)
