"""Leading a job: taking over, starting gangs, having committables published, stopping. Checkpoints come on top of it.

This half of the coordinator owns the log and the publisher. It knows when a gang may start and when the job
is over, and leaves the attempts at checkpoints to the class that builds on it, by the hooks at its end.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from tidegate.core import command
from tidegate.core.append import Landed, LogAppender, NotAsked, PutOutcome, StillOpen, Taken
from tidegate.core.events import (
    GangLost,
    GangRunning,
    Hidden,
    HideFailed,
    LogRead,
    Published,
    PublishFailed,
    PutAnswered,
    RestoreRequested,
)
from tidegate.core.log import Commit, Damaged, LogEntry, LogRecord, LogView, Restore, Takeover
from tidegate.core.orders import (
    Effect,
    Hide,
    JobFinished,
    JobStopped,
    ResolveRestore,
    Stamp,
    StartGang,
    StepDown,
    StopGang,
    Unnamed,
    WriteSummary,
)
from tidegate.core.policy import CoordinatorMetrics, DistributedCheckpointConfig
from tidegate.core.publish import Publisher
from tidegate.errors import CorruptDataError, ProtocolError, UnexpectedPhase
from tidegate.ids import CheckpointId


class Mode(Enum):
    """Where a leader stands."""

    READING = "reading the log"
    TAKING_OVER = "taking over"
    READY = "ready to start a gang"
    RESTORING = "writing a restore entry"
    RECOVERING = "recovering the sinks"
    STARTING = "starting a gang"
    RUNNING = "running"
    ENDING = "ending the gang"
    SETTLING = "waiting for open answers"
    FINISHING = "publishing the final checkpoint"
    FINISHED = "finished"
    STOPPED = "stopped"
    DEPOSED = "deposed"


LEGAL_MODES: dict[Mode, frozenset[Mode]] = {
    Mode.READING: frozenset({Mode.TAKING_OVER, Mode.STOPPED}),
    Mode.TAKING_OVER: frozenset({Mode.READY, Mode.DEPOSED}),
    Mode.READY: frozenset({Mode.RESTORING, Mode.RECOVERING, Mode.STARTING, Mode.RUNNING, Mode.STOPPED}),
    Mode.RESTORING: frozenset({Mode.RECOVERING, Mode.DEPOSED}),
    Mode.RECOVERING: frozenset({Mode.STARTING, Mode.FINISHED, Mode.STOPPED, Mode.DEPOSED}),
    Mode.STARTING: frozenset({Mode.RUNNING, Mode.ENDING, Mode.SETTLING}),
    Mode.RUNNING: frozenset({Mode.ENDING, Mode.SETTLING, Mode.FINISHING, Mode.DEPOSED}),
    Mode.ENDING: frozenset({Mode.SETTLING, Mode.FINISHING, Mode.DEPOSED}),
    Mode.SETTLING: frozenset({Mode.READY, Mode.STOPPED, Mode.DEPOSED}),
    Mode.FINISHING: frozenset({Mode.FINISHED, Mode.DEPOSED}),
    Mode.FINISHED: frozenset(),
    Mode.STOPPED: frozenset(),
    Mode.DEPOSED: frozenset(),
}
OVER = frozenset({Mode.FINISHED, Mode.STOPPED, Mode.DEPOSED})
SUMMARY_EVERY = 64
"""Entries between two summaries: no more than about so many are read behind one by the next start."""
SUMMARY_AT_END = 8
"""The same for one that is written because the job is about to end. Fewer are read at one go anyway."""
_PUBLISHING = frozenset({Mode.RECOVERING, Mode.RUNNING, Mode.ENDING, Mode.FINISHING})


class Leader:
    """Term, gang and sinks. ``log`` is what this leader knows of the log; read it, never change it."""

    def __init__(self, config: DistributedCheckpointConfig, leader: str) -> None:
        self.config = config
        self.leader = leader
        self.log = LogView()
        self.term: int | None = None
        self.mode = Mode.READING
        self.metrics = CoordinatorMetrics()
        self.nodes: frozenset[int] = frozenset()
        self.source_nodes: frozenset[int] = frozenset()
        self._appender = LogAppender(config.put_retry_ms, config.put_give_up_ms)
        self._publisher = Publisher.of(config)
        self._out: list[Effect] = []
        self._writes = 0
        self._summed = 0
        self._stopping = False
        self._started_any = self._sinks_ahead = False
        self._gang_alive = False
        self._stop_sent = False
        self._why = "leader elected"

    # -- the log

    def _log_read(self, event: LogRead, now_ms: int) -> None:
        if self.mode is not Mode.READING:
            self._put_settled(self._appender.read(event.entries, now_ms), now_ms)
            return
        self.log = event.view()
        self._summed = 0 if event.summary is None else event.summary.next_slot
        self._move(Mode.TAKING_OVER)
        self._take_over(now_ms)

    def _put_answered(self, event: PutAnswered, now_ms: int) -> None:
        self._put_settled(self._appender.answered(event, now_ms), now_ms)

    def _put_settled(self, outcome: PutOutcome, now_ms: int) -> None:
        match outcome:
            case Landed(entry):
                self.log.apply(entry)
                self._landed(entry, now_ms)
            case Taken(entry, Takeover()):
                self.log.apply(entry)
                self._take_over(now_ms)
            case Taken(entry, _):
                self._step_down(_slot_gone(entry))
            case StillOpen(orders):
                self._out.extend(orders)
            case NotAsked():
                self.metrics.stale_messages += 1
            case _:
                assert_never(outcome)

    def _landed(self, entry: LogEntry, now_ms: int) -> None:
        if isinstance(entry, Takeover):
            self.term = entry.slot
            self.metrics.leader_failovers += entry.slot > 0
            self._ready()
        elif isinstance(entry, Restore):
            self._move(Mode.RECOVERING)
            self._publisher.recover(self._hiding(entry), self.log.head)
        else:
            self._committed(entry, now_ms)
        final = isinstance(entry, Commit) and entry.manifest.final
        self._sum_up(SUMMARY_AT_END if final else SUMMARY_EVERY)

    def _sum_up(self, entries_min: int) -> None:
        """Have a summary written if there are so many entries more than in the one before."""
        if self.log.next_slot - self._summed < entries_min or (summary := self.log.summary()) is None:
            return
        self._summed = summary.next_slot
        self._out.append(WriteSummary(summary))

    def _hiding(self, entry: Restore) -> Hide | None:
        """What sinks must not show after this restore."""
        head, unnamed, ahead = self.log.head, None, self._sinks_ahead
        if head is not None and (ahead or self.log.lost_after(head.epoch) is not None):
            unnamed = Unnamed(head.checkpoint_id, head.committables, ahead)
        lost, fresh = self.log.off_lineage(), entry.parent is None
        return Hide(entry.slot, lost, fresh, unnamed) if lost or fresh or unnamed else None

    def _take_over(self, now_ms: int) -> None:
        slot = self.log.next_slot
        entry = Takeover(slot=slot, term=slot, write_id=self._write_id(), leader=self.leader)
        self._out.append(self._appender.put(entry, now_ms))

    def _write_id(self) -> str:
        self._writes += 1
        return f"{self.leader}/{self._writes}"

    # -- gangs

    def _restore_requested(self, event: RestoreRequested, now_ms: int) -> None:
        if self.mode is not Mode.READY:
            raise UnexpectedPhase(f"a gang can only be started when none is there mode={self.mode.value!r}")
        parent = None if event.epoch is None else self.log.restorable(event.epoch)
        self._sinks_ahead = event.sinks_ahead
        if parent is not None and parent.final and parent.epoch == self.log.head_epoch:
            self._move(Mode.RECOVERING)
            lost = Unnamed(parent.checkpoint_id, parent.committables, every_gang=True)
            self._publisher.recover(Hide(self.log.gang, (), unnamed=lost) if event.sinks_ahead else None, parent)
        elif parent is None and self._first_of_all():
            self._start_gang()
        else:
            self._write_restore(event.epoch, now_ms)

    def _first_of_all(self) -> bool:
        """Nobody but us has ever led, and we have started nothing: only then is the gang's number 0."""
        return self.term == 0 and self.log.next_slot == 1 and not self._started_any

    def _write_restore(self, parent: int | None, now_ms: int) -> None:
        slot, term = self.log.next_slot, self._own_term()
        entry = Restore(slot=slot, term=term, write_id=self._write_id(), parent=parent, reason=self._why)
        self._move(Mode.RESTORING)
        self._out.append(self._appender.put(entry, now_ms))

    def _start_gang(self) -> None:
        self._move(Mode.STARTING)
        self._started_any = self._gang_alive = True
        self._stop_sent = False
        self._out.append(StartGang(self.log.gang, self.log.head))

    def _gang_running(self, event: GangRunning, now_ms: int) -> None:
        if not event.nodes or not event.source_nodes <= event.nodes:
            raise ProtocolError(f"a gang has nodes, and its sources are on them gang={event.gang}")
        if event.gang != self.log.gang or not self._takes_members():
            self.metrics.stale_messages += 1
            return
        before, self.nodes, self.source_nodes = self.nodes, event.nodes, event.source_nodes
        if self.mode is Mode.RUNNING:
            self._members_changed(before - event.nodes, now_ms)
            return
        if self.mode is Mode.READY:
            self._adopt()
        self._move(Mode.RUNNING)
        self._gang_up(now_ms)

    def _takes_members(self) -> bool:
        """An earlier leader's gang goes on under this one, unless this one has started its own."""
        adoptable = self.mode is Mode.READY and not self._started_any and bool(self.term)
        finished = self.log.head is not None and self.log.head.final
        takes_over = adoptable and not finished and not self.log.head_is_lost
        return self.mode in (Mode.STARTING, Mode.RUNNING) or takes_over

    def _adopt(self) -> None:
        """Everything below this term is dead; the head's committables may not have been published."""
        self._started_any = self._gang_alive = True
        dead = CheckpointId(self._own_term() << 32)
        self._out += command.abort(self.nodes, self._stamp(), dead, "leader failover")
        self._publisher.recover(None, self.log.head)

    def _gang_lost(self, event: GangLost, now_ms: int) -> None:
        if event.gang != self.log.gang or not self._gang_alive:
            self.metrics.stale_messages += 1
            return
        self._gang_alive = False
        if self.mode is Mode.FINISHING:
            return
        self._why = event.reason
        self._gang_ending(event.reason, now_ms)
        self._move(Mode.SETTLING)

    def _stop_requested(self, now_ms: int) -> None:
        self._stopping = True
        self._publisher.hurry()
        self._sum_up(SUMMARY_AT_END)
        if self.mode in (Mode.READING, Mode.READY):
            self._stopped()
        elif self.mode in (Mode.STARTING, Mode.RUNNING):
            self._end_gang("stop requested", now_ms)

    def _end_gang(self, reason: str, now_ms: int) -> None:
        self._why = reason
        self._gang_ending(reason, now_ms)
        self._move(Mode.ENDING)

    # -- sinks

    def _sink_answered(self, event: Published | PublishFailed | Hidden | HideFailed, now_ms: int) -> None:
        match event:
            case Published(epoch):
                known = self._publisher.succeeded(epoch=epoch)
            case Hidden(gang):
                known = self._publisher.succeeded(gang=gang)
            case PublishFailed(epoch, _):
                known = self._publisher.failed(now_ms, epoch=epoch)
                self.metrics.publish_retries += known
            case HideFailed(gang, _):
                known = self._publisher.failed(now_ms, gang=gang)
                self.metrics.publish_retries += known
            case _:
                assert_never(event)
        self.metrics.stale_messages += not known

    def is_public(self, epoch: int) -> bool:
        """True when sinks have confirmed all that manifests up to this epoch named."""
        return all(entry.epoch > epoch for entry in self._publisher.carried())

    # -- what follows from it all

    def _advance(self, now_ms: int) -> None:
        """Whatever can go on now does. Called after every event."""
        self._retry_put(now_ms)
        self._publish(now_ms)
        match self.mode:
            case Mode.RECOVERING if not self._publisher.backlog:
                self._recovered()
            case Mode.FINISHING if not self._publisher.backlog:
                self._finished()
            case Mode.ENDING if not self._appender.is_open and not self._stop_sent:
                self._stop_sent = True
                self._out.append(StopGang(self.log.gang, self._why))
            case Mode.SETTLING if not self._appender.is_open and self._publisher.outstanding is None:
                self._settled()
            case _:
                pass

    def _retry_put(self, now_ms: int) -> None:
        if self._appender.gave_up(now_ms):
            self._step_down("the store gives no answer to a put")
        elif order := self._appender.due(now_ms):
            self.metrics.put_retries += 1
            self._out.append(order)

    def _publish(self, now_ms: int) -> None:
        if self.mode not in _PUBLISHING and not self._stops_last():
            return
        if self._publisher.exhausted:
            self._step_down("committables cannot be published")
        elif order := self._publisher.next(self.log.gang, now_ms):
            self._out.append(order)

    def _stops_last(self) -> bool:
        return self.mode is Mode.SETTLING and self._stopping

    def _recovered(self) -> None:
        head = self.log.head
        if head is not None and head.final:
            self._finished()
        elif self._stopping:
            self._stopped()
        else:
            self._start_gang()

    def _settled(self) -> None:
        if not self._stopping:
            self._ready()
        elif not self._publisher.backlog:
            self._stopped()

    def _ready(self) -> None:
        self._move(Mode.READY)
        if self._stopping:
            self._stopped()
        else:
            self._out.append(ResolveRestore(self._why))

    def _finished(self) -> None:
        if self.log.head is None:
            raise CorruptDataError("a job cannot be finished without a final checkpoint")
        if self._gang_alive:
            self._out.append(StopGang(self.log.gang, "finished"))
        self._over(Mode.FINISHED, JobFinished(self.log.head), "the job has finished")

    def _stopped(self) -> None:
        self._over(Mode.STOPPED, JobStopped(), "the job was stopped")

    def _step_down(self, reason: str) -> None:
        self._over(Mode.DEPOSED, StepDown(reason), reason)

    def _over(self, mode: Mode, outcome: JobFinished | JobStopped | StepDown, reason: str) -> None:
        self._move(mode)
        self._close(reason)
        self._out.append(outcome)

    def _move(self, mode: Mode) -> None:
        if mode not in LEGAL_MODES[self.mode]:
            raise UnexpectedPhase(f"a leader cannot go from {self.mode.value!r} to {mode.value!r}")
        self.mode = mode

    def _own_term(self) -> int:
        assert self.term is not None, "only a leader after its takeover gives orders"
        return self.term

    def _stamp(self) -> Stamp:
        return Stamp(self.log.gang, self._own_term(), self.log.head_epoch, self.log.last_id)

    # -- hooks

    def _committed(self, entry: Commit, now_ms: int) -> None:
        """A manifest is in the log."""
        raise NotImplementedError

    def _gang_up(self, now_ms: int) -> None:
        """All nodes are there."""
        raise NotImplementedError

    def _members_changed(self, left: frozenset[int], now_ms: int) -> None:
        """The gang has other nodes than before."""
        raise NotImplementedError

    def _gang_ending(self, reason: str, now_ms: int) -> None:
        """The gang is gone or about to be stopped."""
        raise NotImplementedError

    def _close(self, reason: str) -> None:
        """This leader gives no more orders."""
        raise NotImplementedError


def _slot_gone(entry: LogRecord) -> str:
    if isinstance(entry, Damaged):
        return f"slot {entry.slot} of the log is taken: {entry.why}"
    return f"slot {entry.slot} of the log was taken by a newer leader term={entry.term}"
