"""What one output channel still has to send. A waiting barrier may be promoted to the head.

An aligned barrier stands in line. A flagged one stands at the head, needs no credit, and what it passed is
the in-flight data of its checkpoint on this channel. The queue never refuses data: whoever fills it looks at
its size first.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from tidegate.core.barrier.align import DEFAULT_CONFIG, UnalignedCheckpointConfig, as_aligned
from tidegate.core.barrier.effects import BarrierLeft, CheckpointFailed, InFlightChannelData, SubtaskEffect
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, StreamMessage
from tidegate.core.barrier.record import ChannelRecording
from tidegate.errors import ProtocolError

T = TypeVar("T")


class OutputQueue(Generic[T]):
    """The queue of one output. ``aligned_only``: barriers never leave their position in it."""

    __slots__ = (
        "_aligned_only",
        "_bytes",
        "_config",
        "_dead",
        "_end_queued",
        "_ended",
        "_overdue",
        "_overtaken",
        "_queue",
        "_waiting",
        "output_id",
    )

    def __init__(
        self,
        output_id: int,
        config: UnalignedCheckpointConfig = DEFAULT_CONFIG,
        *,
        aligned_only: bool = False,
    ) -> None:
        self.output_id = output_id
        self._config = config
        self._aligned_only = aligned_only
        self._queue: deque[StreamMessage[T]] = deque()
        self._bytes = 0
        self._ended = False
        self._end_queued = False
        self._overdue = 0
        self._dead = 0
        self._waiting: CheckpointBarrier | None = None  # the newest barrier in the queue
        self._overtaken: InFlightChannelData[T] = _nothing(output_id)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Serialised bytes of the queued events."""
        return self._bytes

    @property
    def end_queued(self) -> bool:
        """True when the end was put and has not left."""
        return self._end_queued

    def can_overtake(self, barrier: CheckpointBarrier) -> bool:
        """True when this barrier may stand at the head."""
        return not self._aligned_only and not self._config.keeps_aligned(barrier)

    def put(self, message: StreamMessage[T]) -> None:
        """Add data, a control signal or the end at the tail. Nothing may follow the end."""
        if self._ended:
            raise ProtocolError(f"nothing may follow the end output={self.output_id}")
        if isinstance(message, Event):
            self._bytes += message.size_bytes
        elif isinstance(message, End):
            self._ended = self._end_queued = True
        self._queue.append(message)

    def enqueue(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        """Put a barrier on this output: at the head if flagged or past its deadline, else at the tail."""
        self._overtaken = _nothing(self.output_id)
        is_urgent = barrier.is_unaligned or barrier.checkpoint_id <= self._overdue
        if is_urgent and self.can_overtake(barrier):
            return self._to_head(barrier.as_unaligned(), len(self._queue))
        if self._ended:
            raise ProtocolError(f"nothing may follow the end output={self.output_id}")
        self._waiting = as_aligned(barrier)
        self._queue.append(Barrier(self._waiting))
        return []

    def deadline(self, checkpoint_id: int) -> list[SubtaskEffect]:
        """The id's deadline passed: its barrier goes to the head, now or when it is enqueued. Idempotent."""
        self._overdue = max(self._overdue, checkpoint_id)
        barrier = self._waiting
        if barrier is None or barrier.checkpoint_id != checkpoint_id or checkpoint_id <= self._dead:
            return []
        if barrier.is_unaligned or not self.can_overtake(barrier):
            return []
        return self._to_head(barrier.as_unaligned(), self._queue.index(Barrier(barrier)))

    def abort(self, checkpoint_id: int) -> list[SubtaskEffect]:
        """Forget what this id and those below recorded, and promote them no more. Idempotent.

        A waiting barrier stays in line: a receiver that has not heard of the abort may be waiting for it.
        """
        self._dead = max(self._dead, checkpoint_id)
        if self._waiting is not None and self._waiting.checkpoint_id <= checkpoint_id:
            self._overtaken = _nothing(self.output_id)
        return []

    def head(self) -> StreamMessage[T] | None:
        """What goes next. A flagged barrier needs no credit."""
        return self._queue[0] if self._queue else None

    def take(self) -> tuple[StreamMessage[T], list[SubtaskEffect]]:
        """The head was handed to the transport."""
        if not self._queue:
            raise ProtocolError(f"nothing to take output={self.output_id}")
        message = self._queue.popleft()
        if isinstance(message, Event):
            self._bytes -= message.size_bytes
        elif isinstance(message, End):
            self._end_queued = False
        elif isinstance(message, Barrier):
            return message, self._left(message.barrier)
        return message, []

    def _left(self, barrier: CheckpointBarrier) -> list[SubtaskEffect]:
        if barrier != self._waiting:
            return []
        overtaken, self._overtaken, self._waiting = self._overtaken, _nothing(self.output_id), None
        if barrier.checkpoint_id <= self._dead:
            return []
        return [BarrierLeft(self.output_id, barrier.checkpoint_id, overtaken)]

    def _to_head(self, barrier: CheckpointBarrier, index: int) -> list[SubtaskEffect]:
        """Move the barrier over the first ``index`` messages. Older barriers among them are over: they go."""
        queue = list(self._queue)
        before = [message for message in queue[:index] if not isinstance(message, Barrier)]
        after = queue[index + 1 :] if index < len(queue) else []
        self._queue = deque([Barrier(barrier), *before, *after])
        self._waiting = barrier
        return self._record(barrier.checkpoint_id, before)

    def _record(self, checkpoint_id: int, passed: list[StreamMessage[T]]) -> list[SubtaskEffect]:
        channel = f"output {self.output_id}"
        recording = ChannelRecording[T](channel, self._config.max_inflight_buffer_bytes)
        recording.add_all(passed)
        excess = recording.excess(checkpoint_id)
        if excess is not None:
            self.abort(checkpoint_id)
            return [CheckpointFailed(checkpoint_id, excess)]
        self._overtaken = recording.data(self.output_id)
        return []


def _nothing(output_id: int) -> InFlightChannelData[T]:
    return InFlightChannelData(output_id, (), 0)
