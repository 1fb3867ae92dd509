"""Deliberately wrong coordinators, logs and stores. Each must be caught by one of the named checks of the
small world.

A mutant that survives fails its test: then the checks are too weak, not the mutant too clever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from coordination import CONFIG, Violation, World, asleep, paused, play

from tidegate.core.checkpoint import attempt, checkpoints, coordinate, events, publish
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.attempt import CheckpointAttempt
from tidegate.core.checkpoint.checkpoints import Checkpoints
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.leadership import Leadership
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.checkpoint.mode import Mode
from tidegate.core.checkpoint.publish import PublishQueue
from tidegate.core.log.append import LogAppender, PutOutcome, StillOpen, Taken
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.retain import garbage, trimmable
from tidegate.core.log.view import Commit, LogView, Restore
from tidegate.errors import NodeFailed, TidegateError
from tidegate.ids import CheckpointId

SEEDS = 60
Coordinator = DistributedCheckpointCoordinator


@dataclass(frozen=True)
class Mutant:
    """A wrong world and the checks, one of which must notice."""

    make: Callable[[pytest.MonkeyPatch], World]
    checks: frozenset[str]
    drama: Callable[[World, int], object] = play


MUTANTS: dict[str, Mutant] = {}


def mutant(*checks: str, drama: Callable[[World, int], object] = play) -> Callable[[Callable[[pytest.MonkeyPatch], World]], None]:
    def register(make: Callable[[pytest.MonkeyPatch], World]) -> None:
        MUTANTS[make.__name__] = Mutant(make, frozenset(checks), drama)

    return register


def trusting(patch: pytest.MonkeyPatch) -> None:
    """Let the log take anything, so that a defect shows and not the second defence against it."""

    class Trusting(Leadership):
        def read(self, event: events.LogRead) -> None:
            self.log = Gullible(event.entries)

    patch.setattr(coordinate, "Leadership", Trusting)


class Gullible(LogView):
    def _check(self, entry: Any) -> None:
        pass


@mutant("I8 acks by gang")
def acks_are_counted_by_node_only(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Checkpoints):
        def _live(self, node: int, gang: int, term: int, checkpoint_id: int) -> CheckpointAttempt | None:
            return self.attempt if self.attempt and node in self.attempt.nodes else None

        def _prepared(self, ack: Any, now_ms: int, wall_ms: int) -> list[do.CoordinatorEffect]:
            if self.attempt is not None:
                number = self.attempt.checkpoint_id
                ack = replace(
                    ack,
                    checkpoint_id=max(number, ack.checkpoint_id),
                    term=max(number, ack.checkpoint_id) >> 32,
                )
            return super()._prepared(ack, now_ms, wall_ms)

    patch.setattr(coordinate, "Checkpoints", Wrong)
    return World()


@mutant("I6 ids are new")
def ids_begin_again_after_failover(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Checkpoints):
        @property
        def next_id(self) -> CheckpointId:
            return CheckpointId.of(0, self._counter + 1)

    patch.setattr(coordinate, "Checkpoints", Wrong)
    return World()


@mutant("I6 ids are new")
def an_aborted_id_is_used_again(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Checkpoints):
        def _after_abort(self, now_ms: int, failure: bool) -> list[do.CoordinatorEffect]:
            self._counter -= 1
            return super()._after_abort(now_ms, failure)

    patch.setattr(coordinate, "Checkpoints", Wrong)
    return World()


@mutant("I5 create-only")
def a_put_overwrites(patch: pytest.MonkeyPatch) -> World:
    class Overwriting(World):
        overwrites = True

    return Overwriting()


@mutant("I5 complete")
def commit_before_all_acks(patch: pytest.MonkeyPatch) -> World:
    patch.setattr(CheckpointAttempt, "missing", property(lambda self: frozenset()))
    return World()


@mutant("I5 quiet while a put is open")
def unknown_is_taken_for_failure(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _dispatch(self, event: events.CoordinatorEvent, now_ms: int) -> None:
            live = self.attempt
            if isinstance(event, events.PutAnswered) and isinstance(event.answer, events.Unknown) and live is not None:
                self.leadership._appender.entry = None
                failed = NodeFailed("put failed", checkpoint_id=live.checkpoint_id)
                self._out.give(*self.checkpoints._abort(live, failed, now_ms))
            else:
                super()._dispatch(event, now_ms)

    return World(Wrong)


@mutant("I5 quiet while a put is open")
def a_timeout_aborts_after_the_put(patch: pytest.MonkeyPatch) -> World:
    patch.setattr(CheckpointAttempt, "can_abort", property(lambda self: True))
    return World()


@mutant("I5 quiet while a put is open")
def the_gang_is_restarted_while_a_put_is_open(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _gang_lost(self, event: events.GangLost, now_ms: int) -> None:
            super()._gang_lost(event, now_ms)
            if self.mode is Mode.SETTLING and self.leadership.is_writing:
                self._out.give(do.StartGang(self.log.gang + 1, self.log.head))

    return World(Wrong)


@mutant("I10 garbage", "I5 durable")
def garbage_collection_has_no_bound(patch: pytest.MonkeyPatch) -> World:
    def unbounded(paths: JobPaths, listed: Iterable[str], keep: frozenset[str], bound: int) -> list[str]:
        return garbage(paths, listed, keep, 1 << 63)

    return World(collect=unbounded)


@mutant("I10 garbage", "I5 durable")
def the_parents_objects_are_deleted(patch: pytest.MonkeyPatch) -> World:
    def own_only(view: LogView, restoring: Iterable[int] = ()) -> frozenset[str]:
        names = ((f"{m.checkpoint_id:020d}", path) for m in view.retained() for path in m.object_paths())
        return frozenset(path for number, path in names if number in path)

    patch.setattr(checkpoints, "kept_objects", own_only)
    return World()


@mutant("I10 garbage", "I5 durable")
def only_the_head_is_kept(patch: pytest.MonkeyPatch) -> World:
    def head_only(view: LogView, restoring: Iterable[int] = ()) -> frozenset[str]:
        return view.head.object_paths() if view.head else frozenset()

    patch.setattr(checkpoints, "kept_objects", head_only)
    return World()


@mutant("I7 fencing")
def a_deposed_leader_goes_on_in_the_next_slot(patch: pytest.MonkeyPatch) -> World:
    trusting(patch)
    trusted: type[Leadership] = coordinate.Leadership

    class Wrong(trusted):  # type: ignore[misc, valid-type]
        def answered(self, event: events.PutAnswered, now_ms: int) -> Any:
            outcome = self._appender.answered(event, now_ms)
            if not isinstance(outcome, Taken) or not isinstance(outcome.ours, Commit):
                return self._settled(outcome)
            self.log.apply(outcome.entry)
            manifest = replace(outcome.ours.manifest, epoch=self.log.next_slot)
            self._next = self._appender.put(replace(outcome.ours, slot=self.log.next_slot, manifest=manifest), now_ms)
            return StillOpen()

        def ask_again(self, now_ms: int) -> Iterator[Any]:
            if put := self.__dict__.pop("_next", None):
                yield put
            yield from super().ask_again(now_ms)

    patch.setattr(coordinate, "Leadership", Wrong)
    return World()


@mutant("restore follows the log", "I9 exact", "I5 parent is the head")
def a_restore_is_undone_by_the_next_leader(patch: pytest.MonkeyPatch) -> World:
    original = LogView.apply

    def apply(self: LogView, entry: Any) -> None:
        head = self.head_epoch
        original(self, entry)
        if isinstance(entry, Restore) and head is not None:
            self._lineage.append(max((*self._lineage, *self._left)))

    patch.setattr(LogView, "apply", apply)
    trusting(patch)
    return World()


@mutant("I9 every row once")
def committables_of_aborted_attempts_are_dropped(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Checkpoints):
        def _committables(self, attempt: CheckpointAttempt) -> list[CommittableEntry]:
            found = super()._committables(attempt)
            return [c for c in found if c.checkpoint_id == attempt.checkpoint_id or c.epoch]

    patch.setattr(coordinate, "Checkpoints", Wrong)
    return World()


@mutant("I9 exact", "I9 epoch order")
def unconfirmed_committables_are_not_carried(patch: pytest.MonkeyPatch) -> World:
    patch.setattr(PublishQueue, "carried", lambda self: ())
    return World()


@mutant("I9 named once")
def committables_are_named_again_by_a_later_epoch(patch: pytest.MonkeyPatch) -> World:
    original = attempt.assemble

    def assemble(live: CheckpointAttempt, shape: Any, committables: Iterable[CommittableEntry], **rest: Any) -> Any:
        return original(live, shape, [replace(c, epoch=0) for c in committables], **rest)

    patch.setattr(checkpoints, "assemble", assemble)
    return World()


@mutant("I9 epoch order")
def the_newest_epoch_is_published_first(patch: pytest.MonkeyPatch) -> World:
    original = PublishQueue.committed

    def committed(self: PublishQueue, manifest: CheckpointManifest) -> None:
        original(self, manifest)
        own = tuple(c.key for c in manifest.committables if c.epoch == manifest.epoch)
        self._steps[-1] = publish._Show(manifest.epoch, own)
        if self.outstanding is None:
            self._steps.rotate(1)

    patch.setattr(PublishQueue, "committed", committed)
    return World()


@mutant("I9 visible only after the manifest")
def committables_are_published_before_the_manifest(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Checkpoints):
        def _commit(self, attempt: CheckpointAttempt, now_ms: int, wall_ms: int) -> list[do.CoordinatorEffect]:
            given = super()._commit(attempt, now_ms, wall_ms)
            staged = tuple(replace(c, epoch=attempt.epoch) for a in attempt.acks.values() for c in a.committables)
            return [*given, do.Publish(attempt.epoch, attempt.gang, staged)]

    patch.setattr(coordinate, "Checkpoints", Wrong)
    return World()


@mutant("I9 exact")
def a_new_leader_does_not_publish_the_head_again(patch: pytest.MonkeyPatch) -> World:
    original = PublishQueue.recover
    patch.setattr(PublishQueue, "recover", lambda self, hide, head: original(self, hide, None))
    return World()


@mutant("I9 exact")
def an_older_restore_hides_nothing(patch: pytest.MonkeyPatch) -> World:
    original = PublishQueue.recover
    patch.setattr(PublishQueue, "recover", lambda self, hide, head: original(self, None, head))
    return World()


@mutant("I8 one start per gang")
def a_gang_is_started_again_under_its_old_number(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _write_restore(self, parent: int | None, now_ms: int) -> None:
            if parent == self.log.head_epoch:
                self._start_gang()
            else:
                super()._write_restore(parent, now_ms)

    return World(Wrong)


@mutant("I5 quiet while a put is open", "gang follows the log")
def a_gang_starts_before_its_restore_is_written(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _write_restore(self, parent: int | None, now_ms: int) -> None:
            super()._write_restore(parent, now_ms)
            self._out.give(do.StartGang(self.log.next_slot, self.log.head))

    return World(Wrong)


@mutant("I10 restorable", "restore follows the log", "I9 exact")
def anything_ever_committed_may_be_restored(patch: pytest.MonkeyPatch) -> World:
    class Careless(World):
        def resolve(self, reign: Any, effect: do.ResolveRestore, epoch: int | None) -> None:
            oldest = min((*reign.machine.log._lineage, *reign.machine.log._left), default=None)
            super().resolve(reign, effect, oldest)

    def restorable(self: LogView, epoch: int) -> Any:
        return self._manifests.get(epoch)

    patch.setattr(LogView, "restorable", restorable)
    trusting(patch)
    return Careless()


@mutant("I5 parent is the head", "I9 exact", "I9 every row once", "I7 fencing", "restore follows the log")
def a_conflict_counts_as_written(patch: pytest.MonkeyPatch) -> World:
    original = LogAppender.answered

    def answered(self: LogAppender, event: events.PutAnswered, now_ms: int) -> PutOutcome:
        if isinstance(event.answer, events.Conflict):
            event = events.PutAnswered(event.slot, event.write_id, events.Written())
        return original(self, event, now_ms)

    patch.setattr(LogAppender, "answered", answered)
    trusting(patch)
    return World()


FORKED = ("trimming forks no history", "I7 fencing", "a reader sees the head", "I8 acks by gang", "I5 parent is the head")


@mutant(*FORKED, drama=paused)
def takeovers_are_trimmed_too(patch: pytest.MonkeyPatch) -> World:
    trusting(patch)
    world = World()
    world.may_go = lambda opening: True
    return world


@mutant(*FORKED, drama=asleep)
def a_takeover_counts_without_a_listing(patch: pytest.MonkeyPatch) -> World:
    class Trusted(World):
        def check_log(self, reign: Any, effect: do.CheckLog) -> None:
            reign.todo.remove(effect)
            self.tell(reign, events.LogChecked(effect.slot, events.Last()))

    trusting(patch)
    return Trusted()


@mutant("a reader sees what is retained", "a reader sees the head")
def what_is_retained_is_trimmed(patch: pytest.MonkeyPatch) -> World:
    world = World()
    world.trimmable = lambda slots, below, keep: trimmable(slots, below, frozenset())
    return world


@mutant("a reader sees the head", "a reader sees what is retained")
def the_log_is_trimmed_before_its_base_has_landed(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _committed(self, entry: Commit, now_ms: int) -> None:
            super()._committed(entry, now_ms)
            if self.leadership.is_writing:
                self._out.give(do.TrimLog(self.log.next_slot, frozenset(m.epoch for m in self.log.held())))

    return World(Wrong)


@mutant("what is below the term is dead")
def an_adopted_gang_keeps_the_attempts_of_the_leader_before(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _adopt(self) -> None:
            self.gang.adopt()
            self.publishing.recover(None, self.log.head)

    return World(Wrong)


@mutant("nodes know what is committed")
def an_adopted_gang_is_not_told_what_was_committed(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Leadership):
        def stamp(self) -> do.Stamp:
            stamp = super().stamp()
            ours = stamp.committed_id >> 32 == stamp.term
            return stamp if ours else replace(stamp, committed_epoch=None, committed_id=0)

    patch.setattr(coordinate, "Leadership", Wrong)
    return World()


@mutant("the gang is the log's")
def any_gang_that_runs_is_adopted(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _gang_running(self, event: events.GangRunning, now_ms: int) -> None:
            super()._gang_running(replace(event, gang=self.log.gang), now_ms)

    return World(Wrong)


@mutant("a lost gang is not taken back")
def a_gang_is_adopted_by_the_leader_that_lost_it(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _takes_members(self) -> bool:
            adopts = self.mode is Mode.READY and self.leadership.can_adopt
            return self.mode in (Mode.STARTING, Mode.RUNNING) or adopts

    return World(Wrong)


@mutant("I9 epoch order", "I9 exact")
def the_head_of_an_adopted_gang_is_not_published_again(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _adopt(self) -> None:
            super()._adopt()
            self.publishing.recover(None, None)

    return World(Wrong)


def caught(mutant: Mutant, patch: pytest.MonkeyPatch) -> bool:
    """True when one of the mutant's checks notices within the seeds."""
    for seed in range(SEEDS):
        try:
            mutant.drama(mutant.make(patch), seed)
        except Violation as violation:
            if violation.check in mutant.checks:
                return True
        except (TidegateError, AssertionError, KeyError):
            pass  # it broke down in another way before it did harm: try the next run
    return False


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_named_check_catches_the_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caught(MUTANTS[name], monkeypatch), f"the mutant survives: {name}"


def test_the_real_coordinator_survives_the_same_runs() -> None:
    for seed in range(25):
        play(World(), seed)


def test_a_candidate_that_slept_through_a_trim_leaves_without_a_word() -> None:
    world = World()
    leader, candidate = asleep(world)
    assert world.trimmed > 10 and candidate.machine.mode is Mode.DEPOSED
    (stepped,) = candidate.done
    assert isinstance(stepped, do.StepDown) and isinstance(stepped.reason, do.Replaced)
    assert leader.machine.mode is Mode.RUNNING
    world.settle()


def test_a_leader_that_was_paused_for_long_finds_the_takeover_of_its_successor() -> None:
    world = World()
    first, second = paused(world)
    assert world.trimmed > 10 and first.machine.mode is Mode.DEPOSED
    by = [order.reason.by for order in first.done if isinstance(order, do.StepDown)]  # type: ignore[union-attr]
    assert [takeover.leader for takeover in by] == [second.machine.leader]
    world.settle()


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 12


def test_the_checked_runs_do_commit_and_restore() -> None:
    worlds = [World() for _ in range(10)]
    for seed, world in enumerate(worlds):
        play(world, seed)
    assert sum(world.commits_landed for world in worlds) >= 40
    assert sum(world.kinds["restore"] for world in worlds) >= 40
    assert sum(world.kinds["base"] for world in worlds) >= 20 and sum(world.trimmed for world in worlds) >= 20
    assert CONFIG.gc_retain_count < max(world.commits_landed for world in worlds)
