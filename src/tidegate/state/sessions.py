"""Sessions: stretches of rows of one key that are less than a gap apart.

A session is a partial aggregate with a start and an end, which is its last row's time plus the gap. Sessions
of one key that overlap are one session; those that only touch are two. Rows are sessions of one row each, so
rows become sessions, and sessions merge, by the same function, for a batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.dense import Call
from tidegate.state.functions import Part
from tidegate.state.keygroups import canonical
from tidegate.state.order import one_nan
from tidegate.state.partial import END, WINDOW, Layout, fitted, merged_columns, too_large
from tidegate.state.plain import plain
from tidegate.state.runs import empty_batch

Ints = npt.NDArray[np.int64]

_SESSION = "__session"
_I64_MAX = (1 << 63) - 1


def sessions_of_rows(table: pa.Table, layout: Layout, event_time: str, gap: int, schema: pa.Schema) -> pa.RecordBatch:
    """The sessions of raw rows among themselves.

    A row without a time, or so near the end of time that its session has no end in 64 bits, is a session
    without a start.
    """
    times = table.column(event_time).cast(pa.int64())
    usable = pc.less_equal(times, _I64_MAX - gap).fill_null(False)
    starts = pc.if_else(usable, times, pa.scalar(None, pa.int64()))
    columns = {WINDOW: starts, END: pc.add(starts, gap)}
    for name, source in (*((key, key) for key in layout.keys), *layout.distinct.items()):
        columns[name] = canonical(_cast(table.column(source), schema.field(name)))
    for part in layout.parts:
        columns |= _lifted(table, part, schema.field(part.name), times)
    return merged_sessions(pa.table(columns), layout, schema)


def merged_sessions(table: pa.Table, layout: Layout, schema: pa.Schema, *, counted: bool = False) -> pa.RecordBatch:
    """Sessions of the same key that overlap become one; all others stay.

    Rows of one session have its start and its end; there is one for each value distinguished, or one in all with
    ``counted``, where such values are counted (the schema has the counts then).
    """
    if not table.num_rows:
        return empty_batch(schema)
    starts, ends, missing = _bounds(table)
    codes = key_codes(table, layout.keys)
    # A session may begin at the beginning of time, where rows without a start are put.
    order, numbers, first, last = _merge(codes if missing is None else 2 * codes + missing, starts, ends)
    table = table.take(pa.array(order)).append_column(_SESSION, pa.array(numbers))
    by = (_SESSION,) if counted else (_SESSION, *layout.distinct)
    counts: list[Call] = [(name, "count_distinct") for name in layout.distinct] if counted else []
    session, *rest = merged_columns(table, by, layout.parts, counts)
    number = session.to_numpy()
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))[number]  # the first row of each session, for its key
    unplaced = missing[order][begins] if missing is not None else None
    bounds = [pa.array(values[number], mask=unplaced) for values in (first, last)]
    keys = [pc.take(table.column(key), pa.array(begins)).combine_chunks() for key in layout.keys]
    return fitted([*bounds, *keys, *rest], schema)


def _bounds(table: pa.Table) -> tuple[Ints, Ints, npt.NDArray[np.bool_] | None]:
    """Starts and ends; rows without them are all put into one empty stretch before time."""
    start, end = table.column(WINDOW), table.column(END)
    if not start.null_count:
        return start.to_numpy(), end.to_numpy(), None
    low = -_I64_MAX - 1
    missing = start.is_null().to_numpy()
    return start.fill_null(low).to_numpy(), end.fill_null(low).to_numpy(), missing


def _merge(codes: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The rows in the order of key and start, each one's session, and the sessions' starts and ends."""
    order = np.lexsort((starts, codes))
    key, start = codes[order], starts[order]
    reach = _furthest(key, ends[order])
    new = np.ones(len(order), np.bool_)
    same_start = start[1:] == start[:-1]
    new[1:] = (key[1:] != key[:-1]) | ((start[1:] >= reach[:-1]) & ~same_start)
    numbers = np.cumsum(new) - 1
    edges = np.flatnonzero(new)
    return order, numbers, start[edges], reach[np.append(edges[1:], len(order)) - 1]


def _furthest(key: Ints, ends: Ints) -> Ints:
    """For each row the largest end of its key so far. Ends are numbered by size, so that key and end fit one
    number and one running maximum does."""
    sizes, ranks = np.unique(ends, return_inverse=True)
    reached: Ints = np.maximum.accumulate(key * len(sizes) + ranks)
    return np.asarray(sizes[reached - key * len(sizes)])


def key_codes(table: pa.Table, keys: Sequence[str]) -> Ints:
    """A small number for every row, equal where all keys are. Null is a key like any other."""
    codes = np.zeros(table.num_rows, np.int64)
    for key in keys:
        column = table.column(key).combine_chunks()
        encoded = column.dictionary_encode(null_encoding="encode")
        values = encoded.indices.to_numpy().astype(np.int64)
        both = codes * len(encoded.dictionary) + values
        codes = pa.array(both).dictionary_encode().indices.to_numpy().astype(np.int64) if codes.any() else values
    return codes


def _lifted(table: pa.Table, part: Part, field: pa.Field, times: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """What a part is for one row."""
    if part.column is None:
        return {part.name: pa.array(np.ones(table.num_rows, np.int64))}
    column = table.column(part.column)
    if part.function == "count":
        return {part.name: column.is_valid().cast(pa.int64())}
    if part.by_time:
        return {part.name: one_nan(_cast(column, field)), part.time: times}
    return {part.name: _cast(column, field)}


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    kind = field.type
    column = column.cast(plain(column.type)) if plain(column.type) != column.type else column
    try:
        return column if column.type == kind else column.cast(kind, safe=pa.types.is_integer(kind))
    except pa.ArrowInvalid as error:
        raise too_large(field.name, error) from error
