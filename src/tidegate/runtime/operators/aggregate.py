"""The receiver's half of a windowed aggregate: keeps partials by pane and gives results when windows close.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.plan.physical import AggregateSpec, PreAggregateSpec
from tidegate.runtime.operator import PIECE_ROWS
from tidegate.runtime.operators.closing import WindowedOperator
from tidegate.runtime.operators.late import WideOutput, split_late
from tidegate.runtime.operators.owed import Parts
from tidegate.runtime.operators.panes import Panes
from tidegate.runtime.operators.preaggregate import partials_of
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
from tidegate.state.runs import pieces


class WindowAggregate(WindowedOperator):
    """Windowed aggregates per key.

    Windows are given once, earliest first; rows within one are in no order.
    """

    def __init__(self, spec: AggregateSpec, own: range, groups: int) -> None:
        super().__init__(spec.window, spec.keys, spec.output, own, groups)
        self._spec = spec
        self._output = spec.output
        self._layout = Layout(spec.keys, spec.aggregates)
        if spec.input.names != self._layout.names:
            raise InvalidUseError(
                f"partials have other columns expected={self._layout.names} operator={spec.name}"
            )
        counted = rows_column(spec.aggregates)
        self._panes = Panes(
            self.windows,
            self.closed,
            spec.keys,
            groups,
            spec.input,
            lambda batches: [merge_partials(batches, self._layout)],
            lambda batch: pc.sum(batch.column(counted)).as_py() or 0,
        )
        self._inputs = (self._panes,)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the partials. Gives nothing."""
        self._panes.insert(batch)
        return ()

    def _give(self, step: Parts) -> Iterator[pa.RecordBatch]:
        (partials,) = step
        if partials:
            yield from pieces(self._finish(counted_partials(partials, self._layout)), PIECE_ROWS)

    def _finish(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        starts = partials.column(WINDOW)
        ends = pc.add(starts, self.windows.size)
        keys = [partials.column(key) for key in self._spec.keys]
        return fitted([*keys, starts, ends, *results(partials, self._spec.aggregates)], self._output)


class WindowAggregateWithLate(WindowAggregate):
    """Windowed aggregates that take raw rows and give late ones back, in the wide schema."""

    def __init__(self, spec: AggregateSpec, own: range, groups: int) -> None:
        self._wide = WideOutput(spec.output, spec.input)
        self._make = partials_of(raw_half(spec))
        super().__init__(partial_half(spec), own, groups)
        self._output = self._wide.results

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the rows' partials. Gives the late rows."""
        closes = self.windows.last_closing(batch.column(self._spec.event_time))
        in_time, late = split_late(batch, closes, self.closed, self._spec.keys, self._groups)
        if in_time.num_rows:
            self._panes.insert(self._make(pa.Table.from_batches([in_time])))
        self._late_rows += late.num_rows
        return (self._wide.of_late(late),) if late.num_rows else ()

    def _finish(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        return self._wide.of_results(super()._finish(partials))


def raw_half(spec: AggregateSpec, lead: tuple[str, ...] = (WINDOW,)) -> PreAggregateSpec:
    """What the sender would do, done by the receiver."""
    output = partial_schema(spec.keys, spec.aggregates, spec.input, lead)
    return PreAggregateSpec(
        spec.name, spec.keys, spec.window, spec.aggregates, spec.event_time, spec.input, output
    )


def partial_half(spec: AggregateSpec, lead: tuple[str, ...] = (WINDOW,)) -> AggregateSpec:
    """The same aggregate over partials."""
    partials = raw_half(spec, lead).output
    return AggregateSpec(
        spec.name, spec.keys, spec.window, spec.aggregates, spec.event_time, partials, spec.output
    )
