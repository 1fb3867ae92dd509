"""Both ends of a channel as the loop sees them: from an output queue to the transport, as far as the receiver's credit reaches,
and credit back to the sender as the receiver consumes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidegate.core.barrier.messages import Event, StreamMessage
from tidegate.runtime.task import StageTask
from tidegate.wire.credit import CreditReturn, CreditWindow

Message: TypeAlias = StreamMessage[pa.RecordBatch]


class Outlet(Protocol):
    """Where messages go: a transport's outbound channel, or a task on the same node."""

    @property
    def ready(self) -> bool:
        """Another message may be handed over now."""

    def send(self, message: Message) -> None:
        """Hand a message over. Never blocks."""


class LocalOutlet:
    """A task on the same node. It doesn't touch a socket."""

    ready = True

    def __init__(self, task: StageTask, input_id: int) -> None:
        self._task = task
        self._input_id = input_id

    def send(self, message: Message) -> None:
        self._task.receive(self._input_id, message)


class Link:
    """The sender's end. Loop thread only."""

    def __init__(self, task: StageTask, output_id: int, outlet: Outlet, window_bytes: int) -> None:
        self._task = task
        self._queue = task.protocol.outputs[output_id]
        self._output_id = output_id
        self._outlet = outlet
        self._window = CreditWindow(window_bytes)

    def pump(self) -> bool:
        """Send while there is something, room and credit. True when anything went."""
        moved = False
        while self._may_send():
            message, effects = self._task.protocol.taken(self._output_id)
            if isinstance(message, Event):
                self._window.spend(message.size_bytes)
            self._outlet.send(message)
            self._task.perform(effects)
            moved = True
        return moved

    def _may_send(self) -> bool:
        head = self._queue.head()
        if head is None or not self._outlet.ready:
            return False
        return self._window.may_send or not isinstance(head, Event)

    def credited(self, size_bytes: int) -> None:
        """The receiver has consumed this much."""
        self._window.credited(size_bytes)


class Intake:
    """The receiver's end. Loop thread only."""

    def __init__(self, window_bytes: int, return_credit: Callable[[int], None]) -> None:
        self._return = CreditReturn(window_bytes)
        self._return_credit = return_credit
        self._free = 0

    def owes_nothing_for(self, events: int) -> None:
        """The next events were replayed from a checkpoint: no sender paid for them."""
        self._free += events

    def consumed(self, size_bytes: int) -> None:
        """One event was taken from the input."""
        if self._free:
            self._free -= 1
            return
        due_bytes = self._return.consumed(size_bytes)
        if due_bytes:
            self._return_credit(due_bytes)

    def settle(self) -> None:
        """Return the credit that is due, however little. Called when the loop has nothing else to do."""
        due_bytes = self._return.flush()
        if due_bytes:
            self._return_credit(due_bytes)
