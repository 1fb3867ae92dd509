"""Rows become partial aggregates: one per key, and per pane where windows have fixed bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.state.dense import Call
from tidegate.state.functions import Part
from tidegate.state.keygroups import canonical
from tidegate.state.order import one_nan
from tidegate.state.partial import WINDOW, Layout, fitted, grouped, ranked, summable, taken, work_type
from tidegate.state.plain import plain
from tidegate.state.windows import Windows


@dataclass(slots=True)
class _Inputs:
    """The columns to group, each once, and one call per part.

    ``chosen`` has, for a part that goes by time, the order of the rows and the columns to take from.
    """

    columns: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    chosen: dict[int, tuple[pa.Array, pa.ChunkedArray, pa.ChunkedArray]] = field(default_factory=dict)


class RowGrouping:
    """Rows by key, and by pane if there are windows."""

    def __init__(self, layout: Layout, event_time: str | None, output: pa.Schema, windows: Windows | None = None) -> None:
        self._keys = layout.keys
        self._event_time = event_time
        self._output = output
        self._windows = windows
        self._parts = layout.parts
        self._distinct = tuple(layout.distinct.values())

    def partials(self, table: pa.Table) -> pa.RecordBatch:
        """The partials of these rows."""
        inputs = self._inputs(table)
        by = list(inputs.columns)[: len(self._keys) + len(self._distinct)]
        if self._windows is None:
            found = grouped(pa.table(inputs.columns), by, inputs.calls)
            return fitted(_values(found, len(by), inputs), self._output)
        times = table.column(self._event_time).combine_chunks()
        pane = self._windows.one_pane(times)
        if pane is None or not by:
            inputs.columns[WINDOW] = self._windows.panes(times)
            found = grouped(pa.table(inputs.columns), [WINDOW, *by], inputs.calls)
        else:
            found = grouped(pa.table(inputs.columns), by, inputs.calls)
            found.insert(0, pa.array(np.full(len(found[0]), pane, np.int64)))
        return fitted(_values(found, 1 + len(by), inputs), self._output)

    def _inputs(self, table: pa.Table) -> _Inputs:
        inputs = _Inputs()
        for index, name in enumerate((*self._keys, *self._distinct)):
            inputs.columns[f"k{index}"] = canonical(_as(table.column(name), plain(table.schema.field(name).type)))
        for index, part in enumerate(self._parts):
            if part.column is None:
                inputs.calls.append(([], part.function))
            elif part.by_time:
                self._choose(inputs, table, index, part)
            else:
                _add(inputs, table, part)
        return inputs

    def _choose(self, inputs: _Inputs, table: pa.Table, index: int, part: Part) -> None:
        values = one_nan(_as(table.column(part.column), plain(table.schema.field(part.column).type)))
        times = _as(table.column(self._event_time), pa.int64())
        order, inputs.columns[f"rank {index}"] = ranked(values, times)
        inputs.calls.append((f"rank {index}", "min" if part.function == "first" else "max"))
        inputs.chosen[index] = (order, values, times)


def _add(inputs: _Inputs, table: pa.Table, part: Part) -> None:
    kind = work_type(part, table.schema.field(part.column).type)
    name = f"{'sum' if part.may_overflow else 'raw'} {kind} {part.column}"
    if name not in inputs.columns:
        column = _as(table.column(part.column), kind)
        inputs.columns[name] = summable(column) if part.may_overflow else column
    inputs.calls.append((name, part.function))


def _values(found: list[pa.Array], head: int, inputs: _Inputs) -> list[pa.Array]:
    """The groups' columns as partials have them: a rank in an order becomes the value and time there."""
    values = found[:head]
    for index, column in enumerate(found[head:]):
        if index in inputs.chosen:
            order, *sources = inputs.chosen[index]
            rows = order.take(column)
            values += [taken(source, rows) for source in sources]
        else:
            values.append(column)
    return values


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in this type. Large integers may lose their last digits on the way to floats."""
    return column if column.type == kind else column.cast(kind, safe=False)
