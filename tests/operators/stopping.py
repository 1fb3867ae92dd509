"""Windowed operators of every kind that are stopped while they emit, and restored from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from keyed import END_OF_TIME, through_ipc, windowed_gang
from windowed import JoinGang, join_spec, sorted_rows

from tidegate.operators.fixed import FixedWindow
from tidegate.operators.session import SessionWindow
from tidegate.plan.schemas import LATE
from tidegate.state.functions import AggregateColumn
from tidegate.state.keygroups import partition
from tidegate.state.run import Frozen, Restored

BEGINNING_OF_TIME = -(1 << 63)
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
AGGREGATES = (
    AggregateColumn.of("n", "count"),
    AggregateColumn.of("total", "sum", "value"),
    AggregateColumn.of("kinds", "count_distinct", "value"),
)
WINDOWS = {
    "tumbling": FixedWindow("tumbling", 100, 100),
    "tumbling lateness": FixedWindow("tumbling", 100, 100, 30),
    "sliding": FixedWindow("sliding", 100, 50),
    "session": SessionWindow(20),
    "session lateness": SessionWindow(20, 30),
    "join": FixedWindow("tumbling", 100, 100),
    "sliding join": FixedWindow("sliding", 100, 50),
}
KINDS = [*WINDOWS, "tumbling late", "session late"]


@dataclass
class Gang:
    """The receivers of one operator at one parallelism, and all that they have emitted."""

    kind: str
    parallelism: int
    emitted: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        late = self.kind.endswith(" late")
        window = WINDOWS[self.kind.removesuffix(" late")]
        self.joins = "join" in self.kind
        self.sender: Any = None
        if self.joins:
            spec = join_spec(SCHEMA, SCHEMA, ("key",), window)
            self.receivers: list[Any] = JoinGang(spec, self.parallelism).receivers
            self.output = spec.schema
        else:
            gang = windowed_gang(SCHEMA, ("key",), window, AGGREGATES, self.parallelism, late=late)
            self.receivers, self.sender, self.output = list(gang.receivers), gang.sender, gang.output

    def feed(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """To one side, or in turns to both."""
        if self.joins:
            self._send(0, [_batch(rows[::2])])
            self._send(1, [_batch(rows[1::2])])
        else:
            batches = [_batch(rows)]
            self._send(
                0,
                batches if self.sender is None else [*self.sender.process(0, batches[0]), *self.sender.watermark(0)],
            )

    def _send(self, port: int, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            for receiver, part in zip(self.receivers, partition(batch, ("key",), self.parallelism), strict=True):
                if part is not None and part.num_rows:
                    self.emitted += receiver.process(port, part)

    def watermark(self, timestamp: int, stop_after: int | None = None, only: int | None = None) -> None:
        """Every receiver, or only ``count``, closes windows; each is asked to stop after ``stop`` pieces."""
        for receiver in self.receivers[:only]:
            receiver.stopping = stop_after == 0
            for count, piece in enumerate(receiver.watermark(timestamp), 1):
                self.emitted.append(piece)
                receiver.stopping = receiver.stopping or count == stop_after
            assert receiver.stopping or not receiver.has_pending
            receiver.stopping = False

    def resume(self, stop_after: int | None = None) -> None:
        """What a task does first after a restore."""
        self.watermark(BEGINNING_OF_TIME, stop_after)

    @property
    def has_pending(self) -> bool:
        return any(receiver.has_pending for receiver in self.receivers)

    def freeze(self) -> list[Frozen]:
        return [through_ipc(receiver.freeze()) for receiver in self.receivers]

    def restored(self, parallelism: int) -> Gang:
        """A gang that goes on from here. It has what this one has emitted."""
        other = Gang(self.kind, parallelism, self.emitted)
        pieces = [Restored(subtask, frozen.meta, frozen.runs) for subtask, frozen in enumerate(self.freeze())]
        for receiver in other.receivers:
            receiver.restore(pieces)
        return other

    @property
    def late_rows(self) -> int:
        return sum(receiver.late_rows for receiver in self.receivers)

    def finish(self) -> pa.Table:
        self.watermark(END_OF_TIME)
        return self.results

    @property
    def results(self) -> pa.Table:
        table = pa.Table.from_batches(self.emitted, self.output)
        return table.filter(pa.compute.invert(table[LATE])) if LATE in table.column_names else table

    @property
    def rows(self) -> list[tuple[object, ...]]:
        return sorted_rows(self.results)


def _batch(rows: Sequence[tuple[int, int, int]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)
