"""What a source and a sink must do: the contracts between connectors and everything that runs them.

A source is a list of splits, each read in order from an offset. A sink stages rows on the nodes and makes them visible on
the driver, after the checkpoint's manifest is in the log. Both cross Spark inside the plan, so they must pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from tidegate.values import Json

Offset: TypeAlias = Json
Committable: TypeAlias = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Split:
    """One independently readable piece of a source. ``lowest`` is its smallest event time, where it is known."""

    id: str
    lowest: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Polled:
    """What one poll brought. ``rows`` and ``highest`` (largest event time) count rows *before* filters."""

    batch: pa.RecordBatch | None
    rows: int = 0
    highest: int | None = None
    finished: bool = False


class SplitReader(Protocol):
    """Reads one split from an offset on. Used by one thread."""

    @property
    def offset(self) -> Offset:
        """Where reading would go on: everything polled so far is before it."""

    def poll(self, max_rows: int) -> Polled:
        """The next rows, at most ``max_rows``. Must not block: ``batch=None`` when nothing is there now."""

    def close(self) -> None:
        """Let go of files and connections. May be called twice."""


@runtime_checkable
class Source(Protocol):
    """A replayable source: the same split read from the same offset returns the same rows.

    What else a source can do is declared by the protocols of ``plan.capabilities``.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches that readers return."""

    @property
    def event_time(self) -> str | None:
        """The event-time column (int64 milliseconds or a timestamp), if the source has one."""

    @property
    def out_of_orderness(self) -> int:
        """How far before the largest event time a row may be, in the event-time column's unit."""

    @property
    def bounded(self) -> bool:
        """False for a source that never ends by itself."""

    def splits(self) -> Sequence[Split]:
        """All splits, in reading order, the same ids every time. Called on the driver before each start."""

    def open(self, split: Split, offset: Offset) -> SplitReader:
        """A reader of this split; ``offset`` is ``None`` for the beginning. Called on a node."""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Which writer this is. Staged names must contain ``gang`` and ``subtask``, so that no two writers ever share one."""

    operator: str
    subtask: int
    gang: int
    schema: pa.Schema


class SinkWriter(Protocol):
    """Stages rows on a node. All calls come from one background thread, in order."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take these rows into the epoch under way."""

    def prepare(self, checkpoint_id: int) -> Committable | None:
        """Make everything written since the last prepare durable, invisibly. ``None`` when there was nothing."""

    def close(self) -> None:
        """Let go of everything; what was not prepared is dropped."""


@runtime_checkable
class Sink(Protocol):
    """A two-phase sink. ``commit`` and ``abort`` run on the driver and are idempotent.

    What else a sink can do is declared by the protocols of ``plan.capabilities``.
    """

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask. Called on a node."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Make exactly these visible. Called in epoch order, after the manifest; may be called again after a crash."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop what these staged; no manifest names them."""
