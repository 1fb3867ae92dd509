"""A leader that meets damaged entries."""

from __future__ import annotations

import pytest
from driving import EVERYONE, Driver
from test_view import commit, restore, takeover
from torn import LOG, torn

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.events import Conflict, PutAnswered
from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.checkpoint.mode import Mode
from tidegate.core.log.append import Landed, LogAppender, Taken
from tidegate.core.log.entries import Damaged


def test_a_slot_with_a_damaged_entry_is_taken_whoever_wrote_it() -> None:
    appender, ours = LogAppender(10, 1000), takeover(4)
    for found, outcome in ((torn(ours), Taken(torn(ours), ours)), (ours, Landed(ours))):
        appender.put(ours, 0)
        assert appender.answered(PutAnswered(4, ours.write_id, Conflict(found)), 0) == outcome


def test_a_takeover_whose_slot_can_not_be_read_tries_the_next() -> None:
    driver = Driver()
    driver.tell(events.LogRead(()))
    driver.answer(events.Conflict(torn(takeover(0))))
    driver.tell(events.LogRead((torn(takeover(0)),)))
    assert driver.last(do.PutEntry).slot == 1


def test_a_restore_whose_slot_can_not_be_read_ends_the_leader() -> None:
    driver = Driver(log=tuple(LOG)).lead()
    driver.tell(events.RestoreRequested(3))
    effects = driver.answer(events.Conflict(torn(restore(5, 3, term=4))))
    (reason,) = [effect.reason for effect in effects if isinstance(effect, do.StepDown)]
    assert reason == do.Replaced(None, 5, torn(restore(5, 3)).why)
    assert str(reason) == f"another driver has taken over slot=5: {torn(restore(5, 3)).why}"


def test_rows_that_a_damaged_commit_may_have_published_are_hidden_before_the_gang_starts() -> None:
    kept = CommittableEntry("out", 0, 0, 2, {}, 2)
    entries = (takeover(0), commit(1), commit(2, 1, committables=(kept,)), torn(commit(3, 2)))
    driver = Driver(log=entries).lead()
    driver.tell(events.RestoreRequested(2))
    assert driver.answer() == [do.Hide(5, (), False, do.Unnamed(2, (kept,)))]
    effects = driver.tell(events.Hidden(5))
    assert [type(effect) for effect in effects] == [do.Publish]


@pytest.mark.parametrize("last", [torn(commit(4, 3)), torn(restore(4, 3))])
def test_a_gang_that_runs_past_a_hidden_head_is_not_taken_over(last: Damaged) -> None:
    """Its state has no manifest to go on from: the next one starts from what can be read."""
    driver = Driver(log=(*LOG, last)).lead()
    driver.tell(events.GangRunning(0, EVERYONE, EVERYONE))
    assert driver.machine.mode is Mode.READY and driver.machine.metrics.stale_messages == 1


def test_rows_of_a_part_of_the_log_that_was_lost_are_hidden_whatever_their_gang() -> None:
    """The next gang's number may be lower than theirs: a rolled-back log counts again."""
    kept = CommittableEntry("out", 0, 0, 2, {}, 2)
    driver = Driver(log=(takeover(0), commit(1), commit(2, 1, committables=(kept,)))).lead()
    driver.tell(events.RestoreRequested(2, sinks_newer=True))
    assert driver.answer() == [do.Hide(4, (), False, do.Unnamed(2, (kept,), every_gang=True))]


def test_a_finished_job_whose_sinks_are_newer_hides_what_its_log_lost() -> None:
    driver = Driver(log=(takeover(0), commit(1, final=True))).lead()
    assert driver.tell(events.RestoreRequested(1, sinks_newer=True)) == [
        do.Hide(0, (), False, do.Unnamed(1, (), every_gang=True))
    ]
    assert [type(effect) for effect in driver.tell(events.Hidden(0))] == [do.JobFinished]
