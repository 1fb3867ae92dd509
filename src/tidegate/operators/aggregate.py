"""Windowed aggregates per key: what they are, and the receiver's half for windows with fixed bounds, which keeps
partials by pane and emits results when windows close. Other windows bring a receiver of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.operators.closing import WindowedOperator
from tidegate.operators.preaggregate import PreAggregate, aggregated_columns, partials_of, pre_aggregated
from tidegate.operators.wide import WideOutput, split_late
from tidegate.operators.window import MakePartials, Window
from tidegate.plan.operator import Description, Operator, OperatorContext, OperatorSpec, Port
from tidegate.plan.schemas import keyed_shape
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import (
    WINDOW,
    Layout,
    counted_partials,
    fitted,
    merge_partials,
    partial_schema,
    results,
    rows_column,
)
from tidegate.state.pending import Parts
from tidegate.state.run import PIECE_ROWS
from tidegate.state.runs import pieces
from tidegate.state.windows import Windows
from tidegate.values import Json


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WindowAggregate(OperatorSpec):
    """One row per key and window, emitted when the window closes. Its input is a ``PreAggregate`` once it is planned.

    With ``late``, which only the planner sets, its input are raw rows, and late ones come out too: flag, results, late rows'
    columns.
    """

    description = Description(
        "aggregate", "Aggregate", keyed=True, stateful=True, chained=False, picks_columns=True, waits_for_time=True
    )

    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[AggregateColumn, ...]
    late: bool = False

    @property
    def picks_columns(self) -> bool:
        """Late rows are emitted as they came."""
        return not self.late

    def meaning(self) -> Json:
        """Keys, windows and functions."""
        columns: list[Json] = [[each.name, each.function.name, each.column] for each in self.aggregates]
        return [list(self.keys), self.window.meaning(), columns]

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """Keys, event time and what is aggregated."""
        if self.late:
            return frozenset(self.input.names)
        return aggregated_columns(self.keys, self.aggregates) | {self.time}

    def split(self) -> OperatorSpec:
        """Late rows can't be distinguished in their partials, so an aggregate that emits those takes all rows."""
        (child,) = self.specs
        if self.late or isinstance(child, PreAggregate):
            return self
        return self.with_inputs((pre_aggregated(child, self.name, self.keys, self.window, self.aggregates),))

    def properties(self) -> dict[str, Json]:
        """Keys, windows and functions."""
        shown: dict[str, Json] = {
            "keys": list(self.keys),
            "window": self.window.text(self.schema.field("window_end").type),
            "aggregates": [each.text() for each in self.aggregates],
        }
        return shown | {"late_rows": True} if self.late else shown

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        """Partials by key and window. With late rows, in-flight data on the way here are raw rows."""
        shape = keyed_shape("aggregate", self.keys, self.schema, key_groups)
        shape |= {"window": self.window.shape(), "time": str(self.schema.field("window_end").type)}
        shape |= {"aggregates": [f"{each.text()} {self.schema.field(each.name).type}" for each in self.aggregates]}
        return shape | {"late_rows": True} if self.late else shape

    def build(self, context: OperatorContext) -> Operator:
        """What the window keeps and closes."""
        return self.window.aggregate(self, context)

    # -- with late rows the receiver does the sender's half too

    def partial_schema(self) -> pa.Schema:
        """The columns of its rows' partials."""
        return partial_schema(self.keys, self.aggregates, self.input, self.window.time_columns)

    def make_partials(self) -> MakePartials:
        """What the sender would do, done by the receiver."""
        return partials_of(self.keys, self.aggregates, self.window, self.time, self.partial_schema())

    def over_partials(self) -> WindowAggregate:
        """The same aggregate over partials."""
        return replace(self, inputs=(Port(self.partial_schema(), self.time),), late=False)

    def checked_layout(self) -> Layout:
        """The columns of its input, which must be partials."""
        layout = Layout(self.keys, self.aggregates, self.window.time_columns)
        if self.input.names != layout.names:
            raise InvalidUseError(f"partials have other columns expected={layout.names} operator={self.name}")
        return layout


class FixedAggregateOperator(WindowedOperator):
    """Windowed aggregates per key.

    Windows are emitted once, earliest first; rows within one are in no order.
    """

    def __init__(self, spec: WindowAggregate, windows: Windows, context: OperatorContext) -> None:
        layout = spec.checked_layout()
        counted = rows_column(spec.aggregates)
        super().__init__(
            windows,
            spec.keys,
            spec.schema,
            context,
            {"panes": spec.input},
            lambda batches: [merge_partials(batches, layout)],
            lambda batch: pc.sum(batch.column(counted)).as_py() or 0,
        )
        self._spec = spec
        self._output = spec.schema
        self._layout = layout
        (self._panes,) = self._inputs

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the partials. Emits nothing."""
        self._panes.insert(batch)
        return ()

    def _emit(self, step: Parts) -> Iterator[pa.RecordBatch]:
        (partials,) = step
        if partials:
            yield from pieces(self._finish(counted_partials(partials, self._layout)), PIECE_ROWS)

    def _finish(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        starts = partials.column(WINDOW)
        ends = pc.add(starts, self.windows.size)
        keys = [partials.column(key) for key in self._spec.keys]
        return fitted([*keys, starts, ends, *results(partials, self._spec.aggregates)], self._output)


class FixedAggregateWithLate(FixedAggregateOperator):
    """Windowed aggregates that take raw rows and emit late ones as they came, in the wide schema."""

    def __init__(self, spec: WindowAggregate, windows: Windows, context: OperatorContext) -> None:
        self._wide = WideOutput(spec.schema, spec.input)
        self._make = spec.make_partials()
        super().__init__(spec.over_partials(), windows, context)
        self._output = self._wide.results

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the rows' partials. Emits the late rows."""
        closes = self.windows.last_closing(batch.column(self._spec.time))
        in_time, late = split_late(batch, closes, self.closed, self._spec.keys, self._groups)
        if in_time.num_rows:
            self._panes.insert(self._make(pa.Table.from_batches([in_time])))
        self.closed.late_rows += late.num_rows
        return (self._wide.of_late(late),) if late.num_rows else ()

    def _finish(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        return self._wide.of_results(super()._finish(partials))
