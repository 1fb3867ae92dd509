"""What a source and a sink must do: the contracts between connectors and everything that runs them.

A source is a list of splits, each read in order from an offset. A sink stages rows on the nodes and makes them visible on
the driver, after the checkpoint's manifest is in the log. Both cross Spark inside the plan, so they must pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from tidegate.core.checkpoint.budget import PublishBudget
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
    """A replayable source: the same split read from the same offset returns the same rows."""

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


@runtime_checkable
class ChecksSchema(Protocol):
    """A sink that can't take every column. A stream asks it when the sink is added, before anything starts."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``InvalidUseError`` with the column, its type and what to cast it to, if these can't be written."""


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

    To restore an older epoch it also needs ``hide(committables)``, which takes them out of sight for good; to do so past a
    damaged log entry, ``hide_unnamed(gang, checkpoint_id, keep)``: all that lower gangs staged after that checkpoint, but not
    what was there when ``adopt()`` was called: another job's rows, to which this one adds. A gang above all others means: of
    whatever gang.

    A sink that others may write to as well has ``check_claim(claim)``, ``claim(claim)``, ``holder()`` and ``newest_id()``, see
    ``core.log.owner``; what ``claim`` returns is asked before every publish.
    """

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask. Called on a node."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Make exactly these visible. Called in epoch order, after the manifest; may be called again after a crash."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop what these staged; no manifest names them."""


class Gathered(Protocol):
    """Committables that are ready to be shown. Not shown, because of a crash: a later ``gather`` finds them again."""

    def show(self) -> None:
        """Make them visible, quickly: other sinks wait to show theirs."""

    def release(self) -> None:
        """After ``show``: make that durable and let go of what they were made of."""


@runtime_checkable
class GatheringSink(Sink, Protocol):
    """A sink that takes the committables of several epochs at once, so that fewer and bigger files come of them."""

    @property
    def publish_budget(self) -> PublishBudget | None:
        """How often it is asked to; ``None``: at every epoch."""

    def gather(self, committables: Sequence[Committable]) -> Gathered:
        """Make these ready, in this order, invisibly. Called after the manifest; may be called again after a crash."""
