"""The coordinator: attempts, acks, deadlines, commits, aborts, failover. Schedules are told as short stories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from coordination import PATHS, SHAPE, World
from driving import EVERYONE, Driver, make_ack
from test_lead import kinds
from test_view import commit, takeover

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.attempt import CheckpointPhase
from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.coordinate import (
    ABORTS_PER_COLLECTION,
    REQUESTS_MAX,
    STORY_LENGTH,
    CoordinatorMetrics,
    DistributedCheckpointConfig,
    DistributedCheckpointCoordinator,
    Mode,
)
from tidegate.core.checkpoint.manifest import CommittableEntry, ObjectEntry
from tidegate.core.checkpoint.publish import STEPS_MAX
from tidegate.core.log.resolve import AlreadyFinished, resolve
from tidegate.core.log.retain import garbage
from tidegate.core.log.view import Commit, LogView
from tidegate.errors import (
    BarrierInjectionFailed,
    CheckpointNotFound,
    CheckpointTimeout,
    ManifestSerializationFailed,
    NodeFailed,
    ProtocolError,
    TooManyConcurrent,
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


def test_initiate_checkpoint_generates_id() -> None:
    """Ids grow within a term, also after an abort, and the term is their upper half."""
    driver = Driver(log=(takeover(0), commit(1))).start(1)
    first = driver.trigger()
    driver.tell(events.CancelRequested(first))
    second = driver.trigger()
    assert (first, second) == (CheckpointId.of(2, 1), CheckpointId.of(2, 2))


def test_initiate_checkpoint_concurrency_limit() -> None:
    """One at a time: a second request joins the running one; allowing more is refused with the reason."""
    driver = Driver().start()
    number = driver.trigger("a")
    assert driver.trigger("b") == number
    driver.prepare_all()
    driver.answer()
    assert driver.last(do.CheckpointCompleted).requests == ("a", "b")
    with pytest.raises(TooManyConcurrent, match="one checkpoint is in flight"):
        DistributedCheckpointConfig(max_concurrent_checkpoints=2)


def test_inject_barriers_all_succeed() -> None:
    driver = Driver().start()
    driver.trigger()
    assert [effect.node for effect in driver.every(do.SendInject)] == [0, 1]
    driver.inject_acked(0)
    assert phase(driver) is CheckpointPhase.INJECTING_BARRIERS
    driver.inject_acked(1)
    assert phase(driver) is CheckpointPhase.WAITING_FOR_PREPARE


def test_inject_barriers_partial_failure_aborts() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.inject_acked(0)
    driver.tell(events.NodeDeclined(1, 0, number, "no room"))
    assert isinstance(aborted(driver).error, BarrierInjectionFailed)
    assert "no room" in aborted(driver).reason
    assert [effect.node for effect in driver.every(do.SendAbort)] == [0, 1]


def test_on_node_prepared_tracks_progress() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepared(0)
    assert driver.machine.attempt is not None
    assert driver.machine.attempt.missing == {1}
    assert len(driver.every(do.PutEntry)) == 1, "only the takeover"


def test_on_all_nodes_prepared_triggers_commit() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepared(0)
    assert kinds(driver.prepared(1)) == [do.PutEntry]
    assert phase(driver) is CheckpointPhase.COMMITTING


def test_commit_writes_manifest() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.prepare_all()
    entry = driver.last(do.PutEntry).entry
    assert isinstance(entry, Commit) and entry.slot == entry.manifest.epoch == 1
    assert {e.subtask for e in entry.manifest.operators} == set(EVERYONE)
    assert entry.manifest.checkpoint_id == number
    assert kinds(driver.answer()) == [
        do.WriteLatestHint,
        do.SendCommitted,
        do.SendCommitted,
        do.CheckpointCompleted,
        do.CollectGarbage,
        do.Publish,
    ]


def test_abort_notifies_all_nodes() -> None:
    driver = Driver().start()
    number = driver.trigger()
    effects = driver.tell(events.CancelRequested(number))
    assert [(o.node, o.checkpoint_id) for o in effects if isinstance(o, do.SendAbort)] == [
        (0, number),
        (1, number),
    ]
    assert aborted(driver).requests == ("r",)


def test_timeout_detection() -> None:
    driver = Driver(node_snapshot_timeout_ms=5_000).start()
    driver.trigger()
    driver.inject_acked(0)
    driver.inject_acked(1)
    driver.tick(999)
    assert driver.machine.attempt is not None
    driver.tick(1_000)
    assert isinstance(aborted(driver).error, CheckpointTimeout)
    assert aborted(driver).error.story


def test_unaligned_fallback_on_timeout() -> None:
    """The threshold promotes what is in flight, long before the timeout; the sources inject nothing again."""
    driver = Driver().start()
    number = driver.trigger()
    driver.prepared(0)
    effects = driver.tick(300)
    assert [(o.node, o.checkpoint_id) for o in effects if isinstance(o, do.SendPromote)] == [(1, number)]
    assert kinds(driver.tick(310)) == []
    driver.prepared(1, unaligned=True)
    driver.answer()
    assert driver.last(do.CheckpointCompleted).manifest.is_unaligned
    assert driver.machine.metrics.unaligned_checkpoints == 1
    assert len(driver.every(do.SendInject)) == 2


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


def test_cluster_membership_update() -> None:
    """A node that joins counts from the next checkpoint on; one that leaves ends the running one."""
    driver = Driver().start()
    driver.trigger()
    driver.tell(events.GangRunning(0, EVERYONE | {2}, EVERYONE))
    assert driver.machine.attempt is not None
    assert driver.machine.attempt.nodes == EVERYONE
    driver.tell(events.GangRunning(0, EVERYONE, EVERYONE))
    assert driver.machine.attempt is not None, "it was never part of this one"
    driver.tell(events.GangRunning(0, frozenset({0}), frozenset({0})))
    assert isinstance(aborted(driver).error, NodeFailed)


# -- schedule 11: acks ---------------------------------------------------------------------------------------


def test_a_duplicate_ack_counts_once() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepared(0)
    driver.prepared(0)
    assert driver.machine.metrics.duplicate_acks == 1
    assert phase(driver) is CheckpointPhase.INJECTING_BARRIERS


def test_an_early_ack_counts_while_others_still_inject() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepare_all()
    assert phase(driver) is CheckpointPhase.COMMITTING
    driver.inject_acked(1)
    assert phase(driver) is CheckpointPhase.COMMITTING


@pytest.mark.parametrize("change", [{"gang": 1}, {"checkpoint_id": (7 << 32) + 1, "term": 7}])
def test_an_ack_of_another_gang_or_term_is_stale(change: dict[str, Any]) -> None:
    driver = Driver().start()
    number = driver.trigger()
    ack = replace(make_ack(0, number, rows=False), **change)
    driver.tell(events.NodePrepared(ack))
    assert driver.machine.metrics.stale_messages == 1
    assert driver.machine.attempt is not None and not driver.machine.attempt.acks


def test_an_ack_of_a_dead_attempt_is_stale() -> None:
    driver = Driver().start()
    first = driver.trigger()
    driver.tell(events.CancelRequested(first))
    driver.tell(events.NodePrepared(make_ack(0, first)))
    second = driver.trigger()
    driver.tell(events.NodePrepared(make_ack(0, first)))
    driver.tell(events.InjectionAcked(0, 0, 0, first))
    driver.tell(events.NodeDeclined(0, 0, first, "late"))
    assert driver.machine.metrics.stale_messages == 4
    assert driver.live == second


@pytest.mark.parametrize(
    "impossible",
    [
        lambda number: events.NodePrepared(make_ack(9, number, rows=False)),
        lambda number: events.InjectionAcked(9, 0, 0, number),
        lambda number: events.NodeDeclined(9, 0, number, "x"),
        lambda number: events.NodePrepared(make_ack(0, number + 1)),
        lambda number: events.InjectionAcked(0, 0, 0, number + 1),
        lambda number: events.NodeDrained(9, 0),
    ],
)
def test_a_stranger_or_an_id_that_nobody_issued_is_a_bug_and_changes_nothing(impossible: Any) -> None:
    driver = Driver().start()
    number = driver.trigger()
    before = repr(driver.machine.attempt)
    with pytest.raises(ProtocolError) as caught:
        driver.tell(impossible(number))
    assert repr(driver.machine.attempt) == before
    assert "TriggerRequested" in caught.value.story[-2]


def test_an_injection_ack_of_a_node_without_sources_is_a_bug() -> None:
    driver = Driver().lead()
    driver.tell(events.RestoreRequested(None))
    driver.tell(events.GangRunning(0, EVERYONE, frozenset({0})))
    driver.trigger()
    with pytest.raises(ProtocolError, match="not a node with sources"):
        driver.inject_acked(1)


def test_the_story_is_bounded() -> None:
    driver = Driver().start()
    for now in range(200):
        driver.tick(now)
    with pytest.raises(CheckpointNotFound) as caught:
        driver.tell(events.CancelRequested(1))
    assert len(caught.value.story) == STORY_LENGTH


@pytest.mark.parametrize("change", [{"operators": ()}, {"sinks": (), "committables": ()}, {"tasks": ()}])
def test_an_ack_with_a_part_missing_fails_the_checkpoint(change: dict[str, Any]) -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepared(0, **change)
    assert isinstance(aborted(driver).error, ManifestSerializationFailed)
    assert "missing" in aborted(driver).reason


def test_a_faulty_ack_that_comes_after_the_put_changes_nothing() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.prepare_all()
    driver.prepared(0, operators=())
    driver.tell(events.NodeDeclined(0, 0, driver.live, "too late"))
    assert phase(driver) is CheckpointPhase.COMMITTING


def test_a_node_that_fails_while_others_wait_ends_the_checkpoint() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.inject_acked(0)
    driver.inject_acked(1)
    driver.tell(events.NodeDeclined(1, 0, number, "disk full"))
    assert type(aborted(driver).error) is NodeFailed


def test_reports_that_make_no_manifest_fail_the_checkpoint() -> None:
    driver = Driver().start()
    driver.trigger()
    foreign = ObjectEntry(PATHS.state(driver.live, 0), 3, 1)
    driver.prepared(0, objects=(foreign,))
    driver.prepared(1)
    assert "names bytes that no listed object has" in aborted(driver).reason


def test_a_manifest_that_cannot_be_stored_fails_before_the_put(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver().start()
    driver.trigger()
    monkeypatch.setattr("tidegate.core.log.entries.ENTRY_BYTES_MAX", 100)
    driver.prepare_all()
    assert "too long" in aborted(driver).reason
    assert len(driver.every(do.PutEntry)) == 1, "only the takeover"


def test_a_gang_that_does_not_host_every_subtask_cannot_commit() -> None:
    driver = Driver().lead()
    driver.tell(events.RestoreRequested(None))
    driver.tell(events.GangRunning(0, frozenset({1}), frozenset({1})))
    driver.trigger()
    driver.prepared(1)
    assert "no node hosts these subtasks" in aborted(driver).reason


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
    driver = Driver(put_give_up_ms=5_000).start()
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


def test_a_cancel_while_the_manifest_is_put_is_too_late() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.prepare_all()
    with pytest.raises(CheckpointNotFound, match="being written"):
        driver.tell(events.CancelRequested(number))


# -- schedules 14 and 20: committables and notices -----------------------------------------------------------


def test_every_command_says_what_was_committed_last_so_a_lost_notice_does_no_harm() -> None:
    driver = Driver().start()
    manifest = driver.checkpoint()
    driver.trigger()
    stamp = driver.last(do.SendStarted).stamp
    assert (stamp.committed_epoch, stamp.committed_id) == (1, manifest.checkpoint_id)


def test_committables_of_an_aborted_attempt_go_into_the_next_manifest() -> None:
    driver = Driver().start()
    first = driver.trigger()
    driver.prepared(0)
    driver.tell(events.CancelRequested(first))
    second = driver.trigger()
    driver.prepare_all()
    driver.answer()
    named = {(c.checkpoint_id, c.subtask) for c in driver.last(do.CheckpointCompleted).manifest.committables}
    assert named == {(first, 0), (second, 0), (second, 1)}


def test_a_committable_that_a_node_reports_again_is_named_once() -> None:
    driver = Driver().start()
    first = driver.checkpoint().checkpoint_id
    driver.trigger()
    staged = CommittableEntry("out", 0, 0, driver.live, {"file": "new"})
    again = CommittableEntry("out", 0, 0, first, {"file": f"0-{first}-0"})
    driver.prepared(0, committables=(again, staged))
    driver.prepared(1)
    driver.answer()
    assert first not in {c.checkpoint_id for c in driver.last(do.CheckpointCompleted).manifest.committables}


def test_manifest_n_notice_lost_manifest_n_plus_1_crash_nothing_is_lost() -> None:
    old = Driver().start()
    old.checkpoint(publish=False)
    old.checkpoint(publish=False)
    log = tuple(effect.entry for effect in old.every(do.PutEntry))
    new = Driver(log=log).lead()
    new.tell(events.RestoreRequested(2))
    new.answer()
    published = new.last(do.Publish).committables
    assert [c.epoch for c in published] == [1, 1, 2, 2]


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


def test_a_checkpoint_right_after_a_restore_has_the_restored_parent() -> None:
    driver = Driver().start()
    driver.checkpoint()
    driver.lose_gang()
    driver.restore(1)
    assert driver.checkpoint().parent == 1


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


# -- schedule 16: garbage ------------------------------------------------------------------------------------


def test_the_bound_is_the_next_id_and_the_kept_objects_are_those_of_the_lineage() -> None:
    driver = Driver(gc_retain_count=1).start()
    first, second = driver.checkpoint(), driver.checkpoint()
    collection = driver.last(do.CollectGarbage)
    assert collection.bound == driver.machine.next_id
    assert collection.keep == second.object_paths() and not collection.keep & first.object_paths()


def test_a_savepoint_keeps_its_objects() -> None:
    driver = Driver(gc_retain_count=1).start()
    saved = driver.checkpoint(savepoint="here")
    driver.checkpoint()
    assert saved.object_paths() <= driver.last(do.CollectGarbage).keep
    assert saved in driver.last(do.CollectGarbage).resumable


def test_thousands_of_aborts_are_collected_although_nothing_commits() -> None:
    driver = Driver(tolerable_failures=10**6).start()
    for _ in range(3 * ABORTS_PER_COLLECTION):
        driver.tell(events.CancelRequested(driver.trigger()))
    collections = driver.every(do.CollectGarbage)
    assert len(collections) == 3
    assert garbage(PATHS, [PATHS.state(1, 0)], collections[-1].keep, collections[-1].bound)


def test_collection_can_be_switched_off() -> None:
    driver = Driver(auto_gc=False).start()
    driver.checkpoint()
    assert driver.every(do.CollectGarbage) == []


# -- requests ------------------------------------------------------------------------------------------------


def test_a_request_before_the_gang_runs_waits_for_it() -> None:
    driver = Driver().lead()
    driver.tell(events.TriggerRequested("early"))
    driver.restore(None)
    assert driver.machine.attempt is not None and driver.machine.attempt.requests == ["early"]


def test_a_savepoint_does_not_join_a_plain_checkpoint_and_comes_next() -> None:
    driver = Driver().start()
    plain = driver.trigger("plain")
    driver.tell(events.TriggerRequested("save", "here"))
    driver.tell(events.TriggerRequested("other", "there"))
    driver.prepare_all()
    driver.answer()
    assert driver.live > plain
    assert driver.machine.attempt is not None
    assert (driver.machine.attempt.savepoint, driver.machine.attempt.requests) == ("here", ["save"])
    driver.tell(events.TriggerRequested("more", "here"))
    driver.tell(events.TriggerRequested("any"))
    assert driver.machine.attempt.requests == ["save", "more", "any"]


def test_requests_have_a_limit() -> None:
    driver = Driver().lead()
    for number in range(REQUESTS_MAX + 1):
        driver.tell(events.TriggerRequested(f"r{number}"))
    assert driver.last(do.RequestRefused).request_id == f"r{REQUESTS_MAX}"
    driver.restore(None)
    driver.tell(events.TriggerRequested("one more"))
    assert driver.last(do.RequestRefused).request_id == "one more"


def test_a_cancel_of_what_is_not_in_flight_is_refused() -> None:
    driver = Driver().start()
    with pytest.raises(CheckpointNotFound):
        driver.tell(events.CancelRequested(1))
    driver.trigger()
    with pytest.raises(CheckpointNotFound):
        driver.tell(events.CancelRequested(99))
    assert driver.machine.attempt is not None


def test_a_stop_ends_the_attempt_and_refuses_requests() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.tell(events.TriggerRequested("save", "here"))
    assert do.StopGang in kinds(driver.tell(events.StopRequested()))
    assert aborted(driver).reason == "stop requested"
    driver.tell(events.TriggerRequested("late"))
    driver.lose_gang("stopped")
    driver.tell(events.TriggerRequested("later"))
    assert [effect.request_id for effect in driver.every(do.RequestRefused)] == ["late", "save", "later"]
    assert driver.machine.metrics.checkpoints_aborted == 1


# -- time ----------------------------------------------------------------------------------------------------


def test_periodic_checkpoints_start_by_the_timer() -> None:
    driver = Driver(checkpoint_interval_ms=500).start()
    assert driver.last(do.SetTimer).at_ms == 500
    driver.tick(499)
    assert driver.machine.attempt is None
    driver.tick(500)
    assert driver.machine.attempt is not None
    assert driver.last(do.SetTimer).at_ms == 800, "the unaligned threshold"


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


def test_a_failed_checkpoint_is_tried_again_soon() -> None:
    driver = Driver(checkpoint_interval_ms=60_000).start()
    number = driver.trigger()
    driver.tell(events.NodeDeclined(0, 0, number, "x"), at_ms=5)
    driver.tick(54)
    assert driver.machine.attempt is None
    driver.tick(55)
    assert driver.machine.attempt is not None


def test_too_many_failures_in_a_row_restart_the_gang() -> None:
    driver = Driver(tolerable_failures=1).start()
    for _ in range(2):
        driver.tell(events.NodeDeclined(0, 0, driver.trigger(), "x"))
    assert driver.last(do.StopGang).reason == "2 checkpoints failed in a row"
    effects = driver.lose_gang("stopped")
    assert kinds(effects) == [do.ResolveRestore]


def test_a_gang_that_is_lost_ends_the_attempt_without_a_word_to_the_dead() -> None:
    driver = Driver().start()
    driver.trigger()
    effects = driver.lose_gang()
    assert kinds(effects) == [do.CheckpointAborted, do.ResolveRestore]


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


def test_a_final_checkpoint_that_fails_is_tried_again() -> None:
    driver = Driver().start()
    driver.drain()
    driver.tell(events.NodeDeclined(0, 0, driver.live, "x"))
    assert driver.machine.attempt is None
    assert driver.last(do.SetTimer).at_ms == 50
    driver.tick(50)
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
