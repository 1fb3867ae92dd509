"""Deliberately wrong coordinators, logs and stores. Each must be caught by one of the named checks of the
small world.

A mutant that survives fails its test: then the checks are too weak, not the mutant too clever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from coordination import CONFIG, Violation, World, asleep, paused, play

from tidegate.core.checkpoint import attempt, coordinate, events, lead, publish
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.attempt import Attempt
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.checkpoint.publish import Publisher
from tidegate.core.log.append import LogAppender, PutOutcome, Taken
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.retain import garbage, trimmable
from tidegate.core.log.view import LogView, Restore
from tidegate.errors import TidegateError
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


def trusting(machine: type[Coordinator]) -> type[Coordinator]:
    """The same coordinator with a log that takes anything, so that its own defect shows and not its second
    defence."""

    class Trusting(machine):  # type: ignore[misc, valid-type]
        def _log_read(self, event: Any, now_ms: int) -> None:
            if self.mode is lead.Mode.READING:
                self.log = Gullible(event.entries)
                self._move(lead.Mode.TAKING_OVER)
                self._take_over(now_ms)
            else:
                super()._log_read(event, now_ms)

    return Trusting


class Gullible(LogView):
    def _check(self, entry: Any) -> None:
        pass


@mutant("I8 acks by gang")
def acks_are_counted_by_node_only(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _live(self, node: int, gang: int, term: int, checkpoint_id: int) -> Attempt | None:
            return self.attempt if self.attempt and node in self.attempt.nodes else None

        def _node_prepared(self, ack: Any, now_ms: int) -> None:
            if self.attempt is not None:
                number = self.attempt.checkpoint_id
                ack = replace(
                    ack,
                    checkpoint_id=max(number, ack.checkpoint_id),
                    term=max(number, ack.checkpoint_id) >> 32,
                )
            super()._node_prepared(ack, now_ms)

    return World(Wrong)


@mutant("I6 ids are new")
def ids_begin_again_after_failover(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        @property
        def next_id(self) -> CheckpointId:
            return CheckpointId.of(0, self._counter + 1)

    return World(Wrong)


@mutant("I6 ids are new")
def an_aborted_id_is_used_again(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _after_abort(self, now_ms: int, failure: bool) -> None:
            self._counter -= 1
            super()._after_abort(now_ms, failure)

    return World(Wrong)


@mutant("I5 create-only")
def a_put_overwrites(patch: pytest.MonkeyPatch) -> World:
    class Overwriting(World):
        overwrites = True

    return Overwriting()


@mutant("I5 complete")
def commit_before_all_acks(patch: pytest.MonkeyPatch) -> World:
    patch.setattr(Attempt, "missing", property(lambda self: frozenset()))
    return World()


@mutant("I5 quiet while a put is open")
def unknown_is_taken_for_failure(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _put_answered(self, event: events.PutAnswered, now_ms: int) -> None:
            if isinstance(event.answer, events.Unknown) and self.attempt is not None:
                self._appender.entry = None
                self._abort(self.attempt, self._gone(self.attempt, "put failed"), now_ms)
            else:
                super()._put_answered(event, now_ms)

    return World(Wrong)


@mutant("I5 quiet while a put is open")
def a_timeout_aborts_after_the_put(patch: pytest.MonkeyPatch) -> World:
    patch.setattr(Attempt, "can_abort", property(lambda self: True))
    return World()


@mutant("I5 quiet while a put is open")
def the_gang_is_restarted_while_a_put_is_open(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _gang_lost(self, event: events.GangLost, now_ms: int) -> None:
            super()._gang_lost(event, now_ms)
            if self.mode is lead.Mode.SETTLING and self._appender.is_open:
                self._out.append(do.StartGang(self.log.gang + 1, self.log.head))

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

    patch.setattr(coordinate, "kept_objects", own_only)
    return World()


@mutant("I10 garbage", "I5 durable")
def only_the_head_is_kept(patch: pytest.MonkeyPatch) -> World:
    def head_only(view: LogView, restoring: Iterable[int] = ()) -> frozenset[str]:
        return view.head.object_paths() if view.head else frozenset()

    patch.setattr(coordinate, "kept_objects", head_only)
    return World()


@mutant("I7 fencing")
def a_deposed_leader_goes_on_in_the_next_slot(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _put_settled(self, outcome: PutOutcome, now_ms: int) -> None:
            if isinstance(outcome, Taken) and self.attempt is not None:
                self.log.apply(outcome.entry)
                manifest = replace(outcome.ours.manifest, epoch=self.log.next_slot)  # type: ignore[union-attr]
                entry = replace(outcome.ours, slot=self.log.next_slot, manifest=manifest)  # type: ignore[call-arg]
                self._out.append(self._appender.put(entry, now_ms))
            else:
                super()._put_settled(outcome, now_ms)

    return World(trusting(Wrong))


@mutant("restore follows the log", "I9 exact", "I5 parent is the head")
def a_restore_is_undone_by_the_next_leader(patch: pytest.MonkeyPatch) -> World:
    original = LogView.apply

    def apply(self: LogView, entry: Any) -> None:
        head = self.head_epoch
        original(self, entry)
        if isinstance(entry, Restore) and head is not None:
            self._lineage.append(max((*self._lineage, *self._left)))

    patch.setattr(LogView, "apply", apply)
    return World(trusting(Coordinator))


@mutant("I9 every row once")
def committables_of_aborted_attempts_are_dropped(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _committables(self, attempt: Attempt) -> list[CommittableEntry]:
            found = super()._committables(attempt)
            return [c for c in found if c.checkpoint_id == attempt.checkpoint_id or c.epoch]

    return World(Wrong)


@mutant("I9 exact", "I9 epoch order")
def unconfirmed_committables_are_not_carried(patch: pytest.MonkeyPatch) -> World:
    patch.setattr(Publisher, "carried", lambda self: ())
    return World()


@mutant("I9 named once")
def committables_are_named_again_by_a_later_epoch(patch: pytest.MonkeyPatch) -> World:
    original = attempt.assemble

    def assemble(live: Attempt, shape: Any, committables: Iterable[CommittableEntry], **rest: Any) -> Any:
        return original(live, shape, [replace(c, epoch=0) for c in committables], **rest)

    patch.setattr(coordinate, "assemble", assemble)
    return World()


@mutant("I9 epoch order")
def the_newest_epoch_is_published_first(patch: pytest.MonkeyPatch) -> World:
    original = Publisher.committed

    def committed(self: Publisher, manifest: CheckpointManifest) -> None:
        original(self, manifest)
        own = tuple(c.key for c in manifest.committables if c.epoch == manifest.epoch)
        self._steps[-1] = publish._Show(manifest.epoch, own)
        if self.outstanding is None:
            self._steps.rotate(1)

    patch.setattr(Publisher, "committed", committed)
    return World()


@mutant("I9 visible only after the manifest")
def committables_are_published_before_the_manifest(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _commit(self, attempt: Attempt, now_ms: int) -> None:
            super()._commit(attempt, now_ms)
            staged = tuple(replace(c, epoch=attempt.epoch) for a in attempt.acks.values() for c in a.committables)
            self._out.append(do.Publish(attempt.epoch, attempt.gang, staged))

    return World(Wrong)


@mutant("I9 exact")
def a_new_leader_does_not_publish_the_head_again(patch: pytest.MonkeyPatch) -> World:
    original = Publisher.recover
    patch.setattr(Publisher, "recover", lambda self, hide, head: original(self, hide, None))
    return World()


@mutant("I9 exact")
def an_older_restore_hides_nothing(patch: pytest.MonkeyPatch) -> World:
    original = Publisher.recover
    patch.setattr(Publisher, "recover", lambda self, hide, head: original(self, None, head))
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
            self._out.append(do.StartGang(self.log.next_slot, self.log.head))

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
    return Careless(trusting(Coordinator))


@mutant("I5 parent is the head", "I9 exact", "I9 every row once", "I7 fencing", "restore follows the log")
def a_conflict_counts_as_written(patch: pytest.MonkeyPatch) -> World:
    original = LogAppender.answered

    def answered(self: LogAppender, event: events.PutAnswered, now_ms: int) -> PutOutcome:
        if isinstance(event.answer, events.Conflict):
            event = events.PutAnswered(event.slot, event.write_id, events.Written())
        return original(self, event, now_ms)

    patch.setattr(LogAppender, "answered", answered)
    return World(trusting(Coordinator))


FORKED = ("trimming forks no history", "I7 fencing", "a reader sees the head", "I8 acks by gang", "I5 parent is the head")


@mutant(*FORKED, drama=paused)
def takeovers_are_trimmed_too(patch: pytest.MonkeyPatch) -> World:
    world = World(trusting(Coordinator))
    world.may_go = lambda opening: True
    return world


@mutant(*FORKED, drama=asleep)
def a_takeover_counts_without_a_listing(patch: pytest.MonkeyPatch) -> World:
    class Trusted(World):
        def check_log(self, reign: Any, effect: do.CheckLog) -> None:
            reign.todo.remove(effect)
            self.tell(reign, events.LogChecked(effect.slot, events.Last()))

    return Trusted(trusting(Coordinator))


@mutant("a reader sees what is retained", "a reader sees the head")
def what_is_retained_is_trimmed(patch: pytest.MonkeyPatch) -> World:
    world = World()
    world.trimmable = lambda slots, below, keep: trimmable(slots, below, frozenset())
    return world


@mutant("a reader sees the head", "a reader sees what is retained")
def the_log_is_trimmed_before_its_base_has_landed(patch: pytest.MonkeyPatch) -> World:
    class Wrong(Coordinator):
        def _sum_up(self, now_ms: int) -> bool:
            put = super()._sum_up(now_ms)
            if put:
                self._out.append(do.TrimLog(self.log.next_slot, frozenset(m.epoch for m in self.log.held())))
            return put

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
    assert world.trimmed > 10 and candidate.machine.mode is lead.Mode.DEPOSED
    (stepped,) = candidate.done
    assert isinstance(stepped, do.StepDown) and isinstance(stepped.reason, do.Replaced)
    assert leader.machine.mode is lead.Mode.RUNNING
    world.settle()


def test_a_leader_that_was_paused_for_long_finds_the_takeover_of_its_successor() -> None:
    world = World()
    first, second = paused(world)
    assert world.trimmed > 10 and first.machine.mode is lead.Mode.DEPOSED
    by = [effect.reason.by for effect in first.done if isinstance(effect, do.StepDown)]  # type: ignore[union-attr]
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
