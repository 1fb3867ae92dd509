"""What is given in answer to a fact: effects in order, one timer, and the story."""

from __future__ import annotations

from tidegate.core.checkpoint.answer import STORY_LENGTH, EffectCollector
from tidegate.core.checkpoint.effects import CheckpointAborted, JobStopped, ReadLog, SetTimer
from tidegate.errors import CheckpointAbortedError


def test_effects_come_in_the_order_in_which_they_are_given_and_nothing_is_nothing() -> None:
    out = EffectCollector()
    out.open("fact", 1)
    out.give(ReadLog(), None)
    out.give_all([JobStopped()])
    assert out.close(1, ()) == [ReadLog(), JobStopped()]


def test_each_fact_is_answered_by_itself() -> None:
    out = EffectCollector()
    out.open("one", 1)
    out.give(ReadLog())
    first = out.close(1, ())
    out.open("two", 2)
    assert out.close(2, ()) == [] and first == [ReadLog()]


def test_an_aborted_checkpoint_carries_the_story_that_led_to_it() -> None:
    out = EffectCollector()
    out.open("the fact", 7)
    error = CheckpointAbortedError("over", checkpoint_id=1)
    out.give(CheckpointAborted(1, "over", (), error))
    assert error.story == ("7 'the fact'",) == out.story


def test_the_story_is_bounded_in_length_and_breadth() -> None:
    out = EffectCollector()
    for number in range(STORY_LENGTH + 9):
        out.open("x" * 1_000, number)
    assert len(out.story) == STORY_LENGTH and max(map(len, out.story)) < 310
    assert out.story[-1].startswith(f"{STORY_LENGTH + 8} ")


def test_the_timer_is_set_for_the_first_deadline_and_only_when_that_is_another() -> None:
    out = EffectCollector()
    assert out.close(0, (None, 30, 20)) == [SetTimer(20)]
    out.open("fact", 1)
    assert out.close(1, (30, 20)) == []
    assert out.close(2, ()) == []
    assert out.close(3, (10,)) == [SetTimer(10)]


def test_a_timer_that_has_fired_is_set_again_for_the_same_time() -> None:
    out = EffectCollector()
    out.close(0, (20,))
    out.open("fact", 20)
    assert out.close(20, (20,)) == [SetTimer(20)]
