"""The world of heads: a source's injector and the sequencer that orders all barriers of the data channel."""

from __future__ import annotations

from collections import deque
from typing import Any

from play import step, words_of

from tidegate.core.barrier.inject import (
    BarrierInjectorConfig,
    CheckpointBarrierInjector,
    InjectBarrierCommand,
    Superseded,
)
from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.core.control.sequence import (
    CheckpointKey,
    ControlKey,
    Emit,
    HeadBarrier,
    HeadSequencer,
    Queued,
    SequenceKey,
)
from tidegate.core.control.signals import BarrierControlSignalKind

SYNC = BarrierControlSignalKind.SyncTest


class Interrupted(deque[Any]):
    """A mailbox into which somebody else writes while the loop is taking from it."""

    def __init__(self, commands: deque[Any], late: Any) -> None:
        super().__init__(commands)
        self.late = late

    def popleft(self) -> Any:
        command = super().popleft()
        if self.late is not None:
            self.append(self.late)
            self.late = None
        return command


class Heads:
    """One injector and one sequencer."""

    def __init__(self) -> None:
        self.words = words_of(Heads)
        self.injector = CheckpointBarrierInjector(BarrierInjectorConfig(periodic_interval_ms=None, source_id="S"))
        self.sequencer = HeadSequencer()
        self.signals = 0
        self.trace: list[str] = []
        self.about_injector = True

    def take_trace(self) -> list[str]:
        lines, self.trace = [*self.trace, self._injector() if self.about_injector else self._order()], []
        return lines

    def _injector(self) -> str:
        injector = self.injector
        held = "nothing" if injector.held is None else _barrier(injector.held)
        waiting = [str(command.checkpoint_id) for command in injector._mailbox.commands]
        return f"waiting [{' '.join(waiting)}], holds {held}, highest {injector.highest}"

    def _order(self) -> str:
        in_flight = self.sequencer.in_flight
        waiting = " ".join(_barrier(barrier) for barrier in self.sequencer.waiting)
        return f"in flight {'nothing' if in_flight is None else _barrier(in_flight)}, waiting [{waiting}]"

    # -- the injector

    @step(r"inject (\d+) epoch (\d+|2\^48)( unaligned)?")
    def inject(self, number: str, epoch: str, unaligned: str | None) -> None:
        self.about_injector = True
        command = InjectBarrierCommand(int(number), _number(epoch), unaligned is not None)
        self.injector.coordinator_handle().inject(command)
        self.trace.append("taken")

    @step(r"the source polls(?: while (\d+) epoch (\d+) is injected)?")
    def poll(self, number: str | None, epoch: str | None) -> None:
        self.about_injector = True
        mailbox = self.injector._mailbox
        if number is not None and epoch is not None:
            mailbox.commands = Interrupted(mailbox.commands, InjectBarrierCommand(int(number), int(epoch)).pack())
        barrier = self.injector.poll_barrier(0)
        self.trace.append("no barrier" if barrier is None else f"emit {_barrier(barrier)}")
        for report in self.injector.take_reports():
            if isinstance(report, Superseded):
                self.trace.append(f"report: {report.checkpoint_id} is superseded by {report.by}")
            else:
                self.trace.append(f"report: {report.checkpoint_id} came too late")

    @step(r"(B\d+)!? is on all outputs")
    def emitted(self, barrier: str) -> None:
        self.injector.emitted(CheckpointBarrier(int(barrier[1:]), 0))

    @step(r"an output of (B\d+) is closed for good")
    def failed(self, barrier: str) -> None:
        error = self.injector.failed(CheckpointBarrier(int(barrier[1:]), 0), "the channel is closed")
        self.trace.append(f"report: {error}")

    @step(r"abort (\d+)")
    def abort(self, number: str) -> None:
        error = self.injector.abort(int(number))
        self.trace.append("nothing was held" if error is None else f"dropped: {error}")

    # -- the sequencer

    @step(r"somebody asks for (checkpoint (\d+)|a control barrier)")
    def ask(self, _: str, number: str | None) -> None:
        self.about_injector = False
        barrier: HeadBarrier
        if number is None:
            self.signals += 1
            barrier = SYNC.with_id(self.signals)
        else:
            barrier = CheckpointBarrier(int(number), int(number))
        self._answer(self.sequencer.request(barrier))

    @step(r"every source has emitted (C|checkpoint )(\d+)")
    def done(self, kind: str, number: str) -> None:
        self._answer(self.sequencer.done(_key(kind, int(number))))

    @step(r"(C|checkpoint )(\d+) is aborted")
    def give_up(self, kind: str, number: str) -> None:
        self._answer(self.sequencer.abort(_key(kind, int(number))))

    def _answer(self, answer: Emit | Queued | None) -> None:
        match answer:
            case Emit(barrier):
                self.trace.append(f"every source: emit {_barrier(barrier)}")
            case Queued(before):
                self.trace.append(f"it waits, {before} before it")
            case _:
                self.trace.append("nothing to emit")


def _number(text: str) -> int:
    return 1 << 48 if text == "2^48" else int(text)


def _key(kind: str, number: int) -> SequenceKey:
    return ControlKey(number, SYNC) if kind == "C" else CheckpointKey(number)


def _barrier(barrier: HeadBarrier) -> str:
    if isinstance(barrier, CheckpointBarrier):
        flag = "!" if barrier.is_unaligned else ""
        return f"B{barrier.checkpoint_id}{flag} epoch {barrier.epoch}"
    return f"C{barrier.barrier_id}"
