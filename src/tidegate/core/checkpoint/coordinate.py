"""The coordinator of a job's checkpoints: one door, events in, effects out. No clock, store or network.

A leader takes over by an entry of the log, starts gangs, triggers checkpoints, commits their manifests and
has their committables published. Nothing is aborted, deleted or restarted between a put and its definite
answer. Losing the slot of a commit or a restore to another entry ends this leader. Late, doubled and foreign
messages are outcomes and are counted; an impossible one is a ``ProtocolError`` with the story of the last
events, and changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from tidegate.core.checkpoint import command, events
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.attempt import Attempt, CheckpointPhase, GiveUp, Promote, assemble
from tidegate.core.checkpoint.lead import Leader
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry, CommittableKey
from tidegate.core.checkpoint.mode import OVER, Mode
from tidegate.core.checkpoint.policy import CoordinatorMetrics, DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PlanShape, PrepareAck
from tidegate.core.checkpoint.schedule import Schedule
from tidegate.core.log.retain import kept_objects, oldest_restorable, resumable
from tidegate.core.log.view import Commit, encode_entry
from tidegate.errors import (
    BarrierInjectionFailed,
    CheckpointAbortedError,
    CheckpointNotFound,
    InvalidUseError,
    ManifestSerializationFailed,
    NodeFailed,
    ProtocolError,
    TidegateError,
)
from tidegate.ids import CheckpointId

__all__ = ["CoordinatorMetrics", "DistributedCheckpointConfig", "DistributedCheckpointCoordinator", "Mode"]

STORY_LENGTH = 50
REQUESTS_MAX = 64
ABORTS_PER_COLLECTION = 8


class DistributedCheckpointCoordinator(Leader):
    """One leader's reign: made for one election. The next needs a new object with a new ``leader`` name."""

    def __init__(self, shape: PlanShape, config: DistributedCheckpointConfig, leader: str, host: str = "", pid: int = 0) -> None:
        super().__init__(config, leader, host, pid)
        self.shape = shape
        self.attempt: Attempt | None = None
        self.threshold = config.adaptive_threshold
        self._counter = 0
        self._aborts = 0
        self._schedule = Schedule.begin(config.schedule, 0)
        self._waiting: deque[events.TriggerRequested] = deque()
        self._leftovers: dict[CommittableKey, CommittableEntry] = {}
        self._drained: set[int] = set()
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)
        self._timer: int | None = None

    def handle(self, event: events.CoordinatorEvent, now_ms: int, wall_ms: int = 0) -> list[do.CoordinatorEffect]:
        """Take an event, return the effects that follow, to be performed in this order.

        ``now_ms`` never goes back. ``wall_ms`` is the time of day, for people. An error leaves everything as
        it was.
        """
        self._story.append(f"{now_ms} {event!r:.300}")
        self._out, self._wall_ms = [], wall_ms
        try:
            if self.mode in OVER:
                self._after_the_end(event)
            else:
                self._dispatch(event, now_ms)
                self._advance(now_ms)
        except TidegateError as error:
            error.story = tuple(self._story)
            raise
        self._set_timer(now_ms)
        return self._out

    @property
    def next_id(self) -> CheckpointId:
        """The id of the next attempt: larger than any before, whoever made it."""
        return CheckpointId.of(self._own_term(), self._counter + 1)

    def _dispatch(self, event: events.CoordinatorEvent, now_ms: int) -> None:
        match event:
            case events.LogRead():
                self._log_read(event, now_ms)
            case events.PutAnswered():
                self._put_answered(event, now_ms)
            case events.LogChecked():
                self._log_checked(event, now_ms)
            case events.TriggerRequested():
                self._requested(event)
            case events.CancelRequested():
                self._cancel(event, now_ms)
            case events.RestoreRequested():
                self._restore_requested(event, now_ms)
            case events.StopRequested():
                self._stop_requested(now_ms)
            case events.GangRunning():
                self._gang_running(event, now_ms)
            case events.GangLost():
                self._gang_lost(event, now_ms)
            case events.InjectionAcked():
                self._injection_acked(event, now_ms)
            case events.NodePrepared(ack):
                self._node_prepared(ack, now_ms)
            case events.NodeDeclined():
                self._node_declined(event, now_ms)
            case events.NodeDrained():
                self._node_drained(event)
            case events.Published() | events.PublishFailed() | events.Hidden() | events.HideFailed():
                self._sink_answered(event, now_ms)
            case events.Tick():
                pass
            case _:
                assert_never(event)

    def _after_the_end(self, event: events.CoordinatorEvent) -> None:
        if isinstance(event, events.TriggerRequested):
            self._refuse(event, f"this coordinator is {self.mode.value}")
        elif not isinstance(event, events.Tick):
            self.metrics.stale_messages += 1

    # -- requests

    def _requested(self, event: events.TriggerRequested) -> None:
        attempt = self.attempt
        joins = attempt is not None and event.savepoint in (None, attempt.savepoint)
        waiting = len(attempt.requests) if attempt is not None and joins else len(self._waiting)
        if self._stopping or self.mode is Mode.FINISHING:
            self._refuse(event, "the job is ending")
        elif waiting >= REQUESTS_MAX:
            self._refuse(event, f"too many requests are waiting waiting={waiting}")
        elif attempt is not None and joins:
            attempt.requests.append(event.request_id)
        else:
            self._waiting.append(event)

    def _cancel(self, event: events.CancelRequested, now_ms: int) -> None:
        attempt = self.attempt
        if attempt is None or attempt.checkpoint_id != event.checkpoint_id:
            raise CheckpointNotFound(f"this checkpoint is not in flight checkpoint_id={event.checkpoint_id}")
        if not attempt.can_abort:
            raise CheckpointNotFound(f"its manifest is being written checkpoint_id={event.checkpoint_id}")
        error = CheckpointAbortedError("cancelled on request", checkpoint_id=event.checkpoint_id)
        self._abort(attempt, error, now_ms, failure=False)

    def _refuse(self, event: events.TriggerRequested, reason: str) -> None:
        self._out.append(do.RequestRefused(event.request_id, reason))

    # -- triggering

    def _advance(self, now_ms: int) -> None:
        self._watch_deadlines(now_ms)
        super()._advance(now_ms)
        if (due_ms := self._trigger_due_ms(now_ms)) is not None and now_ms >= due_ms:
            self._trigger(now_ms)

    def _trigger_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt may start; ``None`` while none may."""
        held_up = self._publisher.crowded or self._appender.is_open  # a put that is open now is a base's: it takes the next slot
        if self.mode is not Mode.RUNNING or self.attempt is not None or held_up:
            return None
        if self._all_drained():
            return self._schedule.retry_due_ms
        return now_ms if self._waiting else self._schedule.due_ms

    def _all_drained(self) -> bool:
        return self.nodes <= self._drained

    def _trigger(self, now_ms: int) -> None:
        final = self._all_drained()
        wanted = [w.savepoint for w in self._waiting if w.savepoint is not None and not final]
        savepoint = wanted[0] if wanted else None
        served = [w for w in self._waiting if w.savepoint in (None, savepoint)]
        self._waiting = deque(w for w in self._waiting if w not in served)
        self.attempt = Attempt(
            checkpoint_id=self.next_id,
            epoch=self.log.next_slot,
            parent=self.log.head,
            gang=self.log.gang,
            term=self._own_term(),
            nodes=self.nodes,
            sources=self.source_nodes,
            started_ms=now_ms,
            wall_ms=self._wall_ms,
            savepoint=savepoint,
            final=final,
            threshold_ms=None if self.threshold is None else self.threshold.ms,
            requests=[w.request_id for w in served],
        )
        self._counter += 1
        self._schedule = self._schedule.triggered(now_ms)
        self._out += command.start(self.attempt, self._stamp(), self.config)

    def _watch_deadlines(self, now_ms: int) -> None:
        attempt = self.attempt
        overdue = attempt.overdue(self.config, now_ms) if attempt else None
        if attempt and isinstance(overdue, GiveUp):
            self._abort(attempt, overdue.error, now_ms)
        elif attempt and isinstance(overdue, Promote):
            attempt.promoted = True
            self.metrics.promotions += 1
            self._out += command.promote(attempt, self._stamp())

    # -- what nodes say

    def _live(self, node: int, gang: int, term: int, checkpoint_id: int) -> Attempt | None:
        """The attempt that this message counts for; ``None``, and counted, when it is late or foreign."""
        attempt = self.attempt
        if term == self.term and gang == self.log.gang and checkpoint_id >= self.next_id:
            raise ProtocolError(f"nobody has begun this checkpoint checkpoint_id={checkpoint_id} node={node}")
        if attempt is None or (gang, term, checkpoint_id) != (
            attempt.gang,
            attempt.term,
            attempt.checkpoint_id,
        ):
            self.metrics.stale_messages += 1
            return None
        if node not in attempt.nodes:
            raise ProtocolError(f"not a node of this checkpoint node={node} nodes={sorted(attempt.nodes)}")
        return attempt

    def _injection_acked(self, event: events.InjectionAcked, now_ms: int) -> None:
        attempt = self._live(event.node, event.gang, event.term, event.checkpoint_id)
        if attempt is None:
            return
        if event.node not in attempt.sources:
            raise ProtocolError(f"not a node with sources node={event.node} sources={sorted(attempt.sources)}")
        attempt.injection_acked(event.node, now_ms)

    def _node_prepared(self, ack: PrepareAck, now_ms: int) -> None:
        attempt = self._live(ack.node, ack.gang, ack.term, ack.checkpoint_id)
        if attempt is None:
            return
        if faults := self.shape.faults(ack):
            if attempt.can_abort:
                reason = f"the report of node {ack.node} does not fit the plan: {', '.join(faults[:5])}"
                error = ManifestSerializationFailed(reason, checkpoint_id=ack.checkpoint_id)
                self._abort(attempt, error, now_ms)
        elif not attempt.prepared(ack, now_ms):
            self.metrics.duplicate_acks += 1
        elif not attempt.missing:
            self._commit(attempt, now_ms)

    def _node_declined(self, event: events.NodeDeclined, now_ms: int) -> None:
        term = CheckpointId(event.checkpoint_id).term
        attempt = self._live(event.node, event.gang, term, event.checkpoint_id)
        if attempt is None or not attempt.can_abort:
            return
        injecting = attempt.phase is CheckpointPhase.INJECTING_BARRIERS and event.node in attempt.sources
        kind = BarrierInjectionFailed if injecting else NodeFailed
        reason = f"node {event.node} cannot take part: {event.reason}"
        self._abort(attempt, kind(reason, checkpoint_id=event.checkpoint_id), now_ms)

    def _node_drained(self, event: events.NodeDrained) -> None:
        if event.gang != self.log.gang or self.mode is not Mode.RUNNING:
            self.metrics.stale_messages += 1
        elif event.node not in self.nodes:
            raise ProtocolError(f"not a node of the gang node={event.node} nodes={sorted(self.nodes)}")
        else:
            self._drained.add(event.node)

    # -- commit and abort

    def _commit(self, attempt: Attempt, now_ms: int) -> None:
        try:
            manifest = self._manifest(attempt)
            entry = Commit(slot=attempt.epoch, term=attempt.term, write_id=self._write_id(), manifest=manifest)
            encode_entry(entry)  # what cannot be stored must fail here, before the put
        except (ManifestSerializationFailed, InvalidUseError) as error:
            failure = ManifestSerializationFailed(str(error), checkpoint_id=attempt.checkpoint_id)
            self._abort(attempt, failure, now_ms)
            return
        attempt.move(CheckpointPhase.COMMITTING)
        self._out.append(self._appender.put(entry, now_ms))

    def _manifest(self, attempt: Attempt) -> CheckpointManifest:
        if uncovered := self.shape.uncovered(attempt.nodes):
            raise InvalidUseError(f"no node hosts these subtasks subtasks={uncovered}")
        oldest = oldest_restorable(self.log, self.config.gc_retain_count, attempt.epoch)
        return assemble(
            attempt,
            self.shape,
            self._committables(attempt),
            oldest=oldest,
            leader=self.leader,
            wall_ms=self._wall_ms,
        )

    def _committables(self, attempt: Attempt) -> list[CommittableEntry]:
        """Every one that is not confirmed: named before, left over from aborted attempts, or new."""
        found = {entry.key: entry for entry in self._publisher.carried()}
        staged = [entry for ack in attempt.acks.values() for entry in ack.committables]
        for entry in (*self._leftovers.values(), *staged):
            if entry.checkpoint_id > self.log.last_id:  # else a manifest has named it already
                found.setdefault(entry.key, entry)
        return list(found.values())

    def _committed(self, entry: Commit, now_ms: int) -> None:
        attempt, manifest = self.attempt, entry.manifest
        assert attempt is not None, "only a live attempt has a put open"
        attempt.move(CheckpointPhase.COMPLETED)
        self.attempt = None
        self._leftovers.clear()
        self._schedule = self._schedule.completed(now_ms)
        self.threshold = attempt.learned(self.threshold, manifest.is_unaligned)
        self._publisher.committed(manifest)
        if attempt.requests or manifest.final:  # a savepoint is always asked for
            self._publisher.flush()
        duration_ms = now_ms - attempt.started_ms
        self.metrics.completed(duration_ms, sum(n.bytes_uploaded for n in manifest.nodes), manifest.is_unaligned)
        self._out.append(do.WriteLatestHint(manifest.epoch))
        if self._gang_alive:
            self._out += command.committed(attempt, self._stamp())
        numbers, requests = (manifest.checkpoint_id, manifest.epoch, duration_ms), tuple(attempt.requests)
        self._out.append(do.CheckpointCompleted(*numbers, manifest, requests))
        self._collect()
        if manifest.final and self.mode is not Mode.SETTLING:
            self._move(Mode.FINISHING)

    def _collect(self) -> None:
        """There is no live attempt now, so the next id is the bound."""
        if self.config.auto_gc:
            collection = do.CollectGarbage(self.next_id, kept_objects(self.log), resumable(self.log))
            self._out.append(collection)

    def _abort(self, attempt: Attempt, error: CheckpointAbortedError, now_ms: int, *, failure: bool = True) -> None:
        """Abort it. What its sinks have staged goes into the next manifest: sources do not rewind."""
        attempt.move(CheckpointPhase.ABORTED)
        self.attempt = None
        for ack in attempt.acks.values():
            self._leftovers.update((entry.key, entry) for entry in ack.committables)
        if self._gang_alive:
            self._out += command.abort(attempt.nodes, self._stamp(), attempt.checkpoint_id, str(error))
        error.story = tuple(self._story)
        requests = tuple(attempt.requests)
        self._out.append(do.CheckpointAborted(attempt.checkpoint_id, str(error), requests, error, failure))
        self._after_abort(now_ms, failure)

    def _after_abort(self, now_ms: int, failure: bool) -> None:
        self.metrics.checkpoints_aborted += 1
        self._aborts += 1
        if self._aborts % ABORTS_PER_COLLECTION == 0:
            self._collect()  # without commits nothing else would ever remove what aborted attempts uploaded
        if failure:
            self._schedule = self._schedule.failed(now_ms)
        if failure and self._schedule.exhausted and self.mode is Mode.RUNNING:
            self._end_gang(f"{self._schedule.failures} checkpoints failed in a row", now_ms)

    # -- hooks of the leader

    def _gang_up(self, now_ms: int) -> None:
        self._schedule = Schedule.begin(self.config.schedule, now_ms)
        self._drained.clear()
        self._leftovers.clear()

    def _members_changed(self, left: frozenset[int], now_ms: int) -> None:
        if self.attempt is not None and self.attempt.can_abort and left & self.attempt.nodes:
            self._abort(self.attempt, self._gone(self.attempt, f"nodes left nodes={sorted(left)}"), now_ms)

    def _gang_ending(self, reason: str, now_ms: int) -> None:
        if self.attempt is not None and self.attempt.can_abort:
            self._abort(self.attempt, self._gone(self.attempt, reason), now_ms, failure=False)

    def _gone(self, attempt: Attempt, reason: str) -> CheckpointAbortedError:
        return NodeFailed(reason, checkpoint_id=attempt.checkpoint_id)

    def _close(self, reason: str) -> None:
        for waiting in self._waiting:
            self._refuse(waiting, reason)
        self._waiting.clear()
        if self.attempt is not None:
            attempt, self.attempt = self.attempt, None
            attempt.move(CheckpointPhase.ABORTED)
            error = CheckpointAbortedError(reason, checkpoint_id=attempt.checkpoint_id, story=self._story)
            self._out.append(do.CheckpointAborted(attempt.checkpoint_id, reason, tuple(attempt.requests), error, False))

    def _set_timer(self, now_ms: int) -> None:
        asked = (self._appender.deadline_ms, self._confirmer.deadline_ms, self._publisher.deadline_ms(now_ms))
        times = [self._trigger_due_ms(now_ms), *asked]
        if self.attempt is not None:
            times.append(self.attempt.deadline_ms(self.config))
        at_ms = min((time for time in times if time is not None), default=None)
        if self._timer is not None and now_ms >= self._timer:
            self._timer = None
        if at_ms is not None and at_ms != self._timer and self.mode not in OVER:
            self._timer = at_ms
            self._out.append(do.SetTimer(at_ms))
