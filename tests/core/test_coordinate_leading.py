"""Leading: takeover, gangs, sinks, stopping. Driven through the coordinator, the only class that leads."""

from __future__ import annotations

from typing import Any

import pytest
from coordination import CONFIG, SHAPE
from driving import EVERYONE, Driver, kinds
from test_view import commit, restore, takeover

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.checkpoint.mode import Mode
from tidegate.core.log.view import Restore, Takeover
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError, UnexpectedPhase

ONE = CommittableEntry("out", 0, 0, 1, {"file": "1"}, 1)
TWO = CommittableEntry("out", 0, 0, 2, {"file": "2"}, 2)
LOG = (takeover(0), commit(1, committables=(ONE,)), commit(2, 1, committables=(TWO,)))
THEIRS = Takeover(slot=0, term=0, write_id="other/1", leader="other")


# -- takeover ------------------------------------------------------------------------------------------------


def test_a_new_leader_writes_a_takeover_into_the_next_free_slot() -> None:
    driver = Driver(log=LOG)
    driver.tell(events.LogRead(LOG))
    put = driver.last(do.PutEntry)
    assert put.slot == 3 and isinstance(put.entry, Takeover) and put.entry.term == 3
    assert kinds(driver.answer()) == [do.ResolveRestore]
    assert driver.machine.term == 3 and driver.machine.metrics.leader_failovers == 1


def test_the_first_leader_of_all_is_no_failover() -> None:
    assert Driver().lead().machine.metrics.leader_failovers == 0


def test_a_takeover_that_loses_its_slot_reads_the_log_anew_and_tries_the_next() -> None:
    """What is in the slot may be a takeover that does not count, in one that was trimmed."""
    driver = Driver()
    driver.tell(events.LogRead(()))
    assert kinds(driver.answer(events.Conflict(THEIRS))) == [do.ReadLog]
    driver.tell(events.LogRead((THEIRS,)))
    assert driver.last(do.PutEntry).slot == 1
    driver.answer()
    assert driver.machine.term == 1


def test_a_takeover_says_who_took_over_and_when() -> None:
    machine = DistributedCheckpointCoordinator(SHAPE, CONFIG, "me", host="there", pid=7)
    (put, *_) = machine.handle(events.LogRead(()), 0, 1_700_000_000_000)
    assert isinstance(put, do.PutEntry) and isinstance(put.entry, Takeover)
    assert (put.entry.leader, put.entry.host, put.entry.pid, put.entry.wall_ms) == ("me", "there", 7, 1_700_000_000_000)


def test_a_log_that_cannot_be_understood_makes_no_leader() -> None:
    driver = Driver()
    with pytest.raises(CorruptDataError):
        driver.tell(events.LogRead((takeover(1),)))
    assert driver.machine.mode is Mode.READING


def test_a_takeover_that_is_unknown_is_put_again_with_the_same_write_id() -> None:
    driver = Driver()
    driver.tell(events.LogRead(()))
    first = driver.last(do.PutEntry)
    driver.answer(events.Unknown())
    driver.tick(10)
    assert driver.every(do.PutEntry) == [first, first]
    driver.answer(events.Conflict(first.entry))
    assert driver.machine.mode is Mode.READY
    assert driver.machine.metrics.put_retries == 1


def test_a_store_that_never_answers_ends_the_leader() -> None:
    driver = Driver(storage_timeout_ms=500)
    driver.tell(events.LogRead(()))
    assert kinds(driver.tick(500)) == [do.StepDown]
    assert driver.machine.mode is Mode.DEPOSED


def test_answers_that_nobody_waits_for_are_counted() -> None:
    driver = Driver().lead()
    driver.tell(events.PutAnswered(9, "x", events.Written()))
    driver.tell(events.LogRead(()))
    driver.tell(events.Published(4))
    driver.tell(events.PublishFailed(4, "x"))
    driver.tell(events.Hidden(4))
    driver.tell(events.HideFailed(4, "x"))
    assert driver.machine.metrics.stale_messages == 6
    assert driver.machine.metrics.publish_retries == 0


# -- starting a gang -----------------------------------------------------------------------------------------


def test_the_first_gang_of_all_has_number_0_and_no_entry() -> None:
    driver = Driver().lead()
    effects = driver.tell(events.RestoreRequested(None))
    assert effects == [do.StartGang(0, None)]


def test_every_later_start_writes_a_restore_first_and_that_slot_is_the_gang() -> None:
    driver = Driver().start()
    driver.lose_gang()
    assert kinds(driver.tell(events.RestoreRequested(None))) == [do.PutEntry]
    entry = driver.last(do.PutEntry).entry
    assert isinstance(entry, Restore) and (entry.slot, entry.parent, entry.reason) == (1, None, "node lost")
    assert kinds(driver.answer()) == [do.Hide]
    assert driver.tell(events.Hidden(1)) == [do.StartGang(1, None)]


def test_a_second_leader_never_starts_gang_0() -> None:
    driver = Driver(log=(THEIRS,)).lead()
    driver.tell(events.RestoreRequested(None))
    assert isinstance(driver.last(do.PutEntry).entry, Restore)


def test_the_head_is_published_again_before_the_gang_starts() -> None:
    driver = Driver(log=LOG).lead()
    driver.tell(events.RestoreRequested(2))
    assert driver.answer() == [do.Publish(2, 4, (TWO,))]
    effects = driver.tell(events.Published(2))
    assert effects == [do.StartGang(4, LOG[2].manifest)]  # type: ignore[union-attr]


def test_an_older_epoch_hides_what_came_after_it_and_then_publishes_itself() -> None:
    driver = Driver(log=LOG).lead()
    driver.tell(events.RestoreRequested(1))
    assert driver.answer() == [do.Hide(4, (TWO,))]
    assert driver.tell(events.Hidden(4)) == [do.Publish(1, 4, (ONE,))]
    assert kinds(driver.tell(events.Published(1))) == [do.StartGang]
    assert driver.machine.log.head_epoch == 1


def test_a_start_without_state_hides_everything() -> None:
    driver = Driver(log=LOG).lead()
    driver.tell(events.RestoreRequested(None))
    assert driver.answer() == [do.Hide(4, (ONE, TWO), everything=True)]


def test_a_failed_hide_or_publish_is_tried_again_before_anything_else() -> None:
    driver = Driver(log=LOG).lead()
    driver.tell(events.RestoreRequested(1))
    driver.answer()
    driver.tell(events.HideFailed(4, "busy"))
    assert kinds(driver.tick(10)) == [do.Hide]
    driver.tell(events.Hidden(4))
    driver.tell(events.PublishFailed(1, "busy"))
    assert kinds(driver.tick(30)) == [do.Publish]
    assert driver.machine.metrics.publish_retries == 2


def test_an_epoch_out_of_reach_is_refused_and_changes_nothing() -> None:
    driver = Driver(log=LOG).lead()
    with pytest.raises(InvalidUseError):
        driver.tell(events.RestoreRequested(9))
    assert driver.machine.mode is Mode.READY
    driver.restore(2)
    assert driver.machine.mode is Mode.RUNNING


def test_a_gang_cannot_be_started_while_one_is_there() -> None:
    driver = Driver().start()
    with pytest.raises(UnexpectedPhase, match="when none is there") as caught:
        driver.tell(events.RestoreRequested(None))
    assert "RestoreRequested" in caught.value.story[-1]


def test_a_restore_that_loses_its_slot_ends_the_leader() -> None:
    driver = Driver(log=LOG).lead()
    driver.tell(events.RestoreRequested(2))
    effects = driver.answer(events.Conflict(takeover(4)))
    assert kinds(effects) == [do.StepDown] and driver.machine.mode is Mode.DEPOSED


def test_a_gang_that_fails_to_start_is_resolved_anew() -> None:
    driver = Driver().lead()
    driver.tell(events.RestoreRequested(None))
    assert driver.lose_gang("too few slots") == [do.ResolveRestore("too few slots")]


@pytest.mark.parametrize("nodes", [(frozenset(), frozenset()), (EVERYONE, frozenset({7}))])
def test_a_gang_without_nodes_or_with_sources_elsewhere_is_impossible(nodes: Any) -> None:
    driver = Driver().lead()
    driver.tell(events.RestoreRequested(None))
    with pytest.raises(ProtocolError):
        driver.tell(events.GangRunning(0, *nodes))
    assert driver.machine.mode is Mode.STARTING


def test_news_of_another_gang_is_stale() -> None:
    driver = Driver().start()
    driver.tell(events.GangRunning(5, EVERYONE, EVERYONE))
    driver.tell(events.GangLost(5, "x"))
    assert driver.machine.metrics.stale_messages == 2
    assert driver.machine.mode is Mode.RUNNING


def test_a_gang_is_lost_once() -> None:
    driver = Driver().start()
    driver.lose_gang()
    driver.lose_gang()
    assert len(driver.every(do.ResolveRestore)) == 2
    assert driver.machine.metrics.stale_messages == 1


# -- failover with a living gang -----------------------------------------------------------------------------


def test_a_running_gang_goes_on_under_a_new_leader() -> None:
    driver = Driver(log=LOG).lead()
    effects = driver.gang_up()
    aborts = [effect for effect in effects if isinstance(effect, do.SendAbort)]
    assert [(effect.node, effect.checkpoint_id) for effect in aborts] == [(0, 3 << 32), (1, 3 << 32)]
    assert driver.last(do.Publish) == do.Publish(2, 0, (TWO,))
    assert driver.machine.mode is Mode.RUNNING


def test_a_gang_that_this_leader_has_lost_is_not_taken_back() -> None:
    driver = Driver(log=LOG).lead()
    driver.gang_up()
    driver.tell(events.Published(2))
    driver.lose_gang()
    driver.gang_up()
    assert driver.machine.mode is Mode.READY


def test_a_gang_of_a_finished_job_is_not_taken_over() -> None:
    driver = Driver(log=(takeover(0), commit(1, final=True))).lead()
    driver.gang_up()
    assert driver.machine.mode is Mode.READY


# -- finishing and stopping ----------------------------------------------------------------------------------


def test_a_finished_job_started_again_publishes_and_is_finished_at_once() -> None:
    final = commit(1, final=True, committables=(ONE,))
    driver = Driver(log=(takeover(0), final)).lead()
    assert kinds(driver.tell(events.RestoreRequested(1))) == [do.Publish]
    assert driver.tell(events.Published(1)) == [do.JobFinished(final.manifest)]
    assert len(driver.every(do.PutEntry)) == 1, "only the takeover"


def test_a_stop_before_the_log_is_read_starts_nothing() -> None:
    driver = Driver()
    assert driver.tell(events.StopRequested()) == [do.JobStopped()]
    driver.tell(events.LogRead(()))
    driver.tell(events.Tick())
    assert driver.machine.metrics.stale_messages == 1


def test_a_stop_during_takeover_waits_for_the_answer() -> None:
    driver = Driver()
    driver.tell(events.LogRead(()))
    assert driver.tell(events.StopRequested()) == []
    assert kinds(driver.answer()) == [do.JobStopped]


def test_a_stop_without_a_gang_is_immediate() -> None:
    driver = Driver().lead()
    assert driver.tell(events.StopRequested()) == [do.JobStopped()]


def test_a_stop_during_recovery_starts_no_gang() -> None:
    driver = Driver(log=LOG).lead()
    driver.tell(events.RestoreRequested(2))
    driver.tell(events.StopRequested())
    driver.answer()
    assert kinds(driver.tell(events.Published(2))) == [do.JobStopped]


@pytest.mark.parametrize("started", [False, True])
def test_a_stop_ends_the_gang_and_then_the_job(started: bool) -> None:
    driver = Driver().lead()
    driver.tell(events.RestoreRequested(None))
    if started:
        driver.gang_up()
    assert driver.tell(events.StopRequested()) == [do.StopGang(0, "stop requested")]
    assert driver.tell(events.StopRequested()) == []
    driver.gang_up()
    assert driver.lose_gang("stopped") == [do.JobStopped()]


def test_a_stop_publishes_what_is_committed_before_it_is_done() -> None:
    driver = Driver().start()
    driver.checkpoint(publish=False)
    driver.tell(events.StopRequested())
    assert kinds(driver.lose_gang("stopped")) == []
    driver.tell(events.PublishFailed(1, "busy"))
    assert kinds(driver.tick(10)) == [do.Publish]
    assert kinds(driver.tell(events.Published(1))) == [do.JobStopped]


def test_an_epoch_is_public_when_the_sinks_have_confirmed_it() -> None:
    driver = Driver().start()
    driver.checkpoint(publish=False)
    epoch = driver.machine.log.head_epoch
    assert epoch is not None and not driver.machine.is_public(epoch)
    driver.tell(events.Published(epoch))
    assert driver.machine.is_public(epoch)


def test_sinks_that_never_take_it_end_the_leader_without_losing_anything() -> None:
    driver = Driver(publish_tries_max=2, storage_timeout_ms=10).start()
    driver.checkpoint(publish=False)
    driver.tell(events.PublishFailed(1, "no"))
    driver.tick(10)
    assert kinds(driver.tell(events.PublishFailed(1, "no"))) == [do.StepDown]


def test_the_gang_is_not_resolved_while_a_publish_is_under_way() -> None:
    driver = Driver().start()
    driver.checkpoint(publish=False)
    assert kinds(driver.lose_gang()) == []
    assert kinds(driver.tell(events.PublishFailed(1, "busy"))) == [do.ResolveRestore]


def test_a_job_is_not_finished_without_a_checkpoint() -> None:
    machine = DistributedCheckpointCoordinator(SHAPE, CONFIG, "me")
    with pytest.raises(CorruptDataError):
        machine._finished()


# -- two leaders ---------------------------------------------------------------------------------------------


def test_two_leaders_start_a_gang_at_once_and_only_one_gets_the_slot() -> None:
    old, new = Driver(log=LOG).lead(), Driver(log=(*LOG, takeover(3))).lead()
    old.tell(events.RestoreRequested(2))
    new.tell(events.RestoreRequested(2))
    assert old.last(do.PutEntry).slot == 4
    effects = old.answer(events.Conflict(takeover(4)))
    assert kinds(effects) == [do.StepDown]
    new.answer()
    new.tell(events.Published(2))
    assert new.last(do.StartGang).gang == 5
    assert old.every(do.StartGang) == []


def test_a_deposed_leader_that_starts_gang_0_unaware_is_fenced_by_the_number() -> None:
    old = Driver().lead()
    new = Driver(log=(old.last(do.PutEntry).entry,)).start()
    old.tell(events.RestoreRequested(None))
    assert old.last(do.StartGang).gang == 0
    assert new.last(do.StartGang).gang == 2
    old.gang_up()
    old.trigger()
    old.prepare_all()
    effects = old.answer(events.Conflict(takeover(1)))
    assert kinds(effects) == [do.CheckpointAborted, do.StepDown]


def test_a_restore_is_not_undone_by_crash_and_restart() -> None:
    driver = Driver(log=(*LOG, restore(3, 1), takeover(4))).lead()
    assert driver.machine.log.head_epoch == 1
    with pytest.raises(InvalidUseError, match="left this checkpoint behind"):
        driver.tell(events.RestoreRequested(2))
    driver.tell(events.RestoreRequested(1))
    effects = driver.answer()
    assert effects == [do.Hide(6, (TWO,))], "what was hidden stays hidden"


def test_only_known_outcomes_and_answers_are_taken() -> None:
    machine: Any = DistributedCheckpointCoordinator(SHAPE, CONFIG, "me")
    with pytest.raises(AssertionError):
        machine._put_settled("outcome", 0)
    with pytest.raises(AssertionError):
        machine._landed("entry", 0)


def test_members_may_change_while_the_gang_runs() -> None:
    driver = Driver().start()
    driver.tell(events.GangRunning(0, EVERYONE | {5}, EVERYONE))
    assert driver.machine.gang.nodes == EVERYONE | {5}


def test_a_gang_lost_after_the_final_commit_does_not_matter() -> None:
    driver = Driver().start()
    driver.drain()
    driver.prepare_all()
    driver.answer()
    assert kinds(driver.lose_gang()) == []
    assert kinds(driver.tell(events.Published(1))) == [do.JobFinished]


def test_a_finished_job_ends_its_gang() -> None:
    driver = Driver().start()
    driver.drain()
    driver.prepare_all()
    driver.answer()
    effects = driver.tell(events.Published(1))
    assert effects[0] == do.StopGang(0, "finished")
    assert kinds(effects) == [do.StopGang, do.JobFinished]
