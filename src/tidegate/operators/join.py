"""The windowed inner join: keeps both sides' rows by pane and emits the pairs when windows close.

A window may have far more pairs than rows. So pairs are numbered, and pieces of them are made one at a time:
what is held is the rows, an order of the right side by key, and one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.operators.closing import CLOSE_BYTES, WindowedOperator
from tidegate.operators.expression import only_columns
from tidegate.operators.window import Window
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Port
from tidegate.plan.schemas import BOUNDS, column_texts, join_schema, keyed_shape
from tidegate.state.keygroups import canonical
from tidegate.state.partial import fitted
from tidegate.state.pending import Parts
from tidegate.state.plain import plain
from tidegate.state.run import PIECE_ROWS, Run
from tidegate.state.runs import concatenated
from tidegate.values import Json

PANE_COLUMNS = ("__left", "__right")
"""The name of a run's pane column tells which side it is of."""

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WindowJoin(OperatorSpec):
    """Pairs of rows with the same key in the same window, emitted when the window closes. Port 0 is left, port 1 right."""

    description = Description("join", "Join", keyed=True, stateful=True, chained=False, waits_for_time=True)

    keys: tuple[str, ...]
    window: Window

    def with_inputs(self, inputs: Sequence[OperatorSpec | Port]) -> WindowJoin:
        """The columns follow those of both sides."""
        if tuple(inputs) == self.inputs:
            return self
        return replace(self, inputs=tuple(inputs), schema=joined_schema(self.keys, *inputs))

    def meaning(self) -> Json:
        """Keys and windows."""
        return [list(self.keys), self.window.meaning()]

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """A side's keys, time and wanted columns.

        A left column that makes a right one have its suffix stays, to keep the name.
        """
        left, right = ([name for name in each.schema.names if name not in self.keys] for each in self.inputs)
        results = self.schema.names[len(self.keys) + len(BOUNDS) :]
        left_results, right_results = results[: len(left)], results[len(left) :]
        wanted_right = {name for name, result in zip(right, right_results, strict=True) if result in wanted}
        wanted_left = {name for name, result in zip(left, left_results, strict=True) if result in wanted | wanted_right}
        time = self.inputs[port].event_time
        assert time is not None
        return frozenset({*self.keys, time, *(wanted_left, wanted_right)[port]})

    def narrowed(self, inputs: tuple[OperatorSpec, ...], wanted: frozenset[str], exact: bool) -> OperatorSpec:
        """Both sides with the columns that are used."""
        sides = []
        for port, child in enumerate(inputs):
            used = self.columns_used(port, wanted)
            sides.append(only_columns(child, [name for name in child.schema.names if name in used], self.name, port))
        return self.with_inputs(sides)

    def properties(self) -> dict[str, Json]:
        """Keys and windows."""
        return {"keys": list(self.keys), "window": self.window.text(self.schema.field("window_end").type)}

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        """Both sides' rows by key and window."""
        shape = keyed_shape("join", self.keys, self.inputs[0].schema, key_groups)
        shape |= {"window": self.window.shape(), "time": str(self.schema.field("window_end").type)}
        return shape | {"left": column_texts(self.inputs[0].schema), "right": column_texts(self.inputs[1].schema)}

    def build(self, context: OperatorContext) -> WindowJoinOperator:
        """Rows of both sides by pane."""
        return WindowJoinOperator(self, context)


def joined_schema(keys: tuple[str, ...], left: OperatorSpec | Port, right: OperatorSpec | Port) -> pa.Schema:
    """The columns of a join of these two."""
    assert left.event_time is not None
    return join_schema(keys, left.schema, right.schema, left.event_time)


class WindowJoinOperator(WindowedOperator):
    """Pairs of rows with equal keys in a common window. Null keys never match, so such rows are not kept."""

    def __init__(self, spec: WindowJoin, context: OperatorContext) -> None:
        _check(spec)
        self._schemas = tuple(
            _state_schema(side.schema, pane, spec.keys) for side, pane in zip(spec.inputs, PANE_COLUMNS, strict=True)
        )
        super().__init__(
            spec.window.fixed("join"),
            spec.keys,
            spec.schema,
            context,
            dict(zip(("left", "right"), self._schemas, strict=True)),
            concatenated,
            lambda batch: batch.num_rows,
        )
        self._spec = spec
        self._times = tuple(str(side.event_time) for side in spec.inputs)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the rows of one side. Emits nothing."""
        batch = _with_all_keys(batch, self._spec.keys)
        if batch.num_rows:
            self._inputs[port].insert(self._state_rows(port, batch))
        return ()

    def _state_rows(self, port: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._schemas[port]
        panes = self.windows.panes(batch.column(self._times[port]))
        columns = [panes, *batch.columns]
        for index in (schema.get_field_index(key) for key in self._spec.keys):
            columns[index] = canonical(columns[index].cast(schema.field(index).type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _emit(self, step: Parts) -> Iterator[pa.RecordBatch]:
        if not all(step):
            return
        left, right = (pa.Table.from_batches(side).combine_chunks() for side in step)
        matches = self._matches(left, right)
        rows_max = _piece_rows(left, right)
        start = 0
        while start < matches.pairs:
            stop, is_between = matches.cut(start, rows_max)
            left_rows, right_rows = matches.rows(start, stop)
            yield self._output(left.take(pa.array(left_rows)), right.take(pa.array(right_rows)))
            start = stop
            if self.stopping and is_between:
                self._keep(left.slice(matches.left_rows_before(stop)), right)
                return

    def _keep(self, *sides: pa.Table) -> None:
        """What is left of a step that stops between two rows of its left side."""
        if all(side.num_rows for side in sides):
            self._pending.keep([list(map(Run, side.to_batches())) for side in sides])

    def _matches(self, left: pa.Table, right: pa.Table) -> _Matches:
        sides = ([side.column(0), *(side.column(key) for key in self._spec.keys)] for side in (left, right))
        return _match(_codes(*sides), left.num_rows)

    def _output(self, left: pa.Table, right: pa.Table) -> pa.RecordBatch:
        keys = self._spec.keys
        starts = left.column(0)
        columns = [left.column(key) for key in keys] + [starts, pc.add(starts, self.windows.size)]
        for side in (left, right):  # by index: a user's column may be called like a pane
            columns += [side.column(index) for index, name in enumerate(side.column_names) if index and name not in keys]
        return fitted([column.combine_chunks() for column in columns], self._spec.schema)


@dataclass(frozen=True, slots=True)
class _Matches:
    """The pairs, numbered by left row. ``ends[i]`` is the number after the last pair of left row i."""

    ends: Indices
    first_right: Indices
    right_order: Indices

    @property
    def pairs(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def cut(self, start: int, pairs_max: int) -> tuple[int, bool]:
        """The end of a piece that begins here, and whether it is between two left rows.

        It is if one row's pairs fit into a piece: a row that has begun must be finished before a cut.
        """
        stop = min(start + pairs_max, self.pairs)
        complete = int(self.ends[self.left_rows_before(stop) - 1]) if stop >= int(self.ends[0]) else 0
        return (complete, True) if complete > start else (stop, False)

    def left_rows_before(self, pair: int) -> int:
        """How many left rows have all their pairs before this one."""
        return int(np.searchsorted(self.ends, pair, side="right"))

    def rows(self, start: int, stop: int) -> tuple[Indices, Indices]:
        """The left and right rows of the pairs with these numbers."""
        numbers = np.arange(start, stop)
        left = np.searchsorted(self.ends, numbers, side="right")
        before = np.where(left > 0, self.ends[left - 1], 0)
        return left, self.right_order[self.first_right[left] + numbers - before]


def _match(codes: Indices, left_rows: int) -> _Matches:
    left, right = codes[:left_rows], codes[left_rows:]
    counts = np.bincount(right, minlength=int(codes.max()) + 1)
    first = np.cumsum(counts) - counts
    return _Matches(np.cumsum(counts[left]), first[left], np.argsort(right))


def _codes(left: Sequence[pa.ChunkedArray], right: Sequence[pa.ChunkedArray]) -> Indices:
    """A small number for every row of both sides, equal where all these columns are."""
    codes: Indices | None = None
    for mine, theirs in zip(left, right, strict=True):
        chunks = [*mine.chunks, *theirs.chunks]
        column = pa.chunked_array(chunks).combine_chunks().dictionary_encode()
        found = column.indices.to_numpy().astype(np.intp)
        if codes is None:
            codes = found
        elif len(column.dictionary) > 1:
            both = pa.array(codes * len(column.dictionary) + found)
            codes = both.dictionary_encode().indices.to_numpy().astype(np.intp)
    assert codes is not None
    return codes


def _with_all_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    for key in keys:
        if batch.column(key).null_count:
            batch = batch.filter(batch.column(key).is_valid())
    return batch


def _piece_rows(left: pa.Table, right: pa.Table) -> int:
    """How many pairs one piece has: fewer if rows are wide."""
    pair_bytes: int = left.nbytes // left.num_rows + right.nbytes // right.num_rows
    return max(1, min(PIECE_ROWS, CLOSE_BYTES // max(1, pair_bytes)))


def _state_schema(schema: pa.Schema, pane: str, keys: Sequence[str]) -> pa.Schema:
    fields = [pa.field(field.name, plain(field.type)) if field.name in keys else field for field in schema]
    return pa.schema([pa.field(pane, pa.int64()), *fields])


def _check(spec: WindowJoin) -> None:
    if not spec.keys:
        raise InvalidUseError(f"a join needs a key operator={spec.name}")
    for key in spec.keys:
        left, right = (plain(side.schema.field(key).type) for side in spec.inputs)
        if left != right:
            raise InvalidUseError(f"the key has two types: cast one side column={key} left={left} right={right}")
    left, right = (side.schema.field(str(side.event_time)).type for side in spec.inputs)
    if left != right:
        raise InvalidUseError(f"event times have two types: cast one side left={left} right={right}")
