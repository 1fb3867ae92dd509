"""The adaptive alignment threshold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint import command
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.adapt import AlignmentTimeout, Observed, UnalignedStreak
from tidegate.core.checkpoint.attempt import CheckpointAttempt, Promote
from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.errors import InvalidUseError, ThresholdTooLow


def after(threshold: AlignmentTimeout, times: int, *, unaligned: bool, took_ms: int) -> AlignmentTimeout:
    for _ in range(times):
        threshold = threshold.learned(Observed(unaligned, took_ms, threshold.ms))
    return threshold


START = AlignmentTimeout.around(1_000, 300_000)


def test_it_starts_at_the_setting_with_bounds_around_it() -> None:
    assert (START.ms, START.least_ms, START.most_ms) == (1_000, 100, 10_000)


def test_the_upper_bound_leaves_half_of_the_timeout() -> None:
    assert AlignmentTimeout.around(1_000, 4_000).most_ms == 2_000
    assert AlignmentTimeout.around(3_000, 4_000).most_ms == 3_000


def test_frequent_and_dear_unaligned_checkpoints_raise_it() -> None:
    assert after(START, 5, unaligned=True, took_ms=6_000).ms > 1_000


def test_one_unaligned_checkpoint_is_not_frequent() -> None:
    assert after(START, 1, unaligned=True, took_ms=60_000).ms == 1_000


def test_frequent_but_cheap_unaligned_checkpoints_leave_it() -> None:
    assert after(START, 20, unaligned=True, took_ms=1_100).ms == 1_000


def test_aligned_checkpoints_near_the_threshold_lower_it() -> None:
    assert after(START, 3, unaligned=False, took_ms=900).ms < 1_000


def test_quick_aligned_checkpoints_leave_it() -> None:
    assert after(START, 50, unaligned=False, took_ms=300).ms == 1_000


def test_it_is_not_lowered_when_overtaking_is_dearer_than_waiting() -> None:
    dear = after(START, 1, unaligned=True, took_ms=9_000)
    assert after(dear, 3, unaligned=False, took_ms=900).ms == 1_000


def test_an_old_lesson_fades() -> None:
    dear = after(START, 1, unaligned=True, took_ms=9_000)
    cheap = after(dear, 30, unaligned=True, took_ms=dear.ms)
    assert after(cheap, 3, unaligned=False, took_ms=cheap.ms).ms < cheap.ms


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1_000_000)), max_size=60))
def test_it_never_leaves_its_bounds(story: list[tuple[bool, int]]) -> None:
    threshold = START
    for unaligned, took_ms in story:
        threshold = threshold.learned(Observed(unaligned, took_ms, threshold.ms))
        assert threshold.least_ms <= threshold.ms <= threshold.most_ms


@pytest.mark.parametrize(("least", "ms", "most"), [(0, 1, 1), (5, 4, 9), (1, 10, 9)])
def test_bounds_that_do_not_hold_are_refused(least: int, ms: int, most: int) -> None:
    with pytest.raises(InvalidUseError, match="within its bounds"):
        AlignmentTimeout(ms, least, most)


def test_a_streak_of_unaligned_checkpoints_is_said_once() -> None:
    streak = UnalignedStreak(3)
    answers = [streak.committed(unaligned) for unaligned in (True, True, False, True, True, True, True)]
    assert [index for index, answer in enumerate(answers) if answer is not None] == [5]
    assert isinstance(answers[5], ThresholdTooLow)
    assert "the last 3 checkpoints" in str(answers[5])
    assert streak.committed(True) is None


def test_who_asked_for_overtaking_is_not_warned_of_it() -> None:
    streak = UnalignedStreak(2, wanted=True)
    assert [streak.committed(True) for _ in range(5)] == [None] * 5


# -- in force ------------------------------------------------------------------------------------------------


def attempt(**fields: object) -> CheckpointAttempt:
    given = {"checkpoint_id": 1, "epoch": 0, "parent": None, "gang": 0, "term": 0, "started_ms": 0}
    nodes = {"nodes": frozenset({0}), "sources": frozenset({0})}
    return CheckpointAttempt(**{**given, **nodes, **fields})  # type: ignore[arg-type]


def test_it_is_off_unless_asked_for() -> None:
    assert CheckpointConfig().adaptive_alignment is False
    assert DistributedCheckpointConfig().adaptive_alignment_timeout is None


@pytest.mark.parametrize("off", [{"enable_unaligned_fallback": False}, {"unaligned_threshold_ms": 0}])
def test_there_is_nothing_to_learn_without_a_fallback_or_without_waiting(off: dict[str, Any]) -> None:
    assert DistributedCheckpointConfig(adaptive_alignment=True, **off).adaptive_alignment_timeout is None


def test_learning_begins_at_the_configured_threshold() -> None:
    threshold = DistributedCheckpointConfig(adaptive_alignment=True).adaptive_alignment_timeout
    assert threshold is not None
    assert (threshold.ms, threshold.most_ms) == (30_000, 150_000)


def test_a_learned_threshold_is_what_nodes_are_told_and_when_barriers_are_promoted() -> None:
    config = DistributedCheckpointConfig()
    learned = attempt(learned_alignment_timeout_ms=200)
    told = command.start(learned, do.Stamp(0, 0, None, 0), config)
    started = [order.started for order in told if isinstance(order, do.SendStarted)]
    assert [each.alignment_timeout_ms for each in started] == [200]
    assert learned.deadline_ms(config) == 200
    assert learned.overdue(config, 199) is None
    assert isinstance(learned.overdue(config, 200), Promote)
    assert attempt().alignment_timeout_ms(config) == 30_000


def test_savepoints_the_last_checkpoint_and_fixed_thresholds_teach_nothing() -> None:
    slow = {"learned_alignment_timeout_ms": 1_000}
    for what in ({**slow, "savepoint": "kept"}, {**slow, "final": True}, {}):
        assert attempt(**what).learned(START, unaligned=True) is START
    assert attempt(**slow).learned(None, unaligned=True) is None


def test_a_committed_attempt_teaches_how_long_it_took_to_its_last_report() -> None:
    done = attempt(learned_alignment_timeout_ms=1_000)
    done.progress_ms = 950
    after_it = done.learned(START, unaligned=False)
    assert after_it is not None
    assert (after_it.aligned_ms, after_it.ms) == (950, 800)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_the_setting_is_true_or_false(value: object) -> None:
    with pytest.raises(InvalidUseError, match="adaptive_alignment is True or False"):
        CheckpointConfig(adaptive_alignment=value)  # type: ignore[arg-type]
