"""The sender's half of a windowed aggregate: rows become partial results per pane and key before they are
sent.

Rows are gathered until there are enough to make grouping worth its fixed cost, and leave with the next
watermark, barrier or end at the latest. So nothing of it is ever state, and no partial comes behind a
watermark that its rows were ahead of.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.plan.physical import PreAggregateSpec
from tidegate.runtime.operators.expression import Stateless
from tidegate.runtime.operators.window import Windows
from tidegate.state.keygroups import canonical
from tidegate.state.partial import WINDOW, Call, Part, fitted, grouped, parts_of, plain, summable, work_type

BUFFER_ROWS = 131_072


class PreAggregate(Stateless):
    """Partial aggregates of the rows since the last flush."""

    def __init__(self, spec: PreAggregateSpec) -> None:
        self._spec = spec
        self._windows = Windows.of(spec.window)
        self._parts = parts_of(spec.aggregates)
        self._buffer: list[pa.RecordBatch] = []
        self._rows = 0
        expected = [WINDOW, *spec.keys, *(part.name for part in self._parts)]
        if spec.output.names != expected:
            raise InvalidUseError(f"partials have other columns expected={expected} operator={spec.name}")

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take the rows; give partials once there are enough of them."""
        if batch.num_rows:
            self._buffer.append(batch)
            self._rows += batch.num_rows
        return self._flush() if self._rows >= BUFFER_ROWS else ()

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Give everything: the watermark must not pass rows."""
        return self._flush()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Give everything: it belongs ahead of the barrier."""
        return self._flush()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Give everything."""
        return self._flush()

    def _flush(self) -> tuple[pa.RecordBatch, ...]:
        if not self._rows:
            return ()
        batches, self._buffer, self._rows = self._buffer, [], 0
        return (self._partials(pa.Table.from_batches(batches)),)

    def _partials(self, table: pa.Table) -> pa.RecordBatch:
        spec = self._spec
        times = table.column(spec.event_time).combine_chunks()
        pane = self._windows.one_pane(times)
        columns, calls = self._inputs(table)
        keys = list(columns)[: len(spec.keys)]
        if pane is None or not keys:
            columns[WINDOW] = self._windows.panes(times)
            found = grouped(pa.table(columns), [WINDOW, *keys], calls)
        else:
            found = grouped(pa.table(columns), keys, calls)
            found.insert(0, pa.array(np.full(len(found[0]), pane, np.int64)))
        return fitted(found, spec.output)

    def _inputs(self, table: pa.Table) -> tuple[dict[str, pa.ChunkedArray], list[Call]]:
        """The columns to group, keys first, each once; and one call per part."""
        columns: dict[str, pa.ChunkedArray] = {}
        for place, key in enumerate(self._spec.keys):
            columns[f"k{place}"] = canonical(_as(table.column(key), plain(table.schema.field(key).type)))
        calls: list[Call] = []
        for part in self._parts:
            if part.column is None:
                calls.append(([], part.function))
                continue
            kind = work_type(part, table.schema.field(part.column).type)
            name = f"{'sum' if part.may_overflow else 'raw'} {kind} {part.column}"
            if name not in columns:
                columns[name] = _input(table, part, kind)
            calls.append((name, part.function))
        return columns, calls


def _input(table: pa.Table, part: Part, kind: pa.DataType) -> pa.ChunkedArray:
    column = _as(table.column(part.column), kind)
    return summable(column) if part.may_overflow else column


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in this type. Large integers may lose their last digits on the way to floats."""
    return column if column.type == kind else column.cast(kind, safe=False)
