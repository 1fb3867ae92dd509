"""What an unaligned checkpoint records, within its byte limit. Recordings hold references, not copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from tidegate.core.barrier.effects import InFlightChannelData, UnalignedSnapshot
from tidegate.core.barrier.messages import CheckpointBarrier, Event, StreamMessage, Watermark
from tidegate.errors import InFlightBufferTooLarge

T = TypeVar("T")

WATERMARK_BYTES = 8


class ChannelRecording(Generic[T]):
    """Events and watermarks of one channel, in order. Barriers, ends and control signals are passed over."""

    __slots__ = ("_limit_bytes", "channel", "messages", "size_bytes")

    def __init__(self, channel: str, limit_bytes: int) -> None:
        self.channel = channel
        self.messages: list[StreamMessage[T]] = []
        self.size_bytes = 0
        self._limit_bytes = limit_bytes

    def add(self, message: StreamMessage[T]) -> None:
        """Take the message if it is data."""
        if isinstance(message, Event):
            self.size_bytes += message.size_bytes
        elif isinstance(message, Watermark):
            self.size_bytes += WATERMARK_BYTES
        else:
            return
        self.messages.append(message)

    def add_all(self, messages: Iterable[StreamMessage[T]]) -> None:
        """Take the data among the messages. A complete queue is taken at the cut, so this must be quick."""
        data = [message for message in messages if type(message) is Event or type(message) is Watermark]
        self.messages += data
        self.size_bytes += sum([m.size_bytes if type(m) is Event else WATERMARK_BYTES for m in data])

    def excess(self, checkpoint_id: int) -> InFlightBufferTooLarge | None:
        """The error of a recording over its limit."""
        if self.size_bytes <= self._limit_bytes:
            return None
        return InFlightBufferTooLarge(
            "too much data in flight, raise max_inflight_bytes or the alignment timeout"
            f" checkpoint_id={checkpoint_id} channel={self.channel}"
            f" bytes={self.size_bytes} limit={self._limit_bytes}",
            checkpoint_id=checkpoint_id,
        )

    def data(self, channel_id: int) -> InFlightChannelData[T]:
        """What was recorded until now."""
        return InFlightChannelData(channel_id, tuple(self.messages), self.size_bytes)


class FanInRecord(Generic[T]):
    """What a fan-in records for the checkpoint that it cut last, and how often it did so."""

    __slots__ = (
        "_barrier",
        "_by_deadline",
        "_limit_bytes",
        "_recordings",
        "threshold_switches",
        "total_inflight_bytes",
        "unaligned_count",
    )

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._barrier: CheckpointBarrier | None = None
        self._by_deadline = False
        self._recordings: dict[int, ChannelRecording[T]] = {}
        self.unaligned_count = 0
        self.threshold_switches = 0
        self.total_inflight_bytes = 0

    @property
    def checkpoint_id(self) -> int:
        """The id that was cut last; 0 before any."""
        return 0 if self._barrier is None else self._barrier.checkpoint_id

    def begin(self, barrier: CheckpointBarrier, by_deadline: bool) -> None:
        """A cut is made. ``by_deadline``: waiting for aligned barriers took too long."""
        self._barrier = barrier
        self._by_deadline = barrier.is_unaligned and by_deadline

    def open(self, input_id: int) -> ChannelRecording[T]:
        """A new recording of this input."""
        recording = ChannelRecording[T](f"input {input_id}", self._limit_bytes)
        self._recordings[input_id] = recording
        return recording

    def excess(self) -> InFlightBufferTooLarge | None:
        """The error of the first recording over its limit."""
        errors = (recording.excess(self.checkpoint_id) for recording in self._recordings.values())
        return next((error for error in errors if error is not None), None)

    def count(self) -> None:
        """The cut is good: count it."""
        assert self._barrier is not None
        self.unaligned_count += self._barrier.is_unaligned
        self.threshold_switches += self._by_deadline

    def close(self, last_input: int | None) -> UnalignedSnapshot[T]:
        """Nothing more comes for this checkpoint: hand it out."""
        assert self._barrier is not None
        data = tuple(r.data(input_id) for input_id, r in self._recordings.items() if r.messages)
        total = sum(channel.size_bytes for channel in data)
        self.total_inflight_bytes += total
        self.drop()
        return UnalignedSnapshot(self._barrier, data, total, self._by_deadline, last_input)

    def drop(self) -> None:
        """Forget what was recorded."""
        self._recordings = {}
