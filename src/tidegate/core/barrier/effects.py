"""What the protocol of a subtask tells its shell to do. The order of effects in a list is a contract.

The shell performs one effect after another and is done with each before it hands in the next fact. At
``Fire`` it flushes the chain, calls ``fired``, freezes, and only then performs what ``fired`` returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tidegate.core.barrier.messages import CheckpointBarrier, StreamMessage
from tidegate.errors import CheckpointAbortedError

if TYPE_CHECKING:
    from tidegate.core.control.signals import ControlSignal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InFlightChannelData(Generic[T]):
    """What a checkpoint recorded on one channel: events and watermarks in order, by reference."""

    input_id: int
    events: tuple[StreamMessage[T], ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class UnalignedSnapshot(Generic[T]):
    """All that a fan-in recorded for one checkpoint; nothing if it was aligned. No operator state."""

    barrier: CheckpointBarrier
    inflight_data: tuple[InFlightChannelData[T], ...]
    total_size_bytes: int
    was_threshold_triggered: bool
    last_input: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessEvent(Generic[T]):
    """Hand this payload to the operator. ``size_bytes`` is what its sender gets back."""

    input_id: int
    payload: T
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """Event time of the fan-in has grown to this; ``IDLE``: none of its inputs is waited for."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Fire:
    """Take the snapshot now, BEFORE anything else: flush the chain, call ``fired``, freeze."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class InputsRecorded(Generic[T]):
    """The fan-in has nothing more to record for this checkpoint. It comes AFTER that id's ``Fire``."""

    snapshot: UnalignedSnapshot[T]


@dataclass(frozen=True, slots=True)
class BarrierLeft(Generic[T]):
    """A barrier was handed to the transport; ``overtaken`` is the in-flight data of that checkpoint."""

    output_id: int
    checkpoint_id: int
    overtaken: InFlightChannelData[T]


@dataclass(frozen=True, slots=True)
class SnapshotComplete(Generic[T]):
    """The subtask's part is complete: acknowledge it once state and recordings are durable.

    Every recording is closed, and every output's barrier was handed to the transport. ``inputs`` and
    ``outputs`` hold only channels with something recorded. ``finished``: the subtask ended without having
    fired this id, and its final state counts.
    """

    checkpoint_id: int
    inputs: Mapping[int, tuple[StreamMessage[T], ...]] = field(default_factory=dict)
    outputs: Mapping[int, tuple[StreamMessage[T], ...]] = field(default_factory=dict)
    unaligned: bool = False
    finished: bool = False
    inflight_bytes: int = 0
    last_input: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointFailed:
    """This checkpoint is over at this subtask: drop what was frozen for it and tell the coordinator."""

    checkpoint_id: int
    error: CheckpointAbortedError


@dataclass(frozen=True, slots=True)
class Ended:
    """Every input has ended: end the operator, then call ``finish``. A ``Fire`` may come in between."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Hand this control signal to the operator and to every output, once."""

    signal: ControlSignal


SubtaskEffect: TypeAlias = (
    ProcessEvent[Any]
    | AdvanceWatermark
    | Fire
    | InputsRecorded[Any]
    | BarrierLeft[Any]
    | SnapshotComplete[Any]
    | CheckpointFailed
    | Ended
    | Forward
)
"""``InputsRecorded`` and ``BarrierLeft`` stay inside: a subtask makes ``SnapshotComplete`` of them."""


def aborted(checkpoint_id: int, reason: str) -> CheckpointFailed:
    """The effect that ends a checkpoint which was in progress at a subtask."""
    message = f"the checkpoint was aborted: {reason or 'no reason given'} checkpoint_id={checkpoint_id}"
    return CheckpointFailed(checkpoint_id, CheckpointAbortedError(message, checkpoint_id=checkpoint_id))
