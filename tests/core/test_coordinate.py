"""The coordinator: puts, failover, publishing, timers, the end. Schedules are told as short stories."""

from __future__ import annotations

import pytest
from coordination import PATHS, SHAPE, World
from driving import EVERYONE, Driver, kinds, make_ack
from test_view import commit, takeover

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.answer import STORY_LENGTH
from tidegate.core.checkpoint.attempt import CheckpointPhase
from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.coordinate import (
    CoordinatorMetrics,
    DistributedCheckpointConfig,
    DistributedCheckpointCoordinator,
    Mode,
)
from tidegate.core.checkpoint.publish import STEPS_MAX
from tidegate.core.control.ask import ControlChanged
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.log.resolve import AlreadyFinished, resolve
from tidegate.core.log.retain import garbage
from tidegate.core.log.view import Commit, LogView
from tidegate.errors import (
    CheckpointNotFound,
)
from tidegate.ids import CheckpointId


def aborted(driver: Driver) -> do.CheckpointAborted:
    return driver.last(do.CheckpointAborted)


def phase(driver: Driver) -> CheckpointPhase:
    assert driver.machine.attempt is not None
    return driver.machine.attempt.phase


# -- the unit tests of F-DCKP-008 ----------------------------------------------------------------------------


def test_coordinator_creation() -> None:
    machine = DistributedCheckpointCoordinator(SHAPE, DistributedCheckpointConfig(), "me")
    assert machine.config.checkpoint_interval_ms == 30_000
    assert machine.mode is Mode.READING and machine.attempt is None
    assert machine.metrics == CoordinatorMetrics()


def test_leader_failover_aborts_in_progress() -> None:
    """Everything below the new term is dead at once; the old leader's put finds its slot taken."""
    old = Driver().start()
    stalled = old.trigger()
    old.prepare_all()
    new = Driver(log=(old.every(do.PutEntry)[0].entry,)).lead()
    effects = new.gang_up()
    deaths = [effect for effect in effects if isinstance(effect, do.SendAbort)]
    assert all(effect.checkpoint_id > stalled and effect.stamp.term == 1 for effect in deaths) and len(deaths) == 2
    assert kinds(old.answer(events.Conflict(takeover(1)))) == [do.CheckpointAborted, do.StepDown]


def test_leader_failover_restores_epoch() -> None:
    log = (takeover(0), commit(1), commit(2, 1))
    driver = Driver(log=log).start(2)
    number = driver.trigger()
    assert driver.machine.attempt is not None
    assert driver.machine.attempt.epoch == 5, "after the takeover in 3 and the restore in 4"
    assert driver.machine.attempt.parent == log[2].manifest
    assert CheckpointId(number).term == 3


# -- schedule 11: acks ---------------------------------------------------------------------------------------


def test_the_story_is_bounded() -> None:
    driver = Driver().start()
    for now in range(200):
        driver.tick(now)
    with pytest.raises(CheckpointNotFound) as caught:
        driver.tell(events.CancelRequested(1))
    assert len(caught.value.story) == STORY_LENGTH


# -- schedule 12: puts ---------------------------------------------------------------------------------------


def test_an_unknown_put_is_retried_with_the_same_bytes_and_nothing_else_happens() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepare_all()
    first = driver.last(do.PutEntry)
    driver.answer(events.Unknown())
    assert kinds(driver.tick(10)) == [do.PutEntry]
    assert driver.last(do.PutEntry) == first
    assert kinds(driver.tick(90_000)) == [], "no timeout aborts what is being put"
    driver.answer(events.Conflict(first.entry))
    assert driver.machine.metrics.checkpoints_completed == 1


def test_an_unknown_put_that_lands_later_is_found_to_be_our_own() -> None:
    world = World()
    reign = world.elect()
    world.put(reign, reign.todo[0], "late")  # type: ignore[arg-type]
    world.land(world.limbo[0])
    world.tick(60)
    world.put(reign, reign.todo[0], "answered")  # type: ignore[arg-type]
    assert reign.machine.mode is Mode.CONFIRMING and len(world.slots) == 1


def test_a_leader_that_stalls_before_its_put_finds_the_slot_taken_after_a_takeover_and_a_collection() -> None:
    old = Driver().start()
    old.checkpoint()
    stalled = old.trigger()
    old.prepare_all()
    log = tuple(effect.entry for effect in old.every(do.PutEntry)[:-1])
    new = Driver(log=log).start(1)
    new.checkpoint()
    collection = new.last(do.CollectGarbage)
    doomed = garbage(PATHS, [PATHS.state(stalled, 0)], collection.keep, collection.bound)
    assert doomed == [PATHS.state(stalled, 0)], "a dead term's attempt is garbage"
    effects = old.answer(events.Conflict(new.every(do.PutEntry)[0].entry))
    assert kinds(effects) == [do.CheckpointAborted, do.StepDown]
    assert old.machine.log.head_epoch == 1


def test_a_lost_put_whose_answer_never_comes_ends_the_leader_without_an_abort_to_the_nodes() -> None:
    driver = Driver(storage_timeout_ms=5_000).start()
    driver.trigger()
    driver.prepare_all()
    effects = driver.tick(5_000)
    assert kinds(effects) == [do.CheckpointAborted, do.StepDown]


def test_a_node_lost_while_the_manifest_is_put_waits_for_the_answer_and_counts_the_commit() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepare_all()
    assert kinds(driver.lose_gang()) == []
    effects = driver.answer()
    assert do.ResolveRestore in kinds(effects) and do.SendCommitted not in kinds(effects)
    assert driver.machine.log.head_epoch == 1
    driver.restore(1)
    assert driver.last(do.StartGang).manifest == driver.last(do.CheckpointCompleted).manifest


def test_a_stop_while_the_manifest_is_put_waits_for_the_answer() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepare_all()
    assert kinds(driver.tell(events.StopRequested())) == []
    assert do.StopGang in kinds(driver.answer())
    assert driver.machine.metrics.checkpoints_completed == 1


# -- schedules 14 and 20: committables and notices -----------------------------------------------------------


def test_publishing_is_in_epoch_order_and_one_at_a_time() -> None:
    driver = Driver().start()
    driver.checkpoint(publish=False)
    driver.checkpoint(publish=False)
    assert [effect.epoch for effect in driver.every(do.Publish)] == [1]
    driver.tell(events.Published(1))
    assert [effect.epoch for effect in driver.every(do.Publish)] == [1, 2]
    assert all(c.epoch == 2 for c in driver.last(do.Publish).committables)


def test_killed_between_the_commits_of_two_sinks_the_head_is_published_again() -> None:
    driver = Driver().start()
    manifest = driver.checkpoint(publish=False)
    driver.tell(events.PublishFailed(1, "killed after the first sink"))
    driver.lose_gang()
    driver.tell(events.RestoreRequested(1))
    driver.answer()
    assert driver.last(do.Publish).committables == manifest.committables


def test_the_same_checkpoint_is_restored_twice() -> None:
    driver = Driver().start()
    manifest = driver.checkpoint()
    for gang in (2, 3):
        driver.lose_gang()
        driver.restore(1)
        assert driver.last(do.StartGang) == do.StartGang(gang, manifest)
    assert driver.machine.log.head_epoch == 1


def test_restore_5_of_9_and_crash_before_the_next_commit() -> None:
    old = Driver(gc_retain_count=20).start()
    for _ in range(9):
        old.checkpoint()
    old.lose_gang()
    old.restore(5)
    log = tuple(effect.entry for effect in old.every(do.PutEntry))
    new = Driver(gc_retain_count=20, log=log).lead()
    assert new.machine.log.head_epoch == 5
    new.tell(events.RestoreRequested(5))
    new.answer()
    assert {c.epoch for c in new.last(do.Hide).committables} == {6, 7, 8, 9}


def test_too_many_unpublished_epochs_hold_back_the_next_checkpoint() -> None:
    driver = Driver().start()
    for _ in range(STEPS_MAX + 1):
        driver.checkpoint(publish=False)
    driver.tell(events.TriggerRequested("held"))
    assert driver.machine.attempt is None
    driver.tell(events.Published(1))
    assert driver.machine.attempt is not None


def test_a_checkpoint_that_somebody_asked_for_is_shown_at_once_and_others_wait() -> None:
    budget = PublishBudget(1, 100_000)
    driver = Driver(checkpoint_interval_ms=100, publish_budgets={"out": budget}).start()

    def periodic(at_ms: int) -> int:
        driver.tick(at_ms)
        attempt = driver.machine.attempt
        assert attempt is not None
        for node in sorted(EVERYONE):
            driver.tell(events.NodePrepared(make_ack(node, attempt.checkpoint_id)))
        driver.answer()
        return attempt.epoch

    first, second = periodic(100), None
    assert driver.last(do.Publish).epoch == first, "there was a token"
    driver.tell(events.Published(first))
    second = periodic(200)
    assert driver.last(do.Publish).epoch == first
    assert not driver.machine.is_public(second)
    driver.checkpoint()
    shown = driver.last(do.Publish)
    assert {entry.epoch for entry in shown.committables} == {second, second + 1}
    assert driver.machine.is_public(second + 1)
    third = periodic(300)
    driver.tell(events.StopRequested())
    assert driver.last(do.Publish).epoch == third, "a stop shows what is committed"


# -- time ----------------------------------------------------------------------------------------------------


def test_a_timer_that_has_fired_is_set_again() -> None:
    driver = Driver(checkpoint_interval_ms=500).start()
    driver.tick(500)
    driver.prepare_all()
    driver.answer()
    driver.tell(events.Published(1))
    driver.tick(999)
    assert driver.last(do.SetTimer).at_ms == 1_000
    driver.tick(1_000)
    assert driver.machine.metrics.checkpoints_completed == 1 and driver.machine.attempt is not None


def test_too_many_failures_in_a_row_restart_the_gang() -> None:
    driver = Driver(tolerable_failures=1).start()
    for _ in range(2):
        driver.tell(events.NodeDeclined(0, 0, driver.trigger(), "x"))
    assert driver.last(do.StopGang).reason == "2 checkpoints failed in a row"
    effects = driver.lose_gang("stopped")
    assert kinds(effects) == [do.ResolveRestore]


# -- the end -------------------------------------------------------------------------------------------------


def test_when_every_node_is_drained_a_final_checkpoint_without_a_barrier_ends_the_job() -> None:
    driver = Driver().start()
    driver.checkpoint()
    injected = len(driver.every(do.SendInject))
    effects = driver.drain()
    assert [o.node for o in effects if isinstance(o, do.SendFinalize)] == [0, 1]
    assert len(driver.every(do.SendInject)) == injected
    driver.prepare_all()
    driver.answer()
    driver.tell(events.TriggerRequested("too late"))
    assert driver.last(do.RequestRefused).request_id == "too late"
    effects = driver.tell(events.Published(2))
    assert kinds(effects) == [do.StopGang, do.JobFinished]
    assert driver.last(do.JobFinished).manifest.final


def test_a_checkpoint_under_way_is_ended_before_the_final_one_begins() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.drain()
    assert driver.live == number
    driver.prepare_all()
    driver.answer()
    assert driver.machine.attempt is not None and driver.machine.attempt.final


def test_a_gang_lost_while_the_final_manifest_is_put_is_found_finished() -> None:
    driver = Driver().start()
    driver.drain()
    driver.prepare_all()
    driver.lose_gang()
    driver.answer()
    assert driver.machine.mode is Mode.READY
    found = resolve(driver.machine.log, SHAPE, lambda manifest: None)
    assert isinstance(found, AlreadyFinished)
    driver.restore(found.manifest.epoch)
    assert driver.machine.mode is Mode.FINISHED


def test_a_drained_node_of_another_gang_is_stale() -> None:
    driver = Driver().start()
    driver.tell(events.NodeDrained(0, 7))
    assert driver.machine.metrics.stale_messages == 1


def test_the_log_of_a_complete_life_folds_without_complaint() -> None:
    driver = Driver().start()
    driver.checkpoint()
    driver.lose_gang()
    driver.restore(1)
    driver.checkpoint()
    view = LogView(effect.entry for effect in driver.every(do.PutEntry))
    assert view.head == driver.machine.log.head and view.gang == 2


def test_an_event_that_does_not_exist_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Driver().tell("hello")  # type: ignore[arg-type]


def test_after_the_end_nothing_is_taken_any_more() -> None:
    driver = Driver().lead()
    driver.tell(events.StopRequested())
    assert driver.tell(events.Hidden(3)) == driver.tick(10**6) == []
    assert driver.machine.metrics.stale_messages == 1


# -- control signals -----------------------------------------------------------------------------------------


def test_a_checkpoint_that_begins_while_a_signal_is_on_its_way_stays_aligned() -> None:
    driver = Driver().start()
    driver.tell(ControlChanged(pinned=True))
    driver.trigger()
    assert all(order.started.aligned for order in driver.every(do.SendStarted))
    driver.tell(ControlChanged(pinned=False))
    driver.tell(events.CancelRequested(driver.live))
    driver.trigger()
    assert not driver.last(do.SendStarted).started.aligned


def test_a_manifest_has_the_parameters_of_the_moment_of_its_trigger_and_their_objects() -> None:
    driver = Driver().start()
    path = PATHS.shared(1, "signal-r1")
    stored = ParameterEntry("rules", 1, path, 9, 7)
    driver.tell(ControlChanged(parameters=(stored,), objects=frozenset({path, "job/shared/live"})))
    driver.trigger()
    driver.tell(ControlChanged(parameters=(ParameterEntry.of_bytes("rules", 2, b"v", 0),)))
    for node in EVERYONE:
        driver.prepared(node)
    entry = driver.last(do.PutEntry).entry
    assert isinstance(entry, Commit)
    assert entry.manifest.parameters == (stored,)
    assert path in entry.manifest.object_paths()


def test_payloads_that_no_manifest_names_yet_are_kept() -> None:
    driver = Driver().start()
    driver.tell(ControlChanged(objects=frozenset({"job/shared/live"})))
    driver.checkpoint()
    assert "job/shared/live" in driver.last(do.CollectGarbage).keep


def test_after_the_end_signals_are_nobodys_business() -> None:
    driver = Driver().start()
    driver.tell(events.StopRequested())
    driver.lose_gang()
    before = driver.machine.metrics.stale_messages
    assert driver.tell(ControlChanged(pinned=True)) == []
    assert driver.machine.metrics.stale_messages == before
    assert kinds(driver.tell(events.TriggerRequested("r"))) == [do.RequestRefused]


def test_a_cancelled_checkpoint_is_over_and_its_id_is_never_used_again() -> None:
    driver = Driver().start()
    number = driver.trigger()
    given = driver.tell(events.CancelRequested(number))
    assert do.CheckpointAborted in kinds(given) and driver.machine.attempt is None
    assert driver.machine.next_id > number
