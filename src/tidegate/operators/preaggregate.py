"""The sender's half of an aggregate: rows become partial results per key, and per pane or session where there
are windows, before they are sent.

Rows are gathered until there are enough to make grouping worth its fixed cost, and leave with the next
watermark, barrier or end at the latest. So nothing of it is ever state, and no partial comes after a
watermark that its rows came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.operators.window import MakePartials, Window
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Stateless
from tidegate.state.functions import AggregateColumn
from tidegate.state.grouping import RowGrouping
from tidegate.state.partial import Layout, partial_schema
from tidegate.values import Json

BUFFER_ROWS = 131_072


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PreAggregate(OperatorSpec):
    """Partial results per key, and window if any. Holds no state across a barrier. Only the planner makes it."""

    description = Description("partial", "PreAggregate", picks_columns=True)

    keys: tuple[str, ...]
    window: Window | None
    aggregates: tuple[AggregateColumn, ...]

    def properties(self) -> dict[str, Json]:
        """Keys, and windows if there are any."""
        shown: dict[str, Json] = {"keys": list(self.keys)}
        return shown if self.window is None else shown | {"window": self.window.text(self.input.field(self.time).type)}

    def build(self, context: OperatorContext) -> PreAggregateOperator:
        """Buffers rows and groups them."""
        return PreAggregateOperator(self)


def pre_aggregated(
    child: OperatorSpec, name: str, keys: tuple[str, ...], window: Window | None, aggregates: tuple[AggregateColumn, ...]
) -> PreAggregate:
    """What the senders of an aggregate do first."""
    time_columns = () if window is None else window.time_columns
    return PreAggregate(
        schema=partial_schema(keys, aggregates, child.schema, time_columns),
        event_time=child.event_time,
        inputs=(child,),
        name=f"{name}.partial",
        keys=keys,
        window=window,
        aggregates=aggregates,
    )


def aggregated_columns(keys: Sequence[str], aggregates: Sequence[AggregateColumn]) -> frozenset[str]:
    """The columns of rows that these aggregates are computed from, event time aside."""
    return frozenset({*keys, *(each.column for each in aggregates if each.column is not None)})


def partials_of(
    keys: tuple[str, ...], aggregates: tuple[AggregateColumn, ...], window: Window | None, time: str | None, output: pa.Schema
) -> MakePartials:
    """What makes partials of rows."""
    layout = Layout(keys, aggregates, () if window is None else window.time_columns)
    if output.names != layout.names:
        raise InvalidUseError(f"partials have other columns expected={layout.names} columns={output.names}")
    if window is None:
        return RowGrouping(layout, time, output).partials
    assert time is not None
    return window.partials(layout, time, output)


class PreAggregateOperator(Stateless):
    """Partial aggregates of the rows since the last flush."""

    def __init__(self, spec: PreAggregate) -> None:
        self._partials = partials_of(spec.keys, spec.aggregates, spec.window, spec.inputs[0].event_time, spec.schema)
        self._buffer: list[pa.RecordBatch] = []
        self._rows = 0

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take the rows; emit partials once there are enough of them."""
        if batch.num_rows:
            self._buffer.append(batch)
            self._rows += batch.num_rows
        return self._flush() if self._rows >= BUFFER_ROWS else ()

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Emit everything: the watermark must not pass rows."""
        return self._flush()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Emit everything: it belongs before the barrier."""
        return self._flush()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Emit everything."""
        return self._flush()

    def _flush(self) -> tuple[pa.RecordBatch, ...]:
        if not self._rows:
            return ()
        batches, self._buffer, self._rows = self._buffer, [], 0
        return (self._partials(pa.Table.from_batches(batches)),)
