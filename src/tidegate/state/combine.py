"""Two partials of the same key, row by row: what a key had, and what has come.

Unlike grouping this needs no hash table, because the rows are side by side already. Nulls mean nothing yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.functions import Part
from tidegate.state.order import comparable
from tidegate.state.partial import too_large


def combined(old: pa.RecordBatch, new: pa.RecordBatch, parts: Sequence[Part], counts: Sequence[str] = ()) -> pa.RecordBatch:
    """The rows of ``new`` with the parts of both. ``counts`` are columns that are added up like parts."""
    columns = {name: new.column(name) for name in new.schema.names}
    for name in counts:
        columns[name] = _sum(name, old.column(name), new.column(name))
    for part in parts:
        if part.by_time:
            columns |= _chosen(old, new, part)
        elif part.merge == "sum":
            columns[part.name] = _sum(part.name, old.column(part.name), new.column(part.name))
        else:
            mine, theirs = old.column(part.name), new.column(part.name)
            columns[part.name] = _either(_beats(theirs, mine, smaller=part.function == "min"), theirs, mine)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=new.schema)


def _sum(name: str, old: pa.Array, new: pa.Array) -> pa.Array:
    if old.null_count == len(old):
        return new
    try:
        both = pc.add_checked(_wide(old), _wide(new)).cast(new.type)
    except pa.ArrowInvalid as error:
        raise too_large(name, error) from error
    return pc.coalesce(both, old, new)


def _wide(column: pa.Array) -> pa.Array:
    """Decimals with room for a sum: Arrow adds a digit, and the widest type has none left."""
    kind = column.type
    return column.cast(pa.decimal256(75, kind.scale)) if pa.types.is_decimal(kind) else column


def _chosen(old: pa.RecordBatch, new: pa.RecordBatch, part: Part) -> dict[str, pa.Array]:
    smaller = part.function == "first"
    earlier = _beats(new.column(part.time), old.column(part.time), smaller=smaller)
    equal = pc.equal(new.column(part.time), old.column(part.time)).fill_null(False)
    value = _beats(comparable(new.column(part.name)), comparable(old.column(part.name)), smaller=smaller)
    wins = pc.or_(earlier, pc.and_(equal, value))
    return {name: _either(wins, new.column(name), old.column(name)) for name in part.columns}


def _beats(new: pa.Array, old: pa.Array, *, smaller: bool) -> pa.Array:
    """Is the new value better? Any is better than none, and any number than NaN."""
    if old.null_count == len(old):
        return new.is_valid()
    compare = pc.less if smaller else pc.greater
    better = compare(new, old).fill_null(False)
    if pa.types.is_floating(new.type):
        better = pc.or_(better, pc.and_(pc.is_nan(old), pc.invert(pc.is_nan(new))).fill_null(False))
    return pc.or_(better, pc.and_(old.is_null(), new.is_valid()))


def _either(wins: pa.Array, new: pa.Array, old: pa.Array) -> pa.Array:
    return pc.if_else(wins, new, old)
