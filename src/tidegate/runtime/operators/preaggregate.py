"""The sender's half of an aggregate: rows become partial results per key, and per pane or session where there
are windows, before they are sent.

Rows are gathered until there are enough to make grouping worth its fixed cost, and leave with the next
watermark, barrier or end at the latest. So nothing of it is ever state, and no partial comes behind a
watermark that its rows were ahead of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.plan.physical import PreAggregateSpec
from tidegate.runtime.operators.expression import Stateless
from tidegate.runtime.operators.window import Windows
from tidegate.state.dense import Call
from tidegate.state.keygroups import canonical
from tidegate.state.order import one_nan
from tidegate.state.partial import (
    END,
    WINDOW,
    Layout,
    Part,
    fitted,
    grouped,
    ranked,
    summable,
    taken,
    work_type,
)
from tidegate.state.plain import plain
from tidegate.state.sessions import sessions_of_rows

BUFFER_ROWS = 131_072

MakePartials: TypeAlias = Callable[[pa.Table], pa.RecordBatch]


class PreAggregate(Stateless):
    """Partial aggregates of the rows since the last flush."""

    def __init__(self, spec: PreAggregateSpec) -> None:
        self._partials = partials_of(spec)
        self._buffer: list[pa.RecordBatch] = []
        self._rows = 0

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


def partials_of(spec: PreAggregateSpec) -> MakePartials:
    """What makes partials of rows."""
    layout = Layout(spec.keys, spec.aggregates, lead_of(spec))
    if spec.output.names != layout.names:
        raise InvalidUseError(f"partials have other columns expected={layout.names} operator={spec.name}")
    if spec.window is None or spec.window.kind != "session":
        return _Grouping(spec, layout).partials
    time, gap, output = spec.event_time, spec.window.size, spec.output
    assert time is not None
    return lambda table: sessions_of_rows(table, layout, time, gap, output)


def lead_of(spec: PreAggregateSpec) -> tuple[str, ...]:
    """The columns that say where in time a partial is."""
    if spec.window is None:
        return ()
    return (WINDOW, END) if spec.window.kind == "session" else (WINDOW,)


@dataclass(slots=True)
class _Inputs:
    """The columns to group, each once, and one call per part.

    ``chosen`` has, for a part that goes by time, the order of the rows and the columns to take from.
    """

    columns: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    chosen: dict[int, tuple[pa.Array, pa.ChunkedArray, pa.ChunkedArray]] = field(default_factory=dict)


class _Grouping:
    """Rows by key, and by pane if there are windows."""

    def __init__(self, spec: PreAggregateSpec, layout: Layout) -> None:
        self._spec = spec
        self._windows = None if spec.window is None else Windows.of(spec.window)
        self._parts = layout.parts
        self._distinct = tuple(layout.distinct.values())

    def partials(self, table: pa.Table) -> pa.RecordBatch:
        inputs = self._inputs(table)
        by = list(inputs.columns)[: len(self._spec.keys) + len(self._distinct)]
        if self._windows is None:
            found = grouped(pa.table(inputs.columns), by, inputs.calls)
            return fitted(_values(found, len(by), inputs), self._spec.output)
        times = table.column(self._spec.event_time).combine_chunks()
        pane = self._windows.one_pane(times)
        if pane is None or not by:
            inputs.columns[WINDOW] = self._windows.panes(times)
            found = grouped(pa.table(inputs.columns), [WINDOW, *by], inputs.calls)
        else:
            found = grouped(pa.table(inputs.columns), by, inputs.calls)
            found.insert(0, pa.array(np.full(len(found[0]), pane, np.int64)))
        return fitted(_values(found, 1 + len(by), inputs), self._spec.output)

    def _inputs(self, table: pa.Table) -> _Inputs:
        inputs = _Inputs()
        for place, name in enumerate((*self._spec.keys, *self._distinct)):
            inputs.columns[f"k{place}"] = canonical(_as(table.column(name), plain(table.schema.field(name).type)))
        for place, part in enumerate(self._parts):
            if part.column is None:
                inputs.calls.append(([], part.function))
            elif part.by_time:
                self._choose(inputs, table, place, part)
            else:
                _add(inputs, table, part)
        return inputs

    def _choose(self, inputs: _Inputs, table: pa.Table, place: int, part: Part) -> None:
        values = one_nan(_as(table.column(part.column), plain(table.schema.field(part.column).type)))
        times = _as(table.column(self._spec.event_time), pa.int64())
        order, inputs.columns[f"rank {place}"] = ranked(values, times)
        inputs.calls.append((f"rank {place}", "min" if part.function == "first" else "max"))
        inputs.chosen[place] = (order, values, times)


def _add(inputs: _Inputs, table: pa.Table, part: Part) -> None:
    kind = work_type(part, table.schema.field(part.column).type)
    name = f"{'sum' if part.may_overflow else 'raw'} {kind} {part.column}"
    if name not in inputs.columns:
        column = _as(table.column(part.column), kind)
        inputs.columns[name] = summable(column) if part.may_overflow else column
    inputs.calls.append((name, part.function))


def _values(found: list[pa.Array], head: int, inputs: _Inputs) -> list[pa.Array]:
    """The groups' columns as partials have them: a place in an order becomes the value and time there."""
    values = found[:head]
    for place, column in enumerate(found[head:]):
        if place in inputs.chosen:
            order, *sources = inputs.chosen[place]
            rows = order.take(column)
            values += [taken(source, rows) for source in sources]
        else:
            values.append(column)
    return values


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in this type. Large integers may lose their last digits on the way to floats."""
    return column if column.type == kind else column.cast(kind, safe=False)
