"""Running aggregates: one row of partials per key, for as long as the job runs.

With checkpoints, keys that changed are given once per epoch, ahead of its barrier; without, with every batch.
What is given is the key's newest result, which replaces those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import CorruptDataError
from tidegate.plan.physical import RunningAggregateSpec
from tidegate.runtime.operator import PIECE_ROWS, Frozen, Restored, Run
from tidegate.runtime.operators.keyed import Ownership, keyed_table
from tidegate.state.combine import combined
from tidegate.state.dense import Call
from tidegate.state.index import Slots
from tidegate.state.partial import Layout, fitted, grouped, merged_columns, results
from tidegate.state.table import KeyedTable

_ROW = "__row"
_NEW = "__new "
"""No key and no part of an aggregate begins with these underscores, so nothing can clash."""


class RunningAggregate:
    """Takes partials, keeps one row per key, gives the results of keys that changed."""

    late_rows = 0

    def __init__(self, spec: RunningAggregateSpec, own: range, groups: int, *, every_batch: bool) -> None:
        self._spec = spec
        self._layout = Layout(spec.keys, spec.aggregates, ())
        self._every_batch = every_batch
        self._ownership = Ownership(spec.keys, own, groups)
        self._table = keyed_table(_state_schema(spec.input, self._layout), spec.keys)
        self._seen = {
            name: keyed_table(_seen_schema(spec.input, spec.keys, name), (*spec.keys, name))
            for name in self._layout.distinct
        }
        self._changed: list[Slots] = []
        self._is_changed = np.zeros(1024, np.bool_)

    @property
    def state_rows(self) -> int:
        """Keys, and values told apart."""
        return self._table.rows + sum(seen.rows for seen in self._seen.values())

    @property
    def state_bytes(self) -> int:
        """Bytes held for them, index included."""
        return self._table.nbytes + sum(seen.nbytes for seen in self._seen.values())

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

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Gives nothing: there are no windows."""
        return ()

    def before_barrier(self) -> Iterator[pa.RecordBatch]:
        """Give the keys that changed since the last barrier."""
        return self._give_changed()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Give the keys that changed since the last barrier."""
        return self._give_changed()

    def freeze(self) -> Frozen:
        """Runs by reference, and one with the keys that changed since the last time."""
        runs = [*self._table.cut(), *(run for seen in self._seen.values() for run in seen.cut())]
        return Frozen(self._ownership.meta(), tuple(runs))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the rows of our keys."""
        self._ownership.check(pieces)
        tables = (self._table, *self._seen.values())
        for piece in pieces:
            for run in piece.runs:
                table = next((t for t in tables if t.schema.equals(run.batch.schema)), None)
                if table is None:
                    raise CorruptDataError(f"stored state has other columns columns={run.batch.schema.names}")
                table.restore(((run, run.batch),), self._ownership.mask)

    def _give_changed(self) -> Iterator[pa.RecordBatch]:
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
        whole = fitted([*keys, *results(rows, self._spec.aggregates)], self._spec.output)
        for start in range(0, whole.num_rows, PIECE_ROWS):
            yield whole.slice(start, PIECE_ROWS)

    # -- values told apart -------------------------------------------------------------------------------------------

    def _per_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row per key: values told apart become the number of those not seen before."""
        if not self._seen:
            return batch
        table = pa.Table.from_batches([batch])
        for name, seen in self._seen.items():
            table = table.append_column(_NEW + name, self._first_seen(batch, name, seen))
        counts: list[Call] = [(_NEW + name, "sum") for name in self._seen]
        found = merged_columns(table, self._spec.keys, self._layout.parts, counts)
        return fitted(found, self._table.schema)

    def _first_seen(self, batch: pa.RecordBatch, name: str, table: KeyedTable[Run]) -> pa.Array:
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
    """The partials' columns, with counts in place of the values told apart."""
    return pa.schema([pa.field(f.name, pa.int64()) if f.name in layout.distinct else f for f in partials])


def _seen_schema(partials: pa.Schema, keys: Sequence[str], name: str) -> pa.Schema:
    return pa.schema([*(partials.field(key) for key in keys), partials.field(name)])
