"""The protocol of one subtask: where its cut is, and when its part of a checkpoint is complete.

A subtask with inputs cuts where its fan-in says; a source cuts where its command finds it. The shell hands in
facts and performs effects; it decides nothing. Order is explained in ``effects``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Generic, TypeVar

from tidegate.core.barrier.align import DEFAULT_CONFIG, UnalignedCheckpointConfig, as_aligned, as_pinned
from tidegate.core.barrier.effects import (
    BarrierLeft,
    CheckpointFailed,
    Fire,
    InputsRecorded,
    ProcessEvent,
    SubtaskEffect,
    UnalignedSnapshot,
    aborted,
)
from tidegate.core.barrier.input import BEGINNING_OF_TIME
from tidegate.core.barrier.messages import CheckpointBarrier, End, StreamMessage
from tidegate.core.barrier.output import OutputQueue
from tidegate.core.barrier.pending import PendingSnapshot
from tidegate.core.barrier.unaligned import UnalignedCheckpointer, UnalignedCheckpointMetrics
from tidegate.errors import InvalidUseError, ProtocolError
from tidegate.ids import NO_EPOCH, Epoch

T = TypeVar("T")


class Subtask(Generic[T]):
    """Injector or fan-in, output queues, and the snapshot under way. Nothing blocks; one thread calls it.

    Between ``Fire`` and ``fired`` no other fact may be handed in: data that passed there would be on both
    sides of the cut.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        config: UnalignedCheckpointConfig = DEFAULT_CONFIG,
        *,
        aligned_only_inputs: bool = False,
        aligned_only_outputs: Collection[int] = (),
    ) -> None:
        if len(set(outputs)) != len(outputs) or not set(aligned_only_outputs) <= set(outputs):
            raise InvalidUseError(f"a subtask has each output once outputs={list(outputs)}")
        self._config = config
        self._fan_in: UnalignedCheckpointer[T] | None = None
        if inputs:
            self._fan_in = UnalignedCheckpointer(inputs, config, aligned_only=aligned_only_inputs)
        self.outputs: dict[int, OutputQueue[T]] = {
            o: OutputQueue(o, config, aligned_only=o in aligned_only_outputs) for o in outputs
        }
        self._snapshot: PendingSnapshot[T] | None = None
        self._output_bytes = 0
        self._firing = False
        self._finished = False
        self._started: CheckpointBarrier | None = None
        self._fired = 0
        self._dead = 0
        self._overdue = 0

    # -- what people ask -------------------------------------------------------------------------------------

    @property
    def has_turn(self) -> bool:
        """True when ``poll`` would do something."""
        return self._fan_in is not None and not self._finished and self._fan_in.has_turn

    @property
    def ended(self) -> bool:
        """True when every input has ended; for a source, when it has finished."""
        return self._finished if self._fan_in is None else self._finished or self._fan_in.ended

    @property
    def finished(self) -> bool:
        """True when the end is on every output."""
        return self._finished

    @property
    def watermark(self) -> int:
        """The event time that the inputs have reached."""
        return BEGINNING_OF_TIME if self._fan_in is None else self._fan_in.watermark

    def reached(self, input_id: int) -> int:
        """The event time that one input has reached: of what had its turn, not of what is queued."""
        return BEGINNING_OF_TIME if self._fan_in is None else self._fan_in.reached(input_id)

    @property
    def pending(self) -> int:
        """The id of the snapshot that is not complete yet; 0 when there is none."""
        return 0 if self._snapshot is None else self._snapshot.checkpoint_id

    def finished_without(self, checkpoint_id: int) -> bool:
        """True when this subtask ended and has not fired the id: its final state counts."""
        return self._finished and self._fired < checkpoint_id

    def queued(self, input_id: int) -> int:
        """How many messages an input has queued."""
        return 0 if self._fan_in is None else self._fan_in.queued(input_id)

    def metrics(self) -> UnalignedCheckpointMetrics:
        """Counters of the fan-in since the start."""
        if self._fan_in is None:
            return UnalignedCheckpointMetrics(0, 0, 0, False)
        return self._fan_in.metrics()

    # -- data ------------------------------------------------------------------------------------------------

    def receive(self, input_id: int, message: StreamMessage[T]) -> list[SubtaskEffect]:
        """The network brought a message. A finished subtask needs nothing more: it is dropped."""
        if self._finished:
            return []
        effects = self._inputs().receive(input_id, message)
        return self._absorb(effects) if effects else []

    def poll(self) -> list[SubtaskEffect]:
        """ProcessEvent one input message."""
        if self._firing:
            raise ProtocolError(f"call fired first checkpoint_id={self.pending}")
        if self._fan_in is None or self._finished:
            return []
        effects = self._fan_in.poll()
        if len(effects) == 1 and type(effects[0]) is ProcessEvent:
            return effects
        return self._absorb(effects)

    def emit(self, output_id: int, message: StreamMessage[T]) -> None:
        """Queue what the operator emitted for this output."""
        self.outputs[output_id].put(message)

    def taken(self, output_id: int) -> tuple[StreamMessage[T], list[SubtaskEffect]]:
        """The head of this output was handed to the transport."""
        message, effects = self.outputs[output_id].take()
        if effects:
            return message, self._absorb(effects)
        if isinstance(message, End) and self._snapshot is not None and self._snapshot.finished:
            self._snapshot.waiting.discard(output_id)
            return message, self._complete()
        return message, []

    def finish(self) -> list[SubtaskEffect]:
        """All is read and processed: the end goes to every output. Idempotent."""
        if not self._finished:
            self._finished = True
            for output in self.outputs.values():
                output.put(End())
        return self._settle()

    def idle(self, input_id: int, is_idle: bool) -> list[SubtaskEffect]:
        """An idle input does not hold back the watermark."""
        return self._absorb(self._inputs().idle(input_id, is_idle))

    # -- checkpoints -----------------------------------------------------------------------------------------

    def started(self, checkpoint_id: int, *, epoch: Epoch = NO_EPOCH, aligned: bool = False) -> list[SubtaskEffect]:
        """A checkpoint was triggered. It comes before the id's command, deadline and abort."""
        if checkpoint_id <= max(self._dead, self._wanted()):
            return []
        barrier = CheckpointBarrier(checkpoint_id, epoch)
        self._started = as_pinned(barrier) if aligned else barrier
        if self._config.force_unaligned and not aligned:
            self._overdue = max(self._overdue, checkpoint_id)
        effects: list[SubtaskEffect] = []
        if self._fan_in is not None and not self._finished:
            effects = self._absorb(self._fan_in.started(checkpoint_id, epoch=epoch, aligned=aligned))
        return effects + self._settle()

    def inject(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        """A source is told to emit this barrier. A command for a dead or fired id changes nothing."""
        if self._fan_in is not None:
            raise ProtocolError(f"only a source emits on command checkpoint_id={barrier.checkpoint_id}")
        if barrier.checkpoint_id <= max(self._dead, self._fired):
            return []
        barrier = self._in_mode(barrier)
        if self._finished:
            self._started = barrier
            return self._settle()
        return self._cut_here(barrier)

    def deadline(self, checkpoint_id: int) -> list[SubtaskEffect]:
        """The id's alignment deadline passed: what waits is pulled forward or promoted. Idempotent."""
        started = self._started
        if checkpoint_id <= self._dead or (started is not None and self._is_pinned(checkpoint_id, started)):
            return []
        self._overdue = max(self._overdue, checkpoint_id)
        effects: list[SubtaskEffect] = []
        if self._fan_in is not None and not self._finished:
            effects = self._absorb(self._fan_in.deadline(checkpoint_id))
        for output in self.outputs.values():
            effects += self._absorb(output.deadline(checkpoint_id))
        return effects + self._settle()

    def abort(self, checkpoint_id: int, reason: str = "") -> list[SubtaskEffect]:
        """This id and all below are over. Idempotent."""
        effects: list[SubtaskEffect] = []
        if self._fan_in is not None:
            effects = self._absorb(self._fan_in.abort(checkpoint_id, reason))
        if 0 < self.pending <= checkpoint_id:
            effects += self._absorb([aborted(self.pending, reason)])
        self._bury(checkpoint_id)
        return effects

    def fired(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        """The chain was flushed: the barrier goes onto every output. The shell freezes right after this."""
        snapshot = self._snapshot
        if snapshot is None or not self._firing or snapshot.barrier != barrier:
            raise ProtocolError(f"no such snapshot is due checkpoint_id={barrier.checkpoint_id}")
        self._firing = False
        snapshot.enqueued = True
        snapshot.waiting = set(self.outputs)
        effects: list[SubtaskEffect] = []
        for output in self.outputs.values():
            effects += self._absorb(output.enqueue(barrier))
        return effects + self._complete()

    # -- inside ----------------------------------------------------------------------------------------------

    def _inputs(self) -> UnalignedCheckpointer[T]:
        if self._fan_in is None:
            raise ProtocolError("a source has no inputs")
        return self._fan_in

    def _is_pinned(self, checkpoint_id: int, started: CheckpointBarrier) -> bool:
        return started.checkpoint_id == checkpoint_id and self._config.keeps_aligned(started)

    def _in_mode(self, barrier: CheckpointBarrier) -> CheckpointBarrier:
        """The barrier as a source emits it: pinned, flagged or plain."""
        if self._started is not None and self._is_pinned(barrier.checkpoint_id, self._started):
            barrier = as_pinned(barrier) if self._config.enabled else barrier
        if self._config.keeps_aligned(barrier):
            return as_aligned(barrier)
        is_overdue = barrier.checkpoint_id <= self._overdue
        return barrier.as_unaligned() if is_overdue or self._config.force_unaligned else barrier

    def _absorb(self, effects: Iterable[SubtaskEffect]) -> list[SubtaskEffect]:
        """Keep what only the subtask needs to know, and pass on the rest."""
        result: list[SubtaskEffect] = []
        for effect in effects:
            match effect:
                case Fire(barrier):
                    result += self._begin(PendingSnapshot(barrier))
                    self._firing = True
                    self._fired = barrier.checkpoint_id
                    result.append(effect)
                case InputsRecorded(snapshot):
                    result += self._inputs_recorded(snapshot)
                case BarrierLeft(output_id, checkpoint_id, data):
                    result += self._barrier_left(output_id, checkpoint_id, data.events, data.size_bytes)
                case CheckpointFailed(checkpoint_id):
                    self._bury(checkpoint_id)
                    result.append(effect)
                case _:
                    result.append(effect)
        return result

    def _begin(self, snapshot: PendingSnapshot[T]) -> list[SubtaskEffect]:
        """A newer snapshot replaces one that is not complete: that one is over everywhere."""
        older = self.pending
        effects = self._absorb([aborted(older, "subsumed by a newer one")]) if older else []
        self._snapshot = snapshot
        self._output_bytes = 0
        return effects

    def _inputs_recorded(self, recorded: UnalignedSnapshot[T]) -> list[SubtaskEffect]:
        assert self._snapshot is not None
        self._snapshot.inputs = recorded
        return self._complete()

    def _barrier_left(
        self, output_id: int, checkpoint_id: int, events: tuple[StreamMessage[T], ...], size_bytes: int
    ) -> list[SubtaskEffect]:
        snapshot = self._snapshot
        assert snapshot is not None and snapshot.checkpoint_id == checkpoint_id
        snapshot.waiting.discard(output_id)
        if events:
            snapshot.overtook = True
            snapshot.outputs[output_id] = events
            self._output_bytes += size_bytes
        return self._complete()

    def _complete(self) -> list[SubtaskEffect]:
        snapshot = self._snapshot
        if snapshot is None or not snapshot.is_complete:
            return []
        effect = snapshot.complete(self._output_bytes)
        self._bury(snapshot.checkpoint_id)
        return [effect]

    def _bury(self, checkpoint_id: int) -> None:
        """The id is over here, complete or not: nothing that comes for it has an effect."""
        self._dead = max(self._dead, checkpoint_id)
        for output in self.outputs.values():
            output.abort(checkpoint_id)
        if self._fan_in is not None:
            self._fan_in.abort(checkpoint_id)
        if self.pending <= checkpoint_id:
            self._snapshot = None
            self._firing = False

    def _wanted(self) -> int:
        """The id that was started and is neither over nor fired here; 0 when there is none."""
        started = 0 if self._started is None else self._started.checkpoint_id
        return started if started > max(self._dead, self._fired) else 0

    def _settle(self) -> list[SubtaskEffect]:
        """The part in a checkpoint, not fired here, of a subtask whose inputs have all ended."""
        barrier = self._started
        if barrier is None or not self._wanted() or not self.ended:
            return []
        is_late = barrier.is_unaligned or barrier.checkpoint_id <= self._overdue
        is_urgent = is_late and not self._config.keeps_aligned(barrier)
        if self._finished:
            return self._settle_finished(barrier, is_urgent)
        return self._cut_here(barrier.as_unaligned()) if is_urgent else []

    def _cut_here(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        """Cut with nothing to record: a source where its command finds it, and a subtask that has read
        everything and is still emitting, because what it waits for may take longer than the deadline allows."""
        return self._absorb([Fire(barrier), InputsRecorded(UnalignedSnapshot(barrier, (), 0, False))])

    def _settle_finished(self, barrier: CheckpointBarrier, is_urgent: bool) -> list[SubtaskEffect]:
        """It is complete when on each output the end has left, or a flagged barrier in its stead: until then data
        is queued here that belongs to nobody's recording."""
        effects: list[SubtaskEffect] = []
        if self.pending != barrier.checkpoint_id:
            effects = self._begin(PendingSnapshot(barrier, finished=True))
            assert self._snapshot is not None
            self._snapshot.waiting = {o for o, output in self.outputs.items() if output.end_queued}
        if is_urgent:
            effects += self._promote_ends(barrier.as_unaligned())
        return effects + self._complete()

    def _promote_ends(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        snapshot = self._snapshot
        if snapshot is None or snapshot.overtook:
            return []
        snapshot.overtook = True
        effects: list[SubtaskEffect] = []
        for output_id in sorted(snapshot.waiting):
            output = self.outputs[output_id]
            if output.can_overtake(barrier):
                effects += self._absorb(output.enqueue(barrier))
        return effects
