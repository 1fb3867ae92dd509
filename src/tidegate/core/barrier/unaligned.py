"""A fan-in: one queue per input, whose turn it is, and what an unaligned checkpoint records.

Aligned barriers, watermarks, ends and control barriers take their turn in the queue. A flagged barrier acts
at receipt, and so does any barrier or end of an id that is past its deadline. This module knows neither time
nor the network; sizes are bytes of serialised events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, assert_never

from tidegate.core.barrier.align import (
    DEFAULT_CONFIG,
    Aligning,
    BarrierAligner,
    Complete,
    Cut,
    Drop,
    Hold,
    KeyAligner,
    Outcome,
    Recording,
    RecordingDone,
    StopRecording,
    UnalignedCheckpointConfig,
    Waiting,
)
from tidegate.core.barrier.effects import (
    CheckpointFailed,
    Ended,
    Fire,
    Forward,
    InputsRecorded,
    ProcessEvent,
    SubtaskEffect,
    aborted,
)
from tidegate.core.barrier.input import InputChannel
from tidegate.core.barrier.messages import (
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.barrier.record import ChannelRecording, FanInRecord
from tidegate.core.barrier.watermark import MergedWatermark
from tidegate.errors import CheckpointAbortedError, InvalidUseError, ProtocolError
from tidegate.ids import NO_EPOCH, Epoch

if TYPE_CHECKING:
    from tidegate.core.control.signals import ControlSignal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnalignedCheckpointMetrics:
    """How often and how much this fan-in went unaligned."""

    unaligned_count: int
    threshold_switches: int
    total_inflight_bytes: int
    is_in_unaligned_mode: bool


class UnalignedCheckpointer(Generic[T]):
    """A fan-in. Facts come in through the methods; each returns the effects in the order to perform them.

    Nothing blocks. ``receive`` takes what the network brought, at once; ``poll`` processes one message,
    round robin over the inputs that may be read. A held input keeps its data queued; the sender's credit
    bounds that.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        config: UnalignedCheckpointConfig = DEFAULT_CONFIG,
        *,
        aligned_only: bool = False,
    ) -> None:
        if not inputs or len(set(inputs)) != len(inputs):
            raise InvalidUseError(f"a fan-in has inputs, each once inputs={list(inputs)}")
        self._config = config
        self._may_overtake = config.enabled and not aligned_only
        self._channels: dict[int, InputChannel[T]] = {i: InputChannel(i) for i in inputs}
        self._ready: deque[InputChannel[T]] = deque()  # exactly the inputs with a queue that may be read
        self._aligner = BarrierAligner(inputs)
        self._control = KeyAligner(inputs)
        self._signal: ControlSignal | None = None
        self._open: dict[int, InputChannel[T]] = dict(self._channels)
        self._time = MergedWatermark(self._open)
        self._overdue = 0
        self._started: CheckpointBarrier | None = None
        self._pinned = 0
        self._by_deadline = False
        self._record: FanInRecord[T] = FanInRecord(config.max_inflight_buffer_bytes)

    # -- what people ask -------------------------------------------------------------------------------------

    @property
    def has_turn(self) -> bool:
        """True when ``poll`` would do something."""
        return bool(self._ready)

    @property
    def ended(self) -> bool:
        """True when every input's end had its turn."""
        return not self._open

    @property
    def watermark(self) -> int:
        """The event time that this fan-in has reached."""
        return self._time.watermark

    def reached(self, input_id: int) -> int:
        """The event time that one input has reached."""
        return self._channels[input_id].watermark

    @property
    def state(self) -> object:
        """The alignment's state, for people and tests."""
        return self._aligner.state

    def queued(self, input_id: int) -> int:
        """How many messages an input has queued."""
        return len(self._channels[input_id].queue)

    def metrics(self) -> UnalignedCheckpointMetrics:
        """Counters since the start."""
        return UnalignedCheckpointMetrics(
            self._record.unaligned_count,
            self._record.threshold_switches,
            self._record.total_inflight_bytes,
            isinstance(self._aligner.state, Recording),
        )

    # -- facts -----------------------------------------------------------------------------------------------

    def receive(self, input_id: int, message: StreamMessage[T]) -> list[SubtaskEffect]:
        """The network brought a message. It is queued; what acts at receipt acts now."""
        channel = self._channels.get(input_id)
        if channel is None or channel.end_received:
            raise ProtocolError(f"a message from an unknown or ended input input={input_id}")
        kind = type(message)
        if kind is Event or kind is Watermark:
            self._enqueue(channel, message)
            return [] if channel.recording is None else self._recorded(channel.recording, message)
        if isinstance(message, Barrier):
            return self._receive_barrier(channel, message)
        self._enqueue(channel, message)
        return self._receive_end(channel) if kind is End else []

    def poll(self) -> list[SubtaskEffect]:
        """Process one message. ``[]``: nothing can run, or the message asks for nothing."""
        if not self._ready:
            return []
        channel = self._ready.popleft()
        message = channel.queue.popleft()
        if isinstance(message, Event):
            if channel.queue:
                self._ready.append(channel)
            return [ProcessEvent(channel.input_id, message.payload, message.size_bytes)]
        return self._turn(channel, message)

    def started(self, checkpoint_id: int, *, epoch: Epoch = NO_EPOCH, aligned: bool = False) -> list[SubtaskEffect]:
        """A checkpoint was triggered somewhere. ``aligned``: it must never overtake data (a savepoint)."""
        if checkpoint_id <= self._aligner.dead:
            return []
        self._started = CheckpointBarrier(checkpoint_id, epoch)
        if aligned:
            self._pinned = checkpoint_id
        return self.deadline(checkpoint_id) if self._config.force_unaligned else []

    def deadline(self, checkpoint_id: int) -> list[SubtaskEffect]:
        """The id's alignment deadline passed: its known barriers and ends are pulled forward. Idempotent."""
        if not self._may_overtake or checkpoint_id == self._pinned:
            return []
        self._overdue = max(self._overdue, checkpoint_id)
        barrier = self._find(checkpoint_id)
        if barrier is None or self._config.keeps_aligned(barrier):
            return []
        self._by_deadline = not self._config.force_unaligned
        return self._perform(self._aligner.deadline(barrier, self._known(checkpoint_id)))

    def abort(self, checkpoint_id: int, reason: str = "") -> list[SubtaskEffect]:
        """This id and all below are over. Idempotent."""
        return self._perform(self._aligner.abort(checkpoint_id), reason)

    def idle(self, input_id: int, is_idle: bool) -> list[SubtaskEffect]:
        """An idle input does not hold back the watermark."""
        self._channels[input_id].idle = is_idle
        return self._time.advance()

    # -- receipt ---------------------------------------------------------------------------------------------

    def _enqueue(self, channel: InputChannel[T], message: StreamMessage[T]) -> None:
        channel.queue.append(message)
        if len(channel.queue) == 1 and not (channel.held or channel.held_by_control):
            self._ready.append(channel)

    def _recorded(self, recording: ChannelRecording[T], message: StreamMessage[T]) -> list[SubtaskEffect]:
        recording.add(message)
        excess = recording.excess(self._record.checkpoint_id)
        return [] if excess is None else [self._fail(excess)]

    def _receive_barrier(self, channel: InputChannel[T], message: Barrier[T]) -> list[SubtaskEffect]:
        barrier, state = message.barrier, self._aligner.state
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._aligner.dead:
            return []
        effects: list[SubtaskEffect] = []
        if isinstance(state, Recording):
            if checkpoint_id <= state.barrier.checkpoint_id:
                return self._perform(self._aligner.overtake(barrier, frozenset((channel.input_id,))))
            # A newer barrier exists, so the one being recorded is over everywhere: free its memory now.
            effects = self._perform(self._aligner.subsume(barrier))
        elif isinstance(state, Aligning) and channel.held and checkpoint_id == state.barrier.checkpoint_id:
            return []
        self._enqueue(channel, message)
        return [*effects, *self._overtake(barrier)] if self._acts_at_receipt(barrier) else effects

    def _receive_end(self, channel: InputChannel[T]) -> list[SubtaskEffect]:
        channel.end_received = True
        effects = self._perform(self._aligner.end_received(channel.input_id))
        if self._started is not None and self._acts_at_receipt(self._started):
            effects += self._overtake(self._started)
        return effects

    def _acts_at_receipt(self, barrier: CheckpointBarrier) -> bool:
        if self._stays_aligned(barrier):
            return False
        return barrier.is_unaligned or self._config.force_unaligned or barrier.checkpoint_id <= self._overdue

    def _stays_aligned(self, barrier: CheckpointBarrier) -> bool:
        return not self._may_overtake or barrier.checkpoint_id == self._pinned or self._config.keeps_aligned(barrier)

    def _overtake(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        self._by_deadline = barrier.is_aligned and not self._config.force_unaligned
        return self._perform(self._aligner.overtake(barrier, self._known(barrier.checkpoint_id)))

    def _known(self, checkpoint_id: int) -> frozenset[int]:
        return frozenset(i for i, c in self._open.items() if c.has_marker(checkpoint_id))

    def _find(self, checkpoint_id: int) -> CheckpointBarrier | None:
        """The id's barrier: from the alignment, from a queue, or from the news of its start."""
        state = self._aligner.state
        if isinstance(state, Aligning) and state.barrier.checkpoint_id == checkpoint_id:
            return state.barrier
        queued = (channel.barrier(checkpoint_id) for channel in self._open.values())
        found = next((barrier for barrier in queued if barrier is not None), None)
        if found is None and self._started is not None and self._started.checkpoint_id == checkpoint_id:
            return self._started
        return found

    # -- turns -----------------------------------------------------------------------------------------------

    def _turn(self, channel: InputChannel[T], message: StreamMessage[T]) -> list[SubtaskEffect]:
        """Anything but an event has its turn. The channel is not in ``_ready`` meanwhile."""
        effects: list[SubtaskEffect]
        match message:
            case Watermark(timestamp):
                effects = self._time.turn(channel, timestamp)
            case Barrier():
                effects = self._turn_barrier(channel, message)
            case Control():
                effects = self._turn_control(channel, message)
            case End():
                effects = self._turn_end(channel)
            case _:
                raise ProtocolError(f"a message of no known kind input={channel.input_id}")
        self._refresh()
        return effects

    def _turn_barrier(self, channel: InputChannel[T], message: Barrier[T]) -> list[SubtaskEffect]:
        if not self._acts_at_receipt(message.barrier):
            return self._perform(self._aligner.turn(channel.input_id, message.barrier))
        # It became overdue by a later id's deadline. Back in the queue it is found like any queued barrier.
        channel.queue.appendleft(message)
        effects = self._overtake(message.barrier)
        if channel.queue and channel.queue[0] is message:
            channel.queue.popleft()
        return effects

    def _turn_control(self, channel: InputChannel[T], message: Control[T]) -> list[SubtaskEffect]:
        signal = message.signal
        try:
            if not signal.is_barrier:  # passed on per input it would multiply
                raise ProtocolError(f"an instant signal among the data input={channel.input_id} key={signal.key}")
            answer = self._control.arrive(channel.input_id, signal.key)
        except ProtocolError:
            channel.queue.appendleft(message)
            self._refresh()
            raise
        self._signal = signal
        channel.held_by_control = True
        return self._answer(answer)

    def _answer(self, answer: Waiting | Complete | None) -> list[SubtaskEffect]:
        if not isinstance(answer, Complete):
            return []
        assert self._signal is not None
        for channel in self._channels.values():
            channel.held_by_control = False
        return [Forward(self._signal)]

    def _turn_end(self, channel: InputChannel[T]) -> list[SubtaskEffect]:
        del self._open[channel.input_id]
        effects = self._time.ended()
        effects += self._perform(self._aligner.ended(channel.input_id))
        effects += self._answer(self._control.ended(channel.input_id))
        if not self._open:
            effects.append(Ended())
        return effects

    def _refresh(self) -> None:
        """Bring ``_ready`` up to date; inputs that were in it keep their order."""
        ready = [channel for channel in self._ready if channel.is_readable]
        there = {channel.input_id for channel in ready}
        ready += [c for c in self._channels.values() if c.is_readable and c.input_id not in there]
        self._ready = deque(ready)

    # -- outcomes of the alignment ---------------------------------------------------------------------------

    def _perform(self, outcomes: Iterable[Outcome], reason: str = "") -> list[SubtaskEffect]:
        effects: list[SubtaskEffect] = []
        for outcome in outcomes:
            match outcome:
                case Hold(input_id):
                    self._channels[input_id].held = True
                case Cut(barrier, record):
                    effects.append(self._cut(barrier, record))
                    if isinstance(effects[-1], CheckpointFailed):
                        break
                case StopRecording(input_id):
                    self._channels[input_id].recording = None
                case RecordingDone(_, last_input):
                    effects.append(InputsRecorded(self._record.close(last_input)))
                case Drop(checkpoint_id, newer):
                    self._let_go()
                    why = f"subsumed by a newer one newer={newer}" if newer else reason
                    effects.append(aborted(checkpoint_id, why))
                case _ as never:  # pragma: no cover  (mypy proves it)
                    assert_never(never)
        self._refresh()
        return effects

    def _cut(self, barrier: CheckpointBarrier, record: frozenset[int]) -> Fire | CheckpointFailed:
        self._let_go()
        self._record.begin(barrier, self._by_deadline)
        for input_id in sorted(record):
            recording = self._record.open(input_id)
            self._channels[input_id].start_recording(barrier.checkpoint_id, recording)
        excess = self._record.excess()
        if excess is not None:
            return self._fail(excess)
        self._record.count()
        return Fire(barrier)

    def _fail(self, error: CheckpointAbortedError) -> CheckpointFailed:
        self._aligner.abort(error.checkpoint_id)
        self._let_go()
        return CheckpointFailed(error.checkpoint_id, error)

    def _let_go(self) -> None:
        """No input is held for a checkpoint any more and nothing is recorded."""
        self._record.drop()
        for channel in self._channels.values():
            channel.held = False
            channel.recording = None
