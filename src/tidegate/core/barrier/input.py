"""One input of a fan-in: its queue, and where a barrier or the end stands in it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, StreamMessage
from tidegate.core.barrier.record import ChannelRecording

T = TypeVar("T")

BEGINNING_OF_TIME = -(1 << 63)


class InputChannel(Generic[T]):
    """What one input has queued and why it may not be read. Plain attributes: this is the hot path."""

    __slots__ = (
        "end_received",
        "held",
        "held_by_control",
        "idle",
        "input_id",
        "queue",
        "recording",
        "watermark",
    )

    def __init__(self, input_id: int) -> None:
        self.input_id = input_id
        self.queue: deque[StreamMessage[T]] = deque()
        self.recording: ChannelRecording[T] | None = None
        self.held = False
        self.held_by_control = False
        self.end_received = False
        self.idle = False
        self.watermark = BEGINNING_OF_TIME

    @property
    def is_readable(self) -> bool:
        """True when something is queued and nothing holds it."""
        return bool(self.queue) and not self.held and not self.held_by_control

    def barrier(self, checkpoint_id: int) -> CheckpointBarrier | None:
        """The id's barrier in the queue, if it is there. It is looked for where it came in: at the tail."""
        for message in reversed(self.queue):
            if isinstance(message, Barrier) and message.barrier.checkpoint_id == checkpoint_id:
                return message.barrier
        return None

    def has_marker(self, checkpoint_id: int) -> bool:
        """True when the queue holds the point up to which this id would record: its barrier or the end."""
        return self.end_received or self.barrier(checkpoint_id) is not None

    def start_recording(self, checkpoint_id: int, recording: ChannelRecording[T]) -> None:
        """Record what is queued before the id's barrier and take that one out; without it, everything."""
        self.recording = recording
        for index, message in zip(range(len(self.queue) - 1, -1, -1), reversed(self.queue), strict=True):
            if isinstance(message, Barrier) and message.barrier.checkpoint_id == checkpoint_id:
                recording.add_all(islice(self.queue, index))
                del self.queue[index]
                return
        recording.add_all(self.queue)
