"""What travels in a channel: events, watermarks, barriers, control signals and the end of the stream.

This module decides the form of a message and the 24 bytes of a barrier. It knows nothing of who sends them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import EPOCH_LIMIT, U64_LIMIT, Epoch

if TYPE_CHECKING:
    from tidegate.core.control.signals import ControlSignal

T = TypeVar("T")
U = TypeVar("U")

_BARRIER = struct.Struct("<QQQ")
BARRIER_BYTES = _BARRIER.size
UNALIGNED_FLAG = 1
IDLE = -(1 << 63)
"""The timestamp of a watermark that says: do not wait for this channel. Any other watermark takes that back."""
AWAKE = IDLE + 1
"""The smallest timestamp of a watermark that says a time."""


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The marker of a checkpoint's cut: id, epoch and flags (bit 0: unaligned), 24 bytes little endian."""

    checkpoint_id: int
    epoch: Epoch
    flags: int = 0

    def __post_init__(self) -> None:
        check_barrier_numbers(self.checkpoint_id, self.epoch)
        if not 0 <= self.flags < U64_LIMIT:
            raise InvalidUseError(f"barrier flags are 64 bits flags={self.flags}")

    @classmethod
    def new_unaligned(cls, checkpoint_id: int, epoch: Epoch) -> CheckpointBarrier:
        """A barrier that overtakes data."""
        return cls(checkpoint_id, epoch, UNALIGNED_FLAG)

    @property
    def is_unaligned(self) -> bool:
        """True when this barrier overtakes data."""
        return bool(self.flags & UNALIGNED_FLAG)

    @property
    def is_aligned(self) -> bool:
        """True when this barrier keeps its position among the data."""
        return not self.flags & UNALIGNED_FLAG

    def as_unaligned(self) -> CheckpointBarrier:
        """The same barrier, flagged."""
        return CheckpointBarrier(self.checkpoint_id, self.epoch, self.flags | UNALIGNED_FLAG)

    def pack(self) -> bytes:
        """The 24 bytes of this barrier."""
        return _BARRIER.pack(self.checkpoint_id, self.epoch, self.flags)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> CheckpointBarrier:
        """The barrier in these 24 bytes; anything else is corrupt."""
        if len(data) != BARRIER_BYTES:
            raise CorruptDataError(f"a barrier has {BARRIER_BYTES} bytes length={len(data)}")
        try:
            return cls(*_BARRIER.unpack(data))
        except InvalidUseError as error:
            raise CorruptDataError(f"a barrier that no injector makes: {error}") from error


def check_barrier_numbers(checkpoint_id: int, epoch: Epoch) -> None:
    """Refuse an id or epoch that no barrier may carry. Nothing is ever truncated."""
    if not 0 < checkpoint_id < U64_LIMIT:
        raise InvalidUseError(f"a checkpoint id is a positive 64-bit number checkpoint_id={checkpoint_id}")
    if not 0 <= epoch < EPOCH_LIMIT:
        raise InvalidUseError(f"an epoch has 48 bits epoch={epoch}")


class StreamMessage(Generic[T]):
    """One message of a channel: ``Event``, ``Watermark``, ``Barrier``, ``Control`` or ``End``."""

    __slots__ = ()

    @property
    def is_barrier(self) -> bool:
        """True for a checkpoint barrier."""
        return isinstance(self, Barrier)

    def as_barrier(self) -> CheckpointBarrier | None:
        """The checkpoint barrier in this message, if it is one."""
        return self.barrier if isinstance(self, Barrier) else None

    def map(self, function: Callable[[T], U]) -> StreamMessage[U]:
        """The same message with its event payload mapped; anything but an event is passed on as it is."""
        if isinstance(self, Event):
            return Event(function(self.payload), self.size_bytes)
        return self  # type: ignore[return-value]  # carries no payload, so it is a message of any payload type


@dataclass(frozen=True, slots=True)
class Event(StreamMessage[T]):
    """A batch of rows. ``size_bytes`` is its serialised size, for credits and in-flight limits."""

    payload: T
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Watermark(StreamMessage[T]):
    """No more rows with an event time below ``timestamp`` come on this channel."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Barrier(StreamMessage[T]):
    """A checkpoint barrier in the data channel."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class Control(StreamMessage[T]):
    """A control signal carried by the data channel."""

    signal: ControlSignal


@dataclass(frozen=True, slots=True)
class End(StreamMessage[T]):
    """The last message of a channel."""
