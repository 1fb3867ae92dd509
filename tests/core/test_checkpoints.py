"""Checkpoints: attempts, acks, deadlines, commits, aborts. Told to the coordinator, as short stories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from coordination import CONFIG, PATHS
from driving import EVERYONE, Driver, kinds, make_ack
from test_view import commit, takeover

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.attempt import CheckpointPhase
from tidegate.core.checkpoint.checkpoints import ABORTS_PER_COLLECTION
from tidegate.core.checkpoint.coordinate import (
    DistributedCheckpointConfig,
)
from tidegate.core.checkpoint.manifest import CommittableEntry, ObjectEntry
from tidegate.core.log.retain import garbage
from tidegate.core.log.view import Commit
from tidegate.errors import (
    BarrierInjectionFailed,
    CheckpointNotFound,
    CheckpointTimeout,
    ManifestSerializationFailed,
    NodeFailed,
    NodeRejected,
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
    assert [order.node for order in driver.every(do.SendInject)] == [0, 1]
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
    assert [order.node for order in driver.every(do.SendAbort)] == [0, 1]


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
    given = driver.tell(events.CancelRequested(number))
    assert [(o.node, o.checkpoint_id) for o in given if isinstance(o, do.SendAbort)] == [
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
    given = driver.tick(300)
    assert [(o.node, o.checkpoint_id) for o in given if isinstance(o, do.SendPromote)] == [(1, number)]
    assert kinds(driver.tick(310)) == []
    driver.prepared(1, unaligned=True)
    driver.answer()
    assert driver.last(do.CheckpointCompleted).manifest.is_unaligned
    assert driver.machine.metrics.unaligned_checkpoints == 1
    assert len(driver.every(do.SendInject)) == 2


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
    driver.tell(events.InjectionAcked(0, 0, 0, first, 1))
    driver.tell(events.NodeDeclined(0, 0, first, "late"))
    assert driver.machine.metrics.stale_messages == 4
    assert driver.live == second


@pytest.mark.parametrize(
    "impossible",
    [
        lambda number: events.NodePrepared(make_ack(9, number, rows=False)),
        lambda number: events.InjectionAcked(9, 0, 0, number, 1),
        lambda number: events.NodeDeclined(9, 0, number, "x"),
        lambda number: events.NodePrepared(make_ack(0, number + 1)),
        lambda number: events.InjectionAcked(0, 0, 0, number + 1, 1),
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
    assert type(aborted(driver).error) is NodeRejected


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
    log = tuple(order.entry for order in old.every(do.PutEntry))
    new = Driver(log=log).lead()
    new.tell(events.RestoreRequested(2))
    new.answer()
    published = new.last(do.Publish).committables
    assert [c.epoch for c in published] == [1, 1, 2, 2]


def test_a_checkpoint_right_after_a_restore_has_the_restored_parent() -> None:
    driver = Driver().start()
    driver.checkpoint()
    driver.lose_gang()
    driver.restore(1)
    assert driver.checkpoint().parent == 1


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


def test_a_cancel_of_what_is_not_in_flight_is_refused() -> None:
    driver = Driver().start()
    with pytest.raises(CheckpointNotFound):
        driver.tell(events.CancelRequested(1))
    driver.trigger()
    with pytest.raises(CheckpointNotFound):
        driver.tell(events.CancelRequested(99))
    assert driver.machine.attempt is not None


# -- time ----------------------------------------------------------------------------------------------------


def test_periodic_checkpoints_start_by_the_timer() -> None:
    driver = Driver(checkpoint_interval_ms=500).start()
    assert driver.last(do.SetTimer).at_ms == 500
    driver.tick(499)
    assert driver.machine.attempt is None
    driver.tick(500)
    assert driver.machine.attempt is not None
    assert driver.last(do.SetTimer).at_ms == 800, "the unaligned threshold"


def test_a_failed_checkpoint_is_tried_again_soon() -> None:
    driver = Driver(checkpoint_interval_ms=60_000).start()
    number = driver.trigger()
    driver.tell(events.NodeDeclined(0, 0, number, "x"), at_ms=5)
    driver.tick(54)
    assert driver.machine.attempt is None
    driver.tick(55)
    assert driver.machine.attempt is not None


def test_a_gang_that_is_lost_ends_the_attempt_without_a_word_to_the_dead() -> None:
    driver = Driver().start()
    driver.trigger()
    given = driver.lose_gang()
    assert kinds(given) == [do.CheckpointAborted, do.ResolveRestore]


# -- the end -------------------------------------------------------------------------------------------------


def test_a_final_checkpoint_that_fails_is_tried_again() -> None:
    driver = Driver().start()
    driver.drain()
    driver.tell(events.NodeDeclined(0, 0, driver.live, "x"))
    assert driver.machine.attempt is None
    assert driver.last(do.SetTimer).at_ms == 50
    driver.tick(50)
    assert driver.machine.attempt is not None and driver.machine.attempt.final


# -- the leader's end ----------------------------------------------------------------------------------------


def test_a_leader_that_is_over_tells_whoever_waits_for_a_checkpoint_and_nodes_nothing() -> None:
    driver = Driver().start()
    number = driver.trigger("first")
    driver.tell(events.TriggerRequested("second", savepoint="s"))
    given = driver.tell(events.LogChecked(0, events.Followed(takeover(1))))
    assert kinds(given) == [do.RequestRefused, do.CheckpointAborted, do.StepDown]
    assert given[0].request_id == "second"  # type: ignore[union-attr]
    over = aborted(driver)
    assert (over.checkpoint_id, over.requests, over.failure) == (number, ("first",), False)
    assert over.error.story and driver.machine.attempt is None


def test_a_leader_without_an_attempt_has_nobody_to_tell() -> None:
    driver = Driver().start()
    assert kinds(driver.tell(events.LogChecked(0, events.Followed(takeover(1))))) == [do.StepDown]


def test_only_facts_about_an_attempt_are_taken() -> None:
    machine: Any = Driver().start().machine
    with pytest.raises(AssertionError):
        machine.checkpoints.handle(events.Tick(), 0, 0)


# -- notices, and who is to blame ----------------------------------------------------------------------------


def test_a_commit_is_told_again_until_every_node_has_acknowledged_it() -> None:
    driver = Driver().start()
    driver.acks_commits = False
    number = driver.checkpoint().checkpoint_id
    driver.tell(events.CommitAcked(0, 0, 0, number))
    again = driver.tick(1_000)
    assert [(order.node, order.checkpoint_id) for order in again if isinstance(order, do.SendCommitted)] == [(1, number)]
    assert driver.machine.checkpoints.notices.committed_nodes == {0} and driver.machine.metrics.commit_notice_retries == 1
    driver.tell(events.CommitAcked(1, 0, 0, number))
    assert do.SendCommitted not in kinds(driver.tick(9_000))
    assert driver.machine.checkpoints.notices.committed_nodes == EVERYONE


def test_a_gang_that_is_lost_is_told_nothing_more() -> None:
    driver = Driver().start()
    driver.acks_commits = False
    driver.checkpoint()
    driver.lose_gang()
    assert do.SendCommitted not in kinds(driver.tick(9_000))


@pytest.mark.parametrize("late", [events.CommitAcked(0, 7, 0, 1), events.CommitAcked(0, 0, 7, 1), events.CommitAcked(0, 0, 0, 9)])
def test_an_acknowledgement_of_another_gang_term_or_commit_is_stale(late: events.CommitAcked) -> None:
    driver = Driver().start()
    driver.acks_commits = False
    driver.checkpoint()
    driver.tell(late)
    assert driver.machine.metrics.stale_messages == 1
    assert driver.machine.checkpoints.notices.committed_nodes == frozenset()


def test_a_node_that_injects_into_too_few_sources_fails_the_checkpoint_by_name() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.tell(events.InjectionAcked(1, 0, 0, number, source_count=0))
    over = aborted(driver)
    assert isinstance(over.error, BarrierInjectionFailed) and "node 1 put the barrier into 0 sources and hosts 1" in over.reason
    assert over.failed_nodes == {1: "put the barrier into 0 sources and hosts 1"}


def test_a_wrong_count_that_comes_after_the_put_changes_nothing() -> None:
    driver = Driver().start()
    number = driver.trigger()
    driver.prepare_all()
    assert kinds(driver.tell(events.InjectionAcked(1, 0, 0, number, source_count=0))) == []
    assert kinds(driver.answer())[0] is do.WriteLatestHint


def test_the_nodes_that_did_not_answer_are_named() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.inject_acked(0)
    driver.tick(CONFIG.barrier_injection_timeout_ms)
    assert aborted(driver).failed_nodes == {1: "did not take the barrier"}


def test_the_node_that_took_the_gang_with_it_is_named() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.tell(events.GangLost(0, "node 1 is gone", 1))
    over = aborted(driver)
    assert isinstance(over.error, NodeFailed) and over.failed_nodes == {1: "node 1 is gone"} and not over.failure


def test_payloads_of_signals_are_kept_from_the_garbage_collector() -> None:
    driver = Driver().start()
    driver.tell(events.ControlChanged(objects=frozenset({"job/shared/live"})))
    driver.checkpoint()
    assert "job/shared/live" in driver.last(do.CollectGarbage).keep
