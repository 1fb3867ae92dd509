"""The coordinator of a job's checkpoints: one door, events in, effects out. No clock, store or network.

Three small machines do the work, ``Leadership`` (the log), ``Gang`` (the nodes) and ``Checkpoints`` (the attempts), and a
``PublishQueue``. The coordinator leads each fact to the machine that it concerns, keeps the mode that they are in together, and
owns the order of effects. Nothing is aborted, deleted or restarted between a put and its definite answer. Losing the slot of a
commit or a restore to another entry ends this leader. Late, doubled and foreign messages are outcomes and are counted; an
impossible one is a ``ProtocolError`` with the story of the last events, and changes nothing.
"""

from __future__ import annotations

from typing import assert_never

from tidegate.core.checkpoint import command, events
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.answer import EffectCollector
from tidegate.core.checkpoint.attempt import CheckpointAttempt
from tidegate.core.checkpoint.checkpoints import Checkpoints
from tidegate.core.checkpoint.gang import Gang
from tidegate.core.checkpoint.leadership import Confirmed, Leadership, OutrunTakeover, Settled
from tidegate.core.checkpoint.measure import CoordinatorMetrics
from tidegate.core.checkpoint.mode import OVER, PUBLISHING, Mode, moved
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PlanShape
from tidegate.core.checkpoint.progress import Standing, Step, next_step
from tidegate.core.checkpoint.publish import PublishQueue, SinkAnswer
from tidegate.core.checkpoint.requests import refused
from tidegate.core.log.append import Landed, NotAsked, StillOpen
from tidegate.core.log.entries import Role
from tidegate.core.log.view import Base, Commit, LogEntry, LogView, Restore, Takeover
from tidegate.errors import CorruptDataError, TidegateError, UnexpectedPhase
from tidegate.ids import CheckpointId, Epoch, NodeId, Term

__all__ = ["CoordinatorMetrics", "DistributedCheckpointConfig", "DistributedCheckpointCoordinator", "Mode"]


class DistributedCheckpointCoordinator:
    """One leader's reign: made for one election. The next needs a new object with a new ``leader`` name."""

    def __init__(
        self, shape: PlanShape, config: DistributedCheckpointConfig, leader: str, host: str = "", pid: int = 0,
        role: Role = "driver",
    ) -> None:  # fmt: skip
        self.shape, self.config = shape, config
        self.leader, self.host, self.pid, self.role = leader, host, pid, role
        self.mode, self.metrics = Mode.READING, CoordinatorMetrics()
        self.leadership = Leadership(config, leader, host, pid, role)
        self.gang = Gang()
        self.publishing = PublishQueue.of(config)
        self.checkpoints = Checkpoints(shape, config, self.leadership, self.gang, self.publishing, self.metrics)
        self._out = EffectCollector()
        self._wall_ms, self._stopping, self._sinks_ahead = 0, False, False

    @property
    def log(self) -> LogView:
        """What this leader knows of the log; read it, never change it."""
        return self.leadership.log

    @property
    def term(self) -> Term | None:
        """The slot of this leader's takeover; ``None`` before it has landed."""
        return self.leadership.term

    @property
    def attempt(self) -> CheckpointAttempt | None:
        """The checkpoint under way."""
        return self.checkpoints.attempt

    @property
    def next_id(self) -> CheckpointId:
        """The id of the next attempt: larger than any before, whoever made it."""
        return self.checkpoints.next_id

    def is_public(self, epoch: int) -> bool:
        """True when sinks have confirmed all that manifests up to this epoch named."""
        return self.publishing.is_public(epoch)

    def handle(self, event: events.CoordinatorEvent, now_ms: int, wall_ms: int = 0) -> list[do.CoordinatorEffect]:
        """Take an event, return the effects that follow, to be performed in this order. An error leaves everything as it was.

        ``now_ms`` never goes back. ``wall_ms`` is the time of day, for people.
        """
        self._out.open(event, now_ms)
        self._wall_ms = wall_ms
        try:
            if self.mode in OVER:
                self._after_the_end(event)
            else:
                self._dispatch(event, now_ms)
                self._advance(now_ms)
        except TidegateError as error:
            error.story = self._out.story
            raise
        return self._out.close(now_ms, self._deadlines(now_ms))

    def _dispatch(self, event: events.CoordinatorEvent, now_ms: int) -> None:
        match event:
            case events.LogRead():
                self._log_read(event, now_ms)
            case events.PutAnswered():
                self._put_settled(self.leadership.answered(event, now_ms), now_ms)
            case events.LogChecked():
                self._log_checked(event, now_ms)
            case events.TriggerRequested():
                self._requested(event)
            case events.RestoreRequested():
                self._restore_requested(event, now_ms)
            case events.StopRequested():
                self._stop_requested(now_ms)
            case events.GangRunning():
                self._gang_running(event, now_ms)
            case events.GangLost():
                self._gang_lost(event, now_ms)
            case events.NodeDrained():
                self._node_drained(event)
            case events.Published() | events.PublishFailed() | events.Hidden() | events.HideFailed():
                self._sink_answered(self.publishing.answered(event, now_ms))
            case events.Tick():
                pass
            case _:
                self._out.give_all(self.checkpoints.handle(event, now_ms, self._wall_ms))

    def _after_the_end(self, event: events.CoordinatorEvent) -> None:
        if isinstance(event, events.TriggerRequested):
            self._out.give(refused(event, f"this coordinator is {self.mode.value}"))
        elif not isinstance(event, events.Tick | events.ControlChanged):
            self.metrics.stale_messages += 1

    def _sink_answered(self, answer: SinkAnswer) -> None:
        self.metrics.publish_retries += answer is SinkAnswer.FAILED
        self.metrics.stale_messages += answer is SinkAnswer.STALE

    def _requested(self, event: events.TriggerRequested) -> None:
        if self._stopping or self.mode is Mode.FINISHING:
            self._out.give(refused(event, "the job is ending"))
        else:
            self._out.give(self.checkpoints.requests.take(event, self.attempt))

    # -- the log

    def _log_read(self, event: events.LogRead, now_ms: int) -> None:
        if self.mode is not Mode.READING:
            self.metrics.stale_messages += 1
            return
        self.leadership.read(event)
        self._move(Mode.TAKING_OVER)
        self._out.give(self.leadership.take_over(now_ms, self._wall_ms))

    def _put_settled(self, outcome: Settled, now_ms: int) -> None:
        match outcome:
            case Landed(entry):
                self._landed(entry, now_ms)
            case OutrunTakeover():
                self._move(Mode.READING)
                self._out.give(do.ReadLog())
            case do.Replaced():
                self._step_down(outcome)
            case StillOpen():
                pass
            case NotAsked():
                self.metrics.stale_messages += 1
            case _:
                assert_never(outcome)

    def _landed(self, entry: LogEntry, now_ms: int) -> None:
        match entry:
            case Takeover():
                self.metrics.leader_failovers += entry.slot > 0
                self._confirm(now_ms)
            case Restore():
                self._move(Mode.RECOVERING)
                self.publishing.recover(self.leadership.hidden_by(entry, self._sinks_ahead), self.log.head)
            case Base():
                self._out.give(self.leadership.trim())
                if self.mode is Mode.CONFIRMING:
                    self._ready()
            case Commit():
                self._committed(entry, now_ms)
            case _:
                assert_never(entry)

    def _committed(self, entry: Commit, now_ms: int) -> None:
        """It is published from now on, at once where somebody waits for it. Only then may a base take the next slot."""
        manifest, attempt = entry.manifest, self.attempt
        self.publishing.committed(manifest)
        if manifest.final or (attempt is not None and attempt.requests):  # a savepoint is always asked for
            self.publishing.flush()
        self._out.give_all(self.checkpoints.committed(entry, now_ms))
        if manifest.final and self.mode is not Mode.SETTLING:
            self._move(Mode.FINISHING)
        if self.mode is Mode.RUNNING and not self._stopping:
            self._out.give(self.leadership.base(now_ms))

    def _confirm(self, now_ms: int) -> None:
        """Go on only if the log ends with what we know of it."""
        self._move(Mode.CONFIRMING)
        self._out.give(self.leadership.confirm(now_ms))

    def _log_checked(self, event: events.LogChecked, now_ms: int) -> None:
        outcome = self.leadership.checked(event, now_ms)
        if isinstance(outcome, do.Replaced):
            self._step_down(outcome)
        elif isinstance(outcome, Confirmed) and (base := self.leadership.base(now_ms)):
            self._out.give(base)
        elif isinstance(outcome, Confirmed):
            self._ready()

    # -- gangs

    def _restore_requested(self, event: events.RestoreRequested, now_ms: int) -> None:
        if self.mode is not Mode.READY:
            raise UnexpectedPhase(f"a gang can only be started when none is there mode={self.mode.value!r}")
        parent = None if event.epoch is None else self.log.restorable(event.epoch)
        self._sinks_ahead = event.sinks_newer
        if parent is not None and parent.final and parent.epoch == self.log.head_epoch:
            self._move(Mode.RECOVERING)
            self.publishing.recover(self.leadership.hidden_after(parent) if event.sinks_newer else None, parent)
        elif parent is None and self.leadership.is_first_of_all and not self.gang.has_started_one:
            self._start_gang()  # only this one has number 0
        else:
            self._write_restore(event.epoch, now_ms)

    def _write_restore(self, parent: Epoch | None, now_ms: int) -> None:
        self._move(Mode.RESTORING)
        self._out.give(self.leadership.restore(parent, self.gang.why, now_ms))

    def _start_gang(self) -> None:
        self._move(Mode.STARTING)
        self._out.give(self.gang.start(self.log.gang, self.log.head))

    def _gang_running(self, event: events.GangRunning, now_ms: int) -> None:
        self.gang.check(event)
        if event.gang != self.log.gang or not self._takes_members():
            self.metrics.stale_messages += 1
            return
        left = self.gang.joined(event)
        if self.mode is Mode.RUNNING:
            self._out.give_all(self.checkpoints.members_left(left, now_ms))
            return
        if self.mode is Mode.READY:
            self._adopt()
        self._move(Mode.RUNNING)
        self.gang.up()
        self.checkpoints.gang_up(now_ms)

    def _takes_members(self) -> bool:
        """An earlier leader's gang goes on under this one, unless this one has started its own."""
        adopts = self.mode is Mode.READY and self.leadership.can_adopt and not self.gang.has_started_one
        return self.mode in (Mode.STARTING, Mode.RUNNING) or adopts

    def _adopt(self) -> None:
        """Everything below this term is dead; the head's committables may not have been published."""
        self.gang.adopt()
        dead = CheckpointId(self.leadership.own_term << 32)
        self._out.give_all(command.abort(self.gang.nodes, self.leadership.stamp(), dead, "leader failover"))
        self.publishing.recover(None, self.log.head)

    def _node_drained(self, event: events.NodeDrained) -> None:
        if event.gang != self.log.gang or self.mode is not Mode.RUNNING:
            self.metrics.stale_messages += 1
        else:
            self.gang.node_drained(event)

    def _gang_lost(self, event: events.GangLost, now_ms: int) -> None:
        if event.gang != self.log.gang or not self.gang.is_alive:
            self.metrics.stale_messages += 1
            return
        self.gang.is_alive = False
        if self.mode is not Mode.FINISHING:
            self._gang_ending(event.reason, Mode.SETTLING, now_ms, event.node)

    def _stop_requested(self, now_ms: int) -> None:
        self._stopping = True
        self.publishing.hurry()
        if self.mode in (Mode.READING, Mode.READY):
            self._stopped()
        elif self.mode in (Mode.STARTING, Mode.RUNNING):
            self._gang_ending("stop requested", Mode.ENDING, now_ms)

    def _gang_ending(self, reason: str, mode: Mode, now_ms: int, node: NodeId | None = None) -> None:
        self.gang.why = reason
        self._out.give_all(self.checkpoints.gang_ending(reason, now_ms, node))
        self._move(mode)

    # -- what follows from it all

    def _advance(self, now_ms: int) -> None:
        """Whatever can go on now does. Called after every event."""
        self._out.give_all(self.checkpoints.watch(now_ms))
        if self.mode is Mode.RUNNING and (why := self.checkpoints.given_up):
            self._gang_ending(why, Mode.ENDING, now_ms)
        self._ask_again(now_ms)
        self._publish(now_ms)
        self._go_on(now_ms)
        if (due_ms := self._trigger_due_ms(now_ms)) is not None and now_ms >= due_ms:
            self._out.give_all(self.checkpoints.trigger(now_ms, self._wall_ms))

    def _go_on(self, now_ms: int) -> None:
        match next_step(self._standing()):
            case Step.START_GANG:
                self._start_gang()
            case Step.STOP_GANG:
                self._out.give(self.gang.stop(self.log.gang))
            case Step.CONFIRM:
                self._confirm(now_ms)
            case Step.STOP:
                self._stopped()
            case Step.FINISH:
                self._finished()
            case None:
                pass
            case _ as never:  # pragma: no cover  (mypy proves it)
                assert_never(never)

    def _standing(self) -> Standing:
        return Standing(
            mode=self.mode,
            writing=self.leadership.is_writing,
            publishing=self.publishing.outstanding is not None,
            backlog=self.publishing.backlog > 0,
            finished=self.log.head is not None and self.log.head.final,
            stopping=self._stopping,
        )

    def _ask_again(self, now_ms: int) -> None:
        for order in self.leadership.ask_again(now_ms):
            if isinstance(order, do.StoreSilent):
                self._step_down(order)
            else:
                self.metrics.put_retries += 1
                self._out.give(order)

    def _publish(self, now_ms: int) -> None:
        stops_last = self.mode is Mode.SETTLING and self._stopping
        if self.mode not in PUBLISHING and not stops_last:
            return
        if stuck := self.publishing.stuck:
            self._step_down(stuck)
        else:
            self._out.give(self.publishing.next(self.log.gang, now_ms))

    def _trigger_due_ms(self, now_ms: int) -> int | None:
        """``None`` while none may start. A put that is open where an attempt could start is a base's: it takes the next slot."""
        held_up = self.mode is not Mode.RUNNING or self.publishing.crowded or self.leadership.is_writing
        return None if held_up else self.checkpoints.due_ms(now_ms)

    def _ready(self) -> None:
        self._move(Mode.READY)
        if self._stopping:
            self._stopped()
        else:
            self._out.give(do.ResolveRestore(self.gang.why))

    # -- the end

    def _finished(self) -> None:
        if self.log.head is None:
            raise CorruptDataError("a job cannot be finished without a final checkpoint")
        if self.gang.is_alive:
            self._out.give(do.StopGang(self.log.gang, "finished"))
        self._over(Mode.FINISHED, do.JobFinished(self.log.head), "the job has finished")

    def _stopped(self) -> None:
        self._over(Mode.STOPPED, do.JobStopped(), "the job was stopped")

    def _step_down(self, reason: do.StepDownReason) -> None:
        self._over(Mode.DEPOSED, do.StepDown(reason), str(reason))

    def _over(self, mode: Mode, outcome: do.JobFinished | do.JobStopped | do.StepDown, reason: str) -> None:
        self._move(mode)
        self._out.give(*self.checkpoints.close(reason), outcome)

    def _move(self, mode: Mode) -> None:
        self.mode = moved(self.mode, mode)

    def _deadlines(self, now_ms: int) -> tuple[int | None, ...]:
        if self.mode in OVER:
            return ()
        machines = (self.leadership.deadline_ms(), self.publishing.deadline_ms(now_ms), self.checkpoints.deadline_ms())
        return (self._trigger_due_ms(now_ms), *machines)
