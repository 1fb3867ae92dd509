"""Running aggregates: one row of partials per key, for as long as the job runs.

With checkpoints, keys that changed are emitted once per epoch, before its barrier; without, with every batch.
What is emitted is the key's newest result, which replaces those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.preaggregate import PreAggregate, aggregated_columns, pre_aggregated
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Stateful
from tidegate.plan.schemas import keyed_shape
from tidegate.state.combine import combined
from tidegate.state.dense import Call
from tidegate.state.functions import AggregateColumn
from tidegate.state.index import Slots
from tidegate.state.interface import TableState
from tidegate.state.partial import Layout, fitted, grouped, merged_columns, results
from tidegate.state.run import PIECE_ROWS
from tidegate.values import Json

_ROW = "__row"
_NEW = "__new "
"""No key and no part of an aggregate begins with these underscores, so nothing can clash."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunningAggregate(OperatorSpec):
    """One row per key over all rows so far, emitted again whenever it has changed. Its input is a ``PreAggregate`` once it is
    planned."""

    description = Description("running", "RunningAggregate", keyed=True, stateful=True, chained=False, picks_columns=True)

    keys: tuple[str, ...]
    aggregates: tuple[AggregateColumn, ...]

    def meaning(self) -> Json:
        """Keys and functions."""
        results: list[Json] = [[each.name, each.function.name, each.column] for each in self.aggregates]
        return [list(self.keys), results]

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """Keys, what is aggregated, and event time where a function goes by it."""
        used = aggregated_columns(self.keys, self.aggregates)
        return used | {self.time} if any(each.function.by_time for each in self.aggregates) else used

    def split(self) -> OperatorSpec:
        """One row per key crosses the exchange instead of many."""
        (child,) = self.specs
        if isinstance(child, PreAggregate):
            return self
        return self.with_inputs((pre_aggregated(child, self.name, self.keys, None, self.aggregates),))

    def properties(self) -> dict[str, Json]:
        """Keys and functions."""
        return {"keys": list(self.keys), "aggregates": [each.text() for each in self.aggregates]}

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        """Partials by key."""
        columns: list[Json] = [f"{each.text()} {self.schema.field(each.name).type}" for each in self.aggregates]
        shape = keyed_shape("running aggregate", self.keys, self.schema, key_groups)
        return shape | {"aggregates": columns}

    def build(self, context: OperatorContext) -> RunningAggregateOperator:
        """A table of partials."""
        return RunningAggregateOperator(self, context)


class RunningAggregateOperator(Stateful):
    """Takes partials, keeps one row per key, emits the results of keys that changed."""

    def __init__(self, spec: RunningAggregate, context: OperatorContext) -> None:
        self._spec = spec
        self._layout = Layout(spec.keys, spec.aggregates, ())
        self._every_batch = not context.checkpointing
        self.state = state = context.state(spec.keys)
        self._table = state.table("keys", _state_schema(spec.input, self._layout), spec.keys)
        self._seen = {
            name: state.table(f"seen {name}", _seen_schema(spec.input, spec.keys, name), (*spec.keys, name))
            for name in self._layout.distinct
        }
        self._changed: list[Slots] = []
        self._is_changed = np.zeros(1024, np.bool_)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Add partials to what their keys have."""
        if not batch.num_rows:
            return ()
        new = self._per_key(batch)
        slots = self._table.find(new)
        merged = combined(self._table.take(slots), new, self._layout.parts, tuple(self._layout.distinct))
        self._table.put(slots, merged)
        if self._every_batch:
            return self._results(merged)
        self._mark(slots)
        return ()

    def before_barrier(self) -> Iterator[pa.RecordBatch]:
        """Emit the keys that changed since the last barrier."""
        return self._emit_changed()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Emit the keys that changed since the last barrier."""
        return self._emit_changed()

    def _emit_changed(self) -> Iterator[pa.RecordBatch]:
        changed, self._changed = self._changed, []
        for slots in changed:
            self._is_changed[slots] = False
        together = np.concatenate(changed) if changed else np.empty(0, np.int64)
        for start in range(0, len(together), PIECE_ROWS):
            yield from self._results(self._table.take(together[start : start + PIECE_ROWS]))

    def _mark(self, slots: Slots) -> None:
        highest = int(slots.max())
        if highest >= len(self._is_changed):
            grown = np.zeros(2 * highest, np.bool_)
            grown[: len(self._is_changed)] = self._is_changed
            self._is_changed = grown
        fresh = slots[~self._is_changed[slots]]
        if len(fresh):
            self._is_changed[fresh] = True
            self._changed.append(fresh)

    def _results(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = [rows.column(key) for key in self._spec.keys]
        rows_out = fitted([*keys, *results(rows, self._spec.aggregates)], self._spec.schema)
        for start in range(0, rows_out.num_rows, PIECE_ROWS):
            yield rows_out.slice(start, PIECE_ROWS)

    # -- distinct values -------------------------------------------------------------------------------------------

    def _per_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row per key: distinct values become the number of those not seen before."""
        if not self._seen:
            return batch
        table = pa.Table.from_batches([batch])
        for name, seen in self._seen.items():
            table = table.append_column(_NEW + name, self._first_seen(batch, name, seen))
        counts: list[Call] = [(_NEW + name, "sum") for name in self._seen]
        found = merged_columns(table, self._spec.keys, self._layout.parts, counts)
        return fitted(found, self._table.schema)

    def _first_seen(self, batch: pa.RecordBatch, name: str, table: TableState) -> pa.Array:
        """1 for a row with a pair of key and value that was never seen, once per pair; else 0."""
        columns = [*self._spec.keys, name]
        numbered = pa.table([*batch.select(columns).columns, pa.array(np.arange(batch.num_rows))], [*columns, _ROW])
        numbered = numbered.filter(pc.is_valid(numbered.column(name)))
        fresh = np.zeros(batch.num_rows, np.int64)
        if numbered.num_rows:
            *pair, rows = grouped(numbered, columns, [(_ROW, "min")])
            pairs = pa.RecordBatch.from_arrays(pair, schema=table.schema)
            slots = table.find(pairs)
            new = np.flatnonzero(~table.present(slots))
            table.put(slots[new], pairs.take(pa.array(new)))
            fresh[rows.to_numpy()[new]] = 1
        return pa.array(fresh)


def _state_schema(partials: pa.Schema, layout: Layout) -> pa.Schema:
    """The partials' columns, with counts in place of the distinct values."""
    return pa.schema([pa.field(f.name, pa.int64()) if f.name in layout.distinct else f for f in partials])


def _seen_schema(partials: pa.Schema, keys: Sequence[str], name: str) -> pa.Schema:
    return pa.schema([*(partials.field(key) for key in keys), partials.field(name)])
