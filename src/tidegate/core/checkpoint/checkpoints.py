"""Checkpoints of the running gang, one attempt at a time: when it starts, who has reported, its commit or its end.

It reads the log and the gang and never changes them; the one thing that it writes is the put of a manifest. What a commit means
for sinks and for the job is the coordinator's matter. All methods answer the effects that follow, in their order.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from tidegate.core.checkpoint import command, events
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.attempt import CheckpointAttempt, CheckpointPhase, Expired, Promote, assemble
from tidegate.core.checkpoint.gang import Gang
from tidegate.core.checkpoint.leadership import Leadership
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry, CommittableKey
from tidegate.core.checkpoint.measure import CoordinatorMetrics
from tidegate.core.checkpoint.notices import CommitNotices
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PlanShape, PrepareAck
from tidegate.core.checkpoint.publish import PublishQueue
from tidegate.core.checkpoint.requests import RequestQueue
from tidegate.core.checkpoint.schedule import Schedule
from tidegate.core.checkpoint.size import is_outgrown
from tidegate.core.log.retain import kept_objects, oldest_restorable, resumable
from tidegate.core.log.view import Commit, encode_entry
from tidegate.errors import (
    BarrierInjectionFailed,
    CheckpointAbortedError,
    CheckpointNotFound,
    InvalidUseError,
    ManifestSerializationFailed,
    NodeFailed,
    NodeRejected,
    ProtocolError,
)
from tidegate.ids import CheckpointId, Epoch, NodeId

ABORTS_PER_COLLECTION = 8
CheckpointEvent: TypeAlias = (
    events.InjectionAcked
    | events.NodePrepared
    | events.NodeDeclined
    | events.CommitAcked
    | events.CancelRequested
    | events.ControlChanged
)


class Checkpoints:
    """The attempt under way, and what outlives it until the next: schedule, requests, staged committables, alignment timeout."""

    def __init__(
        self,
        shape: PlanShape,
        config: DistributedCheckpointConfig,
        leadership: Leadership,
        gang: Gang,
        publishing: PublishQueue,
        metrics: CoordinatorMetrics,
    ) -> None:
        self.shape = shape
        self.attempt: CheckpointAttempt | None = None
        self.alignment_timeout = config.adaptive_alignment_timeout
        self.requests = RequestQueue()
        self.notices = CommitNotices()
        self.control = events.ControlChanged()
        self._config = config
        self._leadership, self._gang, self._publishing = leadership, gang, publishing
        self._metrics = metrics
        self._counter = 0
        self._aborts = 0
        self._schedule = Schedule.begin(config.schedule, 0)
        self._leftovers: dict[CommittableKey, CommittableEntry] = {}

    @property
    def next_id(self) -> CheckpointId:
        """The id of the next attempt: larger than any before, whoever made it."""
        return CheckpointId.of(self._leadership.own_term, self._counter + 1)

    @property
    def given_up(self) -> str:
        """Why the gang should be started anew; empty as long as failures can be tolerated."""
        failures = self._schedule.failures
        return f"{failures} checkpoints failed in a row" if self._schedule.exhausted else ""

    # -- starting

    def due_ms(self, now_ms: int) -> int | None:
        """When the next attempt may start; ``None`` while none may."""
        if self.attempt is not None:
            return None
        if self._gang.is_drained:
            return self._schedule.retry_due_ms
        return now_ms if self.requests else self._schedule.due_ms

    def trigger(self, now_ms: int, wall_ms: int) -> list[do.CoordinatorEffect]:
        """Start one. It is the final one when every node is drained."""
        log, final = self._leadership.log, self._gang.is_drained
        savepoint, served = self.requests.serve(final=final)
        self.attempt = CheckpointAttempt(
            checkpoint_id=self.next_id,
            epoch=Epoch(log.next_slot),
            parent=log.head,
            gang=log.gang,
            term=self._leadership.own_term,
            nodes=self._gang.nodes,
            sources=self._gang.sources,
            started_ms=now_ms,
            wall_ms=wall_ms,
            savepoint=savepoint,
            final=final,
            learned_alignment_timeout_ms=None if self.alignment_timeout is None else self.alignment_timeout.ms,
            control=self.control,
            compacts=is_outgrown(log.head, self._config.max_checkpoint_bytes),
            requests=served,
        )
        self._counter += 1
        self._schedule = self._schedule.triggered(now_ms)
        return command.start(self.attempt, self._leadership.stamp(), self._config)

    def watch(self, now_ms: int) -> list[do.CoordinatorEffect]:
        """Do what the deadlines demand."""
        again = self.notices.retry(self._leadership.stamp(), now_ms) if self.notices.deadline_ms() is not None else []
        self._metrics.commit_notice_retries += len(again)
        return [*again, *self._watch_attempt(now_ms)]

    def _watch_attempt(self, now_ms: int) -> list[do.CoordinatorEffect]:
        attempt = self.attempt
        overdue = attempt.overdue(self._config, now_ms) if attempt else None
        if attempt and isinstance(overdue, Expired):
            return self._abort(attempt, overdue.error, now_ms)
        if attempt and isinstance(overdue, Promote):
            attempt.promoted = True
            self._metrics.promotions += 1
            return command.promote(attempt, self._leadership.stamp())
        return []

    def deadline_ms(self) -> int | None:
        """When ``watch`` has something to do."""
        times = (self.notices.deadline_ms(), None if self.attempt is None else self.attempt.deadline_ms(self._config))
        return min((time for time in times if time is not None), default=None)

    # -- what nodes say, and who cancels

    def handle(self, event: CheckpointEvent, now_ms: int, wall_ms: int) -> list[do.CoordinatorEffect]:
        """A fact about the attempt under way."""
        match event:
            case events.InjectionAcked():
                return self._injection_acked(event, now_ms)
            case events.NodePrepared(ack):
                return self._prepared(ack, now_ms, wall_ms)
            case events.NodeDeclined():
                return self._declined(event, now_ms)
            case events.CommitAcked():
                return self._commit_acked(event)
            case events.CancelRequested():
                return self._cancel(event, now_ms)
            case events.ControlChanged():
                self.control = event
                return []
            case _:
                assert_never(event)

    def _live(self, node: NodeId, gang: int, term: int, checkpoint_id: int) -> CheckpointAttempt | None:
        """The attempt that this message counts for; ``None``, and counted, when it is late or foreign."""
        attempt, leadership = self.attempt, self._leadership
        if term == leadership.term and gang == leadership.log.gang and checkpoint_id >= self.next_id:
            raise ProtocolError(f"nobody has begun this checkpoint checkpoint_id={checkpoint_id} node={node}")
        if attempt is None or (gang, term, checkpoint_id) != (attempt.gang, attempt.term, attempt.checkpoint_id):
            self._metrics.stale_messages += 1
            return None
        if node not in attempt.nodes:
            raise ProtocolError(f"not a node of this checkpoint node={node} nodes={sorted(attempt.nodes)}")
        return attempt

    def _injection_acked(self, event: events.InjectionAcked, now_ms: int) -> list[do.CoordinatorEffect]:
        attempt = self._live(event.node, event.gang, event.term, event.checkpoint_id)
        if attempt is None:
            return []
        if event.node not in attempt.sources:
            raise ProtocolError(f"not a node with sources node={event.node} sources={sorted(attempt.sources)}")
        if event.source_count != self.shape.source_count and attempt.can_abort:
            reason = f"put the barrier into {event.source_count} sources and hosts {self.shape.source_count}"
            return self._failed(attempt, BarrierInjectionFailed, event.node, reason, now_ms)
        attempt.injection_acked(event.node, now_ms)
        return []

    def _prepared(self, ack: PrepareAck, now_ms: int, wall_ms: int) -> list[do.CoordinatorEffect]:
        """The last report has the manifest put."""
        attempt = self._live(ack.node, ack.gang, ack.term, ack.checkpoint_id)
        if attempt is None:
            return []
        if faults := self.shape.faults(ack):
            reason = f"sent a report that does not fit the plan: {', '.join(faults[:5])}"
            return self._failed(attempt, ManifestSerializationFailed, ack.node, reason, now_ms) if attempt.can_abort else []
        if not attempt.prepared(ack, now_ms):
            self._metrics.duplicate_acks += 1
            return []
        return [] if attempt.missing else self._commit(attempt, now_ms, wall_ms)

    def _declined(self, event: events.NodeDeclined, now_ms: int) -> list[do.CoordinatorEffect]:
        term = CheckpointId(event.checkpoint_id).term
        attempt = self._live(event.node, event.gang, term, event.checkpoint_id)
        if attempt is None or not attempt.can_abort:
            return []
        injecting = attempt.phase is CheckpointPhase.INJECTING_BARRIERS and event.node in attempt.sources
        kind = BarrierInjectionFailed if injecting else NodeRejected
        return self._failed(attempt, kind, event.node, f"cannot take part: {event.reason}", now_ms)

    def _commit_acked(self, event: events.CommitAcked) -> list[do.CoordinatorEffect]:
        leadership = self._leadership
        is_ours = (event.gang, event.term) == (leadership.log.gang, leadership.term)
        self._metrics.stale_messages += not (is_ours and self.notices.acked(event.node, event.checkpoint_id))
        return []

    def _failed(
        self, attempt: CheckpointAttempt, kind: type[CheckpointAbortedError], node: NodeId, reason: str, now_ms: int
    ) -> list[do.CoordinatorEffect]:
        """One node is the reason, which is a predicate of it."""
        error = kind(f"node {node} {reason}", checkpoint_id=attempt.checkpoint_id, failed_nodes={node: reason})
        return self._abort(attempt, error, now_ms)

    # -- commit

    def _commit(self, attempt: CheckpointAttempt, now_ms: int, wall_ms: int) -> list[do.CoordinatorEffect]:
        try:
            entry = self._leadership.new_commit(self._manifest(attempt, wall_ms))
            encode_entry(entry)  # what cannot be stored must fail here, before the put
        except (ManifestSerializationFailed, InvalidUseError) as error:
            failure = ManifestSerializationFailed(str(error), checkpoint_id=attempt.checkpoint_id)
            return self._abort(attempt, failure, now_ms)
        attempt.move(CheckpointPhase.COMMITTING)
        return [self._leadership.commit(entry, now_ms)]

    def _manifest(self, attempt: CheckpointAttempt, wall_ms: int) -> CheckpointManifest:
        if uncovered := self.shape.uncovered(attempt.nodes):
            raise InvalidUseError(f"no node hosts these subtasks subtasks={uncovered}")
        oldest = oldest_restorable(self._leadership.log, self._config.gc_retain_count, attempt.epoch)
        leader, committables = self._leadership.leader, self._committables(attempt)
        return assemble(attempt, self.shape, committables, oldest=oldest, leader=leader, wall_ms=wall_ms)

    def _committables(self, attempt: CheckpointAttempt) -> list[CommittableEntry]:
        """Every one that is not confirmed: named before, left over from aborted attempts, or new."""
        found = {entry.key: entry for entry in self._publishing.carried()}
        staged = [entry for ack in attempt.acks.values() for entry in ack.committables]
        for entry in (*self._leftovers.values(), *staged):
            if entry.checkpoint_id > self._leadership.log.last_id:  # else a manifest has named it already
                found.setdefault(entry.key, entry)
        return list(found.values())

    def committed(self, entry: Commit, now_ms: int) -> list[do.CoordinatorEffect]:
        """The manifest is in the log. Nodes are told BEFORE people, garbage goes AFTER all."""
        attempt, manifest = self.attempt, entry.manifest
        assert attempt is not None, "only a live attempt has a put open"
        attempt.move(CheckpointPhase.COMPLETED)
        self.attempt = None
        self._leftovers.clear()
        self._schedule = self._schedule.completed(now_ms)
        self.alignment_timeout = attempt.learned(self.alignment_timeout, manifest.is_unaligned)
        duration_ms, requests = now_ms - attempt.started_ms, tuple(attempt.requests)
        self._metrics.completed(manifest, duration_ms, compacted=attempt.compacts)
        nodes: frozenset[NodeId] = attempt.nodes if self._gang.is_alive else frozenset()
        told = self.notices.send(attempt.checkpoint_id, attempt.epoch, nodes, self._leadership.stamp(), now_ms)
        done = do.CheckpointCompleted(manifest.checkpoint_id, manifest.epoch, duration_ms, manifest, requests)
        return [do.WriteLatestHint(manifest.epoch), *told, done, *self._collect()]

    def _collect(self) -> list[do.CoordinatorEffect]:
        """There is no live attempt now, so the next id is the bound."""
        if not self._config.auto_gc:
            return []
        log = self._leadership.log
        return [do.CollectGarbage(self.next_id, kept_objects(log) | self.control.objects, resumable(log))]

    # -- abort

    def _cancel(self, event: events.CancelRequested, now_ms: int) -> list[do.CoordinatorEffect]:
        attempt = self.attempt
        if attempt is None or attempt.checkpoint_id != event.checkpoint_id:
            raise CheckpointNotFound(f"this checkpoint is not in flight checkpoint_id={event.checkpoint_id}")
        if not attempt.can_abort:
            raise CheckpointNotFound(f"its manifest is being written checkpoint_id={event.checkpoint_id}")
        error = CheckpointAbortedError("cancelled on request", checkpoint_id=event.checkpoint_id)
        return self._abort(attempt, error, now_ms, failure=False)

    def gang_up(self, now_ms: int) -> None:
        """All nodes are there: the first checkpoint is due after one interval, and nothing is left over."""
        self._schedule = Schedule.begin(self._config.schedule, now_ms)
        self._leftovers.clear()

    def members_left(self, left: frozenset[NodeId], now_ms: int) -> list[do.CoordinatorEffect]:
        """Nodes have gone while the gang runs on: an attempt with one of them is over."""
        attempt = self.attempt
        if attempt is None or not attempt.can_abort or not left & attempt.nodes:
            return []
        gone: dict[int, str] = dict.fromkeys(sorted(left & attempt.nodes), "left the gang")
        error = NodeFailed(f"nodes left nodes={sorted(left)}", checkpoint_id=attempt.checkpoint_id, failed_nodes=gone)
        return self._abort(attempt, error, now_ms)

    def gang_ending(self, reason: str, now_ms: int, node: NodeId | None = None) -> list[do.CoordinatorEffect]:
        """The gang is gone or about to be stopped: that is no failure of the checkpoint."""
        self.notices.drop()
        attempt = self.attempt
        if attempt is None or not attempt.can_abort:
            return []
        failed_nodes: dict[int, str] = {} if node is None else {node: reason}
        error = NodeFailed(reason, checkpoint_id=attempt.checkpoint_id, failed_nodes=failed_nodes)
        return self._abort(attempt, error, now_ms, failure=False)

    def close(self, reason: str) -> list[do.CoordinatorEffect]:
        """This leader gives no more orders: whoever waits for a checkpoint is told."""
        given: list[do.CoordinatorEffect] = [*self.requests.close(reason)]
        if self.attempt is not None:
            attempt, self.attempt = self.attempt, None
            attempt.move(CheckpointPhase.ABORTED)
            error = CheckpointAbortedError(reason, checkpoint_id=attempt.checkpoint_id)
            given.append(self._aborted(attempt, reason, error, failure=False))
        return given

    def _abort(
        self, attempt: CheckpointAttempt, error: CheckpointAbortedError, now_ms: int, *, failure: bool = True
    ) -> list[do.CoordinatorEffect]:
        """Give it up. What its sinks have staged goes into the next manifest: sources do not rewind."""
        attempt.move(CheckpointPhase.ABORTED)
        self.attempt = None
        for ack in attempt.acks.values():
            self._leftovers.update((entry.key, entry) for entry in ack.committables)
        given: list[do.CoordinatorEffect] = []
        if self._gang.is_alive:
            given += command.abort(attempt.nodes, self._leadership.stamp(), attempt.checkpoint_id, str(error))
        given.append(self._aborted(attempt, str(error), error, failure=failure))
        self._metrics.aborted(error)
        return given + self._after_abort(now_ms, failure)

    @staticmethod
    def _aborted(
        attempt: CheckpointAttempt, reason: str, error: CheckpointAbortedError, *, failure: bool
    ) -> do.CheckpointAborted:
        return do.CheckpointAborted(attempt.checkpoint_id, reason, tuple(attempt.requests), error, failure)

    def _after_abort(self, now_ms: int, failure: bool) -> list[do.CoordinatorEffect]:
        self._aborts += 1
        if failure:
            self._schedule = self._schedule.failed(now_ms)
        # without commits nothing else would ever remove what aborted attempts uploaded
        return self._collect() if self._aborts % ABORTS_PER_COLLECTION == 0 else []
