"""One subtask of one stage: the shell around the protocol's ``Subtask``. It performs effects; it decides nothing about barriers.

Work in hand is a queue of lazy pieces. The next piece is taken only when every output has room. When a snapshot fires, the work
in hand is taken at once, so that it is before the barrier; only windows that are being emitted stop at their next step, and their
pending output is state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Protocol, TypeAlias, assert_never

import pyarrow as pa

from tidegate.core.barrier.effects import (
    AdvanceWatermark,
    BarrierLeft,
    CheckpointFailed,
    Ended,
    Fire,
    Forward,
    InputsRecorded,
    ProcessEvent,
    SnapshotComplete,
    SubtaskEffect,
)
from tidegate.core.barrier.inject import CheckpointBarrierInjector, InjectBarrierCommand
from tidegate.core.barrier.messages import AWAKE, IDLE, Barrier, CheckpointBarrier, Control, StreamMessage, Watermark
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.control.signals import ControlSignal
from tidegate.errors import EpochMismatch, ProtocolError
from tidegate.ids import Epoch
from tidegate.operators.map import MapOperator
from tidegate.operators.sink import SinkOperator
from tidegate.plan.connector import Committable
from tidegate.plan.physical import Stage
from tidegate.plan.signals import Signalled, Told
from tidegate.runtime.chain import Chain
from tidegate.runtime.route import Outputs
from tidegate.runtime.skew import SkewLimit
from tidegate.runtime.source import Reader
from tidegate.state.run import Frozen
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME
from tidegate.wire.arrow import event_of

OUTPUT_ROOM_BYTES = 2 << 20
PIECES_PER_STEP = 4
WATERMARK_INTERVAL_MS = 50


class Paused(Enum):
    """What work yields when it is asked to stop and can: it goes on after the barrier."""

    HERE = 0
    FUNCTION = 1
    """It waits for the user's function: what comes out of that goes before the rest."""


Batches: TypeAlias = Iterable[pa.RecordBatch]
WorkPiece: TypeAlias = "pa.RecordBatch | Watermark[pa.RecordBatch] | None"
Work: TypeAlias = Iterator["WorkPiece | Paused"]
"""Batches and watermarks to put on the outputs; ``None`` at the very end: the subtask finishes."""


class Consumption(Protocol):
    """Where a task says that it has taken an event from an input."""

    def consumed(self, size_bytes: int) -> None:
        """One event was taken."""


class Snapshots(Protocol):
    """Where a task leaves what it froze."""

    def fired(
        self,
        task: StageTask,
        barrier: CheckpointBarrier,
        frozen: Mapping[str, Frozen],
        committables: Mapping[str, Future[Committable | None]],
    ) -> None:
        """The task's state at the cut; its bytes are written later."""

    def completed(self, task: StageTask, effect: SnapshotComplete[pa.RecordBatch]) -> None:
        """Recordings are closed and the barrier has left every output."""

    def failed(self, task: StageTask, effect: CheckpointFailed) -> None:
        """This checkpoint is over for this task."""


class TaskSignals(Protocol):
    """Where a task learns what a signal means, and says that it has passed."""

    def told(self, signal: ControlSignal) -> Told | None:
        """The signal as operators hear it; ``None``: it is not for them."""

    def passed(self, task: StageTask, signal: ControlSignal) -> None:
        """It is after the task's rows so far and on all of its outputs."""


class StageTask:
    """Runs one subtask. Loop thread only."""

    def __init__(
        self,
        stage: Stage,
        protocol: Subtask[pa.RecordBatch],
        chain: Chain,
        *,
        subtask: int,
        parallelism: int,
        key_groups: int,
        ports: Sequence[int],
        reader: Reader | None,
        injector: CheckpointBarrierInjector | None,
        snapshots: Snapshots,
        now_ms: Callable[[], int],
    ) -> None:
        self.stage = stage
        self.name = stage.name
        self.doing = f"stage {stage.name!r}"
        self.protocol = protocol
        self.chain = chain
        self.reader = reader
        self.injector = injector
        self._subtask = subtask
        self._parallelism = parallelism
        self._key_groups = key_groups
        self._ports = ports
        self._snapshots = snapshots
        self._now_ms = now_ms
        operators = [operator for _, operator in chain.named]
        self._mapper = next((o for o in operators if isinstance(o, MapOperator)), None)
        self.signalled = tuple(o for o in operators if isinstance(o, Signalled))
        self.sinks = {name: o for name, o in chain.named if isinstance(o, SinkOperator)}
        self._outputs = Outputs(stage.outputs, subtask, parallelism, key_groups)
        self._work: deque[Work] = deque()
        self._stopping = False
        self._awaits_function = False
        self._watermark = BEGINNING_OF_TIME
        self._watermark_at = 0
        self._told_idle = False
        self.poll_rows = 131_072
        self.rows_out = 0
        self.intakes: Mapping[int, Consumption] = {}
        self.exact_inputs: frozenset[int] = frozenset()
        self._said_at_cut: Mapping[int, int] = {}
        self.pace = SkewLimit()
        self._barrier = (0, 0)
        self.ended = False
        self.idle = False
        self.signals: TaskSignals | None = None
        self.last_signal = 0
        self._hearing: list[Future[None]] = []

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One piece of work if there is one and the outputs have room. True when something was done."""
        if self._hearing:
            self._check_hearing()
        if self._work and not self._awaits_function:
            return self._room() and self._advance()
        if self._mapper is not None and self._mapper.busy:
            return self._map_result(self._mapper)
        if self.ended or not self._room():
            return False
        if self.reader is not None:
            return not self.pace.must_wait(self._now_ms()) and self._read(self.reader)
        has_turn = self.protocol.has_turn  # a turn may have no effect: a barrier that is held until the others come
        self.perform(self.protocol.poll())
        return has_turn

    def _room(self) -> bool:
        for queue in self.protocol.outputs.values():
            if queue.queued_bytes >= OUTPUT_ROOM_BYTES:
                return False
        return all(sink.ready for sink in self.sinks.values())

    def _advance(self) -> bool:
        """Take pieces of the work in hand while there is room for them."""
        for _ in range(PIECES_PER_STEP):
            if not self._next_piece() or not self._room():
                break
        return True

    def _next_piece(self) -> bool:
        """Put the next piece onto the outputs. False: there is none, or none before the barrier."""
        while self._work:
            for piece in self._work[0]:
                if isinstance(piece, Paused):
                    self._awaits_function = piece is Paused.FUNCTION
                    return False
                self._route(piece)
                return True
            self._work.popleft()
        return False

    def _drain(self) -> None:
        """Put the work in hand onto the outputs, as far as it belongs before a barrier.

        Only the last of it may stop: what is queued after it was taken from the inputs before the cut, so it can't wait.
        """
        while len(self._work) > 1:
            self._next_piece()
        self._stop(True)
        while self._next_piece():
            pass
        self._stop(False)

    def _stop(self, stopping: bool) -> None:
        self._stopping = stopping
        self.chain.stop(stopping)

    def _map_result(self, mapper: MapOperator) -> bool:
        batch = mapper.result()
        if batch is None:
            return False
        self._awaits_function = False
        self._work.appendleft(iter(self.chain.after(0, batch)))
        return self._advance()

    def _read(self, reader: Reader) -> bool:
        polled = reader.poll(self.poll_rows)
        self._tell_idle(reader.idle)
        if polled.batch is not None and polled.batch.num_rows:
            self._work.append(iter(self.chain.process(0, polled.batch)))
        if polled.finished:
            self._work.append(self._closing())
        else:
            self._source_watermark(reader, at_once=reader.exact)
        self.idle = not (polled.rows or polled.finished or self._work)
        if self._work:
            self._advance()
        return not self.idle

    def _tell_idle(self, is_idle: bool) -> None:
        """Before the rows that end an idle stretch, say that this subtask counts again."""
        if is_idle != self._told_idle:
            self._told_idle = is_idle
            self._work.append(iter([Watermark(IDLE if is_idle else max(self._watermark, AWAKE))]))

    def _source_watermark(self, reader: Reader, *, at_once: bool = False) -> None:
        """Pass the source's watermark on, now and then: closing windows has a price, even when nothing closes."""
        now_ms = self._now_ms()
        due = at_once or now_ms - self._watermark_at >= WATERMARK_INTERVAL_MS
        if due and not self._told_idle and reader.watermark > self._watermark:
            self._watermark_at = now_ms
            self._work.append(self._watermarks(reader.watermark))

    # -- the protocol's effects ------------------------------------------------------------------------------------

    def receive(self, input_id: int, message: StreamMessage[pa.RecordBatch]) -> None:
        """A message came in."""
        if isinstance(message, Barrier) and message.barrier.checkpoint_id > self._barrier[0]:
            self._barrier = (message.barrier.checkpoint_id, self._now_ms())
        self.perform(self.protocol.receive(input_id, message))

    def first_barrier_ms(self, checkpoint_id: int) -> int | None:
        """When the first barrier of this id came in."""
        return self._barrier[1] if self._barrier[0] == checkpoint_id else None

    def started(self, checkpoint_id: int, epoch: Epoch, *, aligned: bool) -> None:
        """A checkpoint was triggered somewhere."""
        self.perform(self.protocol.started(checkpoint_id, epoch=epoch, aligned=aligned))

    def deadline(self, checkpoint_id: int) -> None:
        """Its barrier may overtake from now on."""
        self.perform(self.protocol.deadline(checkpoint_id))

    def resume(self) -> None:
        """The state was restored: the pending output of its operators goes before everything else."""
        if self.chain.has_pending:
            self._work.append(self._closed(BEGINNING_OF_TIME))

    def perform(self, effects: list[SubtaskEffect]) -> None:
        """Perform the protocol's effects, in their order."""
        for effect in effects:
            match effect:
                case ProcessEvent():
                    self._process(effect.input_id, effect.payload, effect.size_bytes)
                case AdvanceWatermark():
                    self._work.append(self._watermarks(effect.timestamp))
                    self._advance()
                case Fire():
                    self._fire(effect.barrier)
                case SnapshotComplete():
                    self._snapshots.completed(self, self._with_promises(effect))
                case CheckpointFailed():
                    self._snapshots.failed(self, effect)
                case Ended():
                    self._work.append(self._closing())
                    self._advance()
                case Forward():
                    self._work.append(self._forwarded(effect.signal))
                    self._advance()
                case InputsRecorded() | BarrierLeft():
                    raise ProtocolError(f"the subtask keeps this to itself effect={type(effect).__name__}")
                case _:
                    assert_never(effect)

    def _process(self, input_id: int, batch: pa.RecordBatch, size_bytes: int) -> None:
        self._work.append(self._judged(input_id, batch))
        intake = self.intakes.get(input_id)
        if intake is not None:
            intake.consumed(size_bytes)
        self._advance()

    def _judged(self, input_id: int, batch: pa.RecordBatch) -> Work:
        """What comes of rows. Where an input says the same times between the same rows in every run, they decide what is late:
        those of the fan-in depend on how far other inputs are."""
        if not self.exact_inputs:
            return iter(self.chain.process(self._ports[input_id], batch))
        said = self.protocol.reached(input_id) if input_id in self.exact_inputs else BEGINNING_OF_TIME
        return self._after_promise(said, self._ports[input_id], batch)

    def _after_promise(self, timestamp: int, port: int, batch: pa.RecordBatch) -> Work:
        self.chain.promise(timestamp)
        yield from self.chain.process(port, batch)

    def inject(self, command: InjectBarrierCommand) -> None:
        """A source emits a barrier, after what it has read, room or not. A command for an old id changes nothing."""
        if self.injector is None:
            return
        with suppress(EpochMismatch):
            self.injector.coordinator_handle().inject(command)
        barrier = self.injector.poll_barrier(self._now_ms())
        if barrier is not None:
            self.perform(self.protocol.inject(barrier))
            self.injector.emitted(barrier)

    # -- signals ---------------------------------------------------------------------------------------------------

    def signal(self, signal: ControlSignal) -> None:
        """A source emits a signal here. What it has read goes before it, room or not. An old number changes nothing."""
        if self.reader is None or signal.barrier_id <= self.last_signal:
            return
        if not self.ended:
            self._drain()
        self._pass(signal)
        if signal.is_terminal:
            self.reader.drain()

    def _forwarded(self, signal: ControlSignal) -> Work:
        self._pass(signal)
        yield from ()

    def _pass(self, signal: ControlSignal) -> None:
        """Operators hear of it, then it goes onto every output. After the end there is none: receivers count that instead."""
        assert self.signals is not None, "a node tells its tasks what signals mean"
        self.last_signal = signal.barrier_id
        if not self.ended:
            self.hear(self.signals.told(signal))
            for output_id in self.protocol.outputs:
                self.protocol.emit(output_id, Control(signal))
        self.signals.passed(self, signal)

    def hear(self, told: Told | None) -> None:
        """Hand it to the operators."""
        if told is not None:
            self._hearing += [call for operator in self.signalled for call in operator.signal(told)]

    @property
    def is_hearing(self) -> bool:
        """A user's ``on_signal`` has not returned."""
        return bool(self._hearing)

    def _check_hearing(self) -> None:
        over = [call for call in self._hearing if call.done()]
        self._hearing = [call for call in self._hearing if call not in over]
        for call in over:
            call.result()

    def abort(self, checkpoint_id: int, reason: str) -> None:
        """This id and all below are over."""
        if self.injector is not None:
            self.injector.abort(checkpoint_id)
        self.perform(self.protocol.abort(checkpoint_id, reason))

    def _fire(self, barrier: CheckpointBarrier) -> None:
        """Rows in hand, barrier, state: in this order, and nothing in between. What is left in hand goes on after it.

        A source's watermark goes before it too: what it closes need not be stored.
        """
        if self.reader is not None and not self.reader.finished:
            self._source_watermark(self.reader, at_once=True)
        self._drain()
        for batch in self.chain.before_barrier():
            self._route(batch)
        self._said_at_cut = {input_id: self.protocol.reached(input_id) for input_id in self.exact_inputs}
        effects = self.protocol.fired(barrier)
        self._snapshots.fired(self, barrier, self.freeze(), self.prepare_sinks(barrier.checkpoint_id))
        self.perform(effects)

    def _with_promises(self, effect: SnapshotComplete[pa.RecordBatch]) -> SnapshotComplete[pa.RecordBatch]:
        """Before rows in flight, the time that their input had said at the cut: replayed, they are judged by it."""
        if not effect.unaligned or effect.finished or not self._said_at_cut:
            return effect
        inputs = dict(effect.inputs)
        for input_id, time in self._said_at_cut.items():
            if time > AWAKE:
                inputs[input_id] = (Watermark(time), *inputs.get(input_id, ()))
        return replace(effect, inputs=inputs)

    def freeze(self) -> dict[str, Frozen]:
        """The state of every operator, by reference."""
        frozen = self.chain.freeze()
        if self.reader is not None:
            frozen[self.stage.operators[0].name] = self.reader.freeze()
        return frozen

    def prepare_sinks(self, checkpoint_id: int) -> dict[str, Future[Committable | None]]:
        """Cut every sink here."""
        return {name: sink.prepare(checkpoint_id) for name, sink in self.sinks.items()}

    # -- outputs ---------------------------------------------------------------------------------------------------

    def _watermarks(self, timestamp: int) -> Work:
        if timestamp > max(self._watermark, AWAKE):
            self._watermark = timestamp
            yield from self._closed(timestamp)
        yield Watermark(self.chain.passed_on(timestamp))

    def _closed(self, timestamp: int) -> Work:
        """All that this time closes, however often a barrier comes between."""
        if self._mapper is not None:
            self._mapper.release(timestamp)
            while self._mapper.busy:
                yield Paused.FUNCTION
        yield from self.chain.watermark(timestamp)
        while self.chain.has_pending:
            yield Paused.HERE
            yield from self.chain.watermark(timestamp)

    def _closing(self) -> Work:
        if self._watermark < END_OF_TIME:
            yield from self._watermarks(END_OF_TIME)
        yield from self.chain.end()
        while self._stopping:
            yield Paused.HERE  # nothing may follow the end, so it waits for the barrier
        yield None

    def _route(self, piece: WorkPiece) -> None:
        if piece is None:
            self.ended = True
            self.perform(self.protocol.finish())
        elif isinstance(piece, Watermark):
            for output_id in self.protocol.outputs:
                self.protocol.emit(output_id, piece)
        elif piece.num_rows:
            self.rows_out += piece.num_rows
            for output_id, part in self._outputs.route(piece):
                self.protocol.emit(output_id, event_of(part))
