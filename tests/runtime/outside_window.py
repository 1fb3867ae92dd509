"""A window that tidegate does not have: tumbling windows that begin at an offset, such as weeks from Monday on."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate import FixedAggregateOperator, WindowAggregate
from tidegate.operators.window import MakePartials, Window
from tidegate.plan.operator import Operator, OperatorContext
from tidegate.plan.units import duration_text, in_unit
from tidegate.state.grouping import RowGrouping
from tidegate.state.partial import WINDOW, Layout
from tidegate.state.windows import Windows
from tidegate.values import Json


@dataclass(frozen=True)
class ShiftedTumbling:
    """As a user writes it."""

    size_ms: int
    offset_ms: int

    def over(self, where: str, event_time: pa.DataType) -> Window:
        return Shifted(in_unit(where, self.size_ms, event_time), in_unit(where, self.offset_ms, event_time))


@dataclass(frozen=True)
class Shifted(Window):
    """Windows of ``size`` that start at ``offset`` and every multiple of ``size`` from there."""

    time_columns = (WINDOW,)

    size: int
    offset: int
    allowed_lateness: int = 0

    def partials(self, layout: Layout, event_time: str, output: pa.Schema) -> MakePartials:
        group = RowGrouping(layout, event_time, output, Windows.of(self.size, self.size)).partials

        def moved(table: pa.Table) -> pa.RecordBatch:
            index = table.schema.get_field_index(event_time)
            partials = group(table.set_column(index, event_time, pc.subtract(table.column(index), self.offset)))
            return partials.set_column(0, output.field(0), pc.add(partials.column(0), self.offset))

        return moved

    def aggregate(self, spec: WindowAggregate, context: OperatorContext) -> Operator:
        return FixedAggregateOperator(spec, _ShiftedWindows(self.size, self.size, 0, self.size), context)

    def shape(self) -> dict[str, Json]:
        return {"kind": "shifted", "size": self.size, "slide": self.size, "offset": self.offset}

    def text(self, event_time: pa.DataType) -> str:
        return f"shifted({duration_text(self.size, event_time)}, offset={duration_text(self.offset, event_time)})"


class _ShiftedWindows(Windows):
    """Its panes are its windows, wherever they start."""

    def starts(self, pane: int) -> range:
        return range(pane, pane + 1)

    def closing(self, after: int, through: int) -> range:
        return range(after - self.size + 1, through - self.size + 1)
