"""Partial aggregates: which columns they have, how partials merge, and how results come of them.

What each function keeps and means is in ``functions``. A null key is a key like any other. An integer sum that leaves 64 bits is
an error, never a wrapped number, and so is a decimal sum of more than 38 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.state import dense
from tidegate.state.dense import Call
from tidegate.state.functions import AggregateColumn, Part
from tidegate.state.order import comparable
from tidegate.state.plain import plain

WINDOW = "__window"
END = "__end"
ROWS = "__rows"

_I64_LIMIT = 1 << 63
_EXACT = Context(prec=80)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns partials have: ``time_columns`` (where in time), the keys, the distinct values, the parts."""

    keys: tuple[str, ...]
    aggregates: tuple[AggregateColumn, ...]
    time_columns: tuple[str, ...] = (WINDOW,)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order of their columns."""
        return parts_of(self.aggregates)

    @property
    def distinct(self) -> dict[str, str]:
        """The columns of values to be counted once, with the columns of the rows that they come from."""
        return {each.distinct_column: str(each.column) for each in self.aggregates if each.distinct_column is not None}

    @property
    def by(self) -> tuple[str, ...]:
        """What distinguishes one partial from another."""
        return (*self.time_columns, *self.keys, *self.distinct)

    @property
    def names(self) -> list[str]:
        """All columns, in order."""
        return [*self.by, *(name for part in self.parts for name in part.columns)]


def parts_of(aggregates: Sequence[AggregateColumn]) -> tuple[Part, ...]:
    """The partial columns of these aggregates, in their order.

    Without a plain count there is a hidden count of rows.
    """
    parts = [part for aggregate in aggregates for part in aggregate.parts]
    if not any(part.function == "count_all" for part in parts):
        parts.insert(0, Part(ROWS, "count_all"))
    return tuple(parts)


def rows_column(aggregates: Sequence[AggregateColumn]) -> str:
    """The partial column that counts rows."""
    return next(part.name for part in parts_of(aggregates) if part.function == "count_all")


def partial_schema(
    keys: Sequence[str],
    aggregates: Sequence[AggregateColumn],
    input: pa.Schema,
    time_columns: tuple[str, ...] = (WINDOW,),
) -> pa.Schema:
    """The columns of partial aggregates: where in time they are, the keys, distinct values, the parts."""
    layout = Layout(tuple(keys), tuple(aggregates), time_columns)
    fields = [pa.field(name, pa.int64()) for name in time_columns]
    fields += [pa.field(key, plain(_field(input, key).type)) for key in keys]
    fields += [pa.field(name, _distinct_type(column, input)) for name, column in layout.distinct.items()]
    for part in layout.parts:
        fields.append(pa.field(part.name, _part_type(part, input)))
        if part.by_time:
            fields.append(pa.field(part.time, pa.int64()))
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidUseError(f"keys and aggregates need different names: rename one clash={twice}")
    return pa.schema(fields)


def work_type(part: Part, kind: pa.DataType) -> pa.DataType:
    """The type to which a part's input is cast before it is aggregated."""
    kind = plain(kind)
    if part.function in ("count", "count_all"):
        return kind
    if part.as_float:
        return pa.float64()
    if pa.types.is_float16(kind):
        return pa.float32()
    if part.function == "sum" and pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return pa.int64() if part.function != "sum" and pa.types.is_duration(kind) else kind


def grouped(table: pa.Table, keys: Sequence[str], calls: Sequence[Call]) -> list[pa.Array]:
    """The distinct keys and the results of the calls, one array per column."""
    found = dense.grouped(table, keys, calls)
    if found is not None:
        return found
    result = pa.TableGroupBy(table, list(keys), use_threads=False).aggregate(list(calls)).combine_chunks()
    return [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in result.itercolumns()]


def summable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The column, in a wider type if its sum might leave the one it has: the cast of the result back is then
    checked. Arrow itself would wrap."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return _summable_decimals(column)
    if not pa.types.is_integer(kind) or kind.bit_width < 64 or len(column) == column.null_count:
        return column
    bounds = pc.min_max(column).as_py()
    if max(abs(bounds["min"]), abs(bounds["max"])) * len(column) < _I64_LIMIT:
        return column
    return column.cast(pa.decimal128(38, 0))


def _summable_decimals(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    digits = 38 if kind.bit_width <= 128 else 76
    if kind.precision + len(str(len(column))) <= digits or len(column) == column.null_count:
        return column
    bounds = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"]), abs(bounds["max"]))
    if int(largest.scaleb(kind.scale, _EXACT)) * len(column) < 10**digits:
        return column
    if digits == 76:
        raise InvalidUseError("a sum may be too large for its column: sum a float")
    return column.cast(pa.decimal256(76, kind.scale))


def fitted(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of this schema; every column is cast where it must be.

    A value that does not fit is an error.
    """
    arrays = [column if column.type == field.type else _fit(column, field) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fit(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise too_large(field.name, error) from error


def too_large(part: str, error: Exception) -> InvalidUseError:
    """What a sum that leaves its type says, in whichever step it does."""
    result = part.removesuffix("__s")
    return InvalidUseError(
        f"a sum is too large for its type: cast the column to decimal128(38, 0) or float64 before result={result} ({error})"
    )


def merge_partials(batches: Sequence[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    """One row per window, key and distinct value, of all these partials. The batches share one schema."""
    table = pa.Table.from_batches(batches)
    return fitted(merged_columns(table, layout.by, layout.parts), batches[0].schema)


def counted_partials(batches: Sequence[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    """One row per window and key: as ``merge_partials``, with distinct values counted."""
    if not layout.distinct:
        return merge_partials(batches, layout)
    table = pa.Table.from_batches(batches)
    by = (*layout.time_columns, *layout.keys)
    counts: list[Call] = [(name, "count_distinct") for name in layout.distinct]
    columns = merged_columns(table, by, layout.parts, counts)
    names = [*by, *layout.distinct, *layout.names[len(layout.by) :]]
    return pa.RecordBatch.from_arrays(columns, names=names)


def merged_columns(table: pa.Table, by: Sequence[str], parts: Sequence[Part], counts: Sequence[Call] = ()) -> list[pa.Array]:
    """Partials by these columns: the columns, then the results of ``counts``, then those of the parts."""
    columns = {name: table.column(name) for name in (*by, *(str(name) for name, _ in counts))}
    calls, orders = list(counts), {}
    for part in parts:
        if part.by_time:
            orders[part.name], ranks = ranked(table.column(part.name), table.column(part.time))
            columns[part.name] = ranks
            calls.append((part.name, "min" if part.function == "first" else "max"))
        else:
            column = table.column(part.name)
            columns[part.name] = summable(column) if part.may_overflow else column
            calls.append((part.name, part.merge))
    found = grouped(pa.table(columns), by, calls)
    head = len(by) + len(counts)
    values = found[:head]
    for part, column in zip(parts, found[head:], strict=True):
        if part.by_time:
            rows = orders[part.name].take(column)
            values += [taken(table.column(name), rows) for name in part.columns]
        else:
            values.append(column)
    return values


def ranked(values: pa.ChunkedArray, times: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """The rows in the order of time and value, and each row's index in it; null for a null value or time.

    So the first of a group is the one with the smallest rank, which every kind of grouping can find.
    """
    table = pa.table({"t": times, "v": comparable(values)})
    order = pc.sort_indices(table, sort_keys=[("t", "ascending"), ("v", "ascending")])
    ranks = np.empty(len(order), np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    valid = pc.and_(values.is_valid(), times.is_valid()).to_numpy()
    return order, pa.array(ranks, mask=~valid)


def taken(column: pa.ChunkedArray, rows: pa.Array) -> pa.Array:
    """These rows of a column as one array."""
    found = column.take(rows)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def results(partials: pa.RecordBatch, aggregates: Sequence[AggregateColumn]) -> list[pa.Array]:
    """The result column of every aggregate, of merged partials."""
    return [aggregate.result(partials) for aggregate in aggregates]


def _part_type(part: Part, input: pa.Schema) -> pa.DataType:
    if part.column is None or part.function == "count":
        return pa.int64()
    kind = _field(input, part.column).type
    if part.by_time:
        return _sortable(part, plain(kind))
    probe = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], work_type(part, kind))})
    try:
        result = grouped(probe, ("k",), [("v", part.function)])[1].type
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        message = f"{part.function} does not work on {kind}: use another column column={part.column}"
        raise InvalidUseError(message) from error
    return pa.int64() if pa.types.is_integer(result) and part.function == "sum" else result


def _sortable(part: Part, kind: pa.DataType) -> pa.DataType:
    """The type, if windows can sort it and running aggregates can compare it."""
    try:
        ranked(pa.chunked_array([pa.nulls(2, kind)]), pa.chunked_array([pa.nulls(2, pa.int64())]))
        pc.less(*(comparable(pa.nulls(1, kind)) for _ in range(2)))
    except (pa.ArrowException, TypeError) as error:
        message = f"{part.function} does not work on {kind}: use another column column={part.column}"
        raise InvalidUseError(message) from error
    return kind


def _distinct_type(column: str, input: pa.Schema) -> pa.DataType:
    kind = plain(_field(input, column).type)
    try:
        pc.equal(pa.array([], kind), pa.array([], kind))
        grouped(pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], kind)}), ("k", "v"), [("v", "count_distinct")])
    except (pa.ArrowException, TypeError) as error:
        message = f"count_distinct does not work on {kind}: use another column column={column}"
        raise InvalidUseError(message) from error
    return kind


def _field(schema: pa.Schema, name: str) -> pa.Field:
    if schema.get_field_index(name) < 0:
        raise InvalidUseError(f"no such column, or more than one column={name} columns={schema.names}")
    return schema.field(name)
