"""What an operator must do. It knows batches, watermarks and its own state; nothing of barriers, channels or stores.

All calls come from the node's loop thread. Methods that return batches may be generators: the loop takes the next piece only
when the outputs have room, so yield pieces of at most ``PIECE_ROWS`` rows, and an empty one where the work before the next is
long. Until a generator is exhausted the loop calls no other method of this operator; it exhausts it when a snapshot is due. An
operator whose watermark gives much can stop there: see ``Stoppable``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tidegate.plan.connector import Json

PIECE_ROWS = 65_536

_run_numbers = count(1)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """An immutable piece of state. ``uid`` is unique in this process, so that a run is uploaded once."""

    batch: pa.RecordBatch
    uid: int = field(default_factory=lambda: next(_run_numbers))


@dataclass(frozen=True, slots=True)
class Frozen:
    """An operator's state at the cut, by reference. ``meta`` is small JSON; ``runs`` are never changed afterwards."""

    meta: dict[str, Json]
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that one subtask of the checkpoint froze; it may hold rows of key groups that are not ours now."""

    subtask: int
    meta: dict[str, Json]
    runs: tuple[Run, ...] = ()


class Operator(Protocol):
    """One operator of a chain."""

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take a batch; give what comes of it."""

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Event time has reached ``timestamp``. The loop passes the watermark on behind what this gives. Idempotent."""

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Rows still buffered that are to go ahead of a barrier."""

    def end(self) -> Iterable[pa.RecordBatch]:
        """All inputs have ended (after a last watermark of the end of time)."""

    def freeze(self) -> Frozen | None:
        """The state at this moment, by reference, in time that does not grow with it. ``None``: has no state."""

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the state of a checkpoint. Called once, before anything else."""


@runtime_checkable
class Stoppable(Protocol):
    """An operator that need not give at once all that a watermark closes.

    While ``stopping`` is set, what ``watermark`` returns ends behind the step at hand, and what was not given is part of the
    state. ``owes``: so it was, or so it was restored, and ``watermark`` is to be called again, with the same or any time, before
    anything else comes in.
    """

    stopping: bool
    owes: bool


@runtime_checkable
class Judging(Protocol):
    """An operator that takes rows for late."""

    def promise(self, timestamp: int) -> None:
        """Rows of the batches to come are late by this time at least, even where windows of theirs are still open."""
