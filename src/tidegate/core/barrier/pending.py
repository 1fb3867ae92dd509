"""A subtask's snapshot that is not complete yet: what it still waits for."""

from __future__ import annotations

from typing import Generic, TypeVar

from tidegate.core.barrier.effects import SnapshotComplete, UnalignedSnapshot
from tidegate.core.barrier.messages import CheckpointBarrier, StreamMessage

T = TypeVar("T")


class PendingSnapshot(Generic[T]):
    """What was recorded so far, and the outputs that still hold its barrier."""

    __slots__ = ("barrier", "enqueued", "finished", "inputs", "outputs", "overtook", "waiting")

    def __init__(self, barrier: CheckpointBarrier, *, finished: bool = False) -> None:
        self.barrier = barrier
        self.finished = finished
        self.enqueued = finished
        self.overtook = False
        self.waiting: set[int] = set()
        self.inputs: UnalignedSnapshot[T] | None = None
        self.outputs: dict[int, tuple[StreamMessage[T], ...]] = {}

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that this is a part of."""
        return self.barrier.checkpoint_id

    @property
    def is_complete(self) -> bool:
        """True when nothing is left to record and every barrier is on its way."""
        return self.enqueued and not self.waiting and (self.finished or self.inputs is not None)

    def complete(self, output_bytes: int) -> SnapshotComplete[T]:
        """The effect that hands this snapshot out."""
        recorded = self.inputs
        return SnapshotComplete(
            self.checkpoint_id,
            {} if recorded is None else {data.input_id: data.events for data in recorded.inflight_data},
            self.outputs,
            unaligned=self.overtook or self.barrier.is_unaligned,
            finished=self.finished,
            inflight_bytes=output_bytes + (0 if recorded is None else recorded.total_size_bytes),
            last_input=None if recorded is None else recorded.last_input,
        )
