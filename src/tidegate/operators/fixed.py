"""Tumbling and sliding windows: their bounds are the same for every key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.operators.aggregate import FixedAggregateOperator, FixedAggregateWithLate, WindowAggregate
from tidegate.operators.window import MakePartials, Window
from tidegate.plan.operator import Operator, OperatorContext
from tidegate.plan.units import duration_text
from tidegate.state.grouping import RowGrouping
from tidegate.state.partial import WINDOW, Layout
from tidegate.state.windows import Windows
from tidegate.values import Json


@dataclass(frozen=True, slots=True)
class FixedWindow(Window):
    """Windows of ``size`` every ``slide`` (equal for tumbling), in the event-time column's unit."""

    time_columns = (WINDOW,)

    kind: Literal["tumbling", "sliding"]
    size: int
    slide: int
    allowed_lateness: int = 0

    def __post_init__(self) -> None:
        if self.kind == "tumbling" and self.size != self.slide:
            raise InvalidUseError(f"a tumbling window slides by its size size={self.size} slide={self.slide}")
        self.windows  # noqa: B018  # refuses sizes that are none

    @property
    def windows(self) -> Windows:
        """Its arithmetic."""
        return Windows.of(self.size, self.slide, self.allowed_lateness)

    def fixed(self, where: str) -> Windows:
        """Bounds are the same for every key."""
        return self.windows

    def partials(self, layout: Layout, event_time: str, output: pa.Schema) -> MakePartials:
        """One partial per key and pane."""
        return RowGrouping(layout, event_time, output, self.windows).partials

    def aggregate(self, spec: WindowAggregate, context: OperatorContext) -> Operator:
        """Partials by pane."""
        return (FixedAggregateWithLate if spec.late else FixedAggregateOperator)(spec, self.windows, context)

    def shape(self) -> dict[str, Json]:
        """Lateness counts: with more of it than before, late rows would open windows that were emitted already."""
        shape: dict[str, Json] = {"kind": self.kind, "size": self.size, "slide": self.slide}
        return shape | {"allowed_lateness": self.allowed_lateness} if self.allowed_lateness else shape

    def text(self, event_time: pa.DataType) -> str:
        """Such as tumbling(10s)."""
        shown = duration_text(self.size, event_time)
        if self.kind == "sliding":
            shown += f", slide={duration_text(self.slide, event_time)}"
        if self.allowed_lateness:
            shown += f", allowed_lateness={duration_text(self.allowed_lateness, event_time)}"
        return f"{self.kind}({shown})"
