"""The sender's end of a channel: from an output queue to the transport, as far as the receiver's credit reaches.

Credit is bytes. The receiver says how many events it has consumed; the sender remembers what each of them cost, so both sides
agree without ever counting the same thing twice. Everything but events is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidegate.core.messages import Event, StreamMessage
from tidegate.errors import ProtocolError
from tidegate.runtime.task import StageTask

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
    """Moves what an output queue holds. Loop thread only."""

    def __init__(self, task: StageTask, output_id: int, outlet: Outlet, window_bytes: int) -> None:
        self._task = task
        self._queue = task.protocol.outputs[output_id]
        self._output_id = output_id
        self._outlet = outlet
        self._balance_bytes = window_bytes
        self._unconsumed: deque[int] = deque()

    def pump(self) -> bool:
        """Send while there is something, room and credit. True when anything went."""
        moved = False
        while self._may_send():
            message, effects = self._task.protocol.taken(self._output_id)
            if isinstance(message, Event):
                self._balance_bytes -= message.size_bytes
                self._unconsumed.append(message.size_bytes)
            self._outlet.send(message)
            self._task.perform(effects)
            moved = True
        return moved

    def _may_send(self) -> bool:
        head = self._queue.head()
        if head is None or not self._outlet.ready:
            return False
        return self._balance_bytes > 0 or not isinstance(head, Event)

    def consumed(self, events: int) -> None:
        """The receiver has taken this many more events."""
        if events > len(self._unconsumed):
            raise ProtocolError(f"more events consumed than were sent output={self._output_id} events={events}")
        for _ in range(events):
            self._balance_bytes += self._unconsumed.popleft()


class Intake:
    """The receiver's end: counts what was consumed and returns it in pieces that are worth a frame."""

    def __init__(self, window_bytes: int, give_back: Callable[[int], None]) -> None:
        self._threshold_bytes = window_bytes // 4
        self._give_back = give_back
        self._events = 0
        self._bytes = 0
        self._free = 0

    def owes_nothing_for(self, events: int) -> None:
        """The next events were replayed from a checkpoint: no sender paid for them."""
        self._free += events

    def consumed(self, size_bytes: int) -> None:
        """One event was taken from the input."""
        if self._free:
            self._free -= 1
            return
        self._events += 1
        self._bytes += size_bytes
        if self._bytes >= self._threshold_bytes:
            self.settle()

    def settle(self) -> None:
        """Return what is owed. Also called when the loop has nothing else to do."""
        if self._events:
            events, self._events, self._bytes = self._events, 0, 0
            self._give_back(events)
