"""Leading a job: taking over, starting gangs, having committables published, stopping. Checkpoints come on top of it.

This half of the coordinator owns the log and the publisher. Attempts at checkpoints are left to the hooks at its end.
"""

from __future__ import annotations

from typing import assert_never

from tidegate.core.checkpoint import command
from tidegate.core.checkpoint.effects import (
    CoordinatorEffect,
    Hide,
    JobFinished,
    JobStopped,
    ReadLog,
    Replaced,
    ResolveRestore,
    Stamp,
    StartGang,
    StepDown,
    StepDownReason,
    StopGang,
    StoreSilent,
    TrimLog,
    Unnamed,
    Unpublishable,
)
from tidegate.core.checkpoint.events import (
    Followed,
    GangLost,
    GangRunning,
    Hidden,
    HideFailed,
    LogChecked,
    LogRead,
    Published,
    PublishFailed,
    PutAnswered,
    RestoreRequested,
)
from tidegate.core.checkpoint.mode import LEGAL_MODES, PUBLISHING, Mode
from tidegate.core.checkpoint.policy import CoordinatorMetrics, DistributedCheckpointConfig
from tidegate.core.checkpoint.publish import Publisher
from tidegate.core.log.append import Landed, LogAppender, NotAsked, PutOutcome, StillOpen, Taken
from tidegate.core.log.confirm import LogConfirmer
from tidegate.core.log.retain import trim_bound
from tidegate.core.log.view import Base, Commit, Damaged, LogEntry, LogView, Restore, Takeover
from tidegate.errors import CorruptDataError, ProtocolError, UnexpectedPhase
from tidegate.ids import CheckpointId


class Leader:
    """Term, gang and sinks. ``log`` is what this leader knows of the log; read it, never change it.

    ``host`` and ``pid`` are for people: who is told that it was replaced wants to know by whom.
    """

    def __init__(self, config: DistributedCheckpointConfig, leader: str, host: str = "", pid: int = 0) -> None:
        self.config = config
        self.leader, self.host, self.pid = leader, host, pid
        self.log = LogView()
        self.term: int | None = None
        self.mode = Mode.READING
        self.metrics = CoordinatorMetrics()
        self.nodes: frozenset[int] = frozenset()
        self.source_nodes: frozenset[int] = frozenset()
        self._appender = LogAppender(config.put_retry_ms, config.put_give_up_ms)
        self._confirmer = LogConfirmer(config.put_retry_ms, config.put_give_up_ms)
        self._publisher = Publisher.of(config)
        self._out: list[CoordinatorEffect] = []
        self._writes = 0
        self._wall_ms = 0
        self._stopping = False
        self._started_any = self._sinks_newer = False
        self._gang_alive = False
        self._stop_sent = False
        self._why = "leader elected"

    # -- the log

    def _log_read(self, event: LogRead, now_ms: int) -> None:
        if self.mode is not Mode.READING:
            self.metrics.stale_messages += 1
            return
        self.log = event.view()
        self._move(Mode.TAKING_OVER)
        self._take_over(now_ms)

    def _put_answered(self, event: PutAnswered, now_ms: int) -> None:
        self._put_settled(self._appender.answered(event, now_ms), now_ms)

    def _put_settled(self, outcome: PutOutcome, now_ms: int) -> None:
        match outcome:
            case Landed(entry):
                self.log.apply(entry)
                self._landed(entry, now_ms)
            case Taken(_, Takeover()):  # what is there may be older than it seems: the slot may have been trimmed before
                self._move(Mode.READING)
                self._out.append(ReadLog())
            case Taken(Damaged() as entry, _):
                self._step_down(Replaced(None, entry.slot, entry.why))
            case Taken(entry, _):
                self._step_down(Replaced(entry if isinstance(entry, Takeover) else None, entry.slot))
            case StillOpen():
                pass
            case NotAsked():
                self.metrics.stale_messages += 1
            case _:
                assert_never(outcome)

    def _landed(self, entry: LogEntry, now_ms: int) -> None:
        match entry:
            case Takeover():
                self.term = entry.slot
                self.metrics.leader_failovers += entry.slot > 0
                self._confirm(now_ms)
            case Restore():
                self._move(Mode.RECOVERING)
                self._publisher.recover(self._hiding(entry), self.log.head)
            case Base():
                self._trim()
                if self.mode is Mode.CONFIRMING:
                    self._ready()
            case Commit():
                self._committed(entry, now_ms)
                if self.mode is Mode.RUNNING and not self._stopping:
                    self._sum_up(now_ms)
            case _:
                assert_never(entry)

    def _confirm(self, now_ms: int) -> None:
        """Go on only if the log ends with what we know of it."""
        self._move(Mode.CONFIRMING)
        self._out.append(self._confirmer.ask(self.log.next_slot - 1, now_ms))

    def _log_checked(self, event: LogChecked, now_ms: int) -> None:
        asked = self._confirmer.answered(event, now_ms)
        if isinstance(event.answer, Followed):
            self._step_down(Replaced(event.answer.by, event.slot + 1))
        elif asked and not self._sum_up(now_ms):
            self._ready()

    def _sum_up(self, now_ms: int) -> bool:
        """Put a base if there are enough entries since the last one. Only where no attempt aims for its slot."""
        due = self.log.since_base >= self.config.base_every
        base = self.log.summed_up(self._write_id()) if due else None
        if base is not None:
            self._out.append(self._appender.put(base, now_ms))
        return base is not None

    def _trim(self) -> None:
        if self.config.auto_gc and (bound := trim_bound(self.log.bases)) is not None:
            self._out.append(TrimLog(*bound))

    def _hiding(self, entry: Restore) -> Hide | None:
        """What sinks must not show after this restore."""
        head, unnamed, newer = self.log.head, None, self._sinks_newer
        if head is not None and (newer or self.log.lost_after(head.epoch) is not None):
            unnamed = Unnamed(head.checkpoint_id, head.committables, newer)
        lost, fresh = self.log.off_lineage(), entry.parent is None
        return Hide(entry.slot, lost, fresh, unnamed) if lost or fresh or unnamed else None

    def _take_over(self, now_ms: int) -> None:
        slot = self.log.next_slot
        entry = Takeover(
            slot=slot,
            term=slot,
            write_id=self._write_id(),
            leader=self.leader,
            host=self.host,
            pid=self.pid,
            wall_ms=self._wall_ms,
        )
        self._out.append(self._appender.put(entry, now_ms))

    def _write_id(self) -> str:
        self._writes += 1
        return f"{self.leader}/{self._writes}"

    # -- gangs

    def _restore_requested(self, event: RestoreRequested, now_ms: int) -> None:
        if self.mode is not Mode.READY:
            raise UnexpectedPhase(f"a gang can only be started when none is there mode={self.mode.value!r}")
        parent = None if event.epoch is None else self.log.restorable(event.epoch)
        self._sinks_newer = event.sinks_newer
        if parent is not None and parent.final and parent.epoch == self.log.head_epoch:
            self._move(Mode.RECOVERING)
            lost = Unnamed(parent.checkpoint_id, parent.committables, every_gang=True)
            self._publisher.recover(Hide(self.log.gang, (), unnamed=lost) if event.sinks_newer else None, parent)
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
            case PublishFailed(epoch, why):
                known = self._publisher.failed(now_ms, why, epoch=epoch)
                self.metrics.publish_retries += known
            case HideFailed(gang, why):
                known = self._publisher.failed(now_ms, why, gang=gang)
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
        self._ask_again(now_ms)
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
                self._settled(now_ms)
            case _:
                pass

    def _ask_again(self, now_ms: int) -> None:
        """Whatever the store has not answered."""
        for asking in (self._appender, self._confirmer):
            if asking.gave_up(now_ms):
                self._step_down(StoreSilent(asking.waited_ms(now_ms), asking.why or "it said nothing"))
                return
            if order := asking.due(now_ms):
                self.metrics.put_retries += 1
                self._out.append(order)

    def _publish(self, now_ms: int) -> None:
        if self.mode not in PUBLISHING and not self._stops_last():
            return
        if self._publisher.exhausted:
            self._step_down(Unpublishable(self.config.publish_tries_max, self._publisher.why))
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

    def _settled(self, now_ms: int) -> None:
        if not self._stopping:
            self._confirm(now_ms)
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

    def _step_down(self, reason: StepDownReason) -> None:
        self._over(Mode.DEPOSED, StepDown(reason), str(reason))

    def _over(self, mode: Mode, outcome: JobFinished | JobStopped | StepDown, reason: str) -> None:
        self._move(mode)
        self._close(reason)
        self._out.append(outcome)

    def _move(self, mode: Mode) -> None:
        if mode not in LEGAL_MODES[self.mode]:
            raise UnexpectedPhase(f"a leader cannot go from {self.mode.value!r} to {mode.value!r}")
        self.mode = mode

    def _own_term(self) -> int:
        assert self.term is not None, "only a leader after its takeover emits effects"
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
        """This leader emits no more effects."""
        raise NotImplementedError
